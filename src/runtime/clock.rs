//! Moments on the engine's clock.

use std::time::Duration;

use motet_protocol::time::countable;
use tokio::time::Instant;

/// Returns the moment that is so much later; one that never comes where the clock does not count
/// so far.
pub(crate) fn after(moment: Instant, time: Duration) -> Instant {
    let later = moment.checked_add(countable(time));
    later.expect("a clock counts a century")
}
