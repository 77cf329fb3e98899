//! A sequence that pauses and a reader that catches up: whoever is last wakes it.

use motet::shared::credits::Credits;

use crate::world::{model, thread};

/// The reader takes the last token that is to be had while the scheduler pauses.
#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn no_wake_up_is_lost() {
    model("pause against read", || {
        let credits = Credits::new(1);
        credits.sent();
        let reader = {
            let credits = credits.clone();
            thread::spawn(move || credits.read())
        };
        let paused = credits.pause_if_full();
        let woken = reader.join().unwrap();
        assert_eq!(paused, woken, "who paused is woken, and nobody else");
        assert!(!credits.is_paused(), "nobody sleeps with nothing to read");
        assert_eq!(credits.unread(), 0);
    });
}

/// Tokens that were under way come after the pause; the reader goes on reading.
#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn late_tokens_and_the_pause_are_told_apart() {
    model("pause and a late token against two reads", || {
        let credits = Credits::new(2);
        credits.sent();
        credits.sent();
        let reader = {
            let credits = credits.clone();
            thread::spawn(move || [credits.read(), credits.read()])
        };
        let paused = credits.pause_if_full();
        credits.sent();
        let woken = reader.join().unwrap();
        let woken_times = usize::from(woken[0]) + usize::from(woken[1]);
        match paused {
            // The late token may have kept it above the mark, but not both reads.
            true => assert_eq!(woken_times, 1, "a pause ends once"),
            false => assert_eq!(woken_times, 0, "nobody is woken who did not pause"),
        }
        assert_eq!(credits.unread(), 1);
        assert!(!credits.is_paused());
    });
}
