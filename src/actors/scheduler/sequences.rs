//! The handles of all sequences.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tokio::sync::Notify;

use super::masks::{self, MaskGates};
use super::sequence_actor_handle::SequenceActorHandle;
use crate::actors::sequence::SequenceEvent;
use motet_core::scheduler::{Event, MaskGate, Submission};
use motet_protocol::TokenLogprobs;
use motet_protocol::{SequenceId, TokenId};

/// All sequences that have not ended. Their order is that of their ids wherever it shows.
pub(super) struct Sequences {
    handles: FxHashMap<SequenceId, SequenceActorHandle>,
    /// Sequences whose callers do not read.
    paused: BTreeSet<SequenceId>,
    mask_gates: MaskGates,
    /// Notified by senders that found the mailbox full, and by computed masks.
    wakeup: Arc<Notify>,
}

impl Sequences {
    pub(super) fn new(wakeup: Arc<Notify>) -> Self {
        Self {
            handles: FxHashMap::default(),
            paused: BTreeSet::new(),
            mask_gates: MaskGates::default(),
            wakeup,
        }
    }

    /// Waits for a sender that found the mailbox full, or for a computed mask. Cancel safe.
    pub(super) async fn woken(&self) {
        self.wakeup.notified().await;
    }

    pub(super) fn insert(&mut self, sequence: SequenceId, handle: SequenceActorHandle) {
        handle.wake_by_mask(|| masks::waker(&self.wakeup));
        self.handles.insert(sequence, handle);
    }

    /// Sends a token to its sequence. Returns true when the caller's unread tokens reach the
    /// limit, and the sequence is to be paused.
    pub(super) fn send_token(
        &mut self,
        sequence: SequenceId,
        token: TokenId,
        logprobs: Option<Arc<TokenLogprobs>>,
        is_recorded: bool,
    ) -> bool {
        let Some(handle) = self.handles.get_mut(&sequence) else {
            return false;
        };
        handle.send_token(token, logprobs, &self.wakeup, is_recorded)
            && !self.paused.contains(&sequence)
    }

    /// Sends an event to its sequence, unless the sequence has ended.
    pub(super) fn deliver(&mut self, sequence: SequenceId, sequence_event: SequenceEvent) {
        if let Some(handle) = self.handles.get_mut(&sequence) {
            handle.deliver(sequence_event, &self.wakeup);
        }
    }

    /// Marks a sequence's next token as one that came as predicted.
    pub(super) fn predicted(&mut self, sequence: SequenceId) {
        if let Some(handle) = self.handles.get_mut(&sequence) {
            handle.predicted();
        }
    }

    /// Sends the last event to a sequence and drops its handle.
    pub(super) fn end(&mut self, sequence: SequenceId, sequence_event: SequenceEvent) {
        let Some(handle) = self.handles.remove(&sequence) else {
            return;
        };
        self.paused.remove(&sequence);
        self.mask_gates.remove(sequence);
        handle.end(sequence_event);
    }

    /// Ends all sequences.
    pub(super) fn end_all(&mut self, mut sequence_event: impl FnMut() -> SequenceEvent) {
        for sequence in self.sorted(|_| true) {
            self.end(sequence, sequence_event());
        }
    }

    /// Marks a sequence as paused. Returns false if it has ended.
    pub(super) fn pause(&mut self, sequence: SequenceId) -> bool {
        let is_present = self.handles.contains_key(&sequence);
        if is_present {
            self.paused.insert(sequence);
        }
        is_present
    }

    /// Returns whether the sequence was paused. It no longer is.
    pub(super) fn resume(&mut self, sequence: SequenceId) -> bool {
        self.paused.remove(&sequence)
    }

    /// Marks a sequence as stopping. Returns false if it has ended: then it needs no stop.
    pub(super) fn stop(&mut self, sequence: SequenceId) -> bool {
        let handle = self.handles.get_mut(&sequence);
        handle.map(SequenceActorHandle::stop).is_some()
    }

    pub(super) fn is_cancelled(&self, sequence: SequenceId) -> bool {
        let handle = self.handles.get(&sequence);
        handle.is_some_and(SequenceActorHandle::is_cancelled)
    }

    /// Sequences whose callers are gone.
    pub(super) fn cancelled(&self) -> Vec<SequenceId> {
        self.sorted(SequenceActorHandle::is_cancelled)
    }

    /// Sequences that were to stop.
    pub(super) fn stopping(&self) -> Vec<SequenceId> {
        self.sorted(SequenceActorHandle::is_stopping)
    }

    /// Paused sequences whose callers have read.
    pub(super) fn readable(&self) -> Vec<SequenceId> {
        let has_reader = |sequence: &&SequenceId| {
            let handle = self.handles.get(sequence);
            handle.is_some_and(SequenceActorHandle::has_reader)
        };
        self.paused.iter().filter(has_reader).copied().collect()
    }

    /// Sequences with a grammar.
    pub(super) fn masked(&self) -> Vec<SequenceId> {
        self.sorted(|handle| handle.walk().is_some())
    }

    /// Starts the computation of the sequence's mask for its whole output. Returns false if the
    /// sequence has ended.
    pub(super) fn await_mask(&mut self, sequence: SequenceId) -> bool {
        let Some(handle) = self.handles.get(&sequence) else {
            return false;
        };
        handle.await_mask();
        self.mask_gates.shut(sequence);
        true
    }

    /// Returns the new state of a sequence's mask gate, if it has changed.
    pub(super) fn check_mask(&mut self, sequence: SequenceId) -> Option<MaskGate> {
        let walk = self
            .handles
            .get(&sequence)
            .and_then(SequenceActorHandle::walk);
        self.mask_gates.check(sequence, walk.as_deref())
    }

    /// Blames a panic on a sequence. Returns how many there are since its last token, or `None`
    /// if it has ended.
    pub(super) fn blame(&mut self, sequence: SequenceId) -> Option<u32> {
        self.handles
            .get_mut(&sequence)
            .map(SequenceActorHandle::blame)
    }

    /// Records the tokens that a fork starts with.
    pub(super) fn fork_started(&mut self, sequence: SequenceId, submission: Submission) {
        if let Some(handle) = self.handles.get_mut(&sequence) {
            handle.fork_started(submission);
        }
    }

    /// All sequences in the order in which a rebuilt core is to learn of them. Forks that have
    /// not started come last, after the sequences that they continue.
    pub(super) fn to_restore(&self) -> Vec<(bool, SequenceId)> {
        let all = self.handles.iter();
        let mut sequences: Vec<(bool, SequenceId)> = all
            .map(|(sequence, handle)| (handle.is_fork(), *sequence))
            .collect();
        sequences.sort_unstable();
        sequences
    }

    /// Returns the event that restores a sequence to a rebuilt core.
    ///
    /// # Panics
    ///
    /// If the sequence has ended.
    pub(super) fn restore_event(&self, sequence: SequenceId) -> Event {
        self.handles[&sequence].restore_event(self.paused.contains(&sequence))
    }

    fn sorted(&self, is_one: impl Fn(&SequenceActorHandle) -> bool) -> Vec<SequenceId> {
        let found = self.handles.iter().filter(|(_, handle)| is_one(handle));
        let mut sequences: Vec<SequenceId> = found.map(|(sequence, _)| *sequence).collect();
        sequences.sort_unstable();
        sequences
    }
}
