//! Quantisation to eight bits for each number.
//!
//! Keys and values are planes of rows (tokens) and channels. Each channel of a plane has its
//! own range, above all for keys: a few channels are large for every token. Each channel of
//! each plane therefore gets its own minimum and step, and a number becomes the count of steps
//! above the minimum. This is asymmetric quantisation per channel, which KIVI (Liu et al.,
//! 2024) found best for keys. Values are treated alike; eight bits are precise enough for them.
//!
//! ```text
//! each plane:  minimum     f32 of each channel
//!              step        f32 of each channel
//!              steps       u8, [rows, channels]
//! ```
//!
//! Packed state may have several sections of planes, and bytes after them that are not to be
//! rounded, such as recurrent state. These bytes follow the planes as they are.
//!
//! A decoded number is within half a step of the original: the range of its channel / 510. The
//! rounding of the `f32` arithmetic and of the result's type comes on top. Encoding decoded
//! numbers again may give other bytes: encode once.

mod number;
#[cfg(test)]
mod tests;

use half::{bf16, f16};

use motet_model::{FloatKind, Floats};
use number::{Number, TILE, Tile};

/// The error of an encoding or decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrecisionError {
    /// The bytes are fewer than those of the planes, or the two sides differ in their number.
    #[error("{full_bytes} bytes cannot be {eight_bytes} bytes with eight bits for each number")]
    Length {
        /// Bytes in full precision.
        full_bytes: usize,
        /// Bytes with eight bits for each number.
        eight_bytes: usize,
    },
    /// A channel has numbers that are not finite, or an infinite range.
    #[error("the numbers have no finite range: expected finite numbers")]
    NotFinite,
}

const STEPS: f32 = 255.0;
/// Adding this to a number below 2^22 leaves its nearest whole number in the low bits.
const WHOLE: f32 = 8_388_608.0;

/// Sections of numbers, stored in eight bits each, and further bytes, stored as they are.
#[derive(Clone, Debug)]
pub struct EightBits(pub Vec<Floats>);

impl EightBits {
    /// Returns the encoded bytes for `full_bytes` bytes of full precision, or `None` if the
    /// planes have more. Planes of very few rows get larger.
    #[must_use]
    pub fn eight_bytes(&self, full_bytes: usize) -> Option<usize> {
        let (mut eight, mut rest) = (0_usize, full_bytes);
        for section in self.sections() {
            let planes = section.0.planes;
            rest = rest.checked_sub(section.full_plane_bytes()?.checked_mul(planes)?)?;
            let section_bytes = section.eight_plane_bytes()?.checked_mul(planes)?;
            eight = eight.checked_add(section_bytes)?;
        }
        eight.checked_add(rest)
    }

    /// Encodes all planes in `full`, and copies the bytes after them.
    ///
    /// # Errors
    ///
    /// [`PrecisionError`]; the content of `eight` is then of no use.
    pub fn encode(&self, full: &[u8], eight: &mut [u8]) -> Result<(), PrecisionError> {
        self.check_lengths(full.len(), eight.len())?;
        let (mut full, mut eight) = (full, eight);
        for section in self.sections() {
            let (full_bytes, eight_bytes) = section.plane_bytes();
            let planes = section.0.planes;
            let (own, rest) = full.split_at(planes * full_bytes);
            let (into, rest_into) = eight.split_at_mut(planes * eight_bytes);
            let planes = own.chunks_exact(full_bytes);
            for (full, eight) in planes.zip(into.chunks_exact_mut(eight_bytes)) {
                section.encode(full, eight)?;
            }
            (full, eight) = (rest, rest_into);
        }
        eight.copy_from_slice(full);
        Ok(())
    }

    /// Decodes all planes in `eight`, and copies the bytes after them.
    ///
    /// # Errors
    ///
    /// [`PrecisionError::Length`].
    pub fn decode(&self, eight: &[u8], full: &mut [u8]) -> Result<(), PrecisionError> {
        self.check_lengths(full.len(), eight.len())?;
        let (mut full, mut eight) = (full, eight);
        for section in self.sections() {
            let (full_bytes, eight_bytes) = section.plane_bytes();
            let planes = section.0.planes;
            let (own, rest) = eight.split_at(planes * eight_bytes);
            let (into, rest_into) = full.split_at_mut(planes * full_bytes);
            let planes = own.chunks_exact(eight_bytes);
            for (eight, full) in planes.zip(into.chunks_exact_mut(full_bytes)) {
                section.decode(eight, full);
            }
            (full, eight) = (rest_into, rest);
        }
        full.copy_from_slice(eight);
        Ok(())
    }

    /// The sections that have any numbers.
    fn sections(&self) -> impl Iterator<Item = Section> {
        let sections = self.0.iter().copied().map(Section);
        sections.filter(|Section(floats)| floats.rows > 0 && floats.channels > 0)
    }

    fn check_lengths(&self, full_bytes: usize, eight_bytes: usize) -> Result<(), PrecisionError> {
        if self.eight_bytes(full_bytes) == Some(eight_bytes) {
            return Ok(());
        }
        Err(PrecisionError::Length {
            full_bytes,
            eight_bytes,
        })
    }
}

/// Planes of one shape.
#[derive(Clone, Copy, Debug)]
struct Section(Floats);

impl Section {
    /// Bytes of a plane in full precision and encoded.
    fn plane_bytes(self) -> (usize, usize) {
        let pair = self.full_plane_bytes().zip(self.eight_plane_bytes());
        pair.expect("the lengths were checked")
    }

