//! A sequence's walk through a grammar, one step ahead of its sampling.
//!
//! The walk belongs to the sequence, not to its slot: a sequence that loses its slot goes on from
//! its position, and its output is not read again. A sampler [attaches](GrammarWalk::attach)
//! itself to the walk. Calls of samplers that attached before are ignored, even if they are
//! blocked somewhere.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::compiled::Compiled;
use super::matcher::Matcher;
use super::pace::Pace;
use super::pool::{Job, MaskPool};
use motet_protocol::TokenId;
use motet_protocol::{Attached, ConstraintWalk, GrammarError, Next, WalkState};

/// Follows one output through a grammar on the threads of its pool: they read an accepted token
/// and compute the mask of the next one. Clones are the same walk.
#[derive(Clone, Debug)]
pub struct GrammarWalk {
    walk: Arc<Walk>,
    pool: Arc<MaskPool>,
}

struct Walk {
    compiled: Arc<Compiled>,
    state: Mutex<State>,
    mask_ready: Condvar,
}

struct State {
    /// The number of the attached sampler.
    attached: u64,
    /// Number of starts; jobs of an older generation are obsolete.
    generation: u64,
    output: Vec<TokenId>,
    /// The end of the output that no job has taken.
    unread: Vec<TokenId>,
    mask_state: MaskState,
    pace: Pace,
    /// Work that its masks have taken.
    work: u64,
    /// Whether no step may be planned before the mask is ready.
    is_awaited: bool,
    /// Whether it looks ahead along drafts. It does not any more where an error came after that:
    /// an output near a bound of its grammar would be read again and again.
    looks_ahead: bool,
    /// The findings of the last look-ahead.
    along: Vec<Next>,
    /// Woken when a mask is ready that no step waits for.
    waker: Option<Waker>,
    /// Number of times that a sampler blocked on a mask.
    #[cfg(test)]
    blocked_samplers: u64,
}

enum MaskState {
    /// At the beginning; the grammar has the mask.
    Start,
    /// A job is queued or running.
    Waiting,
    Ready(Box<Matcher>, Next),
    Failed(GrammarError),
}

/// One unit of work of a walk: a mask, or those along a draft.
struct NextMask {
    walk: Arc<Walk>,
    generation: u64,
    /// `None` at the grammar's beginning.
    matcher: Option<Box<Matcher>>,
    /// A look-ahead before the tokens are read, and the tokens that may come next there.
    ahead: Option<(Next, Vec<TokenId>)>,
    tokens: Vec<TokenId>,
    is_done: bool,
}

impl GrammarWalk {
    pub(super) fn of(compiled: Arc<Compiled>, pool: Arc<MaskPool>, output: &[TokenId]) -> Self {
        let walk = Self {
            walk: Arc::new(Walk {
                compiled,
                state: Mutex::new(State {
                    attached: 0,
                    generation: 0,
                    output: Vec::new(),
                    unread: Vec::new(),
                    mask_state: MaskState::Start,
                    pace: Pace::default(),
                    work: 0,
                    is_awaited: false,
                    looks_ahead: true,
                    along: Vec::new(),
                    waker: None,
                    #[cfg(test)]
                    blocked_samplers: 0,
                }),
                mask_ready: Condvar::new(),
            }),
            pool,
        };
        walk.attach(output);
        walk
    }

    fn attach_to(&self, state: &mut State, output: &[TokenId]) -> Attached {
        state.attached += 1;
        // A sampler that attached before may wait for a mask that no job computes any more.
        self.walk.mask_ready.notify_all();
        match output.strip_prefix(&state.output[..]) {
            Some(rest) => state.unread.extend_from_slice(rest),
            None => {
                state.generation += 1;
                state.mask_state = MaskState::Start;
                state.unread = output.to_vec();
            }
        }
        state.output = output.to_vec();
        // More tokens than those of a step mean that an output is read again: no step waits for
        // that.
        let is_read_again = state.unread.len() > REPLAY_TOKENS_MIN;
        self.send_job(state, is_read_again);
        Attached(state.attached)
    }

    /// Work that its masks have taken.
    #[cfg(test)]
    pub(super) fn work(&self) -> u64 {
        self.walk.lock().work
    }

    /// Number of times that a sampler blocked on a mask.
    #[cfg(test)]
    pub(super) fn blocked_samplers(&self) -> u64 {
        self.walk.lock().blocked_samplers
    }

    /// Sends a job for the unread tokens, unless one is queued or running.
    fn send_job(&self, state: &mut State, is_read_again: bool) {
        if !state.unread.is_empty() {
            let is_slow = state.pace.is_slow() || is_read_again;
            self.send(state, None, is_slow);
        }
    }

