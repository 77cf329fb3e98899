//! The world that models live in: loom's, or std's where they run once as plain tests.

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

/// What a primitive protects. Loom notices each access that is not ordered after those before
/// it, of which at least one writes.
pub(crate) struct Guarded<T>(UnsafeCell<T>);

// SAFETY: that its users access it one after another is what the models check.
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

/// std's, to be used as loom's is.
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

/// Runs the check once. `finds` are the mistakes that it must find where they are planted.
#[cfg(not(motet_loom))]
pub(crate) fn model(_name: &str, _finds: &[InjectedBug], check: impl Fn() + Send + Sync + 'static) {
    check();
}

/// Checks every interleaving, or that each mistake of `finds` is found where it is planted.
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

/// Looks at interleavings, on a thread of its own, until one fails or there are no more, and
/// says how many there were.
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

/// Stack of a thread that runs whole cores: loom gives 32 KiB unless asked.
#[cfg(motet_loom)]
const DEEP_STACK_WORDS: usize = 1 << 16;

/// A thread that runs whole cores.
#[cfg(motet_loom)]
pub(crate) fn spawn_deep<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let deep = thread::Builder::new().stack_size(DEEP_STACK_WORDS);
    deep.spawn(body).expect("loom does not run out of threads")
}
