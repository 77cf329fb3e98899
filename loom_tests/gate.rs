//! What is shown through a gate is seen while it is shown, and by nobody later.

use motet::shared::gate::{Entrance, gate};

use crate::world::{Arc, AtomicBool, Ordering, model, thread};

type Life = Arc<AtomicBool>;

/// Comes in if the gate is open, and looks whether what is shown lives. Returns what it saw.
fn look(entrance: &Entrance<u64>, lives: &[Life]) -> Option<u64> {
    let number = entrance.number(0, Ordering::SeqCst)?;
    let inside = entrance.enter(number)?;
    let life = &lives[inside.shown() as usize];
    assert!(life.load(Ordering::SeqCst), "seen while it is shown");
    Some(inside.shown())
}

fn lives() -> Vec<Life> {
    (0..2).map(|_| Arc::new(AtomicBool::new(true))).collect()
}

/// One comes while something is shown, and then something else.
#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn whoever_is_late_finds_the_gate_closed() {
    model("a late worker against two loops", || {
        let (mut opener, entrance) = gate();
        let lives = lives();
        let other = {
            let (entrance, lives) = (entrance.clone(), lives.clone());
            thread::spawn(move || look(&entrance, &lives))
        };
        for (shown, life) in (0..).zip(&lives) {
            drop(opener.open(shown));
            life.store(false, Ordering::SeqCst);
        }
        other.join().unwrap();
        assert_eq!(look(&entrance, &lives), None, "the gate is closed");
    });
}

/// Two are inside at once.
#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn the_gate_closes_when_all_have_left() {
    model("two workers in one loop", || {
        let (mut opener, entrance) = gate();
        let lives = lives();
        let others = [(); 2].map(|()| {
            let (entrance, lives) = (entrance.clone(), lives.clone());
            thread::spawn(move || look(&entrance, &lives))
        });
        drop(opener.open(0));
        lives[0].store(false, Ordering::SeqCst);
        for other in others {
            assert!(matches!(other.join().unwrap(), None | Some(0)));
        }
    });
}
