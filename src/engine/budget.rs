//! The device's memory budget at the start: how much of it the engine uses, and whether the
//! worst case fits.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::Loaded;
use crate::error::StartError;
use motet_core::config::{CacheConfig, EngineConfig, WorstCase};
use motet_device::panic_text;
use motet_model::{MemoryLeft, Model};
use motet_protocol::ModelError;

/// Chosen budgets are whole multiples of this.
const GRAIN_BYTES: usize = 1 << 20;

/// The device memory that an engine runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceBudget {
    /// Bytes for cached state and a step's scratch: `cache.device_bytes_max`, set or chosen.
    pub bytes: usize,
    /// The part of them for the scratch memory of the largest step.
    pub scratch_bytes: usize,
    /// Bytes that were found to be available at the start: the scratch memory and
    /// `cache.full_sequences_min` sequences of the whole context.
    pub proven_bytes: usize,
    /// Free bytes on the device when the budget was chosen from them. `None` where
    /// `cache.device_bytes_max` was set, or the device cannot report it.
    pub chosen_from: Option<usize>,
}

/// The budget determined when the model was first loaded. Clones share it.
#[derive(Clone, Default)]
pub(super) struct BudgetCell(Arc<Mutex<Option<Result<DeviceBudget, StartError>>>>);

impl BudgetCell {
    /// Returns the models, unless the settings cannot work with it. Only those loaded
    /// first are checked: later loads yield the same ones. The draft model needs `draft_bytes` beside
    /// the budget.
    pub(super) fn determine<M: Model>(
        &self,
        mut loaded: Loaded<M>,
        draft_bytes: usize,
        config: &EngineConfig,
    ) -> Result<Loaded<M>, ModelError> {
        let mut budget_cell = self.lock();
        let determined = || determine(&mut loaded.model, draft_bytes, config);
        match budget_cell.get_or_insert_with(determined) {
            Ok(_) => Ok(loaded),
            Err(error) => Err(ModelError::Device(error.to_string())),
        }
    }

    /// Whether a model was loaded before.
    pub(super) fn is_known(&self) -> bool {
        self.lock().is_some()
    }

