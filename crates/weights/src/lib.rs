//! The files of one Llama-family model (Llama, SmolLM2, Mistral), opened and checked before
//! use.
//!
//! Two containers are supported behind one interface: a Hugging Face folder (`config.json`
//! beside safetensors, whole or sharded) and one GGUF file (llama.cpp's format, versions 2 and
//! 3). Tensors have their Hugging Face names and shapes in both. llama.cpp stores the rows of
//! the query and key projections in another order, which is undone when a tensor is read.
//!
//! Files are untrusted input. Opening them gives either a model with all its tensors, or a
//! [`ModelError`] that names the file, the field or tensor, and what was expected. There is no
//! panic, and every allocation is bounded by the size of the files.
//!
//! ```text
//! huggingface/  config.json, generation_config.json, shards ─┐
//!                                                            ├─ config + directory
//! gguf/         header, metadata, tensor table ──────────────┘          │
//!                                                    architecture: required tensors
//!                                                                       │
//!                                        ModelFiles ── tensor() ── to_f32 │ to_affine
//! ```

#![deny(unsafe_code)]

mod affine;
mod architecture;
mod config;
mod fields;
mod fingerprint;
mod gguf;
mod huggingface;
mod mapped;
mod rope_rows;
mod stored;
mod tensor;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use affine::AffineQuantised;
pub use config::{LlamaConfig, RopeScaling};
pub use gguf::GgufMetadata;
pub use tensor::{Format, Tensor};

use architecture::{Naming, Needed};
use fingerprint::Fingerprint;
use motet_core::protocol::ModelError;
use stored::{Directory, Stored};
use tensor::Formats;

/// The opened, checked files of one model.
///
/// The files stay memory-mapped for the lifetime of this value. Opening reads little more than
/// headers, and a tensor's bytes are read on request. The files must not change meanwhile:
/// another process's writes show up in the weights, and shortening a file ends this process
/// with a bus error, as with every memory-mapped file.
///
/// It is `Sync`: several threads may convert tensors at the same time.
///
/// ```no_run
/// # fn main() -> Result<(), motet_core::protocol::ModelError> {
/// use motet_weights::ModelFiles;
///
/// let files = ModelFiles::open("SmolLM2-135M-Instruct.Q4_1.gguf".as_ref())?;
/// let embeddings = files.tensor("model.embed_tokens.weight")?;
/// assert_eq!(embeddings.shape, [files.config().vocab_size, files.config().hidden_size]);
/// let weights: Vec<f32> = embeddings.to_f32();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ModelFiles {
    path: PathBuf,
    config: LlamaConfig,
    origin: Origin,
    /// Every tensor of the architecture, by its Hugging Face name.
    tensors: BTreeMap<String, LocatedTensor>,
    identity: OnceLock<u64>,
}

/// The place of the model's tokenizer and chat template.
#[derive(Clone, Copy, Debug)]
pub enum TokenizerSource<'a> {
    /// In `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` of a folder.
    /// Their existence has not been checked.
    HuggingFace {
        /// The model's folder.
        folder: &'a Path,
    },
    /// Under `tokenizer.*` of a GGUF file's metadata.
    Gguf(&'a GgufMetadata),
}

#[derive(Debug)]
enum Origin {
    HuggingFace,
    Gguf(GgufMetadata),
}

/// A required tensor, located in the files.
#[derive(Debug)]
struct LocatedTensor {
    stored: Stored,
    format: Format,
    /// Number of heads whose rows are in llama.cpp's RoPE order and must be reordered.
    interleaved_heads: Option<usize>,
}

