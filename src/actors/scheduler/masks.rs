//! Mask gates: a step does not wait for a sequence whose grammar mask is slow to compute.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::task::{Wake, Waker};

use tokio::sync::Notify;

use motet_core::scheduler::MaskGate;
use motet_protocol::ConstraintWalk;
use motet_protocol::SequenceId;

/// Sequences that steps do not wait for, since their masks are slow to compute.
#[derive(Debug, Default)]
pub(super) struct MaskGates {
    gated: BTreeSet<SequenceId>,
}

/// Wakes the scheduler, from any thread that has computed a mask.
struct NotifyWaker(Arc<Notify>);

impl MaskGates {
    /// Counts a sequence's gate as shut: the core waits for its mask.
    pub(super) fn shut(&mut self, sequence: SequenceId) {
        self.gated.insert(sequence);
    }

    /// Forgets a sequence.
    pub(super) fn remove(&mut self, sequence: SequenceId) {
        self.gated.remove(&sequence);
    }

    /// Shuts the gate of a sequence whose mask has become slow, and opens it when the mask is
    /// ready. Returns the gate's new state if it has changed.
    pub(super) fn check(
        &mut self,
        sequence: SequenceId,
        walk: Option<&dyn ConstraintWalk>,
    ) -> Option<MaskGate> {
        let Some(state) = walk.map(ConstraintWalk::state) else {
            self.gated.remove(&sequence);
            return None;
        };
        let was_gated = self.gated.contains(&sequence);
        let gate = match (state.is_slow, state.is_ready) {
            (true, true) => MaskGate::ReadyAt(state.tokens),
            (true, false) if !was_gated => MaskGate::Shut,
            (false, true) if was_gated => MaskGate::Open,
            _ => return None,
        };
        match gate {
            MaskGate::Open => self.gated.remove(&sequence),
            _ => self.gated.insert(sequence),
        };
        Some(gate)
    }
}

impl Wake for NotifyWaker {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Returns a waker that notifies the scheduler.
pub(super) fn waker(wakeup: &Arc<Notify>) -> Waker {
    Waker::from(Arc::new(NotifyWaker(Arc::clone(wakeup))))
}
