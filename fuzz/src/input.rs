//! Bytes as numbers.

/// Bytes that are read from the front. After the last one, all reads return 0.
pub(crate) struct FuzzInput<'a>(pub(crate) &'a [u8]);

impl FuzzInput<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// A number below `most`, which is at least 1.
    pub(crate) fn below(&mut self, most: usize) -> usize {
        usize::from(self.byte()) % most
    }

    pub(crate) fn bit(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    pub(crate) fn f32(&mut self) -> f32 {
        f32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}
