//! The formats that tensors may have, and the conversion of whole tensors to single precision.

use std::thread;

use motet_formats::{Encoded, Format};

/// Minimum elements for each thread of a conversion.
const THREAD_ELEMENTS: usize = 1 << 20;
/// Maximum threads of a conversion. Beyond these, memory bandwidth is the limit.
const THREADS_MAX: usize = 8;

/// The formats that are allowed for some tensor, and their names in an error.
pub(super) struct Formats {
    pub(super) allowed: &'static [Format],
    pub(super) names: &'static str,
}

impl Formats {
    /// Every format of weights.
    pub(super) const ALL: Formats = Formats {
        allowed: Format::ALL,
        names: Format::ALL_NAMES,
    };
    /// Formats that store every element separately.
    pub(super) const UNQUANTISED: Formats = Formats {
        allowed: Format::NUMBERS,
        names: Format::NUMBER_NAMES,
    };
}

/// Elements that are stored in blocks or as numbers, as [`write_f32`] writes them.
pub(super) fn to_f32(format: Format, bytes: &[u8]) -> Vec<f32> {
    let encoded = Encoded::new(format, bytes, [&[], &[]]);
    let mut out = vec![0.0; encoded.elements()];
    write_f32(encoded, &mut out);
    out
}

/// Converts elements to single precision, on several threads where they are many.
///
/// # Panics
///
/// Unless `out` has exactly as many elements.
pub(super) fn write_f32(encoded: Encoded<'_>, out: &mut [f32]) {
    let threads = threads_of(out.len());
    if threads == 1 {
        return encoded.decode(out);
    }
    assert_eq!(encoded.elements(), out.len(), "numbers of the elements");
    let (elements, _) = encoded.format().block();
    let blocks = out.len() / elements;
    let share = blocks.div_ceil(threads);
    thread::scope(|scope| {
        for (index, out) in out.chunks_mut(share * elements).enumerate() {
            let part = encoded.blocks(index * share..blocks.min((index + 1) * share));
            scope.spawn(move || part.decode(out));
        }
    });
}

/// Threads for the conversion of so many elements.
fn threads_of(elements: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    (elements / THREAD_ELEMENTS).clamp(1, cores.min(THREADS_MAX))
}

#[cfg(test)]
mod tests {
    use motet_formats::{Affine, ScaleFormat};

    use super::*;

    /// Numbers without a pattern that repeats from one block to the next.
    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at * 7 / 3) as u8).collect()
    }

    #[test]
    fn threads_convert_what_one_thread_converts() {
        let affine = Format::Affine(Affine {
            bits: 5,
            group: 64,
            scales: ScaleFormat::BF16,
        });
        let cases = [
            (Format::Q6K, 3 * 4096 + 3),
            (Format::BF16, (3 << 20) + 1),
            (affine, 3 * THREAD_ELEMENTS / 64 + 5),
        ];
        for (format, blocks) in cases {
            let (elements, stride) = format.block();
            let (scale, offset) = format.span_bytes();
            let [codes, scales, offsets] = [stride, scale, offset].map(|size| bytes(blocks * size));
            let encoded = Encoded::new(format, &codes, [&scales, &offsets]);
            let mut whole = vec![0.0; blocks * elements];
            assert!(whole.len() > 3 * THREAD_ELEMENTS);
            encoded.decode(&mut whole);
            let mut parts = vec![1.0; blocks * elements];
            write_f32(encoded, &mut parts);
            let mut pairs = whole.iter().zip(&parts);
            let equal = pairs.all(|(one, other)| one.to_bits() == other.to_bits());
            assert!(equal, "{}", format.name());
        }
    }
}
