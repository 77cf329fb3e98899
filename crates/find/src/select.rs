//! Which of a repository's files are the model. Knows names only.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::FindError;

/// The quantisations that are taken first where nothing is chosen and several are there. Four
/// bits with K-quants are the usual compromise; MXFP4 is gpt-oss's own form.
pub const PREFERRED: [&str; 5] = ["Q4_K_M", "MXFP4", "Q4_0", "Q8_0", "BF16"];

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
const WHOLE: &str = "model.safetensors";
const TOKENIZER: &str = "tokenizer.json";
/// The files that Motet reads beside the weights, if they are there. A test compares them with the
/// names in `motet-text` and `motet-weights`.
const BESIDE: [&str; 10] = [
    CONFIG,
    "generation_config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.json",
    "modules.json",
    "1_Pooling/config.json",
];
/// The largest models have some hundred parts.
const PARTS_MAX: usize = 10_000;
/// Longest path of a file in a repository.
const FILE_BYTES_MAX: usize = 512;
/// Words in names of GGUF files that hold no language model.
const OTHER_CONTENT: [&str; 2] = ["mmproj", "imatrix"];

/// The model among the files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    /// A GGUF file, or all parts of one in order.
    Gguf(Vec<String>),
    /// A Hugging Face folder.
    Folder {
        /// The files beside the weights.
        beside: Vec<String>,
        /// The file of all weights, or the index that names their files.
        weights: Weights,
    },
}

/// The weights of a Hugging Face folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    Whole(String),
    Index(String),
}

/// The name of a part of a split GGUF file: `STEM-00002-of-00003.gguf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SplitPart<'a> {
    /// May contain folders.
    pub(crate) stem: &'a str,
    /// From 1.
    pub(crate) number: usize,
    pub(crate) count: usize,
}

impl<'a> SplitPart<'a> {
    pub(crate) fn of(name: &'a str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let parsed = |digits: &str| {
            let is_number = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| digits.parse().ok()).flatten()
        };
        let (number, count) = (parsed(number)?, parsed(count)?);
        let valid = (1..=count).contains(&number) && count <= PARTS_MAX;
        valid.then_some(Self {
            stem,
            number,
            count,
        })
    }

    fn name(&self) -> String {
        let Self {
            stem,
            number,
            count,
        } = self;
        format!("{stem}-{number:05}-of-{count:05}.gguf")
    }

    fn first(self) -> Self {
        Self { number: 1, ..self }
    }
}

/// A GGUF file that is a model. The parts of a split one are not listed, since a name may claim ten
/// thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum GgufModel<'a> {
    File(&'a str),
    /// Its first part, which may not exist.
    Split(SplitPart<'a>),
}

impl<'a> GgufModel<'a> {
    fn of(file: &'a str) -> Self {
        SplitPart::of(file).map_or(Self::File(file), |part| Self::Split(part.first()))
    }

    fn first(self) -> String {
        match self {
            Self::File(file) => file.to_owned(),
            Self::Split(part) => part.name(),
        }
    }

    /// The files, of a split model all parts in order.
    fn files(self) -> Vec<String> {
        match self {
            Self::File(file) => vec![file.to_owned()],
            Self::Split(part) => (1..=part.count)
                .map(|number| SplitPart { number, ..part }.name())
                .collect(),
        }
    }
}

/// The first part, if the path is of another.
pub(crate) fn first_part(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let first = SplitPart::of(name)?.first();
    Some(path.with_file_name(first.name()))
}

/// Selects the model among the files of `place`, by a choice if there is one. The names must be
/// sorted.
///
/// # Errors
///
/// [`FindError::NoModel`], [`FindError::Several`] or [`FindError::NoSuchFile`].
pub(crate) fn select(
    files: &[String],
    choice: Option<&str>,
    place: &str,
) -> Result<Selection, FindError> {
    let models = gguf_models(files);
    let Some(choice) = choice else {
        if let Some(folder) = folder(files) {
            return Ok(folder);
        }
        return preferred(&models, files, place);
    };
    // A whole name is meant, though another name contains it.
    let exact = models.iter().find(|model| **model == GgufModel::of(choice));
    if let Some(exact) = exact {
        return Ok(Selection::Gguf(exact.files()));
    }
    let of_choice = models
        .iter()
        .filter(|model| has_word(&model.first(), choice));
    match of_choice.collect::<Vec<_>>()[..] {
        [only] => Ok(Selection::Gguf(only.files())),
        [] if models.is_empty() => Err(no_model(files, place)),
        [] => Err(FindError::NoSuchFile {
            place: place.to_owned(),
            choice: choice.to_owned(),
            found: models.iter().map(|model| model.first()).collect(),
        }),
        ref several => Err(FindError::Several {
            place: place.to_owned(),
            found: several.iter().map(|model| model.first()).collect(),
        }),
    }
}

fn folder(files: &[String]) -> Option<Selection> {
    let has = |name: &str| files.iter().any(|file| file == name);
    let weights = match (has(WHOLE), has(INDEX)) {
        (true, _) => Weights::Whole(WHOLE.to_owned()),
        (false, true) => Weights::Index(INDEX.to_owned()),
        (false, false) => return None,
    };
    let beside = BESIDE.iter().filter(|name| has(name));
    let beside = beside.map(|name| (*name).to_owned()).collect();
    has(CONFIG).then_some(Selection::Folder { beside, weights })
}

fn preferred(
    models: &[GgufModel<'_>],
    files: &[String],
    place: &str,
) -> Result<Selection, FindError> {
    if let [only] = models {
        return Ok(Selection::Gguf(only.files()));
    }
    for quantisation in PREFERRED {
        let mut of_it = models
            .iter()
            .filter(|model| has_word(&model.first(), quantisation));
        if let (Some(first), None) = (of_it.next(), of_it.next()) {
            return Ok(Selection::Gguf(first.files()));
        }
    }
    if models.is_empty() {
        return Err(no_model(files, place));
    }
    Err(FindError::Several {
        place: place.to_owned(),
        found: models.iter().map(|model| model.first()).collect(),
    })
}

fn no_model(files: &[String], place: &str) -> FindError {
    FindError::NoModel {
        place: place.to_owned(),
        found: files.to_vec(),
    }
}

/// The GGUF files that are models, in the order of the files.
fn gguf_models(files: &[String]) -> Vec<GgufModel<'_>> {
    let is_model = |file: &&String| {
        let name = file.to_lowercase();
        name.ends_with(".gguf") && !OTHER_CONTENT.iter().any(|word| name.contains(word))
    };
    let mut seen = HashSet::new();
    let models = files.iter().filter(is_model);
    let models = models.map(|file| GgufModel::of(file));
    models.filter(|model| seen.insert(*model)).collect()
}

/// Whether the name contains the word in any case, and no letter, digit or `_` around it:
/// `small-Q4_0.gguf` has `q4_0` and not `Q4`.
fn has_word(name: &str, word: &str) -> bool {
    let (name, word) = (name.to_ascii_lowercase(), word.to_ascii_lowercase());
    let is_free = |letter: Option<char>| letter.is_none_or(|l| !l.is_alphanumeric() && l != '_');
    name.match_indices(&word).any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + word.len()..].chars().next();
        is_free(before) && is_free(after)
    })
}

