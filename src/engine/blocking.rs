//! Work that would hold the actors' threads up: on few threads, users in turn.
//!
//! | state of a piece of work | who holds it | its caller leaves |
//! |---|---|---|
//! | waits | [`Turns`] | it is taken out and costs nothing |
//! | runs | a worker, and with it one of `threads` | it runs to its end; no other takes its thread |
//! | is done | the channel to its caller | it is dropped |
//!
//! [`Turns`] says what runs next and what is refused; it knows no thread and no clock.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::UserId;

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnLimits {
    /// Pieces of work.
    pub(crate) count_max: usize,
    /// Their bytes together. One that is larger waits when it waits alone.
    pub(crate) bytes_max: usize,
}

/// What waits, of each user in the order of its arrival. Users take turns.
///
/// A user may have as much waiting as there is room left for others. So one user alone
/// takes half of the room, two a third each, and there always is some for one more.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    limits: TurnLimits,
    /// Users of whom something waits; whose turn is next comes first.
    order: VecDeque<UserId>,
    users: FxHashMap<UserId, UserQueue<T>>,
    count: usize,
    bytes: usize,
    numbered: u64,
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

impl<T> Turns<T> {
    pub(crate) fn new(limits: TurnLimits) -> Self {
        Self {
            limits,
            order: VecDeque::new(),
            users: FxHashMap::default(),
            count: 0,
            bytes: 0,
            numbered: 0,
        }
    }

    /// Lets work wait for its user's turn, and numbers it; none where there is no room.
    pub(crate) fn push(&mut self, user: UserId, bytes: usize, work: T) -> Option<u64> {
        let (own, own_bytes) = self
            .users
            .get(&user)
            .map_or((0, 0), |queue| (queue.waiting.len(), queue.bytes));
        let free = self.limits.count_max - self.count;
        let free_bytes = self.limits.bytes_max.saturating_sub(self.bytes);
        let has_room = own < free && own_bytes.saturating_add(bytes) <= free_bytes;
        if !has_room && self.count > 0 {
            return None;
        }
        self.numbered += 1;
        let number = self.numbered;
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

    /// Takes out what is next.
    pub(crate) fn next(&mut self) -> Option<T> {
        let user = *self.order.front()?;
        let next = self.take(user, 0)?;
        // Its user's next turn comes after those of all others.
        if self.order.front() == Some(&user) {
            self.order.rotate_left(1);
        }
        Some(next)
    }

    /// Takes out what is not wanted any more, if it still waits.
    pub(crate) fn remove(&mut self, user: UserId, number: u64) -> Option<T> {
        let queue = self.users.get(&user)?;
        let mut waiting = queue.waiting.iter();
        let place = waiting.position(|waiting| waiting.number == number)?;
        self.take(user, place)
    }

    /// What waits.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    fn take(&mut self, user: UserId, place: usize) -> Option<T> {
        let queue = self.users.get_mut(&user)?;
        let taken = queue.waiting.remove(place)?;
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

/// Threads that do work in turns. Clones are the same threads.
#[derive(Clone, Debug)]
pub(crate) struct Blocking(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    threads: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    turns: Turns<Work>,
    /// Threads that work now.
    working: usize,
    /// How long work took lately, in the mean.
    mean: Option<Duration>,
}

struct Work(Box<dyn FnOnce() + Send>);

/// Why work was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// As much waits as may, of all users or of this one.
    Full {
        /// How long until about one more may wait; none while nothing is known.
        retry_after: Option<Duration>,
    },
    /// It panicked.
    Panicked,
}

impl Blocking {
    /// Needs a tokio runtime when it is used, not now. At least one thread.
    pub(crate) fn new(threads: usize, limits: TurnLimits) -> Self {
        Self(Arc::new(Shared {
            threads,
            state: Mutex::new(State {
                turns: Turns::new(limits),
                working: 0,
                mean: None,
            }),
        }))
    }

    /// Has work done that holds so many bytes while it waits.
    ///
    /// # Errors
    ///
    /// [`Undone`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future takes out what still waits. What runs goes on to its end, on its
    /// thread.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        user: UserId,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Undone> {
        let (sender, done) = oneshot::channel();
        // A caller who has left does not hear what came of it.
        let work = Work(Box::new(move || drop(sender.send(work()))));
        let _place = self.push(user, bytes, work)?;
        done.await.map_err(|_| Undone::Panicked)
    }

    fn push(&self, user: UserId, bytes: usize, work: Work) -> Result<Place, Undone> {
        let mut state = self.0.lock();
        let Some(number) = state.turns.push(user, bytes, work) else {
            let ahead = state.turns.len().div_ceil(self.0.threads) as u32;
            let retry_after = state.mean.map(|mean| mean.saturating_mul(ahead));
            return Err(Undone::Full { retry_after });
        };
        let is_short = state.working < self.0.threads;
        state.working += usize::from(is_short);
        drop(state);
        if is_short {
            let worker = Worker(Arc::clone(&self.0));
            tokio::task::spawn_blocking(move || worker.work());
        }
        Ok(Place {
            shared: Arc::clone(&self.0),
            user,
            number,
        })
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.0.lock().turns.len()
    }
}

