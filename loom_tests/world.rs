//! The types that models use: loom's, or std's where they run once as plain tests.

use motet_sync::primitives::inject::InjectedBug;

#[cfg(not(motet_loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, Ordering},
    sync::{Arc, mpsc},
    thread::{self, spawn as spawn_deep},
};

#[cfg(motet_loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, Ordering},
    sync::{Arc, mpsc},
    thread,
};

#[cfg(motet_loom)]
use loom::cell::UnsafeCell;

/// Data that a primitive protects. Loom detects each access that is not ordered after those
/// before it, if one of them writes.
pub(crate) struct Guarded<T>(UnsafeCell<T>);

// SAFETY: the models check that its users access it one after another.
unsafe impl<T: Send> Sync for Guarded<T> {}
// SAFETY: it owns its value.
unsafe impl<T: Send> Send for Guarded<T> {}

impl<T: Copy> Guarded<T> {
    pub(crate) fn new(value: T) -> Arc<Self> {
        Arc::new(Self(UnsafeCell::new(value)))
    }

    pub(crate) fn read(&self) -> T {
        // SAFETY: as above.
        self.0.with(|value| unsafe { *value })
    }

    pub(crate) fn write(&self, new: T) {
        // SAFETY: as above.
        self.0.with_mut(|value| unsafe { *value = new });
    }
}

impl<T> std::fmt::Debug for Guarded<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Guarded")
    }
}

/// std's cell with the interface of loom's.
#[cfg(not(motet_loom))]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(motet_loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Runs the check once. `finds` are the bugs that it must find when they are injected.
#[cfg(not(motet_loom))]
pub(crate) fn model(_name: &str, _finds: &[InjectedBug], check: impl Fn() + Send + Sync + 'static) {
    check();
}

/// Checks every interleaving, or that each bug of `finds` is found when it is injected.
#[cfg(motet_loom)]
pub(crate) fn model(
    name: &'static str,
    finds: &[InjectedBug],
    check: impl Fn() + Send + Sync + 'static,
) {
    let check = std::sync::Arc::new(check);
    if !cfg!(motet_injected_bug) {
        let (interleavings, explored) = explore(None, &check);
        explored.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(
            interleavings > 1,
            "{name} has only one interleaving, so it proves nothing"
        );
        return println!("{name}: {interleavings} interleavings");
    }
    for bug in finds {
        let (interleavings, explored) = explore(Some(*bug), &check);
        let Err(panic) = explored else {
            panic!("{name} does not find {bug:?} in {interleavings} interleavings");
        };
        let text = panic.downcast_ref::<String>().map_or("", String::as_str);
        assert!(
            !text.contains("maximum number of branches"),
            "{name} does not end with {bug:?}: {text}"
        );
        println!("{name}: {bug:?} found after {interleavings} interleavings");
    }
}

/// Explores interleavings on a thread of its own until one fails or none is left. Returns their
/// number and the result.
#[cfg(motet_loom)]
fn explore(
    bug: Option<InjectedBug>,
    check: &std::sync::Arc<impl Fn() + Send + Sync + 'static>,
) -> (usize, std::thread::Result<()>) {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    let interleavings = std::sync::Arc::new(AtomicUsize::new(0));
    let (counted, check) = (interleavings.clone(), check.clone());
    let explored = std::thread::spawn(move || {
        motet_sync::primitives::inject::inject(bug);
        loom::model(move || {
            counted.fetch_add(1, Relaxed);
            check();
        });
    });
    let explored = explored.join();
    (interleavings.load(Relaxed), explored)
}

/// Stack of a thread that runs whole cores; loom's default is 32 KiB.
#[cfg(motet_loom)]
const DEEP_STACK_WORDS: usize = 1 << 16;

/// Spawns a thread that runs whole cores.
#[cfg(motet_loom)]
pub(crate) fn spawn_deep<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let deep = thread::Builder::new().stack_size(DEEP_STACK_WORDS);
    deep.spawn(body).expect("loom does not run out of threads")
}
