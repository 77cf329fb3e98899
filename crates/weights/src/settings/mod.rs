//! A model's configuration, read from either container under the names of `config.json`.

mod lists;
mod names;
mod read;
mod rope;
mod tokens;

pub(crate) use lists::Pattern;

use motet_protocol::ModelError;
use motet_protocol::TokenId;

use super::blueprint::{Activation, Rope};
use super::fields::Fields;
use super::gguf::GgufMetadata;
use super::huggingface::Folder;
use super::limits::{CONTEXT_TOKENS_MAX, DIMENSION_MAX, LAYERS_MAX};
use super::names::Container;
use super::stored::Directory;

const FURTHER_LAYERS: &str = "num_nextn_predict_layers";

/// The configuration of a model of a known family.
///
/// Fields have their Hugging Face names in code. A GGUF file's keys are translated, and errors
/// name a field as its own file spells it. A field that the file does not mention has the
/// family's default, if there is one; a field that is `null` has none.
pub(crate) struct Settings<'a> {
    rules: Rules,
    source: Source<'a>,
    directory: &'a Directory,
}

/// How a family treats fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// The family's name.
    pub(crate) family: &'static str,
    /// Values of fields that files leave out.
    pub(crate) defaults: &'static [(&'static str, FieldDefault)],
    /// Other names of fields: the usual one first. The other one counts where a file has both.
    pub(crate) aliases: &'static [(&'static str, &'static str)],
    /// Whether rotary embeddings may turn a part of each head.
    pub(crate) partial_rope: bool,
}

/// The file behind the settings.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    HuggingFace(&'a Folder),
    Gguf {
        metadata: &'a GgufMetadata,
        architecture: &'a str,
    },
}

/// A family's value of a field that files leave out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FieldDefault {
    Count(u64),
    Number(f64),
    Flag(bool),
    Text(&'static str),
}

impl<'a> Settings<'a> {
    pub(crate) fn new(rules: Rules, source: Source<'a>, directory: &'a Directory) -> Self {
        Self {
            rules,
            source,
            directory,
        }
    }

