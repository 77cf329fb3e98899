//! Everything that can go wrong with a model, from its files to its device.

use std::ops::Range;
use std::path::PathBuf;

use crate::CopyId;

/// Why a model could not be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The model's file or folder, or a file it needs, is not there.
    #[error("{path} does not exist: expected {expected}", path = path.display())]
    Missing {
        /// What was looked for.
        path: PathBuf,
        /// What ought to be there.
        expected: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {path}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file ends before its own header says it should, or its header is not
    /// of its format.
    #[error("{path} is damaged: {what}; expected {expected}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
        /// What a whole file has there.
        expected: String,
    },
    /// A field of `config.json` or of GGUF metadata is missing or makes no sense.
    #[error("{path}: field `{field}`: {what}; expected {expected}", path = path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field's name as the file spells it.
        field: String,
        /// What was found.
        what: String,
        /// What was expected.
        expected: String,
    },
    /// The architecture is none that this backend implements.
    #[error("{path}: architecture `{found}` is not supported; expected one of {known}", path = path.display())]
    Architecture {
        /// The file that names it.
        path: PathBuf,
        /// What it names.
        found: String,
        /// What is supported, comma-separated.
        known: &'static str,
    },
    /// A tensor is stored in a format that is not supported.
    #[error("{path}: tensor `{tensor}` is stored as {found}; expected one of {known}", path = path.display())]
    Quantisation {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// How it is stored.
        found: String,
        /// What is supported, comma-separated.
        known: &'static str,
    },
    /// A tensor that the architecture needs is in none of the model's files.
    #[error("{path}: tensor `{tensor}` is missing; expected shape {expected:?}", path = path.display())]
    TensorMissing {
        /// The file or folder that was searched.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape it ought to have.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the configuration calls for.
    #[error("{path}: tensor `{tensor}` has shape {found:?}; expected {expected:?}", path = path.display())]
    TensorShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape it has.
        found: Vec<usize>,
        /// The shape it ought to have.
        expected: Vec<usize>,
    },
    /// Cached state cannot be cut there.
    #[error("cannot cut {tokens} tokens of cached state after {at}: {why}")]
    Cut {
        /// Tokens that the state holds.
        tokens: usize,
        /// Where it was to be cut.
        at: usize,
        /// Which rule forbids it.
        why: &'static str,
    },
    /// Two segments cannot become one.
    #[error("cannot merge segments of {upper} and {lower} tokens: {why}")]
    Merge {
        /// Tokens of the upper one.
        upper: usize,
        /// Tokens of the lower one.
        lower: usize,
        /// Which rule forbids it.
        why: &'static str,
    },
    /// Tokens cannot be taken out of a slot.
    #[error("cannot remove tokens {}..{} of {tokens}: {why}", removed.start, removed.end)]
    Remove {
        /// The offsets that were to be removed.
        removed: Range<usize>,
        /// Tokens that the slot holds.
        tokens: usize,
        /// Which rule forbids it.
        why: &'static str,
    },
    /// Bytes are not a packed segment of this model.
    #[error("not a packed segment of this model: {0}")]
    Import(String),
    /// What leaves the device is not packed: as many parcels wait at the dock as may.
    #[error("no room at the dock for {copy}: {waiting} parcels wait there")]
    TransferQueueFull {
        /// The copy that it was to become.
        copy: CopyId,
        /// Parcels that wait.
        waiting: usize,
    },
    /// Logits cannot be made not to depend on what else runs.
    #[error("cannot run deterministically: {found}; expected {expected}")]
    NotDeterministic {
        /// What stands in the way.
        found: String,
        /// What it takes.
        expected: &'static str,
    },
    /// An option of the backend cannot be met by the model or its device.
    #[error("option `{field}` is {found}; expected {expected}")]
    Option {
        /// The option, as the backend spells it.
        field: &'static str,
        /// What it was set to, and where.
        found: String,
        /// What would work.
        expected: &'static str,
    },
    /// The device failed: out of memory, a kernel error, an injected fault.
    #[error("the device failed: {0}")]
    Device(String),
}

impl ModelError {
    /// Whether a device that said this of an edit can be trusted with all that the edit did not
    /// touch: it had no memory, say. Else what is asked of it makes no sense to it, so that the
    /// two do not agree on what it holds.
    pub fn is_confined_to_edit(&self) -> bool {
        matches!(self, Self::Device(_) | Self::Import(_))
    }
}
