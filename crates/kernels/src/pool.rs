//! Worker threads that wait for short parallel loops.
//!
//! A kernel lasts tens of microseconds, and starting a thread would double that. The workers
//! therefore live as long as the process, spin for a moment after each loop in case another
//! follows, and then park. The calling thread takes part and never waits for a worker that has
//! not joined: late workers find the loop closed. This also lets the pool share the machine
//! with the threads of a BLAS: where those keep the other cores busy, the caller does more of
//! the work itself.
//!
//! One loop runs at a time; a second caller works alone. `rayon` is not used: there a caller
//! from outside the pool takes no part in its loop, and waits for workers that have to wake first.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::split::Split;
use motet_sync::gate::{Entrance, Opened, Opener, gate};
use motet_sync::parking::Parking;

/// Time that a worker spins before it parks. Longer than the gaps between the loops of one
/// kernel, shorter than the matrix products between two kernels, whose threads need the core.
const SPIN: Duration = Duration::from_micros(20);

/// Threads for parallel loops.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the caller whose loop runs.
    loop_lock: Mutex<Opener<Body>>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// The gate through which workers join the loop.
    entrance: Entrance<Body>,
    /// For each thread, the caller first, the next index to take of its share.
    next: Box<[Next]>,
    panicked: AtomicBool,
    /// Set when the pool is being dropped.
    ended: AtomicBool,
    /// Parked workers that must be woken.
    parking: Parking,
}

/// The next index of a thread's share, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Next(AtomicUsize);

/// A loop, with its lifetime erased.
#[derive(Clone, Copy)]
struct Body {
    run: *const (dyn Fn(usize) + Sync),
    count: usize,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

// SAFETY: it points to a `Sync` value that outlives the loop, and it is used only within the
// loop.
unsafe impl Sync for Body {}
// SAFETY: as above.
unsafe impl Send for Body {}

impl Pool {
    /// The pool of this process. It has as many threads, callers included, as
    /// `OPENBLAS_NUM_THREADS` sets, or else one for each core.
    pub fn global() -> &'static Pool {
        static GLOBAL: OnceLock<Pool> = OnceLock::new();
        GLOBAL.get_or_init(|| {
            let requested = std::env::var("OPENBLAS_NUM_THREADS").ok();
            let cores = thread::available_parallelism().map_or(1, usize::from);
            Pool::new(thread_count(requested.as_deref(), cores))
        })
    }

    /// A pool of `threads` threads, the calling one included.
    pub fn new(threads: usize) -> Pool {
        let workers = threads.saturating_sub(1);
        let (opener, entrance) = gate();
        let shared = Arc::new(Shared {
            entrance,
            next: (0..threads.max(1)).map(|_| Next::default()).collect(),
            panicked: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            parking: Parking::new(workers),
        });
        let spawn = |index| {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name(format!("motet-kernel-{index}"))
                .spawn(move || shared.work(index))
        };
        // If the machine refuses a thread, the pool works with fewer.
        let workers = (0..workers).map_while(|index| spawn(index).ok()).collect();
        Pool {
            shared,
            loop_lock: Mutex::new(opener),
            workers,
        }
    }

    /// Number of threads that take part, the calling one included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body` with each of `0..count`, on all threads, in any order. Each thread begins with a
    /// share of its own, in ascending order, so that it can prefetch what it needs next.
    ///
    /// # Panics
    ///
    /// When a call panicked. All other calls have ended by then.
    pub fn run(&self, count: usize, body: impl Fn(usize) + Sync) {
        let loop_lock = match self.loop_lock.try_lock() {
            Ok(loop_lock) => Some(loop_lock),
            // A panic leaves the gate closed.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let loop_lock = loop_lock.filter(|_| !self.workers.is_empty() && count > 1);
        let Some(mut loop_lock) = loop_lock else {
            return (0..count).for_each(body);
        };
        let opened = self.open(&mut loop_lock, count, &body);
        let own = catch_unwind(AssertUnwindSafe(|| {
            self.shared.run_indices(0, &body, count)
        }));
        // After a panic on this thread, indices may be left that are no longer needed.
        for next in &self.shared.next {
            next.0.fetch_add(usize::MAX / 2, Ordering::Relaxed);
        }
        drop(opened);
        let others_panicked = self.shared.panicked.swap(false, Ordering::Relaxed);
        drop(loop_lock);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!others_panicked, "a kernel panicked on another thread");
    }

