//! The files of one language model, opened and checked before use.
//!
//! Two containers are supported behind one interface: a Hugging Face folder (`config.json`
//! beside safetensors, whole or sharded) and one GGUF file (llama.cpp's format, versions 2 and
//! 3). A [`Blueprint`] describes the model in the same form for all families and both
//! containers. A tensor is asked for by its [`Role`], and comes in one form however its file
//! calls and stores it.
//!
//! Files are untrusted input. Opening them gives either a model with all its tensors, or a
//! [`ModelError`] that names the file, the field or tensor, and what was expected. There is no
//! panic, and every allocation is bounded by the size of the files.
//!
//! ```text
//! huggingface/  config.json, generation_config.json, shards ─┐
//!                                                            ├─ settings + directory
//! gguf/         header, metadata, tensor table ──────────────┘          │
//!                                            family: a blueprint, and names of tensors
//!                                                                       │
//!                                            role: required tensors, located and checked
//!                                                                       │
//!                                        ModelFiles ── tensor() ── parts │ to_f32 │ to_affine
//! ```

#![deny(unsafe_code)]

mod affine;
mod blueprint;
#[cfg(unix)]
mod bus_error;
mod family;
mod fields;
mod fingerprint;
mod formats;
mod gguf;
mod huggingface;
mod limits;
mod locate;
mod located;
mod mlx;
mod mxfp4;
mod names;
mod opened;
mod plan;
pub mod python_json;
mod read_ahead;
mod role;
mod settings;
mod skipped;
mod stored;
mod tensor;
mod watch;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use affine::AffineQuantised;
pub use blueprint::{
    Activation, Attention, Biases, Blueprint, DeltaNet, Experts, Frequencies, Gated, Layer, Mamba2,
    Mixer, Mlp, Norms, PositionScale, QkNorm, Rope, RopeScaling, Routing, SharedExpert, ShortConv,
    Stem,
};
#[cfg(unix)]
pub use bus_error::survive_shortened_files;
pub use gguf::GgufMetadata;
pub use motet_formats::{Affine, Format, ScaleFormat};
pub use opened::FileAccess;
pub use role::{Needed, Role, needed};
pub use skipped::Skipped;
pub use tensor::{Part, Tensor};
pub use watch::FileWatch;

use family::Family;
use huggingface::Folder;
use locate::{Search, Tensors};
use mlx::Spans;
use motet_protocol::{DeclaredPooling, ModelError};
use names::Container;
use settings::{Settings, Source};

/// The opened, checked files of one model.
///
/// The files stay memory-mapped for the lifetime of this value and of each [`Part`] taken from
/// it, which a model on the CPU keeps. Opening reads little more than headers, and a tensor's
/// bytes are read on request. The files must not change meanwhile:
/// another process's writes show up in the weights, and shortening a file ends this process
/// with a bus error, as with every memory-mapped file, unless it has called
/// `survive_shortened_files`. A new file that is renamed to the path of an
/// opened one changes nothing. [`watch`](Self::watch) tells whether a file was written to, and
/// [`FileAccess::Read`] makes the model independent of its files.
///
/// It is `Sync`: several threads may convert tensors at the same time.
///
/// ```no_run
/// # fn main() -> Result<(), motet_protocol::ModelError> {
/// use motet_weights::{ModelFiles, Role};
///
/// let files = ModelFiles::open("SmolLM2-135M-Instruct.Q4_1.gguf".as_ref())?;
/// let embeddings = files.tensor(None, Role::Embedding)?;
/// let stem = &files.blueprint().stem;
/// assert_eq!(embeddings.shape, [stem.vocab_size, stem.hidden_size]);
/// let weights: Vec<f32> = embeddings.to_f32();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ModelFiles {
    path: PathBuf,
    origin: Origin,
    /// The description, with the vocabulary that is used.
    blueprint: Blueprint,
    contents: Arc<Contents>,
    skipped: Vec<Skipped>,
}

