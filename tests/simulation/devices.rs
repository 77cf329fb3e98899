//! The devices of one seed, one after another, and their counters.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use motet_model::oracle::{OracleCounters, OracleCounts};

/// All devices of an engine so far. Clones share them.
///
/// A device that does not respond is abandoned with all that it holds until it responds again,
/// so each device has its own counters.
#[derive(Clone, Default)]
pub(crate) struct Devices(Arc<Mutex<Vec<OracleCounters>>>);

impl Devices {
    /// Adds a device, which replaces the previous one.
    pub(crate) fn another(&self) -> OracleCounters {
        let counters = OracleCounters::default();
        self.all().push(counters.clone());
        counters
    }

    /// Counts of the current device.
    pub(crate) fn last(&self) -> OracleCounts {
        self.all().last().expect("there is a device").now()
    }

    /// Live segments, tails and bytes on all of them.
    pub(crate) fn alive(&self) -> [usize; 3] {
        self.all().iter().fold([0; 3], |[a, b, c], device| {
            let counts = device.now();
            [
                a + counts.segments_alive,
                b + counts.tails_alive,
                c + counts.bytes_alive,
            ]
        })
    }

    /// Steps that were started on all of them.
    pub(crate) fn steps(&self) -> u64 {
        self.all().iter().map(|device| device.now().steps).sum()
    }

    fn all(&self) -> MutexGuard<'_, Vec<OracleCounters>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