    /// Cuts each of `slices` into chunks of its `lengths`' number of elements; the last chunk
    /// may be shorter. Calls `body` with the n-th chunk of all slices, for every n, on all
    /// threads. All slices must have the same number of chunks.
    ///
    /// # Panics
    ///
    /// When the numbers of chunks differ, or when a call panicked.
    pub fn for_each_chunk<T: Send, const N: usize>(
        &self,
        slices: [&mut [T]; N],
        lengths: [usize; N],
        body: impl Fn(usize, [&mut [T]; N]) + Sync,
    ) {
        let counts: [usize; N] = std::array::from_fn(|i| slices[i].len().div_ceil(lengths[i]));
        assert!(
            counts.iter().all(|count| *count == counts[0]),
            "{counts:?} chunks"
        );
        let lens: [usize; N] = std::array::from_fn(|i| slices[i].len());
        let slices = slices.map(Split::new);
        self.run(counts[0], |index| {
            let chunk = |i: usize| {
                let from = index * lengths[i];
                let to = lens[i].min(from + lengths[i]);
                // SAFETY: `run` yields every index once, so no two chunks overlap.
                unsafe { slices[i].part(from..to) }
            };
            body(index, std::array::from_fn(chunk));
        });
    }

    fn open<'a>(
        &self,
        opener: &'a mut Opener<Body>,
        count: usize,
        body: &'a (dyn Fn(usize) + Sync + 'a),
    ) -> Opened<'a, Body> {
        let shared = &*self.shared;
        let run: *const (dyn Fn(usize) + Sync + 'a) = body;
        // SAFETY: only the lifetime changes; the gate is closed before it ends.
        let run: *const (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(run) };
        for (thread, next) in shared.next.iter().enumerate() {
            let start = shared.share(thread, count).start;
            next.0.store(start, Ordering::Relaxed);
        }
        let opened = opener.open(Body { run, count });
        // The caller takes part, so one worker less than there are calls is enough.
        let enough = self.workers.len().min(count - 1);
        for worker in shared
            .parking
            .parked()
            .take_while(|worker| *worker < enough)
        {
            self.workers[worker].thread().unpark();
        }
        opened
    }
}

/// The requested number of threads, or else the number of cores. At least one, and at most as
/// many as any step can use.
fn thread_count(requested: Option<&str>, cores: usize) -> usize {
    let requested = requested.and_then(|requested| requested.parse().ok());
    requested.unwrap_or(cores).clamp(1, 64)
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            worker.join().expect("a worker catches every panic");
        }
    }
}

impl Shared {
    /// The indices of a loop with `count` that a thread begins with.
    fn share(&self, thread: usize, count: usize) -> Range<usize> {
        let threads = self.next.len();
        let start = |thread: usize| {
            let (each, more) = (count / threads, count % threads);
            each * thread + more.min(thread)
        };
        start(thread)..start(thread + 1)
    }

    /// Takes the indices of this thread's share, then those that are left of the others'.
    fn run_indices(&self, thread: usize, body: &(dyn Fn(usize) + Sync), count: usize) {
        let threads = self.next.len();
        for share in (thread..threads).chain(0..thread) {
            let end = self.share(share, count).end;
            loop {
                let index = self.next[share].0.fetch_add(1, Ordering::Relaxed);
                if index >= end {
                    break;
                }
                body(index);
            }
        }
    }