    fn send(&self, state: &mut State, ahead: Option<(Next, Vec<TokenId>)>, is_slow: bool) {
        let matcher = match std::mem::replace(&mut state.mask_state, MaskState::Waiting) {
            MaskState::Start => None,
            MaskState::Ready(matcher, _) => Some(matcher),
            MaskState::Waiting => return,
            failed @ MaskState::Failed(_) => {
                state.mask_state = failed;
                return;
            }
        };
        let job = NextMask {
            walk: Arc::clone(&self.walk),
            generation: state.generation,
            matcher,
            ahead,
            tokens: std::mem::take(&mut state.unread),
            is_done: false,
        };
        self.pool.send(Box::new(job), is_slow);
    }
}

impl ConstraintWalk for GrammarWalk {
    fn attach(&self, output: &[TokenId]) -> Attached {
        self.attach_to(&mut self.walk.lock(), output)
    }

    fn accept(&self, attached: Attached, tokens: &[TokenId]) {
        let mut state = self.walk.lock();
        if state.attached == attached.0 {
            state.output.extend_from_slice(tokens);
            state.unread.extend_from_slice(tokens);
            self.send_job(&mut state, false);
        }
    }

    fn next_tokens(&self, attached: Attached) -> Result<Next, GrammarError> {
        let waited = self.walk.wait(self.walk.lock(), attached);
        waited.map(|(_state, next)| next)
    }

    fn next_tokens_along(
        &self,
        attached: Attached,
        draft: &[TokenId],
    ) -> Result<Vec<Next>, GrammarError> {
        let (mut state, next) = self.walk.wait(self.walk.lock(), attached)?;
        let is_allowed = draft.first().is_some_and(|first| next.allows(*first));
        if !is_allowed || !state.looks_ahead || state.pace.is_slow() {
            return Ok(vec![next]);
        }
        self.send(&mut state, Some((next, draft.to_vec())), false);
        let (mut state, _next) = self.walk.wait(state, attached)?;
        Ok(std::mem::take(&mut state.along))
    }

    fn await_mask(&self, output: &[TokenId]) {
        let mut state = self.walk.lock();
        self.attach_to(&mut state, output);
        state.is_awaited = matches!(state.mask_state, MaskState::Waiting);
    }

    fn wake(&self, waker: Waker) {
        self.walk.lock().waker = Some(waker);
    }

    fn state(&self) -> WalkState {
        let state = self.walk.lock();
        WalkState {
            is_slow: state.pace.is_slow(),
            is_ready: !matches!(state.mask_state, MaskState::Waiting),
            tokens: state.output.len(),
        }
    }
}

/// Number of tokens beyond which an attached sampler's output counts as read again.
const REPLAY_TOKENS_MIN: usize = 2;

impl PartialEq for GrammarWalk {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.walk, &other.walk)
    }
}

impl Walk {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Code that changes the state does not panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the tokens that may come next.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        attached: Attached,
    ) -> Result<(MutexGuard<'a, State>, Next), GrammarError> {
        let is_waiting = |state: &mut State| {
            let is_waiting =
                matches!(state.mask_state, MaskState::Waiting) && state.attached == attached.0;
            #[cfg(test)]
            {
                state.blocked_samplers += u64::from(is_waiting);
            }
            is_waiting
        };
        let state = self.mask_ready.wait_while(state, is_waiting);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if state.attached != attached.0 {
            return Err(GrammarError::Unwanted);
        }
        let next = match &state.mask_state {
            MaskState::Start => self.compiled.first.clone(),
            MaskState::Ready(_, next) => next.clone(),
            MaskState::Failed(error) => return Err(error.clone()),
            MaskState::Waiting => unreachable!("the mask is ready"),
        };
        Ok((state, next))
    }

    /// Completes a job with the work of its masks. A look-ahead has none, so that a sequence
    /// counts as slow by its own tokens only.
    fn complete_job(
        &self,
        mut state: MutexGuard<'_, State>,
        generation: u64,
        mask_state: MaskState,
        work: Option<u64>,
    ) {
        if state.generation == generation {
            // A listener that learnt that the sequence is slow must learn that it is not any
            // more, too.
            let wakes = state.pace.is_slow() || std::mem::take(&mut state.is_awaited);
            if let Some(work) = work {
                state.pace.record_work(work);
                state.work += work;
            }
            state.mask_state = mask_state;
            let wakes = wakes || state.pace.is_slow();
            if let Some(waker) = state.waker.as_ref().filter(|_| wakes) {
                waker.wake_by_ref();
            }
            self.mask_ready.notify_all();
        }
    }
}

