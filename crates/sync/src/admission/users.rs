//! What each user has in the house: nobody fills it alone.
//!
//! A request counts against its user's share before it counts against the house, and so do
//! its prompt's tokens while they wait. All shares lie behind one lock, which is held for
//! one look-up; a house without limits has no shares, and no lock. A share is RAII: what a
//! request counted is given back with it, whatever became of it, and a user of whom nothing
//! is left inside is forgotten. So there are never more shares than requests inside.

use std::sync::PoisonError;

use std::hash::Hash;

use rustc_hash::FxHashMap;

use super::AdmissionError;
use crate::primitives::inject::{InjectedBug, injected};
use crate::primitives::{Arc, Mutex, MutexGuard};

/// How much of a house one user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// Requests inside, at most.
    pub requests_max: usize,
    /// Prompt tokens that wait, at most. A prompt that is longer than that is let in when no
    /// other of its user's waits.
    pub tokens_max: usize,
}

/// The shares of all users. Clones are the same.
#[derive(Clone, Debug)]
pub struct Users<U> {
    inside: Arc<Mutex<FxHashMap<U, Counted>>>,
    limits: UserLimits,
}

/// What a user has inside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Requests.
    pub requests: usize,
    /// Prompt tokens that wait.
    pub tokens: usize,
}

/// What one request counts in its user's share; dropping it gives that back.
#[derive(Debug)]
pub struct Share<U: Copy + Eq + Hash> {
    users: Users<U>,
    user: U,
    /// Claimed, and not given back.
    tokens: usize,
}

impl<U: Copy + Eq + Hash> Users<U> {
    /// Shares of these limits, all empty.
    #[must_use]
    pub fn new(limits: UserLimits) -> Self {
        Self {
            inside: Arc::new(Mutex::new(FxHashMap::default())),
            limits,
        }
    }

    /// Counts so many requests of a user, or none of them.
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

    /// What a user has inside.
    #[must_use]
    pub fn counted(&self, user: U) -> Counted {
        self.lock().get(&user).copied().unwrap_or_default()
    }

    /// Users that have anything inside.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether nobody has anything inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes what a user has, unless that is refused.
    fn change(
        &self,
        user: U,
        change: impl FnOnce(&mut Counted) -> Result<(), AdmissionError>,
    ) -> Result<(), AdmissionError> {
        let mut inside = self.lock();
        let mut counted = inside.get(&user).copied().unwrap_or_default();
        if injected(InjectedBug::UsersTwoLocks) {
            // Looks and changes under two locks: others come between.
            drop(inside);
            inside = self.lock();
        }
        change(&mut counted)?;
        match counted == Counted::default() {
            true => inside.remove(&user),
            false => inside.insert(user, counted),
        };
        Ok(())
    }

    /// A panic elsewhere leaves counts that are whole.
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
                // The prompt that is alone is let in whatever its length.
                Some(excess) if excess > 0 && waiting > 0 => {
                    Err(AdmissionError::UserTokens { excess, waiting })
                }
                _ => Ok(()),
            }
        })?;
        self.tokens += tokens;
        Ok(())
    }

    /// Its prompt waits no more.
    pub fn started(&mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        self.give_back(0, tokens);
    }

    fn give_back(&self, requests: usize, tokens: usize) {
        let given_back = self.users.change(self.user, |counted| {
            // No assertion here: this may be a drop, and the lock is held.
            counted.requests = counted.requests.saturating_sub(requests);
            counted.tokens = counted.tokens.saturating_sub(tokens);
            Ok(())
        });
        given_back.expect("giving back is never refused");
    }
}

impl<U: Copy + Eq + Hash> Drop for Share<U> {
    fn drop(&mut self) {
        self.give_back(1, self.tokens);
    }
}
