//! Filler sequences that take a cache's memory, so that cached state must be evicted.

use motet::SequenceId;
use motet::cache::Salt;
use motet_core::cache::Effect;

use crate::harness::CacheHarness;

impl CacheHarness {
    /// Opens filler sequences until the first eviction, then discards them.
    pub(crate) fn evict_one(&mut self) {
        let evicted = self.core.stats().evicted_segments;
        let mut fillers = Vec::new();
        while self.core.stats().evicted_segments == evicted {
            let stats = self.core.stats();
            let free = self.device_bytes_max - stats.sealed_bytes - stats.reserved_bytes;
            let (filler, effects) = self.open_filler(free);
            let opened = self.opened(filler).is_some();
            assert!(opened, "something could be evicted: {effects:?}");
            fillers.push(filler);
        }
        self.discard_all(fillers);
    }

    /// Opens filler sequences until so many bytes remain for the sealed state, and not one
    /// token more, then discards them. Returns whether the cache evicted that much, and the
    /// device stayed within its budget.
    pub(crate) fn evict_until(&mut self, sealed_bytes: usize) -> bool {
        let mut fillers = Vec::new();
        let mut fits = true;
        loop {
            let reserved = self.core.stats().reserved_bytes;
            let free = self.device_bytes_max - reserved - sealed_bytes;
            if !fits || free < self.tail_bytes(1) {
                break;
            }
            let (filler, _) = self.open_filler(free);
            fits = self.opened(filler).is_some();
            fillers.extend(fits.then_some(filler));
        }
        let sealed_bytes_max = self.device_bytes_max - self.core.stats().reserved_bytes;
        let alive = self.oracle.counters.now().bytes_alive;
        fits &=
            self.core.stats().sealed_bytes <= sealed_bytes_max && alive <= self.device_bytes_max;
        self.discard_all(fillers);
        fits
    }

    /// Opens a filler sequence that takes at most the free bytes.
    fn open_filler(&mut self, free: usize) -> (SequenceId, Vec<Effect>) {
        // A tail of so few tokens is no larger than its tokens.
        let tokens = (free / self.tail_bytes(1)).clamp(1, 8);
        self.try_open_slot(&[1], |open_slot| {
            open_slot.tokens_max = tokens;
            open_slot.key.salt = Salt::new("fillers");
        })
    }

    fn discard_all(&mut self, fillers: Vec<SequenceId>) {
        for filler in fillers {
            self.discard(filler);
        }
    }
}