    /// The main loop of a worker thread.
    fn work(&self, index: usize) {
        let mut seen = 0;
        while let Some(number) = self.wait(index, seen) {
            seen = number;
            let Some(inside) = self.entrance.enter(number) else {
                continue;
            };
            let body = inside.shown();
            // SAFETY: inside the gate, so the loop's caller still waits for this worker.
            let run = unsafe { &*body.run };
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                self.run_indices(index + 1, run, body.count)
            }));
            if let Err(panic) = outcome {
                self.panicked.store(true, Ordering::Relaxed);
                // Dropping the payload might panic again, and then this worker would never
                // leave the gate.
                std::mem::forget(panic);
            }
            drop(inside);
        }
    }

    /// Waits for a loop after loop number `seen`. Returns its number, or `None` when there will
    /// be no more.
    fn wait(&self, index: usize, seen: u64) -> Option<u64> {
        let fresh = || self.entrance.number(seen);
        let start = Instant::now();
        while start.elapsed() < SPIN {
            for _ in 0..16 {
                if let Some(number) = fresh() {
                    return Some(number);
                }
                std::hint::spin_loop();
            }
        }
        let has_ended = || self.ended.load(Ordering::Relaxed);
        self.parking.wait(index, fresh, has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pool: &Pool, count: usize) {
        let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
        pool.run(count, |index| {
            hits[index].fetch_add(1, Ordering::Relaxed);
        });
        assert!(
            hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1),
            "of {count}"
        );
    }

    #[test]
    fn every_index_is_visited_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads);
            for count in [0, 1, 2, 7, 1000] {
                check(&pool, count);
            }
            // Loops that follow at once, after spinning, and after parking.
            for round in 0..2000 {
                check(&pool, 1 + round % 5);
                if round % 500 == 0 {
                    thread::sleep(10 * SPIN);
                }
            }
        }
    }

    #[test]
    fn thread_count_follows_the_environment() {
        for (requested, cores, threads) in [
            (None, 2, 2),
            (None, 500, 64),
            (Some("1"), 8, 1),
            (Some("12"), 2, 12),
            (Some("0"), 2, 1),
            (Some("many"), 4, 4),
        ] {
            assert_eq!(
                thread_count(requested, cores),
                threads,
                "{requested:?} of {cores}"
            );
        }
    }

    #[test]
    fn chunks_cover_each_slice() {
        let pool = Pool::new(3);
        for (length, chunk) in [(0, 4), (1, 4), (8, 4), (9, 4), (1000, 7)] {
            let mut ones = vec![0; length];
            let mut pairs = vec![0; 2 * length];
            pool.for_each_chunk(
                [&mut ones, &mut pairs],
                [chunk, 2 * chunk],
                |index, [a, b]| {
                    assert_eq!(2 * a.len(), b.len());
                    a.iter_mut()
                        .chain(b)
                        .for_each(|element| *element += index + 1);
                },
            );
            let expected: Vec<usize> = (0..length).map(|i| i / chunk + 1).collect();
            assert_eq!(ones, expected);
            assert_eq!(
                pairs.iter().step_by(2).copied().collect::<Vec<_>>(),
                expected
            );
        }
    }

    #[test]
    fn callers_do_not_disturb_each_other() {
        let pool = Pool::new(4);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..1000).for_each(|round| check(&pool, 1 + round % 9)));
            }
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for bad in 0..64 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, |index| assert_ne!(index, bad, "injected"));
            }));
            assert!(outcome.is_err(), "index {bad}");
            check(&pool, 64);
        }
    }

    #[test]
    fn nested_loop_runs_on_the_calling_thread() {
        let pool = Pool::new(2);
        let sum = AtomicUsize::new(0);
        pool.run(10, |_| {
            pool.run(10, |index| {
                sum.fetch_add(index, Ordering::Relaxed);
            });
        });
        assert_eq!(sum.into_inner(), 450);
    }
}
