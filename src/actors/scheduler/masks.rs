//! Mask gates: a step does not wait for a sequence whose grammar mask is slow to compute.

use std::sync::Arc;
use std::task::{Wake, Waker};

use tokio::sync::Notify;

use super::Scheduler;
use super::sequence_handle::{SequenceHandle, Start};
use motet_core::SequenceId;
use motet_core::protocol::ConstraintWalk;
use motet_core::scheduler::{Event, MaskGate};

/// Wakes the scheduler, from any thread that has computed a mask.
struct NotifyWaker(Arc<Notify>);

impl Wake for NotifyWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl SequenceHandle {
    /// Returns the sequence's walk through its grammar, if it has one.
    pub(super) fn walk(&self) -> Option<Arc<dyn ConstraintWalk>> {
        let submission = match &self.start {
            Start::Submitted(submission) => submission,
            Start::Forked(fork) => &fork.submission,
        };
        submission
            .sampling_spec
            .as_ref()?
            .grammar
            .as_ref()?
            .sequence_walk()
    }
}

impl Scheduler {
    /// Starts the computation of the sequence's mask for its whole output. The gate opens when
    /// the mask is ready.
    pub(super) fn await_mask(&mut self, sequence: SequenceId) {
        let Some(handle) = self.handles.get(&sequence) else {
            return;
        };
        if let Some(walk) = handle.walk() {
            walk.await_mask(&handle.sent_tokens);
        }
        self.gated.insert(sequence);
        self.check_mask(sequence);
    }

    /// Checks all sequences that have masks.
    pub(super) fn check_masks(&mut self) {
        let has_walk = self
            .handles
            .iter()
            .filter(|(_, handle)| handle.walk().is_some());
        let mut all: Vec<SequenceId> = has_walk.map(|(sequence, _)| *sequence).collect();
        all.sort_unstable();
        for sequence in all {
            self.check_mask(sequence);
        }
    }

    /// Shuts the gate of a sequence whose mask has become slow, and opens it when the mask is
    /// ready.
    fn check_mask(&mut self, sequence: SequenceId) {
        let walk = self.handles.get(&sequence).and_then(SequenceHandle::walk);
        let Some(state) = walk.map(|walk| walk.state()) else {
            self.gated.remove(&sequence);
            return;
        };
        let was_gated = self.gated.contains(&sequence);
        let gate = match (state.is_slow, state.is_ready) {
            (true, true) => MaskGate::ReadyAt(state.tokens),
            (true, false) if !was_gated => MaskGate::Shut,
            (false, true) if was_gated => MaskGate::Open,
            _ => return,
        };
        match gate {
            MaskGate::Open => self.gated.remove(&sequence),
            _ => self.gated.insert(sequence),
        };
        self.handle_event(Event::Mask(sequence, gate));
    }

    /// Makes a new sequence's walk wake the scheduler when an awaited mask is ready.
    pub(super) fn register_mask_waker(&self, handle: &SequenceHandle) {
        if let Some(walk) = handle.walk() {
            walk.wake(Waker::from(Arc::new(NotifyWaker(Arc::clone(&self.wakeup)))));
        }
    }
}