/// A model as its files describe it, with its identity once that is known.
#[derive(Debug)]
struct Contents {
    blueprint: Blueprint,
    /// Every tensor of the model.
    tensors: Tensors,
    watch: FileWatch,
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
    /// * [`Architecture`](ModelError::Architecture): a model of no known family.
    /// * [`TensorMissing`](ModelError::TensorMissing),
    ///   [`TensorShape`](ModelError::TensorShape), [`Quantisation`](ModelError::Quantisation),
    ///   [`QuantisedTensor`](ModelError::QuantisedTensor): a tensor is missing, or differs from what the configuration requires.
    /// * [`TensorExtra`](ModelError::TensorExtra): the files have a tensor that the configuration
    ///   does not account for, and that is of no part that may be [`skipped`](Self::skipped).
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::open_with(path, FileAccess::Map)
    }

    /// As [`open`](Self::open), with the choice whether files are mapped or read.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open), and [`Damaged`](ModelError::Damaged) when a file changes
    /// while it is read.
    pub fn open_with(path: &Path, access: FileAccess) -> Result<Self, ModelError> {
        if path.is_dir() {
            let folder = Folder::open(path)?;
            let family = family::of_folder(&folder)?;
            let quantisation = folder.quantisation(family.mxfp4)?;
            let directory = folder.directory(access)?;
            let settings = Settings::new(family.rules(), Source::HuggingFace(&folder), &directory);
            let mut search = Search::new(path, Container::HuggingFace, family.names, &directory);
            search.quantisation = quantisation.as_ref();
            return Self::with_settings(path, family, &settings, &mut search);
        }
        let (metadata, directory) = gguf::open(path, access)?;
        let (family, architecture) = family::of_gguf(&metadata)?;
        let source = Source::Gguf {
            metadata: &metadata,
            architecture,
        };
        let settings = Settings::new(family.rules(), source, &directory);
        let mut search = Search::new(path, Container::Gguf, family.names, &directory);
        let mut files = Self::with_settings(path, family, &settings, &mut search)?;
        files.origin = Origin::Gguf(metadata);
        Ok(files)
    }

    fn with_settings(
        path: &Path,
        family: &Family,
        settings: &Settings<'_>,
        search: &mut Search<'_>,
    ) -> Result<Self, ModelError> {
        let blueprint = (family.read)(settings)?;
        family::check(settings, &blueprint)?;
        let tensors = search.run(&blueprint)?;
        let skipped = skipped::find(search, &blueprint, settings.further_layers()?)?;
        Ok(Self {
            path: path.to_owned(),
            origin: Origin::HuggingFace,
            blueprint: blueprint.clone(),
            contents: Arc::new(Contents {
                blueprint,
                watch: FileWatch::new(&tensors),
                tensors,
                identity: OnceLock::new(),
            }),
            skipped,
        })
    }

    /// The folder or file, as passed to [`open`](Self::open).
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The description of the model.
    #[must_use]
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// Leaves out the rows of embedding and head from this token id on. Many models have more rows
    /// than their tokenizer has tokens. A vocabulary that is not larger stays as it is, and so does
    /// the [identity](Self::identity): cached state does not depend on such rows.
    pub fn limit_vocabulary(&mut self, vocab_size: usize) {
        let stem = &mut self.blueprint.stem;
        stem.vocab_size = stem.vocab_size.min(vocab_size.max(1));
    }

    /// The tensor for a role, in canonical form. `layer` is None for those outside the layers. A
    /// model with [`tied_embeddings`](Stem::tied_embeddings) has no [`Role::Head`].
    ///
    /// # Errors
    ///
    /// [`ModelError::TensorMissing`] when the model has no such tensor. All tensors that
    /// [`tensors`](Self::tensors) lists were checked when the files were opened.
    /// [`ModelError::QuantisedTensor`] when scales or offsets in an array of their own are not
    /// finite. This is found out by reading them, which opening does not.
    pub fn tensor(&self, layer: Option<usize>, role: Role) -> Result<Tensor<'_>, ModelError> {
        match self.contents.tensors.get(&(layer, role)) {
            Some(located) => {
                located.spans.iter().try_for_each(Spans::check_finite)?;
                let tensor = located.tensor();
                Ok(match role {
                    Role::Embedding | Role::Head => {
                        tensor.first_rows(self.blueprint.stem.vocab_size)
                    }
                    _ => tensor,
                })
            }
            None => Err(ModelError::TensorMissing {
                path: self.path.clone(),
                tensor: match layer {
                    Some(layer) => format!("{role:?} of layer {layer}"),
                    None => format!("{role:?}"),
                },
                expected: Vec::new(),
            }),
        }
    }

    /// Layer and role of every tensor, the ones outside the layers first.
    pub fn tensors(&self) -> impl Iterator<Item = (Option<usize>, Role)> {
        self.contents.tensors.keys().copied()
    }

    /// The parts of the files that are not used, such as the vision tower of a multimodal model.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The place of the tokenizer.
    #[must_use]
    pub fn tokenizer_source(&self) -> TokenizerSource<'_> {
        match &self.origin {
            Origin::HuggingFace => TokenizerSource::HuggingFace { folder: &self.path },
            Origin::Gguf(metadata) => TokenizerSource::Gguf(metadata),
        }
    }

    /// How hidden states become the embedding of a text, as the files say. A folder says so in
    /// the files of sentence-transformers, `modules.json` and the configuration of its pooling. A
    /// GGUF file says so in `pooling_type`.
    ///
    /// # Errors
    ///
    /// [`ModelError::Field`] or [`ModelError::Damaged`] when one of these is not of its form.
    pub fn pooling(&self) -> Result<DeclaredPooling, ModelError> {
        match &self.origin {
            Origin::HuggingFace => huggingface::pooling::read(&self.path),
            Origin::Gguf(metadata) => gguf::pooling(metadata),
        }
    }

    /// Identifies the model by what it computes: BLAKE3, cut to 64 bits, over the description
    /// and, for every tensor, its layer, role, shape, formats and all of its bytes in canonical
    /// form.
    ///
    /// The value is the same in every run, on every machine and in both containers. It differs
    /// between two quantisations of one model, because their cached state differs. It also
    /// differs between a model and one that was trained further or merged, whichever numbers
    /// changed. The tokenizer is not part of it: state belongs to tokens, not to texts.
    ///
    /// The first call reads all weights, on up to eight threads: SmolLM2-135M's 98 MB take
    /// about 40 ms on one with AVX2. Later calls return the stored value.
    #[must_use]
    pub fn identity(&self) -> u64 {
        self.lazy_identity().get()
    }

    /// The [`identity`](Self::identity), to be computed when something needs it: only a tier on
    /// disk does.
    #[must_use]
    pub fn lazy_identity(&self) -> LazyIdentity {
        LazyIdentity(Arc::clone(&self.contents))
    }

    /// Tells whether the files are still as they were when they were opened.
    #[must_use]
    pub fn watch(&self) -> FileWatch {
        self.contents.watch.clone()
    }

    /// Reads all weights from the files into the system's cache, on up to eight threads. Calls
    /// `progress` with the bytes that have been read and with all, about every 16 MB.
    ///
    /// Mapped weights are otherwise read when a step first needs them.
    pub fn read_all(&self, mut progress: impl FnMut(usize, usize) + Send) {
        read_ahead::run(&self.contents.tensors, &mut progress);
    }
}

/// The identity of a model's files, computed when it is first asked for. Clones share it. It keeps
/// the files mapped.
#[derive(Clone)]
pub struct LazyIdentity(Arc<Contents>);

impl LazyIdentity {
    /// [`ModelFiles::identity`]. The first call reads all weights, later ones return the stored
    /// value.
    #[must_use]
    pub fn get(&self) -> u64 {
        let Contents {
            blueprint,
            tensors,
            watch: _,
            identity,
        } = &*self.0;
        *identity.get_or_init(|| fingerprint::identity(blueprint, tensors))
    }

    /// Whether both are of the same opened files. Nothing is read: files that were opened twice
    /// are different.
    #[must_use]
    pub fn is_same_opening(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for LazyIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LazyIdentity")
            .field(&self.0.identity.get())
            .finish()
    }
}
