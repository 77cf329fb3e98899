//! One sequence's way through a grammar, a step ahead of its draws.
//!
//! The walk belongs to the sequence, not to its slot: a sequence that loses its slot goes on from where it is, without
//! its output being read again. A drawer that makes draws for it [attaches](GrammarWalk::attach) itself; those that
//! were attached before are not listened to any more, wherever they may hang.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::pace::Pace;
use super::source::Compiled;
use super::{Grammar, MaskPool, Matcher};
use motet_core::TokenId;
use motet_core::protocol::{Attached, ConstraintWalk, GrammarError, Next, WalkState};

/// Follows one output through a grammar on the threads of its pool: a token that is
/// accepted is taken in there, and the mask of the next one computed. Clones are the same
/// walk.
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
    /// The number of the drawer that is attached.
    attached: u64,
    /// Counts beginnings: a job of an older one is not wanted.
    generation: u64,
    output: Vec<TokenId>,
    /// The last of the output, which no job has.
    unread: Vec<TokenId>,
    mask_state: MaskState,
    pace: Pace,
    /// Work that its masks have taken.
    work: u64,
    /// No step is to be planned before the mask is there.
    is_awaited: bool,
    /// Woken when a mask is there that no step waits for.
    waker: Option<Waker>,
    /// How often a drawer went to sleep for a mask.
    #[cfg(test)]
    blocked_samplers: u64,
}

enum MaskState {
    /// At the beginning, whose mask the grammar has.
    Start,
    /// A job is on its way.
    Waiting,
    Ready(Box<Matcher>, Next),
    Failed(GrammarError),
}

/// A step of one walk.
pub(super) struct Job {
    walk: Arc<Walk>,
    generation: u64,
    /// None at the grammar's beginning.
    matcher: Option<Box<Matcher>>,
    tokens: Vec<TokenId>,
    is_done: bool,
}

impl GrammarWalk {
    /// The walk of an output that has these tokens already. Where it is, and what it
    /// allows next, is what it would be had they been accepted one by one.
    #[must_use]
    pub fn new(grammar: &Grammar, output: &[TokenId]) -> Self {
        let walk = Self {
            walk: Arc::new(Walk {
                compiled: Arc::clone(&grammar.compiled),
                state: Mutex::new(State {
                    attached: 0,
                    generation: 0,
                    output: Vec::new(),
                    unread: Vec::new(),
                    mask_state: MaskState::Start,
                    pace: Pace::default(),
                    work: 0,
                    is_awaited: false,
                    waker: None,
                    #[cfg(test)]
                    blocked_samplers: 0,
                }),
                mask_ready: Condvar::new(),
            }),
            pool: Arc::clone(&grammar.pool),
        };
        walk.attach(output);
        walk
    }

    fn attach_to(&self, state: &mut State, output: &[TokenId]) -> Attached {
        state.attached += 1;
        // One that was attached before may wait for a mask that nobody computes any more.
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
        self.send_job(state);
        Attached(state.attached)
    }

    /// Work that its masks have taken.
    #[cfg(test)]
    pub(super) fn work(&self) -> u64 {
        self.walk.lock().work
    }

    /// How often a drawer went to sleep for a mask.
    #[cfg(test)]
    pub(super) fn blocked_samplers(&self) -> u64 {
        self.walk.lock().blocked_samplers
    }

    /// Sends a job for what is unread, unless one is on its way.
    fn send_job(&self, state: &mut State) {
        if state.unread.is_empty() {
            return;
        }
        let matcher = match std::mem::replace(&mut state.mask_state, MaskState::Waiting) {
            MaskState::Start => None,
            MaskState::Ready(matcher, _) => Some(matcher),
            MaskState::Waiting => return,
            failed @ MaskState::Failed(_) => {
                state.mask_state = failed;
                return;
            }
        };
        let tokens = std::mem::take(&mut state.unread);
        // More than a step's tokens are an output that is read again: nobody waits for that.
        let is_slow = state.pace.is_slow() || tokens.len() > REPLAY_TOKENS_MIN;
        let job = Job {
            walk: Arc::clone(&self.walk),
            generation: state.generation,
            matcher,
            tokens,
            is_done: false,
        };
        self.pool.send(job, is_slow);
    }
}

impl ConstraintWalk for GrammarWalk {
    fn attach(&self, output: &[TokenId]) -> Attached {
        self.attach_to(&mut self.walk.lock(), output)
    }

