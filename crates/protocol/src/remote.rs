//! A tier that several processes share, often those of several machines.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::Label;
use crate::pager::Ask;

/// A store for copies that several processes share: what one of them has computed, the others load.
/// `motet-remote` has one over Redis, S3 and others.
///
/// A store is trusted with nothing: an implementation must detect bytes that it did not write
/// itself, or a process of the same fleet. It bounds the time of each call. A call that fails costs
/// no request: its tokens are computed. Dropping a call's future cancels it.
pub trait RemoteTier: fmt::Debug + Send + Sync {
    /// Finds copies that continue the tokens of a sequence, and returns their labels in order: the
    /// first starts no later than `ask.from`, and each no later than the one before it ends. Each
    /// holds only tokens of the sequence, apart from the last of its own; if the model needs
    /// [whole](RemoteModel::whole) copies, all of its tokens are the sequence's. Empty if the tier
    /// has none.
    ///
    /// # Errors
    ///
    /// [`RemoteError::Failed`] if the store does not answer.
    fn find<'a>(&'a self, model: &'a RemoteModel, ask: &'a Ask) -> RemoteCall<'a, Vec<Label>>;

    /// Writes the bytes of a copy to `into`, which has its length. After an error its content is
    /// arbitrary.
    ///
    /// # Errors
    ///
    /// [`RemoteError`].
    fn load<'a>(
        &'a self,
        model: &'a RemoteModel,
        label: &'a Label,
        into: &'a mut [u8],
    ) -> RemoteCall<'a, ()>;

    /// Stores a copy, so that every process of the fleet finds it. Nothing happens if the tier has
    /// it. `path` are the labels of copies that hold the tokens before its own; the tier has got
    /// them.
    ///
    /// # Errors
    ///
    /// [`RemoteError::Failed`].
    fn store<'a>(
        &'a self,
        model: &'a RemoteModel,
        path: &'a [Arc<Label>],
        label: &'a Label,
        bytes: &'a [u8],
    ) -> RemoteCall<'a, ()>;
}

/// A call of a [`RemoteTier`].
pub type RemoteCall<'a, T> = Pin<Box<dyn Future<Output = Result<T, RemoteError>> + Send + 'a>>;

/// The model whose state is stored, and how it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteModel {
    /// Identity of the model and of the format of its state. State is never found under another.
    pub identity: u64,
    /// Number of tokens between two offsets at which a prefix is found.
    pub grid_tokens: usize,
    /// Whether a copy serves only a sequence that has all of its tokens, as with recurrent layers.
    pub whole: bool,
}

/// The error of a [`RemoteTier`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The store has dropped the copy.
    #[error("the store does not have the copy")]
    Missing,
    /// The stored bytes are not those that the fleet has written.
    #[error("a stored copy is damaged, or was not written by this fleet: {what}")]
    Damaged {
        /// Description of the error.
        what: String,
    },
    /// The store failed or did not answer.
    #[error("the store failed: {what}")]
    Failed {
        /// Description of the error.
        what: String,
    },
}

impl RemoteError {
    /// Whether the copy is damaged or gone, so that a retry is of no use.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Missing | Self::Damaged { .. })
    }
}
