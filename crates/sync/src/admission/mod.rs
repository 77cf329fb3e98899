//! Admission: the bounds on requests and waiting prompt tokens that every submit must pass.
//!
//! A request takes a [`Permit`] before it costs anything, and releases it when its last part is
//! gone, so no path lets the queue grow past its bound. Once its prompt is known, the permit
//! claims the prompt's tokens as well. It releases them when the sequence has its slot: they
//! count the tokens that wait for computation. Both counts and the gate are one atomic, so no
//! order of callers can exceed a bound. The gate can be shut for good (drain); requests inside
//! finish. With limits for single users, a request counts against its user's [share](users)
//! first.
//!
//! ```text
//!  bit 63   62 ... 24                    23 ... 0
//!  shut     prompt tokens that wait      requests inside
//! ```

pub mod users;

use std::hash::Hash;

use crate::primitives::inject::{InjectedBug, injected, ordering};
use crate::primitives::{Arc, AtomicU64, Ordering};
use users::{Share, UserLimits, Users};

/// Set while the gate is shut.
const SHUT: u64 = 1 << 63;
/// Bits that count requests.
const REQUEST_BITS: u32 = 24;
/// Largest number of requests that the atomic can count.
const REQUESTS: u64 = (1 << REQUEST_BITS) - 1;
/// Largest number of prompt tokens that the atomic can count.
const TOKENS: u64 = (SHUT - 1) >> REQUEST_BITS;

/// Upper bound on `requests_max`.
pub const REQUESTS_MAX: usize = REQUESTS as usize;

/// The gate that all callers share. Clones share one state.
#[derive(Clone, Debug)]
pub struct Admission<U> {
    state: Arc<AtomicU64>,
    requests_max: u64,
    tokens_max: u64,
    /// `None` without limits for single users.
    users: Option<Users<U>>,
}

/// The reason why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionError {
    /// The engine holds as many requests as it may.
    Requests,
    /// As many prompt tokens wait as may.
    Tokens {
        /// Tokens that must be computed before these are admitted.
        excess: usize,
    },
    /// The user has as many requests in the engine as one user may have.
    UserRequests {
        /// Number of the user's requests that must end before these are admitted.
        excess: usize,
        /// Number of the user's requests in the engine.
        inside: usize,
    },
    /// As many prompt tokens of the user wait as one user may have.
    UserTokens {
        /// Tokens of the user that must be computed before these are admitted.
        excess: usize,
        /// Number of the user's tokens that wait.
        waiting: usize,
    },
    /// The gate is shut.
    Shut,
}

impl<U: Copy + Eq + Hash> Admission<U> {
    /// Creates a gate that admits at most `requests_max` requests at a time, with at most
    /// `tokens_max` prompt tokens that wait. A longer prompt is admitted when no other waits.
    ///
    /// # Panics
    ///
    /// If `requests_max` is greater than [`REQUESTS_MAX`].
    #[must_use]
    pub fn new(requests_max: usize, tokens_max: usize) -> Self {
        assert!(
            requests_max <= REQUESTS_MAX,
            "requests_max {requests_max} exceeds {REQUESTS_MAX}"
        );
        Self {
            state: Arc::new(AtomicU64::new(0)),
            requests_max: requests_max as u64,
            tokens_max: (tokens_max as u64).min(TOKENS),
            users: None,
        }
    }

    /// Returns the same gate with limits for each user.
    #[must_use]
    pub fn with_user_limits(self, limits: UserLimits) -> Self {
        Self {
            users: Some(Users::new(limits)),
            ..self
        }
    }

    /// Admits one request, or rejects it at once.
    ///
    /// # Errors
    ///
    /// [`AdmissionError::Requests`] at the bound, [`AdmissionError::UserRequests`] at the user's,
    /// [`AdmissionError::Shut`] once shut.
    pub fn enter(&self, user: U) -> Result<Permit<U>, AdmissionError> {
        let mut permits = self.enter_all(user, 1)?;
        Ok(permits.pop().expect("one permit was asked for"))
    }

    /// Admits `requests` requests of a user, or none of them.
    ///
    /// # Errors
    ///
    /// As for [`enter`](Admission::enter).
    pub fn enter_all(&self, user: U, requests: usize) -> Result<Vec<Permit<U>>, AdmissionError> {
        // The shares are released if the engine's own bound rejects the requests.
        let shares = match &self.users {
            None => Vec::new(),
            Some(users) => users.enter_all(user, requests)?,
        };
        let entering = requests as u64;
        self.change(|seen| {
            let inside = seen & REQUESTS;
            match inside.checked_add(entering) {
                Some(after) if after <= self.requests_max => Ok(seen + entering),
                _ => Err(AdmissionError::Requests),
            }
        })?;
        let mut shares = shares.into_iter();
        let permit = |_| Permit {
            admission: self.clone(),
            tokens: 0,
            share: shares.next(),
        };
        Ok((0..requests).map(permit).collect())
    }

