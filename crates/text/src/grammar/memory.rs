//! Memory of the lexers' states: the budget of all outputs, and the share of each.

use motet_sync::primitives::{Arc, AtomicUsize, Ordering};

use motet_protocol::{GrammarError, GrammarLimits};

/// A budget of bytes that all outputs of a vocabulary share. Clones are the same budget.
#[derive(Clone, Debug)]
pub(super) struct Memory(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    sequence_bytes_max: usize,
    bytes_max: usize,
    used: AtomicUsize,
    /// Number of outputs that share the budget.
    charges: AtomicUsize,
}

/// The bytes that one output takes of the budget; dropping it returns them.
#[derive(Debug)]
pub(super) struct Charge {
    budget: Memory,
    bytes: usize,
}

impl Memory {
    pub(super) fn new(limits: &GrammarLimits) -> Self {
        Self(Arc::new(Budget {
            sequence_bytes_max: limits.sequence_bytes_max,
            bytes_max: limits.bytes_max,
            used: AtomicUsize::new(0),
            charges: AtomicUsize::new(0),
        }))
    }

    /// Returns a new charge of no bytes.
    pub(super) fn charge(&self) -> Charge {
        self.0.charges.fetch_add(1, Ordering::Relaxed);
        Charge {
            budget: self.clone(),
            bytes: 0,
        }
    }

    pub(super) fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }
}

impl Charge {
    /// Returns another charge of the same budget, of no bytes.
    pub(super) fn new_sibling(&self) -> Self {
        self.budget.charge()
    }

    /// Sets the bytes that the output's states take now. The sums are advisory to each other, so
    /// that their order does not matter.
    ///
    /// # Errors
    ///
    /// [`GrammarError::Memory`] when that is more than one output may have; or when all outputs
    /// together exceed the budget, and this one exceeds an equal share. An output within its
    /// share never ends because of others.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), GrammarError> {
        let budget = &self.budget.0;
        budget.used.fetch_add(bytes, Ordering::Relaxed);
        let used = budget.used.fetch_sub(self.bytes, Ordering::Relaxed) - self.bytes;
        self.bytes = bytes;
        let reject = |setting, limit| {
            Err(GrammarError::Memory {
                setting,
                limit,
                found: bytes,
            })
        };
        if bytes > budget.sequence_bytes_max {
            return reject("`grammar.sequence_bytes_max`", budget.sequence_bytes_max);
        }
        let equal_share = budget.bytes_max / budget.charges.load(Ordering::Relaxed).max(1);
        if used > budget.bytes_max && bytes > equal_share {
            return reject("an equal part of `grammar.bytes_max`", equal_share);
        }
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let budget = &self.budget.0;
        budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        budget.charges.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_fails_only_for_its_own_bytes() {
        let memory = Memory::new(&GrammarLimits {
            sequence_bytes_max: 60,
            bytes_max: 100,
            ..GrammarLimits::default()
        });
        let (mut large, mut small) = (memory.charge(), memory.charge());
        assert_eq!(large.set(60), Ok(()));
        assert_eq!(memory.used(), 60);
        let error = large.set(61).expect_err("one too many").to_string();
        assert!(
            error.contains("61 bytes") && error.contains("most 60"),
            "{error}"
        );
        assert_eq!(large.set(60), Ok(()));
        // Together they exceed the budget, and the large one exceeds its share.
        assert_eq!(small.set(45), Ok(()));
        let error = large.set(60).expect_err("above its part").to_string();
        assert!(
            error.contains("60 bytes") && error.contains("most 50"),
            "{error}"
        );
        drop(large);
        assert_eq!((memory.used(), small.set(60)), (45, Ok(())));
        drop(small);
        assert_eq!(memory.used(), 0);
    }
}
