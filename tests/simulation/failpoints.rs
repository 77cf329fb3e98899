//! Panics in one engine's parts: armed by the seed, and counted once they have happened.

use std::sync::Mutex;

use motet::failpoint::{Failpoint, Failpoints};

use crate::plan::Fault;
use crate::record::Record;

/// The failpoints of an engine.
pub(crate) struct ArmedFailpoints {
    failpoints: Failpoints,
    record: Record,
    /// Failpoints that are armed and have not been seen to trip.
    armed: Mutex<Vec<Fault>>,
}

impl ArmedFailpoints {
    pub(crate) fn new(record: &Record) -> Self {
        Self {
            failpoints: Failpoints::default(),
            record: record.clone(),
            armed: Mutex::default(),
        }
    }

    /// The failpoints for the engine.
    pub(crate) fn failpoints(&self) -> Failpoints {
        self.failpoints.clone()
    }

    /// The part that panics when a core of this name does.
    pub(crate) fn of(core: &str) -> Fault {
        match core {
            "scheduler" => Fault::SchedulerPanics,
            "cache" => Fault::CachePanics,
            "pager" => Fault::PagerPanics,
            other => panic!("a core without a failpoint: {other}"),
        }
    }

    /// Makes the part panic so many messages from now.
    pub(crate) fn arm(&self, fault: Fault, messages: u64) {
        let mut armed = self.armed.lock().expect("a list is whole");
        if !armed.contains(&fault) {
            self.failpoint(fault).arm(messages);
            armed.push(fault);
        }
    }

    /// Counts the failpoints that have tripped since the last call. Returns whether one of them
    /// was the device's.
    pub(crate) fn take_tripped(&self) -> bool {
        let mut armed = self.armed.lock().expect("a list is whole");
        let mut device_died = false;
        armed.retain(|fault| {
            let is_still_armed = self.failpoint(*fault).is_armed();
            if !is_still_armed {
                self.record.count(fault.label(), 1);
                self.record.log(format_args!("{}", fault.label()));
                device_died |= *fault == Fault::DeviceDies;
            }
            is_still_armed
        });
        device_died
    }

    fn failpoint(&self, fault: Fault) -> &Failpoint {
        match fault {
            Fault::DeviceDies => &self.failpoints.device,
            Fault::SchedulerPanics => &self.failpoints.scheduler,
            Fault::CachePanics => &self.failpoints.cache,
            Fault::PagerPanics => &self.failpoints.pager,
            other => panic!("no failpoint makes this happen: {other:?}"),
        }
    }
}