    /// The family's name.
    pub(crate) fn family(&self) -> &'static str {
        self.rules.family
    }

    pub(crate) fn container(&self) -> Container {
        match self.source {
            Source::HuggingFace(_) => Container::HuggingFace,
            Source::Gguf { .. } => Container::Gguf,
        }
    }

    pub(crate) fn is_gguf(&self) -> bool {
        self.container() == Container::Gguf
    }

    /// Whether the files have a tensor of exactly this name.
    pub(crate) fn has_tensor(&self, name: &str) -> bool {
        self.directory.contains_key(name)
    }

    /// Whether the file has a value for the field.
    pub(crate) fn states(&self, name: &str) -> bool {
        match self.source {
            Source::HuggingFace(folder) => folder.text().get(&self.json_name(name)).is_some(),
            Source::Gguf {
                metadata,
                architecture,
            } => {
                let key = self.gguf_name(metadata, architecture, name);
                key.is_some_and(|key| metadata.contains(&key))
            }
        }
    }

    /// Number of layers.
    pub(crate) fn layers(&self) -> Result<usize, ModelError> {
        let layers = self.count_required("num_hidden_layers", LAYERS_MAX)?;
        // GGUF counts the layers that predict further tokens, which follow the others.
        let further = if self.is_gguf() {
            self.further_layers()?
        } else {
            0
        };
        if further < layers {
            return Ok(layers - further);
        }
        Err(self.wrong(
            FURTHER_LAYERS,
            format!("found {further}"),
            format!("less than the number of layers, {layers}"),
        ))
    }

    /// Number of layers that predict further tokens.
    pub(crate) fn further_layers(&self) -> Result<usize, ModelError> {
        let found = self.integer(FURTHER_LAYERS)?.unwrap_or(0);
        match usize::try_from(found) {
            Ok(further) if further <= LAYERS_MAX => Ok(further),
            _ => Err(self.wrong(
                FURTHER_LAYERS,
                format!("found {found}"),
                format!("at most {LAYERS_MAX}"),
            )),
        }
    }

    /// Token ids are below this.
    pub(crate) fn vocab_size(&self) -> Result<usize, ModelError> {
        let name = "vocab_size";
        let Source::Gguf {
            metadata,
            architecture,
        } = self.source
        else {
            return self.count_required(name, DIMENSION_MAX);
        };
        let key = format!("{architecture}.{name}");
        let list = "tokenizer.ggml.tokens";
        let tokens = metadata.strings_count(list);
        if let Some(found) = tokens
            && !(1..=DIMENSION_MAX).contains(&found)
        {
            let expected = format!("1 to {DIMENSION_MAX} tokens");
            return Err(metadata.wrong(list, format!("found {found} tokens"), expected));
        }
        let found = metadata.count(&key, DIMENSION_MAX)?.or(tokens);
        self.required(name, found, "it, or the array tokenizer.ggml.tokens")
    }

    /// Longest sequence, in tokens.
    pub(crate) fn context_tokens_max(&self) -> Result<usize, ModelError> {
        self.count_required("max_position_embeddings", CONTEXT_TOKENS_MAX)
    }

    /// The tokens of a window.
    pub(crate) fn window(&self) -> Result<Option<usize>, ModelError> {
        let name = "sliding_window";
        if self.is_gguf() && self.integer(name)? == Some(0) {
            return Ok(None);
        }
        self.count(name, CONTEXT_TOKENS_MAX)
    }

    /// Whether the output head is the embedding. GGUF files say it by leaving out the head.
    pub(crate) fn tied_embeddings(&self) -> Result<bool, ModelError> {
        if self.is_gguf() {
            return Ok(!self.has_tensor("output.weight"));
        }
        Ok(self.flag("tie_word_embeddings")?.unwrap_or(false))
    }

    /// Whether projections of attention have a bias. GGUF files say it by having the tensors.
    pub(crate) fn attention_bias(&self) -> Result<bool, ModelError> {
        if self.is_gguf() {
            let mut names = self.directory.keys();
            return Ok(names.any(|name| name.starts_with("blk.") && name.ends_with(".attn_q.bias")));
        }
        Ok(self.flag("attention_bias")?.unwrap_or(false))
    }

    /// The activation of MLPs.
    pub(crate) fn activation(&self) -> Result<Activation, ModelError> {
        let name = "hidden_act";
        match self.text(name)? {
            None | Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
            Some(other) => Err(self.wrong(
                name,
                format!("found `{other}`"),
                "`silu` or `gelu_pytorch_tanh`",
            )),
        }
    }

    /// The rotary embeddings of layers of this kind; `None` where all layers have the same.
    pub(crate) fn rope(&self, kind: Option<&str>, head_dim: usize) -> Result<Rope, ModelError> {
        match self.source {
            Source::HuggingFace(folder) => rope::of_folder(self, folder, kind, head_dim),
            Source::Gguf { metadata, .. } => {
                rope::of_gguf(self, metadata, self.directory, kind, head_dim)
            }
        }
    }

    /// The original context of rotary embeddings that were scaled, in tokens.
    pub(crate) fn original_context_tokens(&self) -> Result<usize, ModelError> {
        rope::original_context_tokens(self)
    }

    /// The factor by which queries grow with the logarithm of their position.
    pub(crate) fn position_beta(&self) -> Result<Option<f32>, ModelError> {
        match self.source {
            Source::HuggingFace(folder) => rope::position_beta(folder),
            Source::Gguf { .. } => self.positive("attention.temperature_scale"),
        }
    }

    /// An error if an option has another value than the one that is supported.
    pub(crate) fn require_flag(&self, name: &str, supported: bool) -> Result<(), ModelError> {
        match self.flag(name)? {
            Some(found) if found != supported => {
                Err(self.wrong(name, format!("found {found}"), supported.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// A human-readable name.
    pub(crate) fn model_name(&self) -> Result<String, ModelError> {
        match self.source {
            Source::HuggingFace(folder) => Ok(folder.name()),
            Source::Gguf { metadata, .. } => match metadata.get_str("general.name")? {
                Some(name) => Ok(name.to_owned()),
                None => Ok(metadata
                    .path()
                    .file_stem()
                    .map_or_else(|| "model".to_owned(), |s| s.to_string_lossy().into_owned())),
            },
        }
    }

    /// The token that a text begins with, and those that end an answer.
    pub(crate) fn tokens(
        &self,
        vocab_size: usize,
    ) -> Result<(Option<TokenId>, Vec<TokenId>), ModelError> {
        match self.source {
            Source::HuggingFace(folder) => tokens::of_folder(folder, vocab_size),
            Source::Gguf { metadata, .. } => tokens::of_gguf(metadata, vocab_size),
        }
    }
}
