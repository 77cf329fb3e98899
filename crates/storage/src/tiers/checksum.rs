//! A checksum that detects damage at memory speed: rapidhash V3 with its default seed, whose sums
//! stay the same between versions of the crate, and which the `rapidhash` command prints, too.
//!
//! Changed bytes leave it unchanged in one case of 2^64. It does not protect against deliberate
//! changes.
//!
//! The choice was measured on a busy Epyc with AVX2, with 64 KiB in the cache, as a whole and in
//! pieces: rapidhash 27 and 25 GB/s, xxh3 31 and 27 GB/s, and the eight lanes of multiply and rotate
//! that stood here before 29 GB/s. A disk is the bound of all three. rapidhash is built anyway, for
//! `metrics`; xxh3 would be one crate more.

use rapidhash::v3::{DEFAULT_RAPID_SECRETS, RapidStreamHasherV3, rapidhash_v3};

/// An unfinished checksum.
pub(super) struct Checksum(RapidStreamHasherV3<'static>);

impl Checksum {
    pub(super) fn new() -> Self {
        Self(RapidStreamHasherV3::new(&DEFAULT_RAPID_SECRETS))
    }

    /// Returns the checksum of `bytes`.
    pub(super) fn of(bytes: &[u8]) -> u64 {
        rapidhash_v3(bytes)
    }

    /// Adds the next bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub(super) fn finish(&self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i * 7) as u8).collect()
    }

    /// Files on the disks of users have these sums.
    #[test]
    fn sums_stay_the_same() {
        assert_eq!(Checksum::of(b""), 0x0338_dc4b_e2ce_cdae);
        assert_eq!(Checksum::of(&numbered(200)), 0xaad5_383c_c136_2921);
        assert_eq!(Checksum::of(&numbered(100_000)), 0xcf90_abad_00fe_e5e0);
    }

    #[test]
    fn any_changed_bit_changes_the_sum() {
        for length in [1, 7, 8, 63, 64, 65, 200] {
            let bytes = numbered(length);
            let whole = Checksum::of(&bytes);
            for bit in 0..8 * length {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Checksum::of(&damaged), whole, "bit {bit} of {length}");
            }
        }
    }

    #[test]
    fn any_other_length_changes_the_sum() {
        for fill in [0, 0xFF] {
            let bytes = [fill; 300];
            let sums: Vec<u64> = (0..300).map(|n| Checksum::of(&bytes[..n])).collect();
            for (n, sum) in sums.iter().enumerate() {
                assert!(!sums[..n].contains(sum), "{n} bytes of {fill}");
            }
        }
    }

    #[test]
    fn pieces_give_the_sum_of_the_whole() {
        let bytes = numbered(1000);
        for piece in [1, 7, 64, 640, 1024] {
            let mut sum = Checksum::new();
            bytes.chunks(piece).for_each(|bytes| sum.update(bytes));
            assert_eq!(sum.finish(), Checksum::of(&bytes), "pieces of {piece}");
        }
    }

    /// In release: `cargo test --release --lib checksum -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures only"]
    fn speed() {
        let bytes = numbered(4 << 20);
        let mut copy = bytes.clone();
        let gigabytes = |mut work: Box<dyn FnMut() + '_>| {
            let seconds = (0..40).map(|_| {
                let start = std::time::Instant::now();
                work();
                start.elapsed().as_secs_f64()
            });
            bytes.len() as f64 / 1e9 / seconds.fold(f64::MAX, f64::min)
        };
        let summed = gigabytes(Box::new(|| {
            std::hint::black_box(Checksum::of(std::hint::black_box(&bytes)));
        }));
        let copied = gigabytes(Box::new(|| {
            std::hint::black_box(&mut copy).copy_from_slice(std::hint::black_box(&bytes));
        }));
        println!("4 MiB: checksum {summed:.1} GB/s, copied {copied:.1} GB/s");
    }
}
