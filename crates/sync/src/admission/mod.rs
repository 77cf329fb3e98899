//! How much is in the house: the bounds that every submit passes.
//!
//! A request takes a [`Permit`] before anything is spent on it and gives it back when
//! its last trace is gone, so the queue cannot grow past its bound by any path. Once
//! its prompt is known, the permit claims the prompt's tokens as well, and gives them
//! back when the sequence has its slot: they are what waits to be computed. Both
//! counts and the gate are one word, so that no order of callers can pass a bound.
//! The gate can be shut for good (drain); requests inside finish. Where there are limits
//! for single users, a request counts against its user's [share](users) first.
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
/// Most requests that the word can count.
const REQUESTS: u64 = (1 << REQUEST_BITS) - 1;
/// Most prompt tokens that the word can count.
const TOKENS: u64 = (SHUT - 1) >> REQUEST_BITS;

/// Requests that may be inside in all, whatever the bound.
pub const REQUESTS_MAX: usize = REQUESTS as usize;

/// The gate that all callers share. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Admission<U> {
    state: Arc<AtomicU64>,
    requests_max: u64,
    tokens_max: u64,
    /// None where one user may have all there is.
    users: Option<Users<U>>,
}

/// Why a request was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionError {
    /// As many requests as there may be are inside.
    Requests,
    /// As many prompt tokens as there may be wait.
    Tokens {
        /// How many must be computed before these are let in.
        excess: usize,
    },
    /// Its user has as many requests inside as one user may have.
    UserRequests {
        /// How many of them must end before these are let in.
        excess: usize,
        /// How many there are.
        inside: usize,
    },
    /// As many prompt tokens of its user wait as one user may have.
    UserTokens {
        /// How many of them must be computed before these are let in.
        excess: usize,
        /// How many there are.
        waiting: usize,
    },
    /// The gate is shut.
    Shut,
}

impl<U: Copy + Eq + Hash> Admission<U> {
    /// A gate that lets at most `requests_max` requests in at a time, with at most
    /// `tokens_max` prompt tokens that wait. A prompt that is longer than that is let in
    /// when no other waits.
    ///
    /// # Panics
    ///
    /// When `requests_max` is more than [`REQUESTS_MAX`].
    #[must_use]
    pub fn new(requests_max: usize, tokens_max: usize) -> Self {
        assert!(
            requests_max <= REQUESTS_MAX,
            "a bound is a number that the word can count"
        );
        Self {
            state: Arc::new(AtomicU64::new(0)),
            requests_max: requests_max as u64,
            tokens_max: (tokens_max as u64).min(TOKENS),
            users: None,
        }
    }

    /// The same gate with limits for each user.
    #[must_use]
    pub fn with_user_limits(self, limits: UserLimits) -> Self {
        Self {
            users: Some(Users::new(limits)),
            ..self
        }
    }

    /// Lets one request in, or says at once why not.
    ///
    /// # Errors
    ///
    /// [`AdmissionError::Requests`] at the bound, [`AdmissionError::UserRequests`] at the user's,
    /// [`AdmissionError::Shut`] once shut.
    pub fn enter(&self, user: U) -> Result<Permit<U>, AdmissionError> {
        let mut permits = self.enter_all(user, 1)?;
        Ok(permits.pop().expect("one permit was asked for"))
    }

    /// Lets so many requests of a user in, or none of them.
    ///
    /// # Errors
    ///
    /// As for [`enter`](Admission::enter).
    pub fn enter_all(&self, user: U, requests: usize) -> Result<Vec<Permit<U>>, AdmissionError> {
        // Given back if the house has no room.
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

    /// Requests inside.
    #[must_use]
    pub fn inside(&self) -> usize {
        let order = ordering(
            InjectedBug::AdmissionInsideAcquire,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        (self.state.load(order) & REQUESTS) as usize
    }

    /// What users have inside, where there are limits.
    #[must_use]
    pub fn users(&self) -> Option<&Users<U>> {
        self.users.as_ref()
    }

    /// Prompt tokens that wait.
    #[must_use]
    pub fn waiting_tokens(&self) -> usize {
        waiting(self.state.load(Ordering::Acquire)) as usize
    }

    /// Whether the gate is shut.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.state.load(Ordering::Acquire) & SHUT != 0
    }

    /// Changes the word of an open gate in one step.
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

/// One request's place in the house; dropping it gives the place back.
#[derive(Debug)]
pub struct Permit<U: Copy + Eq + Hash> {
    admission: Admission<U>,
    /// Claimed, and not given back.
    tokens: u64,
    /// Where there are limits for single users.
    share: Option<Share<U>>,
}

impl<U: Copy + Eq + Hash> Permit<U> {
    /// Claims the tokens of the request's prompt, once these are known.
    ///
    /// # Errors
    ///
    /// [`AdmissionError::Tokens`] at the bound, [`AdmissionError::UserTokens`] at the user's,
    /// [`AdmissionError::Shut`] once shut. It holds no tokens then.
    ///
    /// # Panics
    ///
    /// When it holds tokens already.
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
            // The prompt that is alone is let in whatever its length.
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

    /// The sequence has its slot: its prompt waits no more.
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
        debug_assert!(before & !SHUT >= counted, "what is given back was taken");
    }
}

impl<U: Copy + Eq + Hash> Drop for Permit<U> {
    fn drop(&mut self) {
        self.give_back((self.tokens << REQUEST_BITS) + 1);
    }
}

/// Prompt tokens that wait, in this word.
fn waiting(state: u64) -> u64 {
    (state & !SHUT) >> REQUEST_BITS
}