impl Job for NextMask {
    fn run(mut self: Box<Self>) {
        // The sequence has ended.
        if Arc::strong_count(&self.walk) == 1 {
            return;
        }
        let matcher = self.matcher.take();
        let matcher = matcher.unwrap_or_else(|| Box::new(self.walk.compiled.matcher()));
        let Some(mut matcher) = self.look_ahead(matcher) else {
            return;
        };
        let mut work = 0;
        loop {
            let tokens = std::mem::take(&mut self.tokens);
            let accepted = tokens.iter().try_for_each(|token| matcher.accept(*token));
            let mut next = accepted.and_then(|()| matcher.next_tokens());
            work += matcher.take_work();
            // One by one, and without looking ahead, the tokens may not have failed.
            let is_in_doubt = tokens.len() > 1 || matcher.has_looked_ahead();
            if next.is_err()
                && is_in_doubt
                && let Some(output) = self.take_whole_output()
            {
                next = self.read_again(&mut matcher, &output);
                work += matcher.take_work();
            }
            let walk = Arc::clone(&self.walk);
            let mut state = walk.lock();
            if state.generation == self.generation && !state.unread.is_empty() && next.is_ok() {
                // These tokens were accepted meanwhile.
                self.tokens = std::mem::take(&mut state.unread);
                continue;
            }
            let mask_state = match next {
                Ok(next) => MaskState::Ready(matcher, next),
                Err(error) => MaskState::Failed(error),
            };
            self.is_done = true;
            walk.complete_job(state, self.generation, mask_state, Some(work));
            return;
        }
    }
}

impl NextMask {
    /// Looks ahead, if that is wanted. Returns the matcher if there are tokens to read.
    fn look_ahead(&mut self, mut matcher: Box<Matcher>) -> Option<Box<Matcher>> {
        let Some((next, draft)) = self.ahead.take() else {
            return Some(matcher);
        };
        let found = matcher.look_ahead(next.clone(), &draft);
        let next = if found.is_back {
            Ok(next)
        } else {
            let output = self.take_whole_output().unwrap_or_default();
            self.read_again(&mut matcher, &output)
        };
        let walk = Arc::clone(&self.walk);
        let mut state = walk.lock();
        if state.generation == self.generation {
            state.along = found.next_tokens;
            // These tokens were accepted meanwhile.
            self.tokens = std::mem::take(&mut state.unread);
        }
        if !self.tokens.is_empty() && next.is_ok() {
            return Some(matcher);
        }
        let mask_state = match next {
            Ok(next) => MaskState::Ready(matcher, next),
            Err(error) => MaskState::Failed(error),
        };
        self.is_done = true;
        walk.complete_job(state, self.generation, mask_state, None);
        None
    }

    /// Reads the output again, with a new matcher.
    fn read_again(&self, matcher: &mut Matcher, output: &[TokenId]) -> Result<Next, GrammarError> {
        if matcher.has_looked_ahead() {
            self.walk.lock().looks_ahead = false;
        }
        *matcher = self.walk.compiled.matcher();
        self.replay(matcher, output)
    }

    /// Reads an output as it was produced, and computes each of its masks. Each mask brings fuel:
    /// many tokens in a row may need more than one mask's, and then fail although they did not
    /// fail one by one.
    fn replay(&self, matcher: &mut Matcher, output: &[TokenId]) -> Result<Next, GrammarError> {
        let mut next = Ok(self.walk.compiled.first.clone());
        for token in output {
            if !self.is_current() {
                return Err(GrammarError::Unwanted);
            }
            matcher.accept(*token)?;
            next = Ok(matcher.next_tokens()?);
        }
        next
    }

    /// Takes all tokens of the output; none of them is unread from now on.
    fn take_whole_output(&self) -> Option<Vec<TokenId>> {
        let mut state = self.walk.lock();
        (state.generation == self.generation).then(|| {
            state.unread.clear();
            state.output.clone()
        })
    }

    fn is_current(&self) -> bool {
        Arc::strong_count(&self.walk) > 1 && self.walk.lock().generation == self.generation
    }
}

/// Dropping a job that was not run, or that panicked, ends its sequence.
impl Drop for NextMask {
    fn drop(&mut self) {
        if !self.is_done {
            let ended = MaskState::Failed(GrammarError::PoolEnded);
            self.walk
                .complete_job(self.walk.lock(), self.generation, ended, None);
        }
    }
}

impl std::fmt::Debug for Walk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        let mask_state = match &state.mask_state {
            MaskState::Start => "at the beginning",
            MaskState::Waiting => "waiting",
            MaskState::Ready(..) => "there",
            MaskState::Failed(_) => "failed",
        };
        write!(
            f,
            "Walk({} tokens, {mask_state}, {:?})",
            state.output.len(),
            state.pace
        )
    }
}
