//! A sequence that pauses and a reader that catches up: no wakeup is lost.

use motet_sync::credits::Credits;
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Guarded, model, mpsc, thread};

/// The reader reads the last available token while the scheduler pauses the sequence.
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
            assert_eq!(
                paused, woken,
                "the sequence is woken if and only if it paused"
            );
            assert!(
                !credits.is_paused(),
                "no sequence is paused without unread tokens"
            );
            assert_eq!(credits.unread(), 0);
        },
    );
}

/// Late tokens arrive after the pause; the reader continues to read.
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
        if paused {
            // The late token may have kept the count above the mark for one read, not for both.
            assert_eq!(woken_times, 1, "a pause ends once");
        } else {
            assert_eq!(woken_times, 0, "no sequence is woken without a pause");
        }
        assert_eq!(credits.unread(), 1);
        assert!(!credits.is_paused());
    });
}

/// One buffer holds the token that was sent. The scheduler reuses it when the sequence does not
/// pause, or is woken.
#[test]
fn read_buffer_is_free_for_the_next_token() {
    let finds = [
        InjectedBug::CreditsPauseInTwoSteps,
        InjectedBug::CreditsReadRelease,
    ];
    model("a buffer for one token against its reader", &finds, || {
        send_twice(false);
    });
}

/// As before, but the scheduler comes after the read. Loom does not explore that order by
/// itself, since the reader has read the state as well by then.
#[test]
fn buffer_read_earlier_is_free_for_the_next_token() {
    let finds = [
        InjectedBug::CreditsReadRelease,
        InjectedBug::CreditsPauseAcquire,
    ];
    model("a buffer for one token after its reader", &finds, || {
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
            sent.recv().expect("a token is sent");
            let token = buffer.read();
            wake.send(credits.read()).ok();
            token
        })
    };
    credits.sent();
    buffer.write(1);
    send.send(()).expect("the reader is alive");
    if is_late {
        thread::yield_now();
    }
    if credits.pause_if_full() {
        let wakes = woken.recv().expect("the reader is alive");
        assert!(wakes, "a paused sequence is woken");
    }
    buffer.write(2);
    assert_eq!(reader.join().unwrap(), 1, "the first token is read");
}
