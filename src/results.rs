//! The budget for results: bytes that the engine, or the caller of a sequence, must keep until they
//! have been read.
//!
//! | result | reserved | released |
//! |---|---|---|
//! | log probabilities of a prompt | when the request is admitted | when its stream and its sequence are gone |
//! | what a caller keeps of outputs | when the request is admitted, by [`KeptOutputs`](crate::KeptOutputs) | when the caller's reservation is dropped |
//! | more of them than was expected | by [`ResultsReservation::resize`] | likewise |
//!
//! One request has one sum: the engine's and the caller's bytes together are at most half of the
//! budget. A request is admitted only if its user then holds at most as much as it leaves free: one
//! user alone gets half of the budget, two a third each, and a further user finds free bytes. A request
//! that runs is not held to that rule, so that no admission of another user ends it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::error::{ReserveError, retry_after};
use crate::telemetry::Telemetry;
use motet_protocol::UserId;

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
    /// The bytes of all reservations of the same request. Changed under the lock of the budget.
    request_bytes: Arc<AtomicUsize>,
}

/// When a reservation becomes larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Before the request starts: its user must leave as much to others.
    Admission,
    /// While the request runs.
    Running,
}

/// Why bytes were not reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoSpace {
    /// One user may never hold so many.
    Never { most_bytes: usize },
    /// Other results hold them.
    Now,
}

impl ResultsBudget {
    pub(crate) fn new(bytes_max: usize, telemetry: Arc<Telemetry>) -> Self {
        Self {
            state: Arc::new(Mutex::new(State::new(bytes_max))),
            telemetry,
        }
    }

    /// Reserves bytes for a user's request.
    pub(crate) fn reserve(
        &self,
        user: UserId,
        bytes: usize,
    ) -> Result<ResultsReservation, ReserveError> {
        let mut reservation = self.nothing(user);
        reservation.admit(bytes)?;
        Ok(reservation)
    }

    /// Returns a reservation without bytes for a user's request.
    pub(crate) fn nothing(&self, user: UserId) -> ResultsReservation {
        ResultsReservation {
            budget: self.clone(),
            user,
            bytes: 0,
            request_bytes: Arc::default(),
        }
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

    /// Adds bytes to those of a user's request, which holds `request_bytes` so far.
    fn add(
        &mut self,
        user: UserId,
        request_bytes: usize,
        more: usize,
        stage: Stage,
    ) -> Result<(), NoSpace> {
        let most_bytes = self.bytes_max / 2;
        if more == 0 {
            return Ok(());
        }
        if request_bytes.saturating_add(more) > most_bytes {
            return Err(NoSpace::Never { most_bytes });
        }
        let free_bytes = self.free_bytes.checked_sub(more).ok_or(NoSpace::Now)?;
        let user_bytes_max = match stage {
            Stage::Admission => free_bytes,
            Stage::Running => most_bytes,
        };
        let held = self.held.get(&user).copied().unwrap_or_default();
        if held + more > user_bytes_max {
            return Err(NoSpace::Now);
        }
        self.free_bytes = free_bytes;
        self.held.insert(user, held + more);
        Ok(())
    }

    fn release(&mut self, user: UserId, bytes: usize) {
        let held = self.held.remove(&user).unwrap_or_default();
        self.free_bytes += bytes;
        if held > bytes {
            self.held.insert(user, held - bytes);
        }
    }
}

impl ResultsReservation {
    /// Returns the reserved bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the number of reserved bytes while the request runs. Fewer always fit. More fit while
    /// they are free and the user holds at most half of the budget.
    ///
    /// # Errors
    ///
    /// [`ReserveError`] where one request may never hold so many bytes, or where they are not free
    /// now. The reservation is unchanged then.
    pub fn resize(&mut self, bytes: usize) -> Result<(), ReserveError> {
        self.change(bytes, Stage::Running)
    }

