//! Strangers that take a cache's memory, so that others have to go.

use motet::SequenceId;
use motet::cache::Salt;
use motet_core::cache::Effect;

use crate::house::House;

impl House {
    /// Lets strangers in until the first that is to go is gone, and sends them off.
    pub(crate) fn evict_one(&mut self) {
        let evicted = self.core.stats().evicted_segments;
        let mut strangers = Vec::new();
        while self.core.stats().evicted_segments == evicted {
            let stats = self.core.stats();
            let free = self.device_bytes_max - stats.sealed_bytes - stats.reserved_bytes;
            let (stranger, effects) = self.let_in(free);
            let begun = self.begun(stranger).is_some();
            assert!(begun, "something could be evicted: {effects:?}");
            strangers.push(stranger);
        }
        self.send_off(strangers);
    }

    /// Lets strangers in until all that is sealed has so many bytes left and not a token
    /// more, and sends them off. Says whether the cache made that much room for them, and
    /// the device held no more than it may.
    pub(crate) fn squeeze(&mut self, sealed_bytes: usize) -> bool {
        let mut strangers = Vec::new();
        let mut fits = true;
        loop {
            let reserved = self.core.stats().reserved_bytes;
            let free = self.device_bytes_max - reserved - sealed_bytes;
            if !fits || free < self.tail_bytes(1) {
                break;
            }
            let (stranger, _) = self.let_in(free);
            fits = self.begun(stranger).is_some();
            strangers.extend(fits.then_some(stranger));
        }
        let left = self.device_bytes_max - self.core.stats().reserved_bytes;
        let alive = self.oracle.counters.now().bytes_alive;
        fits &= self.core.stats().sealed_bytes <= left && alive <= self.device_bytes_max;
        self.send_off(strangers);
        fits
    }

    /// A stranger that takes no more than is free.
    fn let_in(&mut self, free: usize) -> (SequenceId, Vec<Effect>) {
        // Of so few tokens a tail is no larger than they are.
        let tokens = (free / self.tail_bytes(1)).clamp(1, 8);
        self.try_begin(&[1], |begin| {
            begin.tokens_max = tokens;
            begin.salt = Salt::new("a crowd");
        })
    }

    fn send_off(&mut self, strangers: Vec<SequenceId>) {
        for stranger in strangers {
            self.discard(stranger);
        }
    }
}
