//! Which of a repository's files are the model. Knows names only.

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
/// The files that Motet reads beside the weights, if they are there.
const BESIDE: [&str; 8] = [
    CONFIG,
    "generation_config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "chat_template.jinja",
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    fn all(&self) -> Vec<String> {
        let (stem, count) = (self.stem, self.count);
        (1..=count)
            .map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf"))
            .collect()
    }
}

/// The first part, if the path is of another.
pub(crate) fn first_part(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let first = SplitPart::of(name)?.all().swap_remove(0);
    Some(path.with_file_name(first))
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
    let names = || models.iter().map(|files| files[0].clone()).collect();
    let chosen: Vec<&Vec<String>> = models
        .iter()
        .filter(|files| files.iter().any(|file| file == choice) || has_word(&files[0], choice))
        .collect();
    // A whole name is meant, though another name contains it.
    let exact = chosen
        .iter()
        .find(|files| files.iter().any(|file| file == choice));
    match (exact, &chosen[..]) {
        (Some(files), _) | (None, [files]) => Ok(Selection::Gguf((*files).clone())),
        (None, []) if models.is_empty() => Err(no_model(files, place)),
        (None, []) => Err(FindError::NoSuchFile {
            place: place.to_owned(),
            choice: choice.to_owned(),
            found: names(),
        }),
        (None, several) => Err(FindError::Several {
            place: place.to_owned(),
            found: several.iter().map(|files| files[0].clone()).collect(),
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
    models: &[Vec<String>],
    files: &[String],
    place: &str,
) -> Result<Selection, FindError> {
    if let [only] = models {
        return Ok(Selection::Gguf(only.clone()));
    }
    for quantisation in PREFERRED {
        let mut of_it = models
            .iter()
            .filter(|files| has_word(&files[0], quantisation));
        if let (Some(first), None) = (of_it.next(), of_it.next()) {
            return Ok(Selection::Gguf(first.clone()));
        }
    }
    if models.is_empty() {
        return Err(no_model(files, place));
    }
    Err(FindError::Several {
        place: place.to_owned(),
        found: models.iter().map(|files| files[0].clone()).collect(),
    })
}

fn no_model(files: &[String], place: &str) -> FindError {
    FindError::NoModel {
        place: place.to_owned(),
        found: files.to_vec(),
    }
}

/// The GGUF files that are models, each with all of its parts.
fn gguf_models(files: &[String]) -> Vec<Vec<String>> {
    let is_model = |file: &&String| {
        let name = file.to_lowercase();
        name.ends_with(".gguf") && !OTHER_CONTENT.iter().any(|word| name.contains(word))
    };
    let mut models: Vec<Vec<String>> = Vec::new();
    for file in files.iter().filter(is_model) {
        let parts = SplitPart::of(file).map_or_else(|| vec![file.clone()], |part| part.all());
        // Parts stand beside each other in a sorted list.
        if models.last() != Some(&parts) {
            models.push(parts);
        }
    }
    models
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
    let missing = |needed: &[String]| {
        let missing = needed.iter().find(|name| !files.contains(name));
        missing.map_or(Ok(()), |file| {
            let (place, file) = (place.to_owned(), file.clone());
            Err(FindError::Incomplete { place, file })
        })
    };
    match select(files, choice, place)? {
        Selection::Gguf(parts) => {
            missing(&parts)?;
            Ok(folder.join(&parts[0]))
        }
        Selection::Folder { weights, .. } => {
            missing(&[TOKENIZER.to_owned()])?;
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
mod tests {
    use super::*;

    fn sorted(files: &str) -> Vec<String> {
        let mut files: Vec<String> = files.split_whitespace().map(str::to_owned).collect();
        files.sort();
        files
    }

    /// The files of the model, or the error.
    fn check(files: &str, choice: Option<&str>, expected: Result<&str, &str>) {
        let selected = match select(&sorted(files), choice, "hf:o/n") {
            Ok(Selection::Gguf(files)) => Ok(files.join(" ")),
            Ok(Selection::Folder { beside, weights }) => Ok(match weights {
                Weights::Whole(file) | Weights::Index(file) => {
                    [&beside[..], &[file]].concat().join(" ")
                }
            }),
            Err(error) => Err(error.to_string()),
        };
        match (&selected, expected) {
            (Ok(selected), Ok(expected)) => assert_eq!(selected, expected, "{files}: {choice:?}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            _ => panic!("{files}: {choice:?}: {selected:?}"),
        }
    }

    #[test]
    fn the_model_is_selected() {
        let three = "README.md m-Q8_0.gguf m-q4_k_m.gguf m-Q4_K_S.gguf mmproj-F16.gguf";
        check(three, None, Ok("m-q4_k_m.gguf"));
        check(three, Some("Q8_0"), Ok("m-Q8_0.gguf"));
        check(three, Some("q4_k_s"), Ok("m-Q4_K_S.gguf"));
        check(three, Some("m-Q8_0.gguf"), Ok("m-Q8_0.gguf"));
        check(
            three,
            Some("Q4_K"),
            Err("has no GGUF file `Q4_K`; it has m-Q4_K_S.gguf, m-Q8_0.gguf"),
        );
        check(three, Some("mmproj-F16.gguf"), Err("has no GGUF file"));
        check(
            "a.IQ2_M.gguf b.IQ2_M.gguf c.gguf",
            Some("IQ2_M"),
            Err("write `hf:o/n:FILE`"),
        );
        check(
            "a.gguf b.gguf c.gguf",
            None,
            Err(": a.gguf, b.gguf, c.gguf"),
        );
        check("a.gguf b.gguf", Some("b"), Ok("b.gguf"));
        check(
            "a-Q8_0.gguf b-Q8_0.gguf c-BF16.gguf",
            None,
            Ok("c-BF16.gguf"),
        );
        check("m.gguf big-m.gguf", Some("m.gguf"), Ok("m.gguf"));
    }

    #[test]
    fn a_split_model_is_selected_as_a_whole() {
        let parts = "Q8/m-Q8_0-00001-of-00002.gguf Q8/m-Q8_0-00002-of-00002.gguf";
        let files = format!("{parts} m-F16.gguf");
        check(&files, Some("q8_0"), Ok(parts));
        check(&files, Some("Q8/m-Q8_0-00002-of-00002.gguf"), Ok(parts));
        check(&files, None, Ok(parts));
        // The missing part is noticed where the files are.
        check(
            "m-00002-of-00002.gguf",
            None,
            Ok("m-00001-of-00002.gguf m-00002-of-00002.gguf"),
        );
        for name in [
            "m-00003-of-00002.gguf",
            "m-00000-of-00002.gguf",
            "m-1-of-2.gguf",
            "m.gguf",
        ] {
            assert_eq!(SplitPart::of(name), None, "{name}");
        }
    }

    #[test]
    fn a_folder_of_safetensors_comes_first() {
        let beside = "config.json tokenizer.json tokenizer_config.json chat_template.jinja";
        let files = format!("{beside} model.safetensors pytorch_model.bin m-Q8_0.gguf x.py");
        check(&files, None, Ok(&format!("{beside} model.safetensors")));
        check(&files, Some("Q8_0"), Ok("m-Q8_0.gguf"));
        let sharded = format!("{beside} {INDEX} model-00001-of-00002.safetensors");
        check(&sharded, None, Ok(&format!("{beside} {INDEX}")));
        check(
            "config.json pytorch_model.bin",
            None,
            Err("it has config.json, pytorch_model.bin; expected GGUF"),
        );
        check(
            "config.json pytorch_model.bin",
            Some("Q4_0"),
            Err("no model that Motet reads"),
        );
        check("model.safetensors", None, Err("no model that Motet reads"));
        check("", None, Err("it has nothing"));
    }

    #[test]
    fn an_index_names_files_of_its_folder_only() {
        let index =
            |shard: &str| format!(r#"{{"weight_map": {{"a": "x", "b": "{shard}", "c": "x"}}}}"#);
        assert_eq!(
            shards(index("w").as_bytes()),
            Ok(vec!["w".to_owned(), "x".to_owned()])
        );
        for shard in ["../x", "/x", "a/b", "", "."] {
            shards(index(shard).as_bytes()).expect_err(shard);
        }
        for json in ["", "[]", "{}", r#"{"weight_map": {"a": 1}}"#] {
            shards(json.as_bytes()).expect_err(json);
        }
    }
}
