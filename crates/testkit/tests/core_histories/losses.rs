//! Losses that the engine survives: its device, its cache, its scheduler, its pager.

use motet_core::cache::CacheError;
use motet_core::scheduler::{Event, History, Predecessor};
use motet_device::{DeviceEnd, ImportQueue, Table};
use motet_model::DetachedState;
use motet_model::oracle::Oracle;
use motet_protocol::SequenceId;

use std::collections::BTreeSet;

use motet_testkit::core_harness::Answer;

use crate::harness::{HistoryHarness, submission};

/// Losses so far, and the state that is needed to continue.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    pub(crate) devices: usize,
    pub(crate) caches: usize,
    pub(crate) schedulers: usize,
    pub(crate) pagers: usize,
    /// Works in which an edit failed, without any other loss.
    pub(crate) edits: usize,
    /// There is no device until a new one is found.
    pub(crate) device_away: bool,
    /// The cache panics at the next message.
    pub(crate) cache_fails: bool,
    /// The scheduler panics at the next event that is not repeated.
    pub(crate) scheduler_fails: bool,
    /// The epoch of the last work.
    pub(crate) epoch: u64,
    /// Imports of a pager that is gone. Whether they were imported or not, no part discards
    /// them.
    pub(crate) stranded: Option<ImportQueue<DetachedState<Oracle>>>,
    pub(crate) started: BTreeSet<SequenceId>,
    pub(crate) paused: BTreeSet<SequenceId>,
}

impl HistoryHarness {
    /// Another, empty device at the same transfer queue.
    pub(crate) fn empty_table(
        transfer_queue: Option<&DeviceEnd<DetachedState<Oracle>>>,
    ) -> Table<Oracle> {
        transfer_queue.map_or_else(Table::new, |transfer_queue| {
            Table::with_transfer_queue(transfer_queue.successor())
        })
    }

    /// Loses the device, with all work that was sent to it.
    pub(crate) fn lose_device(&mut self) {
        if self.losses.device_away {
            return;
        }
        self.losses.devices += 1;
        self.losses.device_away = true;
        self.work.clear();
        self.table = Self::empty_table(self.transfer_queue.as_ref());
        if let Some(drafts) = &mut self.drafts {
            drafts.renew();
        }
        self.model = Oracle::new(self.oracle.clone()).expect("it was valid before");
        self.handle_event(Event::DeviceLost("lost".into()));
    }

    /// Adds a new device.
    pub(crate) fn find_device(&mut self) {
        if std::mem::take(&mut self.losses.device_away) {
            self.handle_event(Event::DeviceFound);
        }
    }

    /// Loses the cache after it has handled the message, before its effects are delivered.
    pub(crate) fn lose_cache(&mut self, message: motet_core::cache::Message) -> Answer {
        self.losses.caches += 1;
        let _lost_effects = self.send_to_cache(message);
        let reset = self.send_to_cache(motet_core::cache::Message::Reset);
        reset.expect("it can always restart");
        Answer::Asked(Err(CacheError::Lost))
    }

    /// Loses the pager, with its leases and all messages to it and from it.
    pub(crate) fn lose_pager(&mut self) {
        let Some(pager_harness) = self.pager_harness.take() else {
            return;
        };
        self.losses.stranded = Some(pager_harness.imports.clone());
        drop(pager_harness);
        self.losses.pagers += 1;
        let gone = motet_core::cache::Message::Paged(motet_core::pager::PagerEvent::Gone);
        let cache_effects = self
            .send_to_cache(gone)
            .expect("it can always continue without a pager");
        self.cores.answer(Answer::Unasked(cache_effects));
    }

    /// Loses the scheduler after it has handled the event, before its effects are delivered.
    /// Another one replaces it, and receives the state that the other parts know.
    pub(crate) fn lose_scheduler(&mut self, event: Event) {
        self.losses.schedulers += 1;
        self.cores.lose_effects(event);
        let left = Predecessor {
            epoch: self.losses.epoch,
            pending_answers: self.cores.pending_answers(),
            in_flight: self.work.len() + self.table.in_flight(),
            device_away: self.losses.device_away,
        };
        let scheduler = self.fresh_scheduler();
        self.cores.replace_scheduler(scheduler);
        // The callers repeat their commands.
        self.pending_commands.clear();
        self.handle_event(Event::Rebuilt(left));
        let live = self.callers.iter().filter(|(_, c)| c.end.is_none());
        let live: Vec<SequenceId> = live.map(|(sequence, _)| *sequence).collect();
        for sequence in &live {
            let caller = &self.callers[sequence];
            let history = History {
                submission: submission(*sequence, caller, &caller.prompt, &self.oracle),
                generated: caller.sent.clone(),
                started: self.losses.started.contains(sequence),
                paused: self.losses.paused.contains(sequence),
            };
            self.handle_event(Event::Restore(history));
        }
    }
}
