//! Which sequences no step waits for, because their masks are dear.

use std::sync::Arc;
use std::task::{Wake, Waker};

use tokio::sync::Notify;

use super::Scheduler;
use super::link::{Link, Start};
use motet_core::SequenceId;
use motet_core::protocol::ConstraintWalk;
use motet_core::scheduler::{Event, MaskGate};

/// Wakes the scheduler, from whatever thread has computed a mask.
struct Doorbell(Arc<Notify>);

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl Link {
    /// Its walk through its grammar, if it has one.
    pub(super) fn walk(&self) -> Option<Arc<dyn ConstraintWalk>> {
        let submission = match &self.start {
            Start::Submitted(submission) => submission,
            Start::Forks(fork) => &fork.submission,
        };
        submission
            .draw_spec
            .as_ref()?
            .grammar
            .as_ref()?
            .sequence_walk()
    }
}

impl Scheduler {
    /// Has the sequence's mask computed for its whole output; the gate opens when it is there.
    pub(super) fn await_mask(&mut self, sequence: SequenceId) {
        let Some(link) = self.links.get(&sequence) else {
            return;
        };
        if let Some(walk) = link.walk() {
            walk.await_mask(&link.told);
        }
        self.gated.insert(sequence);
        self.look_at_mask(sequence);
    }

    /// Looks at all sequences that have masks.
    pub(super) fn look_at_masks(&mut self) {
        let has_walk = self.links.iter().filter(|(_, link)| link.walk().is_some());
        let mut all: Vec<SequenceId> = has_walk.map(|(sequence, _)| *sequence).collect();
        all.sort_unstable();
        for sequence in all {
            self.look_at_mask(sequence);
        }
    }

    /// Shuts the gate of a sequence that has become slow, and opens it when its mask is there.
    fn look_at_mask(&mut self, sequence: SequenceId) {
        let walk = self.links.get(&sequence).and_then(Link::walk);
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
        self.feed(Event::Mask(sequence, gate));
    }

    /// Has the walk of a new sequence say when a mask is there that is waited for.
    pub(super) fn listen_to_masks(&self, link: &Link) {
        if let Some(walk) = link.walk() {
            walk.wake(Waker::from(Arc::new(Doorbell(Arc::clone(&self.doorbell)))));
        }
    }
}