    /// Shuts the gate for good.
    pub fn shut(&self) {
        self.state.fetch_or(SHUT, Ordering::AcqRel);
    }

    /// Returns the number of requests in the engine.
    #[must_use]
    pub fn inside(&self) -> usize {
        let order = ordering(
            InjectedBug::AdmissionInsideAcquire,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        (self.state.load(order) & REQUESTS) as usize
    }

    /// Returns the counts of users, if there are limits for users.
    #[must_use]
    pub fn users(&self) -> Option<&Users<U>> {
        self.users.as_ref()
    }

    /// Returns the number of prompt tokens that wait.
    #[must_use]
    pub fn waiting_tokens(&self) -> usize {
        waiting(self.state.load(Ordering::Acquire)) as usize
    }

    /// Whether the gate is shut.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.state.load(Ordering::Acquire) & SHUT != 0
    }

    /// Updates the state of an open gate in one step.
    fn change(
        &self,
        next: impl Fn(u64) -> Result<u64, AdmissionError>,
    ) -> Result<(), AdmissionError> {
        let mut seen = self.state.load(Ordering::Relaxed);
        loop {
            if seen & SHUT != 0 {
                return Err(AdmissionError::Shut);
            }
            let requested = next(seen)?;
            if injected(InjectedBug::AdmissionInTwoSteps) {
                self.state.fetch_add(requested - seen, Ordering::AcqRel);
                return Ok(());
            }
            let order = ordering(
                InjectedBug::AdmissionEnterAcquire,
                Ordering::AcqRel,
                Ordering::Release,
            );
            match self
                .state
                .compare_exchange_weak(seen, requested, order, Ordering::Relaxed)
            {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }
}

/// Admission of one request; dropping it releases its counts.
#[derive(Debug)]
pub struct Permit<U: Copy + Eq + Hash> {
    admission: Admission<U>,
    /// Tokens claimed and not released.
    tokens: u64,
    /// The user's share, if there are limits for users.
    share: Option<Share<U>>,
}

impl<U: Copy + Eq + Hash> Permit<U> {
    /// Claims the tokens of the request's prompt, once these are known.
    ///
    /// # Errors
    ///
    /// [`AdmissionError::Tokens`] at the bound, [`AdmissionError::UserTokens`] at the user's,
    /// [`AdmissionError::Shut`] once shut. The permit then holds no tokens.
    ///
    /// # Panics
    ///
    /// If it holds tokens already.
    pub fn claim(&mut self, tokens: usize) -> Result<(), AdmissionError> {
        assert_eq!(self.tokens, 0, "a prompt is claimed once");
        if let Some(share) = &mut self.share {
            share.claim(tokens)?;
        }
        let claimed = self.claim_from_engine((tokens as u64).min(TOKENS));
        if let (Err(_), Some(share)) = (claimed, &mut self.share) {
            share.started();
        }
        claimed
    }

    fn claim_from_engine(&mut self, tokens: u64) -> Result<(), AdmissionError> {
        let tokens_max = self.admission.tokens_max;
        self.admission.change(|seen| {
            let waiting = waiting(seen);
            // A single prompt is admitted whatever its length.
            let most = if waiting == 0 { TOKENS } else { tokens_max };
            match waiting + tokens {
                after if after <= most => Ok(seen + (tokens << REQUEST_BITS)),
                after => Err(AdmissionError::Tokens {
                    excess: (after - most) as usize,
                }),
            }
        })?;
        self.tokens = tokens;
        Ok(())
    }

    /// Releases the prompt's tokens: the sequence has its slot.
    pub fn started(&mut self) {
        let tokens = std::mem::take(&mut self.tokens);
        self.give_back(tokens << REQUEST_BITS);
        if let Some(share) = &mut self.share {
            share.started();
        }
    }

    fn give_back(&self, counted: u64) {
        let order = ordering(
            InjectedBug::AdmissionLeaveRelease,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        let before = self.admission.state.fetch_sub(counted, order);
        debug_assert!(
            before & !SHUT >= counted,
            "a permit releases only what it claimed"
        );
    }
}

impl<U: Copy + Eq + Hash> Drop for Permit<U> {
    fn drop(&mut self) {
        self.give_back((self.tokens << REQUEST_BITS) + 1);
    }
}

/// Returns the number of waiting prompt tokens in this state.
fn waiting(state: u64) -> u64 {
    (state & !SHUT) >> REQUEST_BITS
}
