//! Random numbers for tests of properties.

use std::ops::Range;

use arbtest::arbitrary::{Result, Unstructured};

/// Returns a number of the range, all equally likely.
pub(super) fn uniform(random: &mut Unstructured<'_>, range: Range<f64>) -> Result<f64> {
    let share = random.int_in_range(0..=(1u64 << 53) - 1)? as f64 / (1u64 << 53) as f64;
    Ok(range.start + share * (range.end - range.start))
}
