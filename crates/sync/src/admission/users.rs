//! Limits for each user, so that no user fills the engine alone.
//!
//! A request counts against its user's share before it counts against the engine, and so do its
//! prompt's tokens while they wait. One lock guards all shares; it is held for one look-up. An
//! engine without limits has no shares and no lock. A share is RAII: dropping a request
//! releases its counts, however the request ended. A user without requests is removed, so there
//! are never more shares than requests in the engine.

use std::sync::PoisonError;

use std::hash::Hash;

use rustc_hash::FxHashMap;

use super::AdmissionError;
use crate::primitives::inject::{InjectedBug, injected};
use crate::primitives::{Arc, Mutex, MutexGuard};

/// Limits of one user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// Largest number of requests in the engine.
    pub requests_max: usize,
    /// Largest number of prompt tokens that wait. A longer prompt is admitted when no other of
    /// its user waits.
    pub tokens_max: usize,
}

/// The shares of all users. Clones share one state.
#[derive(Clone, Debug)]
pub struct Users<U> {
    inside: Arc<Mutex<FxHashMap<U, Counted>>>,
    limits: UserLimits,
}

/// The counts of one user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests in the engine.
    pub requests: usize,
    /// Prompt tokens that wait.
    pub tokens: usize,
}

/// The part of a user's share that one request counts for; dropping it releases the counts.
#[derive(Debug)]
pub struct Share<U: Copy + Eq + Hash> {
    users: Users<U>,
    user: U,
    /// Tokens claimed and not released.
    tokens: usize,
}

impl<U: Copy + Eq + Hash> Users<U> {
    /// Creates empty shares with these limits.
    #[must_use]
    pub fn new(limits: UserLimits) -> Self {
        Self {
            inside: Arc::new(Mutex::new(FxHashMap::default())),
            limits,
        }
    }

    /// Counts `requests` requests of a user, or none of them.
    ///
    /// # Errors
    ///
    /// [`AdmissionError::UserRequests`] at the limit.
    pub fn enter_all(&self, user: U, requests: usize) -> Result<Vec<Share<U>>, AdmissionError> {
        let inside = self.change(user, |counted| {
            let before = counted.requests;
            counted.requests = before.saturating_add(requests);
            match counted.requests.checked_sub(self.limits.requests_max) {
                None | Some(0) => Ok(()),
                Some(excess) => Err(AdmissionError::UserRequests {
                    excess,
                    inside: before,
                }),
            }
        });
        inside?;
        let share = |_| Share {
            users: self.clone(),
            user,
            tokens: 0,
        };
        Ok((0..requests).map(share).collect())
    }

    /// Returns the counts of a user.
    #[must_use]
    pub fn counted(&self, user: U) -> Counted {
        self.lock().get(&user).copied().unwrap_or_default()
    }

    /// Returns the number of users with requests in the engine.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether no user has requests in the engine.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Updates the counts of a user unless `change` rejects that.
    fn change(
        &self,
        user: U,
        change: impl FnOnce(&mut Counted) -> Result<(), AdmissionError>,
    ) -> Result<(), AdmissionError> {
        let mut inside = self.lock();
        let mut counted = inside.get(&user).copied().unwrap_or_default();
        if injected(InjectedBug::UsersTwoLocks) {
            // Reads and writes under two locks: another thread may come between.
            drop(inside);
            inside = self.lock();
        }
        change(&mut counted)?;
        if counted == Counted::default() {
            inside.remove(&user);
        } else {
            inside.insert(user, counted);
        }
        Ok(())
    }

    /// A panic of another thread leaves consistent counts, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, FxHashMap<U, Counted>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<U: Copy + Eq + Hash> Share<U> {
    /// Counts the tokens of the request's prompt, which wait from now on.
    ///
    /// # Errors
    ///
    /// [`AdmissionError::UserTokens`] at the limit.
    pub fn claim(&mut self, tokens: usize) -> Result<(), AdmissionError> {
        let tokens_max = self.users.limits.tokens_max;
        self.users.change(self.user, |counted| {
            let waiting = counted.tokens;
            counted.tokens = waiting.saturating_add(tokens);
            match counted.tokens.checked_sub(tokens_max) {
                // A single prompt is admitted whatever its length.
                Some(excess) if excess > 0 && waiting > 0 => {
                    Err(AdmissionError::UserTokens { excess, waiting })
                }
                _ => Ok(()),
            }
        })?;
        self.tokens += tokens;
        Ok(())
    }

    /// Releases the prompt's tokens: the sequence has its slot.
    pub fn started(&mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        self.give_back(0, tokens);
    }

    fn give_back(&self, requests: usize, tokens: usize) {
        let given_back = self.users.change(self.user, |counted| {
            // No assertion here: this may run in a drop while the lock is held.
            counted.requests = counted.requests.saturating_sub(requests);
            counted.tokens = counted.tokens.saturating_sub(tokens);
            Ok(())
        });
        given_back.expect("a release is never rejected");
    }
}

impl<U: Copy + Eq + Hash> Drop for Share<U> {
    fn drop(&mut self) {
        self.give_back(1, self.tokens);
    }
}