/// Whether a file of that name lies in its repository's folder, on any system.
pub(crate) fn is_inside(file: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_plain = |letter: char| !letter.is_control() && !"\\:".contains(letter);
    file.len() <= FILE_BYTES_MAX && file.split('/').all(is_part) && file.chars().all(is_plain)
}

/// The files that an index names, sorted.
///
/// # Errors
///
/// The mistake in the index.
pub(crate) fn shards(index: &[u8]) -> Result<Vec<String>, String> {
    let index: Value = serde_json::from_slice(index).map_err(|error| error.to_string())?;
    let map = index["weight_map"]
        .as_object()
        .ok_or("it has no `weight_map`")?;
    let mut shards = Vec::new();
    for shard in map.values() {
        let name = shard
            .as_str()
            .filter(|name| !name.contains('/') && is_inside(name));
        shards.push(name.ok_or("it names no files of its folder")?.to_owned());
    }
    shards.sort();
    shards.dedup();
    Ok(shards)
}

/// The path of the model among the files of a folder on this machine.
///
/// # Errors
///
/// As for [`select`], and [`FindError::Incomplete`] where a file of the model is missing.
pub(crate) fn in_folder(
    folder: &Path,
    files: &[String],
    choice: Option<&str>,
    place: &str,
) -> Result<PathBuf, FindError> {
    in_snapshot(folder, files, files, choice, place)
}

/// The same for a folder that has some of a repository's files: the model is selected among `all`
/// of them, and its files must be there.
///
/// # Errors
///
/// As for [`in_folder`].
pub(crate) fn in_snapshot(
    folder: &Path,
    files: &[String],
    all: &[String],
    choice: Option<&str>,
    place: &str,
) -> Result<PathBuf, FindError> {
    let missing = |needed: &[String]| {
        let missing = needed.iter().find(|name| !files.contains(name));
        missing.map_or(Ok(()), |file| {
            let (place, file) = (place.to_owned(), file.clone());
            Err(FindError::Incomplete { place, file })
        })
    };
    match select(all, choice, place)? {
        Selection::Gguf(parts) => {
            missing(&parts)?;
            Ok(folder.join(&parts[0]))
        }
        Selection::Folder { beside, weights } => {
            missing(&[TOKENIZER.to_owned()])?;
            missing(&beside)?;
            let (Weights::Whole(file) | Weights::Index(file)) = &weights;
            missing(std::slice::from_ref(file))?;
            if let Weights::Index(index) = weights {
                let path = folder.join(index);
                let json =
                    std::fs::read(&path).map_err(|error| FindError::io("read", &path, error))?;
                let shards = shards(&json).map_err(|what| FindError::Damaged { path, what })?;
                missing(&shards)?;
            }
            Ok(folder.to_owned())
        }
    }
}

#[cfg(test)]
mod tests;
