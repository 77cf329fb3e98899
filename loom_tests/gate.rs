//! A value published by a gate is read only while the gate is open.

use motet_sync::gate::{Entrance, gate};
use motet_sync::primitives::inject::InjectedBug;

use crate::world::{Arc, Guarded, model, thread};

/// Whether a published value is alive.
type Lifetime = Arc<Guarded<bool>>;

const GATE_BUGS: [InjectedBug; 5] = [
    InjectedBug::GateInTwoSteps,
    InjectedBug::GateOpenRelease,
    InjectedBug::GateEnterAcquire,
    InjectedBug::GateLeaveRelease,
    InjectedBug::GateCloseAcquire,
];

/// Enters if the gate is open, checks that the published value is alive, and returns it.
fn enter_and_check(entrance: &Entrance<u64>, lifetimes: &[Lifetime]) -> Option<u64> {
    let number = entrance.number(0)?;
    let inside = entrance.enter(number)?;
    let lifetime = &lifetimes[inside.shown() as usize];
    assert!(
        lifetime.read(),
        "the value is alive while a thread is inside"
    );
    Some(inside.shown())
}

fn lifetimes() -> Vec<Lifetime> {
    (0..2).map(|_| Guarded::new(true)).collect()
}

/// A worker enters while one value is published, and then another.
#[test]
fn late_worker_finds_the_gate_closed() {
    model("a late worker against two loops", &GATE_BUGS, || {
        let (mut opener, entrance) = gate();
        let lifetimes = lifetimes();
        let other = {
            let (entrance, lifetimes) = (entrance.clone(), lifetimes.clone());
            thread::spawn(move || enter_and_check(&entrance, &lifetimes))
        };
        for (shown, lifetime) in (0..).zip(&lifetimes) {
            drop(opener.open(shown));
            lifetime.write(false);
        }
        other.join().unwrap();
        assert_eq!(
            enter_and_check(&entrance, &lifetimes),
            None,
            "the gate is closed"
        );
    });
}

/// Two workers are inside at once.
#[test]
fn the_gate_closes_when_all_have_left() {
    model("two workers in one loop", &GATE_BUGS, || {
        let (mut opener, entrance) = gate();
        let lifetimes = lifetimes();
        let others = [(); 2].map(|()| {
            let (entrance, lifetimes) = (entrance.clone(), lifetimes.clone());
            thread::spawn(move || enter_and_check(&entrance, &lifetimes))
        });
        drop(opener.open(0));
        lifetimes[0].write(false);
        for other in others {
            assert!(matches!(other.join().unwrap(), None | Some(0)));
        }
    });
}
