//! Threads for work that would block the runtime's threads: few threads, shared fairly between
//! users.
//!
//! | state of a work item | owner | if its caller leaves |
//! |---|---|---|
//! | waiting | [`FairQueue`] | it is removed and costs nothing |
//! | running | a worker, on one of `threads` | it runs to its end; its thread is not replaced |
//! | done | the channel to its caller | the result is dropped |
//!
//! [`FairQueue`] decides which work runs next and which is rejected; it uses no thread and no
//! clock.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use motet_protocol::UserId;
use motet_protocol::time::mean;

/// Limits on waiting work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkLimits {
    /// Most work items.
    pub(crate) count_max: usize,
    /// Most bytes of all items. A larger item is accepted only when no other waits.
    pub(crate) bytes_max: usize,
}

/// Waiting work, for each user in the order of its arrival. Users take turns.
///
/// A user may have at most as much waiting as stays free for others. One user alone takes at
/// most half of the capacity, two take a third each, and some capacity always remains for one
/// more.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    limits: WorkLimits,
    /// Users with waiting work; the next one to be served comes first.
    order: VecDeque<UserId>,
    users: FxHashMap<UserId, UserQueue<T>>,
    count: usize,
    bytes: usize,
    last_number: u64,
}

#[derive(Debug)]
struct UserQueue<T> {
    waiting: VecDeque<Waiting<T>>,
    bytes: usize,
}

#[derive(Debug)]
struct Waiting<T> {
    number: u64,
    bytes: usize,
    work: T,
}

impl<T> FairQueue<T> {
    pub(crate) fn new(limits: WorkLimits) -> Self {
        Self {
            limits,
            order: VecDeque::new(),
            users: FxHashMap::default(),
            count: 0,
            bytes: 0,
            last_number: 0,
        }
    }

    /// Adds work for a user and returns its number; `None` where there is no capacity.
    pub(crate) fn push(&mut self, user: UserId, bytes: usize, work: T) -> Option<u64> {
        let (own, own_bytes) = self
            .users
            .get(&user)
            .map_or((0, 0), |queue| (queue.waiting.len(), queue.bytes));
        let free = self.limits.count_max.saturating_sub(self.count);
        let free_bytes = self.limits.bytes_max.saturating_sub(self.bytes);
        let fits = own < free && own_bytes.saturating_add(bytes) <= free_bytes;
        if !fits && self.count > 0 {
            return None;
        }
        self.last_number += 1;
        let number = self.last_number;
        let queue = self.users.entry(user).or_insert_with(|| {
            self.order.push_back(user);
            UserQueue {
                waiting: VecDeque::new(),
                bytes: 0,
            }
        });
        queue.waiting.push_back(Waiting {
            number,
            bytes,
            work,
        });
        queue.bytes += bytes;
        self.count += 1;
        self.bytes += bytes;
        Some(number)
    }

    /// Removes and returns the next work.
    pub(crate) fn next(&mut self) -> Option<T> {
        let user = *self.order.front()?;
        let next = self.take(user, 0)?;
        // The user's next turn comes after those of all others.
        if self.order.front() == Some(&user) {
            self.order.rotate_left(1);
        }
        Some(next)
    }

    /// Removes work that is no longer needed, if it still waits.
    pub(crate) fn remove(&mut self, user: UserId, number: u64) -> Option<T> {
        let queue = self.users.get(&user)?;
        let mut waiting = queue.waiting.iter();
        let index = waiting.position(|waiting| waiting.number == number)?;
        self.take(user, index)
    }

    /// Returns the number of waiting items.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn take(&mut self, user: UserId, index: usize) -> Option<T> {
        let queue = self.users.get_mut(&user)?;
        let taken = queue.waiting.remove(index)?;
        queue.bytes -= taken.bytes;
        self.count -= 1;
        self.bytes -= taken.bytes;
        if queue.waiting.is_empty() {
            self.users.remove(&user);
            self.order.retain(|other| *other != user);
        }
        Some(taken.work)
    }
}

