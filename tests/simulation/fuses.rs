//! Panics of one engine's parts: asked for when a seed says so, and counted when they
//! have happened.

use std::sync::Mutex;

use motet::fuse::{Fuse, Fuses};

use crate::plan::Fault;
use crate::record::Record;

/// The fuses of an engine.
pub(crate) struct Matches {
    fuses: Fuses,
    record: Record,
    /// What has been lit and has not been seen to go off.
    lit: Mutex<Vec<Fault>>,
}

impl Matches {
    pub(crate) fn new(record: &Record) -> Self {
        Self {
            fuses: Fuses::default(),
            record: record.clone(),
            lit: Mutex::default(),
        }
    }

    /// What the engine burns.
    pub(crate) fn fuses(&self) -> Fuses {
        self.fuses.clone()
    }

    /// Which part panics when a core of this name does.
    pub(crate) fn of(core: &str) -> Fault {
        match core {
            "scheduler" => Fault::SchedulerPanics,
            "cache" => Fault::CachePanics,
            "pager" => Fault::PagerPanics,
            other => panic!("a core without a fuse: {other}"),
        }
    }

    /// The part panics at so many messages from now.
    pub(crate) fn light(&self, fault: Fault, messages: u64) {
        let mut lit = self.lit.lock().expect("a list is whole");
        if !lit.contains(&fault) {
            self.fuse(fault).light(messages);
            lit.push(fault);
        }
    }

    /// Counts those that have gone off since this was asked last. Says whether one of them
    /// was the device's.
    pub(crate) fn gone_off(&self) -> bool {
        let mut lit = self.lit.lock().expect("a list is whole");
        let mut device_died = false;
        lit.retain(|fault| {
            let still = self.fuse(*fault).is_lit();
            if !still {
                self.record.count(fault.label(), 1);
                self.record.say(format_args!("{}", fault.label()));
                device_died |= *fault == Fault::DeviceDies;
            }
            still
        });
        device_died
    }

    fn fuse(&self, fault: Fault) -> &Fuse {
        match fault {
            Fault::DeviceDies => &self.fuses.device,
            Fault::SchedulerPanics => &self.fuses.scheduler,
            Fault::CachePanics => &self.fuses.cache,
            Fault::PagerPanics => &self.fuses.pager,
            other => panic!("no fuse makes this happen: {other:?}"),
        }
    }
}