impl ModelFiles {
    /// Opens a Hugging Face folder or a GGUF file and reads its configuration. Checks that
    /// every tensor of the architecture is present and complete, has the right shape and is in
    /// a [`Format`].
    ///
    /// # Errors
    ///
    /// * [`Missing`](ModelError::Missing): the path, or a required file of the folder, does not
    ///   exist.
    /// * [`Io`](ModelError::Io): the system cannot read or map a file.
    /// * [`Damaged`](ModelError::Damaged): a file is cut short or not of its format.
    /// * [`Field`](ModelError::Field): a field of the configuration is missing, of the wrong
    ///   type, implausible, or asks for something unsupported.
    /// * [`Architecture`](ModelError::Architecture): not a Llama or Mistral.
    /// * [`TensorMissing`](ModelError::TensorMissing),
    ///   [`TensorShape`](ModelError::TensorShape), [`Quantisation`](ModelError::Quantisation):
    ///   a tensor is missing, or differs from what the configuration requires.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        let (config, mut directory, origin) = if path.is_dir() {
            let (config, directory) = huggingface::open(path)?;
            (config, directory, Origin::HuggingFace)
        } else {
            let (config, directory, metadata) = gguf::open(path)?;
            (config, directory, Origin::Gguf(metadata))
        };
        let naming = match origin {
            Origin::HuggingFace => Naming::HuggingFace,
            Origin::Gguf(_) => Naming::Gguf,
        };
        let tensors = architecture::needed(&config)
            .map(|needed| locate_tensor(path, needed, naming, &mut directory))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            path: path.to_owned(),
            config,
            origin,
            tensors,
            identity: OnceLock::new(),
        })
    }

    /// The folder or file, as passed to [`open`](Self::open).
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The model's shape and constants.
    #[must_use]
    pub fn config(&self) -> &LlamaConfig {
        &self.config
    }

    /// The tensor with this Hugging Face name, for example
    /// `model.layers.0.self_attn.q_proj.weight`. A model with
    /// [`tied_embeddings`](LlamaConfig::tied_embeddings) has no `lm_head.weight`.
    ///
    /// # Errors
    ///
    /// [`ModelError::TensorMissing`] when the architecture has no such tensor. All tensors of
    /// the architecture were checked when the files were opened.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, ModelError> {
        let Some((name, located)) = self.tensors.get_key_value(name) else {
            return Err(ModelError::TensorMissing {
                path: self.path.clone(),
                tensor: name.to_owned(),
                expected: Vec::new(),
            });
        };
        let shape = located.stored.shape.clone();
        let bytes = located.stored.bytes();
        let bytes = match located.interleaved_heads {
            Some(heads) => Cow::Owned(rope_rows::to_half_split(bytes, shape[0], heads)),
            None => Cow::Borrowed(bytes),
        };
        Ok(Tensor::new(name, shape, located.format, bytes))
    }

    /// Names of all tensors of the architecture, in alphabetical order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The place of the tokenizer.
    #[must_use]
    pub fn tokenizer_source(&self) -> TokenizerSource<'_> {
        match &self.origin {
            Origin::HuggingFace => TokenizerSource::HuggingFace { folder: &self.path },
            Origin::Gguf(metadata) => TokenizerSource::Gguf(metadata),
        }
    }

    /// Identifies the model by what it computes: SHA-256, cut to 64 bits, over the numbers of
    /// the configuration and, for every tensor in alphabetical order, its name, shape, format
    /// and all of its bytes.
    ///
    /// The value is the same in every run, on every machine and in both containers. It differs
    /// between two quantisations of one model, because their cached state differs. It also
    /// differs between a model and one that was trained further or merged, whichever numbers
    /// changed. The tokenizer is not part of it: state belongs to tokens, not to texts.
    ///
    /// The first call reads all weights, on up to eight threads: SmolLM2-135M's 98 MB take
    /// about 55 ms on one, where the processor has instructions for SHA-256. Later calls return
    /// the stored value.
    #[must_use]
    pub fn identity(&self) -> u64 {
        *self.identity.get_or_init(|| {
            let mut fingerprint = Fingerprint::new();
            self.config.describe(&mut fingerprint);
            let digests = fingerprint::tensor_digests(self);
            for ((name, located), digest) in self.tensors.iter().zip(digests) {
                fingerprint.bytes(name.as_bytes());
                for dimension in &located.stored.shape {
                    fingerprint.number(*dimension as u64);
                }
                fingerprint.bytes(located.format.name().as_bytes());
                fingerprint.bytes(&digest);
            }
            fingerprint.finish()
        })
    }
}

/// Takes a required tensor out of the files' directory and checks it.
fn locate_tensor(
    path: &Path,
    needed: Needed,
    naming: Naming,
    directory: &mut Directory,
) -> Result<(String, LocatedTensor), ModelError> {
    let spelled = needed.spelled(naming);
    let Some(stored) = directory.remove(spelled) else {
        return Err(ModelError::TensorMissing {
            path: path.to_owned(),
            tensor: spelled.to_owned(),
            expected: needed.shape.clone(),
        });
    };
    // Quantisation blocks of a vector would span several of a bias's rows, which have one
    // element each.
    let formats = match needed.shape.len() {
        1 => Formats::UNQUANTISED,
        _ => Formats::ALL,
    };
    let format = stored.check(spelled, &needed.shape, &formats)?;
    let interleaved_heads = match naming {
        Naming::Gguf => needed.rope_heads,
        Naming::HuggingFace => None,
    };
    let located = LocatedTensor {
        stored,
        format,
        interleaved_heads,
    };
    Ok((needed.name, located))
}