/// Threads that run work, users in turn. Clones share the threads.
#[derive(Clone, Debug)]
pub(crate) struct Blocking(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    threads: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    fair_queue: FairQueue<Work>,
    /// Threads that run work now.
    working: usize,
    /// Recent mean duration of work.
    mean: Option<Duration>,
}

struct Work(Box<dyn FnOnce() + Send>);

/// Why work was not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockingError {
    /// The limit on waiting work is reached, for all users or for this one.
    Full {
        /// Estimated time until capacity is free; `None` while no duration is known.
        retry_after: Option<Duration>,
    },
    /// The work panicked.
    Panicked,
}

impl Blocking {
    /// Needs a tokio runtime when it is used, not at creation. `threads` is at least one.
    pub(crate) fn new(threads: usize, limits: WorkLimits) -> Self {
        Self(Arc::new(Shared {
            threads,
            state: Mutex::new(State {
                fair_queue: FairQueue::new(limits),
                working: 0,
                mean: None,
            }),
        }))
    }

    /// Runs work that holds this many bytes while it waits.
    ///
    /// # Errors
    ///
    /// [`BlockingError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future removes work that still waits. Running work continues to its end, on
    /// its thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        user: UserId,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, BlockingError> {
        let (sender, done) = oneshot::channel();
        // The result of a caller that has gone is dropped.
        let work = Work(Box::new(move || drop(sender.send(work()))));
        let _queued_work = self.push(user, bytes, work)?;
        done.await.map_err(|_| BlockingError::Panicked)
    }

    fn push(
        &self,
        user: UserId,
        bytes: usize,
        work: Work,
    ) -> Result<QueuedWorkGuard, BlockingError> {
        let mut state = self.0.lock();
        let Some(number) = state.fair_queue.push(user, bytes, work) else {
            let ahead = state.fair_queue.len().div_ceil(self.0.threads) as u32;
            let retry_after = state.mean.map(|mean| mean.saturating_mul(ahead));
            return Err(BlockingError::Full { retry_after });
        };
        let needs_worker = state.working < self.0.threads;
        state.working += usize::from(needs_worker);
        drop(state);
        if needs_worker {
            let worker = Worker::new(&self.0);
            tokio::task::spawn_blocking(move || worker.work());
        }
        Ok(QueuedWorkGuard {
            shared: Arc::clone(&self.0),
            user,
            number,
        })
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.0.lock().fair_queue.len()
    }
}

impl Shared {
    /// A panic elsewhere leaves the state whole: work runs without the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the threads, while there is work.
struct Worker {
    shared: Arc<Shared>,
    /// Whether it counts as working. If so, its drop frees its place.
    is_counted: bool,
}

impl Worker {
    /// Creates a worker that is counted already.
    fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            is_counted: true,
        }
    }

    fn work(mut self) {
        while let Some(Work(work)) = self.next() {
            let began = Instant::now();
            // The caller notices a panic: the channel closes.
            catch_unwind(AssertUnwindSafe(work)).ok();
            let took = began.elapsed();
            let mut state = self.shared.lock();
            state.mean = Some(mean(state.mean, took));
        }
    }

    /// Returns the next work. Where there is none, the worker's place is freed under the same
    /// lock, so that work pushed later gets a thread of its own.
    fn next(&mut self) -> Option<Work> {
        let mut state = self.shared.lock();
        let next = state.fair_queue.next();
        if next.is_none() && self.is_counted {
            state.working -= 1;
            self.is_counted = false;
        }
        next
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.is_counted {
            self.shared.lock().working -= 1;
        }
    }
}

/// The place of a work item in the queue.
#[derive(Debug)]
struct QueuedWorkGuard {
    shared: Arc<Shared>,
    user: UserId,
    number: u64,
}

impl Drop for QueuedWorkGuard {
    fn drop(&mut self) {
        let removed = self.shared.lock().fair_queue.remove(self.user, self.number);
        // The work is dropped without the lock.
        drop(removed);
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Work")
    }
}

#[cfg(test)]
mod tests;
