//! Load: brings the copies that a lookup has found to the device.
//!
//! A lookup finds the copies when the sequence opens its slot. They are loaded when the cache
//! has reserved device memory for them.

use super::PagerCore;
use super::catalog::Presence;
use super::loads::Ready;
use motet_protocol::pager::{Effect, PagerEvent};
use motet_protocol::{CopyId, SequenceId};
use motet_sync::injected::{self, Bug};

impl PagerCore {
    /// Starts to load the copies found for the sequence.
    pub(super) fn load(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        let Some(copies) = self.loads.copies_of(sequence) else {
            return;
        };
        // A copy may be lost, or another sequence may have started to load it.
        let is_loadable =
            |name: &CopyId| self.loads.waits_for(*name).is_none() && self.is_available(*name);
        if !copies.iter().all(is_loadable) {
            self.end_load(sequence, effects);
            effects.push(Effect::Notify(PagerEvent::Retry { sequence }));
            return;
        }
        self.loads.begin(sequence);
        for name in copies {
            let copy = self.catalog.found(name);
            match copy.host() {
                Presence::Absent => {
                    self.stats.disk_hits += 1;
                    self.disk.push(name);
                }
                // It is unpacked after it has been read.
                Presence::Incoming => self.stats.host_hits += 1,
                Presence::Present => {
                    self.stats.host_hits += 1;
                    // A job of a cancelled load may be unpacking it already.
                    if !copy.is_unpacking() {
                        self.memory.push(name);
                    }
                }
            }
        }
    }

    /// Cancels the lookup or load of a sequence.
    pub(super) fn cancel(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        if self.stop_asking(sequence) {
            effects.push(Effect::Notify(PagerEvent::Cancelled { sequence }));
            return;
        }
        if self.loads.copies_of(sequence).is_none() {
            return self.loads.confirm_cancel(sequence, effects);
        }
        let cancelled = PagerEvent::Cancelled { sequence };
        if self.loads.leave(sequence) {
            effects.push(Effect::Notify(cancelled));
            return;
        }
        let unpacking = self.loads.unpacking_for(sequence, &self.memory);
        self.discard_and_end_load(sequence, effects);
        if unpacking.is_some() && injected::is_injected(Bug::UnconfirmedCancel) {
            return;
        }
        self.loads.notify_after(unpacking, cancelled, effects);
    }

    /// Queues a copy in host memory for unpacking if a sequence waits for it.
    pub(super) fn host_copy_ready(&mut self, name: CopyId) {
        if self.loads.waits_for(name).is_some() {
            self.memory.push(name);
        }
    }

    /// Handles a detached state that is ready.
    pub(super) fn unpacked(&mut self, name: CopyId, effects: &mut Vec<Effect>) {
        let ready = self.loads.unpacked(name);
        if ready == Ready::Unclaimed {
            // The sequence has cancelled.
            effects.push(Effect::Discard(name));
            return;
        }
        self.stats.unpacked += 1;
        if let Ready::Fully(sequence, copies) = ready {
            for copy in &copies {
                self.catalog.touch(*copy);
            }
            effects.push(Effect::Notify(PagerEvent::Loaded { sequence, copies }));
            self.end_load(sequence, effects);
        }
    }

    /// Ends the load that waits for this copy, and sends the event of `event_of`.
    pub(super) fn fail_load(
        &mut self,
        name: CopyId,
        event_of: fn(SequenceId) -> PagerEvent,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(sequence) = self.loads.waits_for(name) {
            self.discard_and_end_load(sequence, effects);
            effects.push(Effect::Notify(event_of(sequence)));
        }
    }

    fn discard_and_end_load(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        self.loads
            .discard_ready(sequence, &self.catalog, &self.memory, effects);
        self.end_load(sequence, effects);
    }

    /// Ends a load, and removes the jobs that no sequence waits for any more.
    fn end_load(&mut self, sequence: SequenceId, effects: &mut Vec<Effect>) {
        for name in self.loads.end(sequence, &mut self.catalog, effects) {
            self.memory.remove(name);
            self.disk.remove(name);
        }
    }
}
