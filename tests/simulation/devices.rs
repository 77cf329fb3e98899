//! The devices of one seed, one after another, and what each of them holds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use motet::model::oracle::{OracleCounters, OracleCounts};

/// All devices that there were. Clones are the same ones.
///
/// One that does not answer is left behind with all that it holds until it comes back: so
/// each has counts of its own.
#[derive(Clone, Default)]
pub(crate) struct Devices(Arc<Mutex<Vec<OracleCounters>>>);

impl Devices {
    /// Another device takes the place of those before it.
    pub(crate) fn another(&self) -> OracleCounters {
        let counters = OracleCounters::default();
        self.all().push(counters.clone());
        counters
    }

    /// The one that is at work.
    pub(crate) fn last(&self) -> OracleCounts {
        self.all().last().expect("there is a device").now()
    }

    /// Segments, tails and bytes that are alive on any of them.
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

    /// Steps that were begun on all of them.
    pub(crate) fn steps(&self) -> u64 {
        self.all().iter().map(|device| device.now().steps).sum()
    }

    fn all(&self) -> MutexGuard<'_, Vec<OracleCounters>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
