//! The families of models, one file for each.
//!
//! A family says how it is called in both containers, turns a configuration into a
//! [`Blueprint`], and lists the tensors that its files call or store otherwise than Llama's. A
//! new family is a file beside these and a line in [`FAMILIES`].

mod check;
mod experts;
mod windows;

mod gemma2;
mod gemma3;
mod gpt_oss;
mod granite;
mod granitemoehybrid;
mod lfm2;
mod llama;
mod ministral3;
mod mistral;
mod mixtral;
mod olmo2;
mod olmoe;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod smollm3;

use super::ModelError;
use super::blueprint::Blueprint;
use super::fields::Fields;
use super::gguf::GgufMetadata;
use super::huggingface::Folder;
use super::names::Name;
use super::settings::{FieldDefault, Rules, Settings};

pub(crate) use check::check;

/// A family of models.
#[derive(Debug)]
pub(crate) struct Family {
    /// Its name in a [`Blueprint`].
    pub(crate) name: &'static str,
    /// Classes of Transformers, as in `architectures` of `config.json`.
    pub(crate) classes: &'static [&'static str],
    /// Values of `model_type`, also in the `text_config` of a multimodal model.
    pub(crate) model_types: &'static [&'static str],
    /// Values of `general.architecture` in GGUF files.
    pub(crate) gguf: &'static [&'static str],
    /// Turns a configuration into a description.
    pub(crate) read: fn(&Settings<'_>) -> Result<Blueprint, ModelError>,
    /// Tensors with other names, or in another form, than [`COMMON`](super::names::COMMON) says.
    pub(crate) names: &'static [Name],
    /// Values of fields that files leave out.
    pub(crate) defaults: &'static [(&'static str, FieldDefault)],
    /// Other names of fields: the usual one first. The other one counts where a file has both.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    /// Whether rotary embeddings may turn a part of each head.
    pub(crate) partial_rope: bool,
    /// Whether folders may be quantised to MXFP4.
    pub(crate) mxfp4: bool,
}

impl Family {
    /// How the family treats fields.
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            family: self.name,
            defaults: self.defaults,
            aliases: self.aliases,
            partial_rope: self.partial_rope,
        }
    }
}

/// A family without peculiarities: a base for the others' definitions.
const PLAIN: Family = Family {
    name: "",
    classes: &[],
    model_types: &[],
    gguf: &[],
    read: llama::llama,
    names: &[],
    defaults: &[],
    aliases: &[],
    partial_rope: false,
    mxfp4: false,
};

/// All families.
pub(crate) const FAMILIES: &[&Family] = &[
    &llama::FAMILY,
    &mistral::FAMILY,
    &ministral3::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &smollm3::FAMILY,
    &phi3::FAMILY,
    &olmo2::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &granite::FAMILY,
    &qwen3_moe::FAMILY,
    &olmoe::FAMILY,
    &mixtral::FAMILY,
    &gpt_oss::FAMILY,
    &lfm2::FAMILY,
    &qwen3_5::FAMILY,
    &qwen3_5_moe::FAMILY,
    &granitemoehybrid::FAMILY,
];

/// The family of a folder: by the class that Transformers would load, or else by the model's
/// type. The class of a multimodal model wraps a language model, whose type tells its family.
pub(crate) fn of_folder(folder: &Folder) -> Result<&'static Family, ModelError> {
    let json = folder.whole();
    let class = json
        .get("architectures")
        .and_then(|classes| classes.get(0)?.as_str());
    let model_type = folder.text().text("model_type")?;
    let is_type =
        |family: &&Family| model_type.is_some_and(|one| family.model_types.contains(&one));
    let Some(class) = class else {
        let expected = "the type of a known model, such as `llama`";
        let name = json.required("model_type", model_type, expected)?;
        return find(|family| is_type(&family))
            .ok_or_else(|| unknown(json, name, |family| family.model_types));
    };
    let of_class = |family: &Family| family.classes.contains(&class);
    let by_class = find(|family| of_class(family) && is_type(&family)).or_else(|| find(of_class));
    let by_class = by_class.ok_or_else(|| unknown(json, class, |family| family.classes))?;
    match folder.nested().zip(model_type) {
        Some((text, name)) => find(|family| is_type(&family))
            .ok_or_else(|| unknown(text, name, |family| family.model_types)),
        None => Ok(by_class),
    }
}

/// The family of a GGUF file, and the architecture that it names.
pub(crate) fn of_gguf(metadata: &GgufMetadata) -> Result<(&'static Family, &str), ModelError> {
    let name = "general.architecture";
    let expected = "the name of a known architecture, such as `llama`";
    let architecture = metadata.required(name, metadata.text(name)?, expected)?;
    match find(|family| family.gguf.contains(&architecture)) {
        Some(family) => Ok((family, architecture)),
        None => Err(unknown(metadata, architecture, |family| family.gguf)),
    }
}

fn find(is: impl Fn(&Family) -> bool) -> Option<&'static Family> {
    FAMILIES.iter().copied().find(|family| is(family))
}

/// The error for an architecture that no family has.
fn unknown(
    fields: &impl Fields,
    found: &str,
    names: impl Fn(&Family) -> &'static [&'static str],
) -> ModelError {
    let mut known: Vec<&'static str> = Vec::new();
    for name in FAMILIES.iter().flat_map(|family| names(family)) {
        if !known.contains(name) {
            known.push(name);
        }
    }
    // The start of a long name tells enough, and bounds the work.
    let start: String = found.chars().take(100).collect();
    let nearest = known.iter().min_by_key(|name| distance(&start, name));
    ModelError::Architecture {
        path: fields.path().to_owned(),
        found: start.clone(),
        nearest: nearest.copied().unwrap_or_default(),
        known: known.join(", "),
    }
}

/// Insertions, removals and replacements of characters between two words (Levenshtein 1966),
/// without regard to case.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().flat_map(char::to_lowercase).collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, own) in one.chars().flat_map(char::to_lowercase).enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (at, char) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(own != *char);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(diagonal + 1).min(row[at] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::{FAMILIES, Family, distance};

    #[test]
    fn words_have_a_distance() {
        for (one, other, expected) in [
            ("", "", 0),
            ("qwen", "", 4),
            ("", "qwen", 4),
            ("Qwen3", "qwen2", 1),
            ("lama", "llama", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn each_name_belongs_to_one_family() {
        let lists: [fn(&Family) -> &'static [&'static str]; 2] =
            [|family| family.model_types, |family| family.gguf];
        for list in lists {
            let mut names: Vec<&str> = FAMILIES
                .iter()
                .flat_map(|family| list(family))
                .copied()
                .collect();
            names.sort_unstable();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        }
    }
}
