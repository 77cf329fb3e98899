//! The budget for results: bytes that the engine, or the caller of a sequence, must keep until they
//! have been read.
//!
//! | result | reserved | released |
//! |---|---|---|
//! | log probabilities of a prompt | when the request is admitted | when its stream and its sequence are gone |
//! | what a caller keeps of an output | by [`Engine::reserve_results`](crate::Engine::reserve_results) | when the reservation is dropped |
//!
//! A user may hold as much as it leaves free for others: one alone gets half of the budget, two a
//! third each, and some always remains for one more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::error::{ReserveError, retry_after};
use crate::telemetry::Telemetry;
use motet_core::UserId;

/// The bytes of results of all users. Clones share one state.
#[derive(Clone, Debug)]
pub(crate) struct ResultsBudget {
    state: Arc<Mutex<State>>,
    /// Knows when results are likely to be released.
    telemetry: Arc<Telemetry>,
}

#[derive(Debug)]
struct State {
    bytes_max: usize,
    free_bytes: usize,
    /// Bytes that each user holds; users without any are removed.
    held: FxHashMap<UserId, usize>,
}

/// Bytes of the engine's budget for results
/// ([`results_bytes_max`](motet_core::config::AdmissionConfig::results_bytes_max)), for results that a caller
/// keeps. Dropping it releases them.
#[derive(Debug)]
pub struct ResultsReservation {
    budget: ResultsBudget,
    user: UserId,
    bytes: usize,
}

/// Why bytes do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfit {
    Never { most_bytes: usize },
    Now,
}

impl ResultsBudget {
    pub(crate) fn new(bytes_max: usize, telemetry: Arc<Telemetry>) -> Self {
        Self {
            state: Arc::new(Mutex::new(State::new(bytes_max))),
            telemetry,
        }
    }

    /// Reserves bytes for a user.
    pub(crate) fn reserve(
        &self,
        user: UserId,
        bytes: usize,
    ) -> Result<ResultsReservation, ReserveError> {
        let mut reservation = ResultsReservation {
            budget: self.clone(),
            user,
            bytes: 0,
        };
        reservation.resize(bytes)?;
        Ok(reservation)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            free_bytes: bytes_max,
            held: FxHashMap::default(),
        }
    }

    /// Changes the bytes of one of a user's reservations, from one number to another.
    fn resize(&mut self, user: UserId, from: usize, to: usize) -> Result<(), Unfit> {
        if to <= from {
            self.free_bytes += from - to;
            self.hold(user, |held| held - (from - to));
            return Ok(());
        }
        let most_bytes = self.bytes_max / 2;
        if to > most_bytes {
            return Err(Unfit::Never { most_bytes });
        }
        let more = to - from;
        let held = self.held.get(&user).copied().unwrap_or_default();
        if held + more > self.free_bytes.saturating_sub(more) {
            return Err(Unfit::Now);
        }
        self.free_bytes -= more;
        self.hold(user, |held| held + more);
        Ok(())
    }

    fn hold(&mut self, user: UserId, change: impl FnOnce(usize) -> usize) {
        let held = self.held.remove(&user).unwrap_or_default();
        let held = change(held);
        if held > 0 {
            self.held.insert(user, held);
        }
    }
}

impl ResultsReservation {
    /// Returns the reserved bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the number of reserved bytes. Fewer always fit.
    ///
    /// # Errors
    ///
    /// As for [`Engine::reserve_results`](crate::Engine::reserve_results). The reservation is unchanged then.
    pub fn resize(&mut self, bytes: usize) -> Result<(), ReserveError> {
        let budget = &self.budget;
        let resized = budget.state().resize(self.user, self.bytes, bytes);
        resized.map_err(|unfit| match unfit {
            Unfit::Never { most_bytes } => ReserveError::TooLarge {
                needed_bytes: bytes,
                most_bytes,
            },
            Unfit::Now => ReserveError::Full {
                retry_after: retry_after(budget.telemetry.finish_interval()),
            },
        })?;
        self.bytes = bytes;
        Ok(())
    }

    /// Takes this many of its bytes into a reservation of their own.
    ///
    /// # Panics
    ///
    /// If it has fewer.
    pub(crate) fn split(&mut self, bytes: usize) -> Self {
        let rest = self.bytes.checked_sub(bytes);
        self.bytes = rest.expect("no more is taken than was reserved");
        Self {
            budget: self.budget.clone(),
            user: self.user,
            bytes,
        }
    }
}

impl Drop for ResultsReservation {
    fn drop(&mut self) {
        let released = self.budget.state().resize(self.user, self.bytes, 0);
        released.expect("fewer bytes always fit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_gets_as_much_as_is_left_for_others() {
        let mut state = State::new(100);
        let [ann, bob, carol] = ["ann", "bob", "carol"].map(UserId::of);
        let never = Err(Unfit::Never { most_bytes: 50 });
        assert_eq!(state.resize(ann, 0, 51), never);
        assert_eq!(state.resize(ann, 0, 50), Ok(()));
        assert_eq!(state.resize(ann, 0, 1), Err(Unfit::Now));
        assert_eq!(state.resize(bob, 0, 26), Err(Unfit::Now));
        assert_eq!(state.resize(bob, 0, 25), Ok(()));
        assert_eq!(state.resize(carol, 0, 12), Ok(()));
        assert_eq!(state.resize(ann, 50, 10), Ok(()), "fewer always fit");
        assert_eq!(state.resize(bob, 25, 26), Ok(()));
        for (user, held) in [(ann, 10), (bob, 26), (carol, 12)] {
            assert_eq!(state.resize(user, held, 0), Ok(()));
        }
        assert!(state.held.is_empty());
        assert_eq!(state.free_bytes, 100);
    }
}
