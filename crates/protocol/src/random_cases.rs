//! Random cases from fixed seeds, for tests of properties.

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
