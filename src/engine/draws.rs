//! What a request wants of its draws, and its grammar compiled.
//!
//! ```text
//!  request ─▶ Turns ──▶ blocking thread: judged, compiled, first mask ─▶ Grammar
//!             each user's in turn       holds the turn until it is done
//! ```
//!
//! A caller waits for its turn, and then for `grammar.compile_time_max` at most. The work behind it cannot be stopped
//! within a stage, and needs not be: what passes the judgement is short. The turn stays taken until it is over.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::Engine;
use super::newcomer::user_id;
use super::turns::{Full, Turn, Turns};
use crate::error::{QueueLimit, SubmitError};
use crate::grammar::{
    Grammar, GrammarError, GrammarLimits, GrammarSource, GrammarVocabulary, MaskPool,
};
use crate::model::sampling::DrawSpec;
use crate::request::Request;
use crate::sync::{AtomicU64, Ordering};
use crate::text::TextCodec;

/// Threads that compute masks. One mask takes less than a step on most models, and each
/// sequence wants one a step.
const MASK_THREADS: usize = 2;
/// How soon a caller is asked to try again at the least when too many grammars wait.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(10);
/// The same, at most.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// What compiling grammars needs, made when the first request brings one.
#[derive(Debug)]
pub(super) struct Grammars {
    limits: GrammarLimits,
    turns: Turns,
    vocabulary: OnceLock<Result<GrammarVocabulary, GrammarError>>,
    pool: OnceLock<Result<Arc<MaskPool>, String>>,
    /// A mean of how long compilations take, in microseconds.
    micros: AtomicU64,
    /// Compilations that were begun.
    begun: AtomicU64,
}

/// Why a request's draws cannot be as it wants them.
#[derive(Debug)]
pub(super) enum Refused {
    Error(SubmitError),
    /// As many grammars wait as may; this soon there should be room.
    Busy(Duration),
}

impl From<SubmitError> for Refused {
    fn from(error: SubmitError) -> Self {
        Self::Error(error)
    }
}

impl Refused {
    /// As the caller is told it, who gets the request back.
    pub(super) fn told(self, request: Request) -> SubmitError {
        match self {
            Self::Error(error) => error,
            Self::Busy(retry_after) => SubmitError::QueueFull {
                what: QueueLimit::Grammars,
                retry_after,
                request: Box::new(request),
            },
        }
    }
}

impl Grammars {
    pub(super) fn new(limits: GrammarLimits) -> Self {
        Self {
            turns: Turns::new(limits.compilations_max, limits.compilations_waiting_max),
            limits,
            vocabulary: OnceLock::new(),
            pool: OnceLock::new(),
            micros: AtomicU64::new(0),
            begun: AtomicU64::new(0),
        }
    }

    /// Takes up to tens of milliseconds for most, and a fifth of a second more for the first. Ends early where
    /// nobody wants it any more.
    fn compile(
        &self,
        source: &GrammarSource,
        text: &TextCodec,
        wanted: impl Fn() -> bool,
    ) -> Result<Grammar, GrammarError> {
        if !wanted() {
            return Err(GrammarError::Unwanted);
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        let vocabulary = self
            .vocabulary
            .get_or_init(|| {
                let vocabulary = GrammarVocabulary::new(text.tokenizer())?;
                Ok(vocabulary.with_limits(self.limits.clone()))
            })
            .as_ref()
            .map_err(Clone::clone)?;
        let pool = self
            .pool
            .get_or_init(|| MaskPool::start(MASK_THREADS).map_err(|error| error.to_string()))
            .as_ref()
            .map_err(|why| GrammarError::NoThread { why: why.clone() })?;
        let began = Instant::now();
        let compiled = Grammar::compile_while(source, vocabulary, pool, wanted);
        self.took(began.elapsed());
        compiled
    }

    /// Compiles on a thread for blocking work, which holds the turn.
    async fn compile_in_turn(
        self: &Arc<Self>,
        turn: Turn,
        source: GrammarSource,
        text: TextCodec,
    ) -> Result<Grammar, GrammarError> {
        let (reply, compiled) = oneshot::channel();
        let grammars = Arc::clone(self);
        let too_slow = GrammarError::TooSlow {
            kind: source.kind(),
            limit: self.limits.compile_time_max,
        };
        tokio::task::spawn_blocking(move || {
            let compiled = grammars.compile(&source, &text, || !reply.is_closed());
            // Before the caller hears of it, who may ask for the next at once.
            drop(turn);
            reply.send(compiled).ok();
        });
        match tokio::time::timeout(self.limits.compile_time_max, compiled).await {
            Ok(Ok(compiled)) => compiled,
            // It panicked, which llguidance does where it has not thought of something.
            Ok(Err(_)) => Err(GrammarError::PoolEnded),
            Err(_) => Err(too_slow),
        }
    }

    fn took(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let mean = self.micros.load(Ordering::Relaxed);
        self.micros
            .store((mean * 7 + micros) / 8, Ordering::Relaxed);
    }

    /// When one of those who wait should have gone.
    fn retry_after(&self, full: Full) -> Duration {
        let mean = Duration::from_micros(self.micros.load(Ordering::Relaxed));
        let ahead = u32::try_from(full.waiting).unwrap_or(u32::MAX);
        let all = mean.saturating_mul(ahead) / self.limits.compilations_max as u32;
        all.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
    }
}

impl Engine {
    /// What the request's draws want beyond what its sampling says of each alone; none
    /// if that is nothing.
    pub(super) async fn draw_spec(
        &self,
        request: &Request,
    ) -> Result<Option<Arc<DrawSpec>>, Refused> {
        let spec = DrawSpec {
            bias: request.logit_bias.clone().into_iter().collect(),
            output_tokens_min: request.output_tokens_min,
            end_tokens: self.end_tokens(request).to_vec(),
            logprobs: request.logprobs,
            grammar: self.grammar(request).await?,
        };
        let wants_more = !spec.is_empty() || request.sampling.has_penalties();
        Ok(wants_more.then(|| Arc::new(spec)))
    }

    /// Compiles the request's grammar when its turn has come, off the threads that others
    /// wait for.
    async fn grammar(&self, request: &Request) -> Result<Option<Grammar>, Refused> {
        let Some(source) = request.grammar.clone() else {
            return Ok(None);
        };
        let text = self.text.clone();
        let text = text.ok_or(SubmitError::NoTokenizer { field: "grammar" })?;
        let grammars = &self.grammars;
        let turn = grammars.turns.turn(user_id(request.user.as_deref())).await;
        let turn = turn.map_err(|full| Refused::Busy(grammars.retry_after(full)))?;
        let compiled = grammars.compile_in_turn(turn, source, text).await;
        let compiled = compiled.map_err(|error| match error {
            GrammarError::TooDear { bound, .. } => SubmitError::GrammarTooDear { bound },
            GrammarError::TooSlow { limit, .. } => SubmitError::GrammarTooSlow { limit },
            error => SubmitError::Grammar {
                why: error.to_string().into(),
            },
        });
        Ok(Some(compiled?))
    }
}

#[cfg(test)]
mod tests;
