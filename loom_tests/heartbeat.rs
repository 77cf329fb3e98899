//! The heartbeat is read while the scheduler writes: each read state was true at some moment.

use std::time::Duration;

use motet_sync::heartbeat::{Heartbeat, Pulse};
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Guarded, model, thread};

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn working(since: u64) -> Pulse {
    Pulse::Working { since: at(since) }
}

/// A step finishes while the next is in flight: the device never looks idle.
#[test]
fn a_device_with_work_never_looks_idle() {
    let finds = [
        InjectedBug::HeartbeatInTwoSteps,
        InjectedBug::HeartbeatRelease,
        InjectedBug::HeartbeatAcquire,
    ];
    model("a step finishes against a read of health", &finds, || {
        let heartbeat = Heartbeat::new();
        heartbeat.work_sent(at(1));
        heartbeat.work_sent(at(2));
        let finished = Guarded::new(0);
        let reader = {
            let (heartbeat, finished) = (heartbeat.clone(), finished.clone());
            thread::spawn(move || {
                let seen = heartbeat.pulse();
                if seen == working(7) {
                    assert_eq!(finished.read(), 1, "earlier writes are visible");
                }
                seen
            })
        };
        finished.write(1);
        heartbeat.work_finished(at(7), 1);
        let seen = reader.join().unwrap();
        assert!([working(1), working(7)].contains(&seen), "{seen:?}");
        assert_eq!(heartbeat.pulse(), working(7));
    });
}

/// Work is sent and finished, and the thread ends: two reads never see an earlier state the
/// second time.
#[test]
fn repeated_reads_never_go_back_in_time() {
    let finds = [InjectedBug::HeartbeatInTwoSteps];
    model("a device's last step against two reads", &finds, || {
        let heartbeat = Heartbeat::new();
        let reader = {
            let heartbeat = heartbeat.clone();
            thread::spawn(move || [heartbeat.pulse(), heartbeat.pulse()])
        };
        heartbeat.work_sent(at(1));
        heartbeat.work_finished(at(7), 1);
        heartbeat.gone();
        let story = [Pulse::Idle, working(1), working(7), Pulse::Gone];
        let position_in_story = |seen: Pulse| story.iter().position(|pulse| *pulse == seen);
        let [first, second] = reader.join().unwrap().map(position_in_story);
        assert!(first.is_some() && first <= second, "{first:?}, {second:?}");
        assert_eq!(heartbeat.pulse(), Pulse::Gone);
    });
}
