//! Errors of models, from loading their files to running them on the device.

use std::ops::Range;
use std::path::PathBuf;

use crate::CopyId;

/// The error of a model that could not be loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The model's file or folder, or a file that it needs, does not exist.
    #[error("{path} does not exist: expected {expected}", path = path.display())]
    Missing {
        /// The path that was searched.
        path: PathBuf,
        /// The expected file or folder.
        expected: &'static str,
    },
    /// A file could not be read.
    #[error("cannot read {path}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file is shorter than its header says, or its header does not match the format.
    #[error("{path} is damaged: {what}; expected {expected}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The value found.
        what: String,
        /// The value in an undamaged file.
        expected: String,
    },
    /// A file that is mapped has changed since it was opened: its bytes are not those that were
    /// checked.
    #[error("{path} has changed since it was opened; expected a file that stays as it is while it is in use: put a new one in its place by renaming, and start again", path = path.display())]
    FileChanged {
        /// The file.
        path: PathBuf,
    },
    /// A field of `config.json` or of GGUF metadata is missing or invalid.
    #[error("{path}: field `{field}`: {what}; expected {expected}", path = path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field's name as the file spells it.
        field: String,
        /// The value found.
        what: String,
        /// The value expected.
        expected: String,
    },
    /// The backend does not implement the architecture.
    #[error("{path}: architecture `{found}` is not supported; the nearest known one is `{nearest}`; expected one of {known}", path = path.display())]
    Architecture {
        /// The file that names it.
        path: PathBuf,
        /// The architecture that it names.
        found: String,
        /// The supported value that is spelled most like it.
        nearest: &'static str,
        /// Supported values, comma-separated.
        known: String,
    },
    /// A tensor is stored in a format that is not supported.
    #[error("{path}: tensor `{tensor}` is stored as {found}; expected one of {known}", path = path.display())]
    Quantisation {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Format in which it is stored.
        found: String,
        /// Supported values, comma-separated.
        known: &'static str,
    },
    /// A tensor of a quantised matrix is not as the configuration states, or cannot be used.
    #[error("{path}: tensor `{tensor}` is {found}; expected {expected}", path = path.display())]
    QuantisedTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its type and shape, or what is wrong with its numbers.
        found: String,
        /// The expected type and shape, or numbers.
        expected: String,
    },
    /// A tensor that the architecture needs is in none of the model's files.
    #[error("{path}: tensor `{tensor}` is missing; expected shape {expected:?}", path = path.display())]
    TensorMissing {
        /// The file or folder that was searched.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Expected shape.
        expected: Vec<usize>,
    },
    /// The shape of a tensor differs from the one that the configuration requires.
    #[error("{path}: tensor `{tensor}` has shape {found:?}; expected {expected:?}", path = path.display())]
    TensorShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Shape that it has.
        found: Vec<usize>,
        /// Expected shape.
        expected: Vec<usize>,
    },
    /// A layer has a tensor that its configuration does not account for, so that the layer would
    /// not compute what the model does.
    #[error("{path}: tensor `{tensor}` has no place in the model; expected only tensors that the configuration accounts for", path = path.display())]
    TensorExtra {
        /// The file or folder with the tensor.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// Cached state cannot be split at this position.
    #[error("cannot split {tokens} tokens of cached state after {at}: {why}")]
    Cut {
        /// Tokens that the state holds.
        tokens: usize,
        /// Tokens before the requested split.
        at: usize,
        /// The rule that forbids it.
        why: &'static str,
    },
    /// Two segments cannot be merged.
    #[error("cannot merge segments of {upper} and {lower} tokens: {why}")]
    Merge {
        /// Tokens of the upper one.
        upper: usize,
        /// Tokens of the lower one.
        lower: usize,
        /// The rule that forbids it.
        why: &'static str,
    },
    /// Tokens cannot be removed from a slot.
    #[error("cannot remove tokens {}..{} of {tokens}: {why}", removed.start, removed.end)]
    Remove {
        /// Offsets of the tokens to remove.
        removed: Range<usize>,
        /// Tokens that the slot holds.
        tokens: usize,
        /// The rule that forbids it.
        why: &'static str,
    },
    /// The bytes are not a packed segment of this model.
    #[error("not a packed segment of this model: {0}")]
    Import(String),
    /// An export is rejected: the transfer queue holds as many detached states as it may.
    #[error("cannot export {copy}: the transfer queue is full with {waiting} detached states")]
    TransferQueueFull {
        /// The copy that the exported state was to become.
        copy: CopyId,
        /// Detached states in the queue.
        waiting: usize,
    },
    /// The backend cannot make logits independent of the other sequences in a step.
    #[error("cannot run deterministically: {found}; expected {expected}")]
    NotDeterministic {
        /// The setting or property that prevents it.
        found: String,
        /// The setting or property that is required.
        expected: &'static str,
    },
    /// The model or its device cannot satisfy an option of the backend.
    #[error("option `{field}` is {found}; expected {expected}")]
    Option {
        /// Name of the option in the backend.
        field: &'static str,
        /// Value of the option, and where it was set.
        found: String,
        /// Values that would work.
        expected: &'static str,
    },
    /// The device failed: out of memory, a kernel error, or an injected fault.
    #[error("the device failed: {0}")]
    Device(String),
    /// The model does not implement an optional part of its trait.
    #[error("the model does not support {what}")]
    NotSupported {
        /// The missing part.
        what: &'static str,
    },
    /// The draft model cannot draft for the model.
    #[error("the model `{draft}` cannot draft for the model `{target}`: {why}")]
    DraftModel {
        /// Name of the draft model.
        draft: String,
        /// Name of the model.
        target: String,
        /// The reason.
        why: String,
    },
    /// Another error of the model's own, such as one of its loader's libraries. It has that
    /// error's text and its source. Created by [`ModelError::other`].
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl ModelError {
    /// Wraps an error for which no variant exists, or a message.
    ///
    /// ```
    /// use motet_protocol::ModelError;
    ///
    /// let error = "eight".parse::<u32>().map_err(ModelError::other).unwrap_err();
    /// assert_eq!(error.to_string(), "invalid digit found in string");
    /// ```
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// Whether the error leaves all state that the edit did not touch intact, for example
    /// because memory was short. If false, the device and the cache disagree on the state that
    /// the device holds.
    pub fn is_confined_to_edit(&self) -> bool {
        matches!(
            self,
            Self::Device(_)
                | Self::Import(_)
                | Self::NotSupported { .. }
                | Self::FileChanged { .. }
        )
    }
}
