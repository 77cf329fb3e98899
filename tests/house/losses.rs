//! What a house can lose and go on without: its device, its cache, its scheduler, its
//! pager.

use motet::cache::CacheError;
use motet::device::{Arrived, Dock, Table};
use motet::model::Parcel;
use motet::model::oracle::Oracle;
use motet::{SequenceId, TokenId};
use motet_core::scheduler::{Event, History, Leftover};

use std::collections::BTreeSet;

use crate::house::{Answer, House, submission};

/// What has been lost so far, and what must be known to go on.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    pub(crate) devices: usize,
    pub(crate) caches: usize,
    pub(crate) schedulers: usize,
    pub(crate) pagers: usize,
    /// Works of which an edit failed, and which cost that alone.
    pub(crate) edits: usize,
    /// There is no device until it is found.
    pub(crate) device_away: bool,
    /// The cache panics at the next message.
    pub(crate) cache_fails: bool,
    /// The scheduler panics at the next event that nobody says again.
    pub(crate) scheduler_fails: bool,
    /// The epoch of the last work.
    pub(crate) epoch: u64,
    /// What a pager has brought that is gone: taken in or not, nobody throws it away.
    pub(crate) stranded: Option<Arrived<Parcel<Oracle>>>,
    pub(crate) started: BTreeSet<SequenceId>,
    pub(crate) paused: BTreeSet<SequenceId>,
}

impl House {
    /// Another device, which holds nothing, at the same dock.
    pub(crate) fn empty_table(dock: Option<&Dock<Parcel<Oracle>>>) -> Table<Oracle> {
        dock.map_or_else(Table::new, |dock| Table::with_dock(dock.successor()))
    }

    /// The device is gone, with all that was sent to it.
    pub(crate) fn lose_device(&mut self) {
        if self.losses.device_away {
            return;
        }
        self.losses.devices += 1;
        self.losses.device_away = true;
        self.work.clear();
        self.table = Self::empty_table(self.dock.as_ref());
        self.model = Oracle::new(self.oracle.clone()).expect("it was valid before");
        self.feed(Event::DeviceLost("lost".into()));
    }

    /// There is another.
    pub(crate) fn find_device(&mut self) {
        if std::mem::take(&mut self.losses.device_away) {
            self.feed(Event::DeviceFound);
        }
    }

    /// The cache has changed when it fails, and nobody has heard of it.
    pub(crate) fn lose_cache(&mut self, message: motet_core::cache::Message) -> Answer {
        self.losses.caches += 1;
        let _unheard = self.tell_cache(message);
        let reset = self.tell_cache(motet_core::cache::Message::Reset);
        reset.expect("it can always begin anew");
        Answer::Asked(Err(CacheError::Lost))
    }

    /// The pager is gone, with its leases and all that was on the way to it and from it.
    pub(crate) fn lose_pager(&mut self) {
        let Some(pages) = self.pages.take() else {
            return;
        };
        self.losses.stranded = Some(pages.arrived.clone());
        drop(pages);
        self.losses.pagers += 1;
        let gone = motet_core::cache::Message::Paged(motet_core::pager::Told::Gone);
        let news = self.tell_cache(gone).expect("it can always go on without");
        self.answers.push_back(Answer::News(news));
    }

    /// The scheduler has changed when it fails, and nobody has heard of it: another takes
    /// its place, and is told what everybody knows.
    pub(crate) fn lose_scheduler(&mut self, event: Event) {
        self.losses.schedulers += 1;
        let _unheard = self.scheduler.handle(self.now, event);
        let asked = |answer: &&Answer| matches!(answer, Answer::Asked(_));
        let left = Leftover {
            epoch: self.losses.epoch,
            unanswered: self.messages.len() + self.answers.iter().filter(asked).count(),
            under_way: self.work.len() + self.table.under_way(),
            device_away: self.losses.device_away,
        };
        self.scheduler = self.fresh_scheduler();
        // Who asked asks again.
        self.tickets.clear();
        self.feed(Event::TakeOver(left));
        let live = self.callers.iter().filter(|(_, c)| c.end.is_none());
        let live: Vec<SequenceId> = live.map(|(sequence, _)| *sequence).collect();
        for sequence in &live {
            let caller = &self.callers[sequence];
            let end_tokens: &[TokenId] = &self.oracle.end_tokens;
            let history = History {
                submission: submission(*sequence, caller, &caller.prompt, end_tokens),
                generated: caller.told.clone(),
                started: self.losses.started.contains(sequence),
                paused: self.losses.paused.contains(sequence),
            };
            self.feed(Event::GoOn(history));
        }
    }
}
