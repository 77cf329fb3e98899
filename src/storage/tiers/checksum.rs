//! A checksum that detects damage at memory speed.
//!
//! Eight lanes of multiply and rotate, in the manner of xxHash (Collet), side by side so that
//! none waits for the product of another. Each step is a bijection of its input, so one changed
//! word always changes the sum. Several changed words leave it unchanged in one case of 2^64.
//! It does not protect against deliberate changes.

const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
const LANES: usize = 8;
/// Bytes that one step of all lanes consumes.
const BLOCK_BYTES: usize = LANES * size_of::<u64>();

/// An unfinished checksum.
#[derive(Clone, Debug)]
pub(super) struct Checksum {
    lanes: [u64; LANES],
    bytes: u64,
}

impl Checksum {
    pub(super) fn new() -> Self {
        Self {
            lanes: std::array::from_fn(|lane| lane as u64),
            bytes: 0,
        }
    }

    /// Returns the checksum of `bytes`.
    pub(super) fn of(bytes: &[u8]) -> u64 {
        let mut sum = Self::new();
        sum.update(bytes);
        sum.finish()
    }

    /// Adds the next bytes. All calls but the last should pass a multiple of 64 bytes;
    /// otherwise the sum differs from that of the whole.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
        let mut lanes = self.lanes;
        for block in blocks {
            for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
                *lane = step(*lane, u64::from_le_bytes(*word));
            }
        }
        let (words, rest) = rest.as_chunks::<8>();
        for word in words {
            lanes[0] = step(lanes[0], u64::from_le_bytes(*word));
        }
        for byte in rest {
            lanes[1] = step(lanes[1], u64::from(*byte));
        }
        self.lanes = lanes;
    }

    pub(super) fn finish(&self) -> u64 {
        self.lanes.into_iter().fold(self.bytes, step)
    }
}

fn step(lane: u64, word: u64) -> u64 {
    (lane.rotate_left(23) ^ word).wrapping_mul(FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i * 7) as u8).collect()
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
        for piece in [64, 128, 640, 1024] {
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
