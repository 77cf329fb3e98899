//! Requests and slots that wait until memory in transit has been released.

use crate::cache::OpenSlot;
use motet_protocol::SequenceId;

/// Requests and slots that wait until memory in transit has been released.
#[derive(Debug, Default)]
pub(in crate::cache) struct Deferred {
    requests: Vec<OpenSlot>,
    starved: Vec<StarvedSlot>,
}

/// A slot whose grant is to be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) struct StarvedSlot {
    pub(in crate::cache) sequence: SequenceId,
    /// Tokens that it is to hold.
    pub(in crate::cache) tokens_max: usize,
}

impl Deferred {
    pub(super) fn add_request(&mut self, request: OpenSlot) {
        self.requests.push(request);
    }

    pub(super) fn add_starved(&mut self, slot: StarvedSlot) {
        self.starved.push(slot);
    }

    /// All of them, to be retried in this order: slots before requests.
    pub(in crate::cache) fn into_parts(self) -> (Vec<StarvedSlot>, Vec<OpenSlot>) {
        (self.starved, self.requests)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.starved.is_empty()
    }

    /// Whether a request of this sequence is deferred.
    pub(super) fn contains(&self, sequence: SequenceId) -> bool {
        self.requests.iter().any(|one| one.sequence == sequence)
    }

    /// Forgets a finished sequence.
    pub(super) fn forget(&mut self, sequence: SequenceId) {
        self.requests.retain(|one| one.sequence != sequence);
        self.starved.retain(|one| one.sequence != sequence);
    }
}