    /// Changes the number of reserved bytes before the request starts.
    pub(crate) fn admit(&mut self, bytes: usize) -> Result<(), ReserveError> {
        self.change(bytes, Stage::Admission)
    }

    fn change(&mut self, bytes: usize, stage: Stage) -> Result<(), ReserveError> {
        let changed = self.changed(bytes, stage);
        changed.map_err(|no_space| match no_space {
            NoSpace::Never { most_bytes } => {
                let others = self.request_bytes.load(Ordering::Relaxed) - self.bytes;
                ReserveError::TooLarge {
                    needed_bytes: others.saturating_add(bytes),
                    most_bytes,
                }
            }
            NoSpace::Now => ReserveError::Full {
                retry_after: retry_after(self.budget.telemetry.finish_interval()),
            },
        })
    }

    fn changed(&mut self, bytes: usize, stage: Stage) -> Result<(), NoSpace> {
        let mut state = self.budget.state();
        let request_bytes = self.request_bytes.load(Ordering::Relaxed);
        match bytes.checked_sub(self.bytes) {
            None => state.release(self.user, self.bytes - bytes),
            Some(more) => state.add(self.user, request_bytes, more, stage)?,
        }
        let request_bytes = request_bytes - self.bytes + bytes;
        self.request_bytes.store(request_bytes, Ordering::Relaxed);
        self.bytes = bytes;
        Ok(())
    }

    /// Takes this many of its bytes into a reservation of their own, of the same request.
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
            request_bytes: Arc::clone(&self.request_bytes),
        }
    }
}

impl Drop for ResultsReservation {
    fn drop(&mut self) {
        self.resize(0).expect("fewer bytes always fit");
    }
}

#[cfg(test)]
mod tests {
    use super::Stage::{Admission, Running};
    use super::*;

    const NEVER: Result<(), NoSpace> = Err(NoSpace::Never { most_bytes: 50 });
    const NOW: Result<(), NoSpace> = Err(NoSpace::Now);

    #[test]
    fn user_gets_as_much_as_is_left_for_others() {
        let mut state = State::new(100);
        let [ann, bob, carol] = ["ann", "bob", "carol"].map(UserId::of);
        assert_eq!(state.add(ann, 0, 51, Admission), NEVER);
        assert_eq!(state.add(ann, 1, usize::MAX, Admission), NEVER);
        assert_eq!(state.add(ann, 0, 50, Admission), Ok(()));
        assert_eq!(state.add(ann, 0, 1, Admission), NOW);
        assert_eq!(state.add(bob, 0, 26, Admission), NOW);
        assert_eq!(state.add(bob, 0, 25, Admission), Ok(()));
        assert_eq!(state.add(carol, 0, 12, Admission), Ok(()));
        state.release(ann, 40);
        assert_eq!(state.add(bob, 25, 1, Admission), Ok(()));
        for (user, held) in [(ann, 10), (bob, 26), (carol, 12)] {
            state.release(user, held);
        }
        assert!(state.held.is_empty());
        assert_eq!(state.free_bytes, 100);
    }

    #[test]
    fn admission_of_another_user_ends_no_request_that_runs() {
        let mut state = State::new(100);
        let [ann, bob, carol] = ["ann", "bob", "carol"].map(UserId::of);
        assert_eq!(state.add(ann, 0, 45, Admission), Ok(()));
        assert_eq!(state.add(bob, 0, 27, Admission), Ok(()));
        // 28 bytes are free. The first user holds more than that, and still gets its half.
        assert_eq!(state.add(ann, 45, 1, Admission), NOW);
        assert_eq!(state.add(ann, 45, 5, Running), Ok(()));
        assert_eq!(state.add(ann, 50, 1, Running), NEVER, "one request");
        assert_eq!(state.add(ann, 5, 1, Running), NOW, "all of its requests");
        assert_eq!(state.add(bob, 27, 23, Running), Ok(()));
        assert_eq!(state.add(carol, 0, 1, Running), NOW, "all are taken");
    }
}
