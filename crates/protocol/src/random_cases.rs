//! Random cases from fixed seeds, for tests of properties.

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;

/// One in so many cases runs, so that an edit is tested in a second. All run where the variable
/// [`EVERY_CASE`] is set, as by `cargo xtask test`.
const ONE_IN: usize = 10;
const EVERY_CASE: &str = "MOTET_EVERY_CASE";

/// Runs a property on `cases` strings of fixed random bytes, this many bytes in each. A case that
/// uses all of its bytes fails: its last choices would not be random.
pub(crate) fn check_cases(
    cases: u64,
    bytes: u64,
    property: impl Fn(&mut Unstructured<'_>) -> Result<()>,
) {
    let is_complete = std::env::var_os(EVERY_CASE).is_some();
    for case in (1..=cases).step_by(if is_complete { 1 } else { ONE_IN }) {
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
