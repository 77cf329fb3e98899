//! What is shown through a gate is seen while it is shown, and by nobody later.

use motet_sync::gate::{Entrance, gate};
use motet_sync::primitives::plant::Plant;

use crate::world::{Arc, Guarded, model, thread};

/// Whether something lives that is shown.
type Life = Arc<Guarded<bool>>;

const OF_A_GATE: [Plant; 5] = [
    Plant::GateInTwoSteps,
    Plant::GateOpenRelease,
    Plant::GateEnterAcquire,
    Plant::GateLeaveRelease,
    Plant::GateCloseAcquire,
];

/// Comes in if the gate is open, and looks whether what is shown lives. Returns what it saw.
fn look(entrance: &Entrance<u64>, lives: &[Life]) -> Option<u64> {
    let number = entrance.number(0)?;
    let inside = entrance.enter(number)?;
    let life = &lives[inside.shown() as usize];
    assert!(life.read(), "seen while it is shown");
    Some(inside.shown())
}

fn lives() -> Vec<Life> {
    (0..2).map(|_| Guarded::new(true)).collect()
}

/// One comes while something is shown, and then something else.
#[test]
fn whoever_is_late_finds_the_gate_closed() {
    model("a late worker against two loops", &OF_A_GATE, || {
        let (mut opener, entrance) = gate();
        let lives = lives();
        let other = {
            let (entrance, lives) = (entrance.clone(), lives.clone());
            thread::spawn(move || look(&entrance, &lives))
        };
        for (shown, life) in (0..).zip(&lives) {
            drop(opener.open(shown));
            life.write(false);
        }
        other.join().unwrap();
        assert_eq!(look(&entrance, &lives), None, "the gate is closed");
    });
}

/// Two are inside at once.
#[test]
fn the_gate_closes_when_all_have_left() {
    model("two workers in one loop", &OF_A_GATE, || {
        let (mut opener, entrance) = gate();
        let lives = lives();
        let others = [(); 2].map(|()| {
            let (entrance, lives) = (entrance.clone(), lives.clone());
            thread::spawn(move || look(&entrance, &lives))
        });
        drop(opener.open(0));
        lives[0].write(false);
        for other in others {
            assert!(matches!(other.join().unwrap(), None | Some(0)));
        }
    });
}
