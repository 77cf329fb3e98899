//! Turns at what few may do at once: each user's in turn, bounded, and handed on.
//!
//! A turn is a value. It goes into the work that it is for, so that a caller who leaves does not free it early; a
//! caller who leaves while it waits costs nothing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::UserId;

/// Who is at work, and who waits. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<Mutex<Waiting<oneshot::Sender<Turn>>>>);

/// Leave to work, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    /// None once it has been handed on.
    turns: Option<Turns>,
}

/// As many wait as may; so many are at work or wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) waiting: usize,
}

/// The queue, without threads: users take turns, and each user's requests are served in their order.
#[derive(Debug)]
struct Waiting<T> {
    /// Turns that nobody has.
    free: usize,
    waiting_max: usize,
    /// The user whose turn is next comes first. No user is there twice, or with nothing.
    users: VecDeque<(UserId, VecDeque<T>)>,
}

impl Turns {
    /// `at_once` may work; `waiting_max` may wait, a user no more than its part of these.
    pub(super) fn new(at_once: usize, waiting_max: usize) -> Self {
        Self(Arc::new(Mutex::new(Waiting {
            free: at_once,
            waiting_max,
            users: VecDeque::new(),
        })))
    }

    /// Waits for a turn.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up the place, or the turn if it has come.
    pub(super) async fn turn(&self, user: UserId) -> Result<Turn, Full> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.lock();
            waiting.forget(oneshot::Sender::is_closed);
            if waiting.take() {
                drop(waiting);
                return Ok(self.hold());
            }
            waiting.enter(user, sender)?;
        }
        Ok(receiver
            .await
            .expect("whoever waits is told before the queue goes"))
    }

    fn hold(&self) -> Turn {
        Turn {
            turns: Some(self.clone()),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting<oneshot::Sender<Turn>>> {
        // No step of it can be left half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(turns) = self.turns.take() else {
            return;
        };
        loop {
            let next = turns.lock().next();
            let Some(next) = next else {
                return;
            };
            match next.send(turns.hold()) {
                Ok(()) => return,
                // It has left. Its turn is this one, which goes on to the next.
                Err(mut unwanted) => unwanted.turns = None,
            }
        }
    }
}

impl<T> Waiting<T> {
    /// A turn, if one is free. It is never free while somebody waits.
    fn take(&mut self) -> bool {
        let is_free = self.free > 0;
        self.free -= usize::from(is_free);
        is_free
    }

    fn enter(&mut self, user: UserId, waiter: T) -> Result<(), Full> {
        let waiting: usize = self.users.iter().map(|(_, waiters)| waiters.len()).sum();
        // So that one user cannot fill it: an equal part for each user, the new one counted.
        let is_new = |(other, _): &&(UserId, VecDeque<T>)| *other != user;
        let users = self.users.iter().filter(is_new).count() + 1;
        let own = self.users.iter_mut().find(|(other, _)| *other == user);
        let own_len = own.as_ref().map_or(0, |(_, waiters)| waiters.len());
        if waiting >= self.waiting_max || own_len >= self.waiting_max.div_ceil(users.max(2)) {
            return Err(Full { waiting });
        }
        match own {
            Some((_, waiters)) => waiters.push_back(waiter),
            None => self.users.push_back((user, VecDeque::from([waiter]))),
        }
        Ok(())
    }

    /// Who has the turn that somebody gives back; none waits, and it is free.
    fn next(&mut self) -> Option<T> {
        let Some((user, mut waiters)) = self.users.pop_front() else {
            self.free += 1;
            return None;
        };
        let waiter = waiters.pop_front().expect("a user waits with something");
        if !waiters.is_empty() {
            self.users.push_back((user, waiters));
        }
        Some(waiter)
    }

    /// Forgets those who have left.
    fn forget(&mut self, has_left: impl Fn(&T) -> bool) {
        for (_, waiters) in &mut self.users {
            waiters.retain(|waiter| !has_left(waiter));
        }
        self.users.retain(|(_, waiters)| !waiters.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> UserId {
        UserId::of(name)
    }

    #[test]
    fn users_take_turns() {
        let mut waiting = Waiting {
            free: 1,
            waiting_max: 8,
            users: VecDeque::new(),
        };
        assert!(waiting.take() && !waiting.take());
        for name in ["a1", "a2", "a3", "b1", "c1", "b2"] {
            waiting
                .enter(user(&name[..1]), name)
                .expect("there is room");
        }
        let order: Vec<&str> = std::iter::from_fn(|| waiting.next()).collect();
        assert_eq!(order, ["a1", "b1", "c1", "a2", "b2", "a3"]);
        assert!(waiting.take(), "the last turn is free again");
    }

    #[test]
    fn one_user_cannot_fill_the_queue() {
        let mut waiting = Waiting {
            free: 0,
            waiting_max: 6,
            users: VecDeque::new(),
        };
        for _ in 0..3 {
            assert_eq!(waiting.enter(user("greedy"), ()), Ok(()));
        }
        assert_eq!(waiting.enter(user("greedy"), ()), Err(Full { waiting: 3 }));
        assert_eq!(waiting.enter(user("other"), ()), Ok(()));
        assert_eq!(waiting.enter(user("third"), ()), Ok(()));
        assert_eq!(waiting.enter(user("fourth"), ()), Ok(()));
        assert_eq!(waiting.enter(user("fifth"), ()), Err(Full { waiting: 6 }));
        waiting.forget(|()| true);
        assert_eq!(waiting.enter(user("fifth"), ()), Ok(()));
    }

    #[tokio::test]
    async fn a_turn_is_handed_on_past_those_who_left() {
        let turns = Turns::new(1, 8);
        let first = turns.turn(user("a")).await.expect("it is free");
        let mut left = Box::pin(turns.turn(user("b")));
        let mut stays = Box::pin(turns.turn(user("c")));
        let waits = std::future::poll_fn(|cx| {
            let both = [left.as_mut().poll(cx), stays.as_mut().poll(cx)];
            std::task::Poll::Ready(both.iter().all(std::task::Poll::is_pending))
        });
        assert!(waits.await, "the turn is taken");
        drop(left);
        drop(first);
        let second = stays.await.expect("its turn has come");
        drop(second);
        turns.turn(user("a")).await.expect("it is free again");
    }

    #[tokio::test]
    async fn a_turn_that_nobody_takes_up_goes_on() {
        let turns = Turns::new(1, 8);
        let first = turns.turn(user("a")).await.expect("it is free");
        let mut left = Box::pin(turns.turn(user("b")));
        let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(left.as_mut().poll(cx)));
        assert!(poll.await.is_pending());
        // The turn is sent to it, and it leaves without looking.
        drop(first);
        drop(left);
        turns.turn(user("c")).await.expect("it is free again");
    }
}
