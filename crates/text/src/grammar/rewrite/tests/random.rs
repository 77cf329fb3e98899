//! Random numbers that are the same on each machine.

/// A generator by Steele, Lea and Flood (SplitMix64).
pub(in crate::grammar) struct Random(u64);

impl Random {
    pub(in crate::grammar) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(in crate::grammar) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    pub(in crate::grammar) fn one_in(&mut self, limit: usize) -> bool {
        self.below(limit) == 0
    }

    pub(in crate::grammar) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}
