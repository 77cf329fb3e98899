//! Random cases from fixed seeds, for tests of properties.

use std::ops::Range;

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;

/// Runs a property on `cases` strings of fixed random bytes, this many bytes in each. A case that
/// uses all of its bytes fails: its last choices would not be random.
pub(crate) fn check_cases(
    cases: u64,
    bytes: u64,
    property: impl Fn(&mut Unstructured<'_>) -> Result<()>,
) {
    for case in 1..=cases {
        // The seed's high half decides the random bytes, and its low half is their number.
        let seed = case.wrapping_mul(0x9e37_79b9 << 32) | bytes;
        let property = |random: &mut Unstructured<'_>| {
            property(random).expect("the case has enough random bytes");
            assert!(!random.is_empty(), "the case has enough random bytes");
            Ok(())
        };
        arbtest(property).seed(seed).run();
    }
}

/// Returns a number of the range, all equally likely.
pub(crate) fn uniform(random: &mut Unstructured<'_>, range: Range<f64>) -> Result<f64> {
    let share = random.int_in_range(0..=(1u64 << 53) - 1)? as f64 / (1u64 << 53) as f64;
    Ok(range.start + share * (range.end - range.start))
}