    /// Returns the budget; `None` where no model was loaded.
    pub(super) fn budget(&self) -> Result<Option<DeviceBudget>, StartError> {
        let mut budget_cell = self.lock();
        let budget = budget_cell.take().transpose()?;
        *budget_cell = budget.map(Ok);
        Ok(budget)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<DeviceBudget, StartError>>> {
        // A panic of the model is caught, and leaves no partial state here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Validates the settings against the loaded model, chooses the budget where it is not set, and
/// makes the model prove that the worst case fits.
fn determine<M: Model>(
    model: &mut M,
    draft_bytes: usize,
    config: &EngineConfig,
) -> Result<DeviceBudget, StartError> {
    config.validate_for(model.spec())?;
    let worst = config.worst_case(model.spec());
    let left = model.memory_left().map(|left| MemoryLeft {
        bytes: left.bytes.saturating_sub(draft_bytes),
        ..left
    });
    prove(worst, left, |bytes| {
        let found = model.try_memory(bytes.saturating_add(draft_bytes))?;
        Ok(found.saturating_sub(draft_bytes))
    })?;
    let set = config.cache.device_bytes_max;
    let (bytes, chosen_from) = match (set, left) {
        (0, Some(left)) => {
            let bytes = chosen_bytes(left, config.pager.host_bytes_max);
            (bytes.max(worst.bytes()), Some(left.bytes))
        }
        (0, None) => (CacheConfig::DEVICE_BYTES.max(worst.bytes()), None),
        (set, _) => (set, None),
    };
    Ok(DeviceBudget {
        bytes,
        scratch_bytes: worst.scratch_bytes,
        proven_bytes: worst.bytes(),
        chosen_from,
    })
}

/// Returns the budget: half of the host's free memory after the pager's copies, since other
/// programs share it, or nine tenths of the free memory of a separate device.
fn chosen_bytes(left: MemoryLeft, host_bytes_max: usize) -> usize {
    let bytes = if left.is_host {
        left.bytes.saturating_sub(host_bytes_max) / 2
    } else {
        left.bytes / 10 * 9
    };
    bytes / GRAIN_BYTES * GRAIN_BYTES
}

/// Fails unless the device has the memory of the worst case. The error contains the device's
/// own message where the device fails.
fn prove(
    worst: WorstCase,
    left: Option<MemoryLeft>,
    try_memory: impl FnOnce(usize) -> Result<usize, ModelError>,
) -> Result<(), StartError> {
    let needed = worst.bytes();
    let out_of_memory = |available_bytes, why: String| StartError::DeviceMemory {
        needed_bytes: needed,
        available_bytes,
        worst,
        why,
    };
    if let Some(left) = left.filter(|left| left.bytes < needed) {
        return Err(out_of_memory(left.bytes, "as the device reports".into()));
    }
    let reported = left.map_or(0, |left| left.bytes);
    match catch_unwind(AssertUnwindSafe(|| try_memory(needed))) {
        Ok(Ok(found)) if found >= needed => Ok(()),
        Ok(Ok(found)) => Err(out_of_memory(found, "it provided no more".into())),
        Ok(Err(error)) => Err(out_of_memory(reported, error.to_string())),
        Err(panic) => Err(out_of_memory(reported, panic_text(&*panic).into())),
    }
}

impl fmt::Display for DeviceBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "{:.0} MiB, including {:.0} MiB of a step's scratch",
            mib(self.bytes),
            mib(self.scratch_bytes)
        )?;
        match self.chosen_from {
            Some(left) => write!(f, "; chosen from {:.0} MiB that are free", mib(left)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORST: WorstCase = WorstCase {
        full_sequences: 2,
        context_tokens: 10,
        tail_bytes: 900,
        scratch_bytes: 100,
    };

    fn proven(
        left: Option<usize>,
        try_memory: impl FnOnce(usize) -> Result<usize, ModelError>,
    ) -> Result<(), (usize, usize, String)> {
        let left = left.map(|bytes| MemoryLeft {
            bytes,
            is_host: true,
            mapped_bytes: 0,
        });
        prove(WORST, left, try_memory).map_err(|error| {
            let reported = error.to_string();
            match error {
                StartError::DeviceMemory {
                    needed_bytes,
                    available_bytes,
                    ..
                } => (needed_bytes, available_bytes, reported),
                other => panic!("{other}"),
            }
        })
    }

    #[test]
    fn device_with_enough_memory_is_accepted() {
        for left in [None, Some(1000)] {
            let mut asked = 0;
            let try_memory = |bytes| {
                asked = bytes;
                Ok(bytes)
            };
            assert_eq!(proven(left, try_memory), Ok(()));
            assert_eq!(asked, 1000);
        }
    }

    #[test]
    fn too_small_device_is_reported_with_both_numbers() {
        let check = |result: Result<(), (usize, usize, String)>, available, why: &str| {
            let (needed, found, reported) = result.expect_err("the device is too small");
            assert_eq!((needed, found), (1000, available));
            let numbers = [1000, available, 100, 900].map(|number| number.to_string());
            assert!(
                numbers.iter().all(|number| reported.contains(number)),
                "{reported}"
            );
            assert!(reported.contains(why), "{reported}");
        };
        let untried = |_| panic!("there is no need to try");
        check(proven(Some(999), untried), 999, "as the device reports");
        check(proven(None, |_| Ok(640)), 640, "no more");
        let throws = |_| Err(ModelError::Device("bad_alloc".into()));
        check(proven(Some(2000), throws), 2000, "bad_alloc");
        check(proven(None, throws), 0, "bad_alloc");
        check(proven(None, |_| panic!("no pages")), 0, "no pages");
    }

    #[test]
    fn budget_is_a_part_of_the_free_memory() {
        let check = |bytes, is_host, host_bytes_max, expected| {
            let left = MemoryLeft {
                bytes,
                is_host,
                mapped_bytes: 0,
            };
            assert_eq!(chosen_bytes(left, host_bytes_max), expected);
        };
        let gib = 1 << 30;
        check(8 * gib, true, 0, 4 * gib);
        check(8 * gib, true, 2 * gib, 3 * gib);
        check(gib, true, 2 * gib, 0);
        check(10 * gib, false, 2 * gib, 9 * gib);
        check(3 * GRAIN_BYTES, true, 0, GRAIN_BYTES);
    }
}
