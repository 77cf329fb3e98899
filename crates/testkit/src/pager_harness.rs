//! The pager's core with a copy machine: its messages, its jobs, and the events that it sends.

use std::time::Duration;

use motet_core::config::PagerConfig;
use motet_core::pager::{
    Done, Effect, JobError, Label, Message, PagerCore, PagerEvent, PagerStats, Precision,
};
use motet_protocol::CopyId;
use motet_protocol::{ModelSpec, SegmentSize};

use crate::copy_machine::CopyMachine;
use crate::transfer_queue::{PaperState, PaperTransferQueue};

/// The time that a job takes on paper.
pub const JOB_TIME: Duration = Duration::from_micros(1);

/// The other side of the pager: a cache, or as much of one as the pager can observe.
pub trait PagerPeer<S> {
    /// The pager sends an event.
    fn on_event(
        &mut self,
        event: PagerEvent,
        copies: &CopyMachine<S>,
        queue: &mut PaperTransferQueue<S>,
    );

    /// The pager is about to drop a copy.
    fn on_forget(&mut self, copy: CopyId, copies: &CopyMachine<S>) {
        let _ = (copy, copies);
    }

    /// The pager discards a state that waits for the device.
    fn on_discard(&mut self, copy: CopyId, queue: &mut PaperTransferQueue<S>) {
        queue.take_import(copy);
    }

    /// The pager discards all states that wait for the device, which has lost its own.
    fn on_discard_all(&mut self, queue: &mut PaperTransferQueue<S>) {
        queue.discard_imports();
    }
}

/// The pager's core and its copy workers.
#[derive(Debug)]
pub struct PagerHarness<S> {
    core: PagerCore,
    copies: CopyMachine<S>,
}

impl<S: PaperState> PagerHarness<S> {
    /// A pager whose copies take `bytes` bytes each for these segments. `found` are the copies
    /// that the machine has on its disk.
    #[must_use]
    pub fn new(
        spec: &ModelSpec,
        config: &PagerConfig,
        bytes: fn(SegmentSize) -> usize,
        copies: CopyMachine<S>,
        found: Vec<(CopyId, Label)>,
    ) -> Self {
        let sizes = move |segment_size| (bytes(segment_size), Precision::Full);
        let core = PagerCore::new(spec.clone(), config.clone(), Box::new(sizes), found);
        Self { core, copies }
    }

    /// The copy machine.
    #[must_use]
    pub fn copies(&self) -> &CopyMachine<S> {
        &self.copies
    }

    /// The core's statistics.
    #[must_use]
    pub fn stats(&self) -> PagerStats {
        self.core.stats()
    }

    /// When the core needs to be called again.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Duration> {
        self.core.wakes_at()
    }

    /// Sends a message to the core, and carries its effects out.
    pub fn send(
        &mut self,
        now: Duration,
        message: Message,
        queue: &mut PaperTransferQueue<S>,
        peer: &mut impl PagerPeer<S>,
    ) {
        for effect in self.core.handle(now, message) {
            match effect {
                Effect::Notify(event) => peer.on_event(event, &self.copies, queue),
                Effect::Do(job) => self.copies.start(job),
                Effect::Forget(copy) => {
                    peer.on_forget(copy, &self.copies);
                    self.copies.forget(copy, queue);
                }
                Effect::Discard(copy) => peer.on_discard(copy, queue),
                Effect::DiscardAll => peer.on_discard_all(queue),
                Effect::Ask(ask) => self.copies.ask(ask),
            }
        }
        self.core.check_integrity();
        self.copies.check(&self.core.stats());
    }

    /// Ends the job at this place among the running ones. It fails for good unless it
    /// `succeeds`.
    pub fn end_job(
        &mut self,
        now: Duration,
        at: usize,
        succeeds: bool,
        queue: &mut PaperTransferQueue<S>,
        peer: &mut impl PagerPeer<S>,
    ) {
        let fault = || JobError {
            what: "a fault".into(),
            is_lost: true,
        };
        let result = succeeds.then_some(()).ok_or_else(fault);
        let done = self.end_quietly(at, result, JOB_TIME, queue);
        self.send(now, Message::Done(done), queue, peer);
    }

    /// The running unpack makes its state, before the pager learns of it.
    pub fn unpack(&mut self, queue: &mut PaperTransferQueue<S>) -> bool {
        self.copies.unpack(queue)
    }

    /// Ends a job with this result, and does not tell the core yet.
    pub fn end_quietly(
        &mut self,
        at: usize,
        result: Result<(), JobError>,
        took: Duration,
        queue: &mut PaperTransferQueue<S>,
    ) -> Done {
        self.copies.end(at, result, took, queue)
    }

    /// The remote tier answers the question at this place among those that wait.
    pub fn answer(
        &mut self,
        now: Duration,
        at: usize,
        queue: &mut PaperTransferQueue<S>,
        peer: &mut impl PagerPeer<S>,
    ) {
        let asked = self.copies.answer(at, JOB_TIME);
        self.send(now, Message::Asked(asked), queue, peer);
    }

    /// The remote tier, in which other processes leave and drop copies.
    pub fn copies_mut(&mut self) -> &mut CopyMachine<S> {
        &mut self.copies
    }

    /// Checks that nothing moves, and that the pager knows each copy.
    pub fn check_end(&self) {
        assert!(self.core.is_idle(), "nothing moves: {:?}", self.core);
        self.copies.check_end(&self.core.stats());
    }
}