    fn full_plane_bytes(self) -> Option<usize> {
        let number = self.0.kind.bytes();
        self.0
            .rows
            .checked_mul(self.0.channels)?
            .checked_mul(number)
    }

    fn eight_plane_bytes(self) -> Option<usize> {
        let ranges = self.0.channels.checked_mul(2 * f32::BYTES)?;
        self.0
            .rows
            .checked_mul(self.0.channels)?
            .checked_add(ranges)
    }

    fn encode(self, full: &[u8], eight: &mut [u8]) -> Result<(), PrecisionError> {
        match self.0.kind {
            FloatKind::F32 => self.encode_plane::<f32>(full, eight),
            FloatKind::F16 => self.encode_plane::<f16>(full, eight),
            FloatKind::Bf16 => self.encode_plane::<bf16>(full, eight),
        }
    }

    fn decode(self, eight: &[u8], full: &mut [u8]) {
        match self.0.kind {
            FloatKind::F32 => self.decode_plane::<f32>(eight, full),
            FloatKind::F16 => self.decode_plane::<f16>(eight, full),
            FloatKind::Bf16 => self.decode_plane::<bf16>(eight, full),
        }
    }

    fn encode_plane<N: Number>(self, full: &[u8], eight: &mut [u8]) -> Result<(), PrecisionError> {
        let channels = self.0.channels;
        let (ranges, steps) = eight.split_at_mut(2 * f32::BYTES * channels);
        let (lows, widths) = ranges.split_at_mut(f32::BYTES * channels);
        for from in (0..channels).step_by(TILE) {
            let lanes = TILE.min(channels - from);
            let rows = || {
                let rows = full.chunks_exact(N::BYTES * channels);
                rows.map(|row| &row[N::BYTES * from..][..N::BYTES * lanes])
            };
            let (low, high) = extremes::<N>(rows());
            let width: Tile = std::array::from_fn(|lane| step_between(low[lane], high[lane]));
            if width.iter().any(|width| !width.is_finite()) {
                return Err(PrecisionError::NotFinite);
            }
            f32::write(&low, &mut lows[f32::BYTES * from..][..f32::BYTES * lanes]);
            f32::write(
                &width,
                &mut widths[f32::BYTES * from..][..f32::BYTES * lanes],
            );
            let into = steps.chunks_exact_mut(channels);
            let into = into.map(|row| &mut row[from..][..lanes]);
            count_steps::<N>(rows(), &low, &width, into);
        }
        Ok(())
    }

    fn decode_plane<N: Number>(self, eight: &[u8], full: &mut [u8]) {
        let channels = self.0.channels;
        let (ranges, steps) = eight.split_at(2 * f32::BYTES * channels);
        let (lows, widths) = ranges.split_at(f32::BYTES * channels);
        for from in (0..channels).step_by(TILE) {
            let lanes = TILE.min(channels - from);
            let (mut low, mut width) = ([0.0; TILE], [0.0; TILE]);
            f32::read(&lows[f32::BYTES * from..][..f32::BYTES * lanes], &mut low);
            f32::read(
                &widths[f32::BYTES * from..][..f32::BYTES * lanes],
                &mut width,
            );
            let rows = steps.chunks_exact(channels);
            for (row, into) in rows.zip(full.chunks_exact_mut(N::BYTES * channels)) {
                let mut steps = [0; TILE];
                steps[..lanes].copy_from_slice(&row[from..][..lanes]);
                let mut numbers = [0.0; TILE];
                for lane in 0..TILE {
                    numbers[lane] = low[lane] + width[lane] * f32::from(steps[lane]);
                }
                N::write(&numbers, &mut into[N::BYTES * from..][..N::BYTES * lanes]);
            }
        }
    }
}

/// Returns the smallest and the largest number of each channel. If a number is not finite,
/// neither is the largest.
fn extremes<'a, N: Number>(rows: impl Iterator<Item = &'a [u8]>) -> (Tile, Tile) {
    let (mut low, mut high) = ([f32::INFINITY; TILE], [f32::NEG_INFINITY; TILE]);
    let (mut poison, mut numbers) = ([0.0; TILE], [0.0; TILE]);
    for row in rows {
        N::read(row, &mut numbers);
        for lane in 0..TILE {
            let number = numbers[lane];
            low[lane] = if number < low[lane] {
                number
            } else {
                low[lane]
            };
            high[lane] = if number > high[lane] {
                number
            } else {
                high[lane]
            };
            // NaN if the number is not finite: comparisons would miss it.
            poison[lane] += number * 0.0;
        }
    }
    for lane in 0..TILE {
        high[lane] += poison[lane];
    }
    (low, high)
}

/// Returns the step between two numbers: zero for an empty range, not finite for an infinite
/// one.
fn step_between(low: f32, high: f32) -> f32 {
    let step = (high - low) / STEPS;
    // Its inverse would overflow. Treating the range as constant costs an error below 1e-35.
    if step < f32::MIN_POSITIVE { 0.0 } else { step }
}

fn count_steps<'a, 'b, N: Number>(
    rows: impl Iterator<Item = &'a [u8]>,
    low: &Tile,
    width: &Tile,
    into: impl Iterator<Item = &'b mut [u8]>,
) {
    let inverse = width.map(|width| if width > 0.0 { 1.0 / width } else { 0.0 });
    let mut numbers = *low;
    for (row, into) in rows.zip(into) {
        N::read(row, &mut numbers);
        let mut steps = [0; TILE];
        for lane in 0..TILE {
            let count = (numbers[lane] - low[lane]) * inverse[lane];
            steps[lane] = (count + WHOLE).to_bits() as u8;
        }
        into.copy_from_slice(&steps[..into.len()]);
    }
}
