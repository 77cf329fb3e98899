//! 64-bit FNV-1a (Fowler, Noll and Vo): a hash that is the same everywhere, which
//! the standard library's hashers do not promise.

pub(super) struct Fingerprint(u64);

impl Fingerprint {
    pub(super) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Takes in a string of bytes; its length counts, so that two strings cannot
    /// pass for one.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.raw(&number.to_le_bytes());
    }

    pub(super) fn finish(&self) -> u64 {
        self.0
    }

    fn raw(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