impl Shared {
    /// A panic elsewhere leaves a state that is whole: work runs without the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the threads, while there is work. Dropping it frees its place.
struct Worker(Arc<Shared>);

impl Worker {
    fn work(self) {
        loop {
            let mut state = self.0.lock();
            let Some(Work(work)) = state.turns.next() else {
                return;
            };
            drop(state);
            let began = Instant::now();
            // Its caller hears of a panic: the channel closes.
            catch_unwind(AssertUnwindSafe(work)).ok();
            let took = began.elapsed();
            let mut state = self.0.lock();
            // An eighth of the mean is of the last.
            state.mean = Some(state.mean.map_or(took, |mean| mean * 7 / 8 + took / 8));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.lock().working -= 1;
    }
}

/// The place of work that waits, or waited.
#[derive(Debug)]
struct Place {
    shared: Arc<Shared>,
    user: UserId,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let removed = self.shared.lock().turns.remove(self.user, self.number);
        // What it holds is freed without the lock.
        drop(removed);
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Work")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    fn turns(count_max: usize, bytes_max: usize) -> Turns<&'static str> {
        Turns::new(TurnLimits {
            count_max,
            bytes_max,
        })
    }

    fn user(name: &str) -> UserId {
        UserId::of(name)
    }

    #[test]
    fn users_take_turns_and_each_keeps_its_order() {
        let mut turns = turns(100, 100);
        for work in ["a1", "a2", "a3", "b1", "c1", "c2"] {
            turns.push(user(&work[..1]), 1, work).expect("room");
        }
        let order: Vec<_> = std::iter::from_fn(|| turns.next()).collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "c2", "a3"]);
        assert_eq!((turns.len(), turns.bytes, turns.order.len()), (0, 0, 0));
    }

    #[test]
    fn a_user_leaves_as_much_room_as_it_takes() {
        let mut turns = turns(6, 100);
        let mut fill = |name, number| {
            let pushed = (0..number).map_while(|_| turns.push(user(name), 1, "work"));
            pushed.count()
        };
        assert_eq!(fill("greedy", 10), 3, "half of it");
        assert_eq!(fill("other", 10), 2, "what is left has room for a third");
        assert_eq!(fill("third", 10), 1);
    }

    #[test]
    fn bytes_are_bounded_but_for_what_waits_alone() {
        let mut turns = turns(10, 100);
        let large = turns.push(user("a"), 1_000, "large").expect("it is alone");
        assert_eq!(turns.push(user("b"), 1, "small"), None);
        assert_eq!(turns.remove(user("a"), large), Some("large"));
        assert_eq!(turns.remove(user("a"), large), None, "once only");
        turns.push(user("a"), 50, "half").expect("room");
        assert_eq!(
            turns.push(user("a"), 1, "more"),
            None,
            "the rest is for others"
        );
        turns.push(user("b"), 25, "quarter").expect("room");
        assert_eq!(turns.next(), Some("half"));
        assert_eq!(turns.bytes, 25);
    }

    #[tokio::test]
    async fn work_of_a_caller_who_left_is_not_done_and_a_panic_is_told() {
        let blocking = Blocking::new(
            1,
            TurnLimits {
                count_max: 3,
                bytes_max: 100,
            },
        );
        let (open, gate) = mpsc::channel::<()>();
        let (began, has_begun) = oneshot::channel();
        let first = {
            let blocking = blocking.clone();
            tokio::spawn(async move {
                let work = move || {
                    began.send(()).ok();
                    gate.recv().ok();
                    1
                };
                blocking.run(user("a"), 1, work).await
            })
        };
        has_begun.await.expect("the thread is free");
        let done = Arc::new(AtomicUsize::new(0));
        let count = |name: &'static str| {
            let (blocking, done) = (blocking.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                let work = move || done.fetch_add(1, Ordering::SeqCst);
                blocking.run(user(name), 1, work).await
            })
        };
        let (leaves, stays) = (count("b"), count("c"));
        while blocking.waiting() < 2 {
            tokio::task::yield_now().await;
        }
        let full = blocking.run(user("c"), 1, || 0).await;
        assert_eq!(full, Err(Undone::Full { retry_after: None }));
        leaves.abort();
        assert!(leaves.await.expect_err("aborted").is_cancelled());
        assert_eq!(blocking.waiting(), 1);
        open.send(()).expect("the first waits");
        assert_eq!(first.await.expect("no panic"), Ok(1));
        assert_eq!(stays.await.expect("no panic"), Ok(0));
        assert_eq!(done.load(Ordering::SeqCst), 1);

        let failed = blocking.run(user("a"), 1, || panic!("planted")).await;
        assert_eq!(failed, Err::<(), _>(Undone::Panicked));
        assert_eq!(blocking.run(user("a"), 1, || 2).await, Ok(2));
    }
}