    fn accept(&self, attached: Attached, token: TokenId) {
        let mut state = self.walk.lock();
        if state.attached == attached.0 {
            state.output.push(token);
            state.unread.push(token);
            self.send_job(&mut state);
        }
    }

    fn next_tokens(&self, attached: Attached) -> Result<Next, GrammarError> {
        let state = self.walk.lock();
        let is_waiting = |state: &mut State| {
            let is_waiting =
                matches!(state.mask_state, MaskState::Waiting) && state.attached == attached.0;
            #[cfg(test)]
            {
                state.blocked_samplers += u64::from(is_waiting);
            }
            is_waiting
        };
        let state = self.walk.mask_ready.wait_while(state, is_waiting);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if state.attached != attached.0 {
            return Err(GrammarError::Unwanted);
        }
        match &state.mask_state {
            MaskState::Start => Ok(self.walk.compiled.first.clone()),
            MaskState::Ready(_, next) => Ok(next.clone()),
            MaskState::Failed(error) => Err(error.clone()),
            MaskState::Waiting => unreachable!("it has arrived"),
        }
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

/// Tokens beyond which a job reads an output again.
const REPLAY_TOKENS_MIN: usize = 2;

impl PartialEq for GrammarWalk {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.walk, &other.walk)
    }
}

impl Walk {
    fn lock(&self) -> MutexGuard<'_, State> {
        // What changes it does not panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete_job(
        &self,
        mut state: MutexGuard<'_, State>,
        generation: u64,
        mask_state: MaskState,
        work: u64,
    ) {
        if state.generation == generation {
            // A listener that was told that it is slow is told that it is not any more, too.
            let wakes = state.pace.is_slow() || std::mem::take(&mut state.is_awaited);
            state.pace.record_work(work);
            state.work += work;
            state.mask_state = mask_state;
            let wakes = wakes || state.pace.is_slow();
            if let Some(waker) = state.waker.as_ref().filter(|_| wakes) {
                waker.wake_by_ref();
            }
            self.mask_ready.notify_all();
        }
    }
}

impl Job {
    pub(super) fn run(mut self) {
        // The sequence is gone.
        if Arc::strong_count(&self.walk) == 1 {
            return;
        }
        let matcher = self.matcher.take();
        let mut matcher = matcher.unwrap_or_else(|| Box::new(self.walk.compiled.matcher()));
        let mut work = 0;
        loop {
            let tokens = std::mem::take(&mut self.tokens);
            let accepted = tokens.iter().try_for_each(|token| matcher.accept(*token));
            let mut next = accepted.and_then(|()| matcher.next_tokens());
            work += matcher.take_work();
            if next.is_err()
                && tokens.len() > 1
                && let Some(output) = self.take_whole_output()
            {
                *matcher = self.walk.compiled.matcher();
                next = self.replay(&mut matcher, &output);
                work += matcher.take_work();
            }
            let walk = Arc::clone(&self.walk);
            let mut state = walk.lock();
            if state.generation == self.generation && !state.unread.is_empty() && next.is_ok() {
                // They were accepted meanwhile.
                self.tokens = std::mem::take(&mut state.unread);
                continue;
            }
            let mask_state = match next {
                Ok(next) => MaskState::Ready(matcher, next),
                Err(error) => MaskState::Failed(error),
            };
            self.is_done = true;
            walk.complete_job(state, self.generation, mask_state, work);
            return;
        }
    }

    /// Reads an output as it came, with each of its masks. Each mask brings fuel: many tokens in a row may need more
    /// than one mask's, and then fail where they did not fail one by one.
    fn replay(&self, matcher: &mut Matcher, output: &[TokenId]) -> Result<Next, GrammarError> {
        let mut next = Err(GrammarError::Unwanted);
        for token in output {
            if !self.is_current() {
                return Err(GrammarError::Unwanted);
            }
            matcher.accept(*token)?;
            next = Ok(matcher.next_tokens()?);
        }
        next
    }

    /// All tokens of the output, none of which is unread from now on.
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

/// A job that was not run, or that panicked, ends one sequence.
impl Drop for Job {
    fn drop(&mut self) {
        if !self.is_done {
            let ended = MaskState::Failed(GrammarError::PoolEnded);
            self.walk
                .complete_job(self.walk.lock(), self.generation, ended, 0);
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

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({} tokens)", self.tokens.len())
    }
}
