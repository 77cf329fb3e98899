//! A sequence that pauses and a reader that catches up: whoever is last wakes it.

use motet_sync::credits::Credits;
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Guarded, model, mpsc, thread};

/// The reader takes the last token that is to be had while the scheduler pauses.
#[test]
fn no_wakeup_is_lost() {
    model(
        "pause against read",
        &[InjectedBug::CreditsPauseInTwoSteps],
        || {
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
        },
    );
}

/// Tokens that were under way come after the pause; the reader goes on reading.
#[test]
fn late_tokens_are_distinguished_from_the_pause() {
    let finds = [InjectedBug::CreditsPauseInTwoSteps];
    model("pause and a late token against two reads", &finds, || {
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

/// There is one place for what is sent. The scheduler uses it again when it does not pause, or
/// is woken.
#[test]
fn read_buffer_is_free_for_the_next_token() {
    let finds = [
        InjectedBug::CreditsPauseInTwoSteps,
        InjectedBug::CreditsReadRelease,
    ];
    model("a place for one token against its reader", &finds, || {
        send_twice(false);
    });
}

/// As before, but the scheduler comes to it when the token was read: loom does not look at that
/// by itself, since the reader has looked at the word as well by then.
#[test]
fn buffer_read_earlier_is_free_for_the_next_token() {
    let finds = [
        InjectedBug::CreditsReadRelease,
        InjectedBug::CreditsPauseAcquire,
    ];
    model("a place for one token after its reader", &finds, || {
        send_twice(true);
    });
}

fn send_twice(is_late: bool) {
    let credits = Credits::new(1);
    let buffer = Guarded::new(0);
    let (send, sent) = mpsc::channel();
    let (wake, woken) = mpsc::channel();
    let reader = {
        let (credits, buffer) = (credits.clone(), buffer.clone());
        thread::spawn(move || {
            sent.recv().expect("a token comes");
            let token = buffer.read();
            wake.send(credits.read()).ok();
            token
        })
    };
    credits.sent();
    buffer.write(1);
    send.send(()).expect("the reader listens");
    if is_late {
        thread::yield_now();
    }
    if credits.pause_if_full() {
        let wakes = woken.recv().expect("the reader lives");
        assert!(wakes, "who paused is woken");
    }
    buffer.write(2);
    assert_eq!(reader.join().unwrap(), 1, "the first");
}
