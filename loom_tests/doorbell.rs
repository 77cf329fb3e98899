//! A ring is answered, and what was written before it is seen.

use motet::shared::doorbell::Doorbell;

use crate::world::{Arc, AtomicUsize, Ordering, model, thread};

/// Two ring at once, one answers: whoever has rung is seen, now or at the last look.
#[test]
fn no_ring_is_lost() {
    model("doorbell: no ring is lost", || {
        let bell = Doorbell::new();
        let written = Arc::new(AtomicUsize::new(0));
        let ringers: Vec<_> = (0..2)
            .map(|_| {
                let (bell, written) = (bell.clone(), Arc::clone(&written));
                thread::spawn(move || {
                    written.fetch_add(1, Ordering::Relaxed);
                    bell.ring();
                })
            })
            .collect();
        let mut seen = 0;
        if bell.answer() {
            seen = written.load(Ordering::Relaxed);
            assert!(seen >= 1, "what was written before the ring is seen");
        }
        for ringer in ringers {
            ringer.join().expect("nobody panics");
        }
        if bell.answer() {
            seen = written.load(Ordering::Relaxed);
        }
        assert_eq!(seen, 2, "everybody who rang is seen in the end");
    });
}
