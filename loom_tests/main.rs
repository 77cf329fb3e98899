//! Model checks of the shared words, one module a primitive, and of [whole
//! hand-overs](hand_overs).
//!
//! With `--cfg motet_loom` each test runs under loom in every interleaving that
//! its bounds allow, counts them and prints the count; without it the same tests
//! run once, as plain tests. With `--cfg motet_planted_bug` as well, every
//! primitive is wrong in one way, and every test here must find that.

mod admission;
mod buffers;
mod cancel;
mod credits;
mod dock;
mod gate;
mod hand_overs;
mod heartbeat;
mod host;
mod lease;
mod users;

#[cfg(not(motet_loom))]
mod world {
    pub(crate) use std::sync::Arc;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(crate) use std::sync::mpsc;
    pub(crate) use std::thread;
    pub(crate) use std::thread::spawn as spawn_deep;

    pub(crate) fn model(_name: &str, check: impl Fn() + Send + Sync + 'static) {
        check();
    }
}

#[cfg(motet_loom)]
mod world {
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    pub(crate) use loom::sync::mpsc;
    pub(crate) use loom::thread;

    /// Stack of a thread that runs whole cores: loom gives 32 KiB unless asked.
    const DEEP_STACK_WORDS: usize = 1 << 16;

    /// A thread that runs whole cores.
    pub(crate) fn spawn_deep<T: Send + 'static>(
        body: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let deep = thread::Builder::new().stack_size(DEEP_STACK_WORDS);
        deep.spawn(body).expect("loom does not run out of threads")
    }

    /// Checks every interleaving, and that there was more than one.
    pub(crate) fn model(name: &str, check: impl Fn() + Send + Sync + 'static) {
        let interleavings = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = std::sync::Arc::clone(&interleavings);
        let begun = std::time::Instant::now();
        loom::model(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            check();
        });
        let interleavings = interleavings.load(std::sync::atomic::Ordering::Relaxed);
        let seconds = begun.elapsed().as_secs_f64();
        println!("{name}: {interleavings} interleavings, {seconds:.2} s");
        assert!(
            interleavings > 1,
            "{name} has only one interleaving, so it proves nothing"
        );
    }
}
