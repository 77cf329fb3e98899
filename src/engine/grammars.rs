//! The compiled grammar of a request.
//!
//! ```text
//!  request ─▶ Blocking ──▶ thread: checked, compiled, first mask ─▶ Grammar
//!             users in turn   held until the work has finished
//! ```
//!
//! A caller waits for its user's turn, and then for at most `grammar.compile_time_max`. No
//! stage of the work can be interrupted, and none needs to be: a grammar that passes the cost
//! check compiles soon. The thread stays occupied until the work has finished.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Engine;
use super::blocking::{Blocking, BlockingError, WorkLimits};
use super::sequence_setup::user_id;
use crate::error::{QueueLimit, SubmitError};
use crate::request::Request;
use motet_protocol::{GrammarError, GrammarLimits, TokenConstraint};
use motet_protocol::{TokenId, UserId};
use motet_text::TextCodec;
use motet_text::grammar::{Grammar, GrammarSource, GrammarVocabulary, MaskPool};

/// Threads that compute masks. One mask takes less than a step on most models, and each
/// sequence needs one per step.
const MASK_THREADS: usize = 2;

/// The shared parts of grammar compilation, created when the first request brings a grammar.
#[derive(Debug)]
pub(super) struct Grammars {
    limits: GrammarLimits,
    /// The engine's end tokens: they end an output that follows a grammar.
    end_tokens: Vec<TokenId>,
    threads: Blocking,
    vocabulary: OnceLock<Result<GrammarVocabulary, GrammarError>>,
    pool: OnceLock<Result<Arc<MaskPool>, String>>,
}

impl Grammars {
    pub(super) fn new(limits: GrammarLimits, end_tokens: &[TokenId]) -> Self {
        let waiting = WorkLimits {
            count_max: limits.compilations_waiting_max,
            // No source is longer, so that the count is the limit that is reached.
            bytes_max: limits
                .compilations_waiting_max
                .saturating_mul(GrammarSource::SCHEMA_BYTES_MAX),
        };
        Self {
            threads: Blocking::new(limits.compilations_max, waiting),
            limits,
            end_tokens: end_tokens.to_vec(),
            vocabulary: OnceLock::new(),
            pool: OnceLock::new(),
        }
    }

    /// Compiles a grammar, in up to tens of milliseconds for most. The first call builds the
    /// vocabulary, which takes a fifth of a second; all calls share it, so `on_start` runs
    /// after it. Ends early when `still_needed` returns false.
    fn compile(
        &self,
        source: &GrammarSource,
        text: &TextCodec,
        forces_tokens: bool,
        on_start: impl FnOnce(),
        still_needed: impl Fn() -> bool,
    ) -> Result<Grammar, GrammarError> {
        if !still_needed() {
            return Err(GrammarError::Unwanted);
        }
        let vocabulary = self
            .vocabulary
            .get_or_init(|| {
                let vocabulary =
                    GrammarVocabulary::ending_with(text.tokenizer(), &self.end_tokens)?;
                Ok(vocabulary.with_limits(self.limits.clone()))
            })
            .as_ref()
            .map_err(Clone::clone)?;
        on_start();
        let pool = self
            .pool
            .get_or_init(|| MaskPool::start(MASK_THREADS).map_err(|error| error.to_string()))
            .as_ref()
            .map_err(|why| GrammarError::NoThread { why: why.clone() })?;
        if forces_tokens {
            return Grammar::compile_while(source, vocabulary, pool, still_needed);
        }
        let vocabulary = vocabulary.clone().without_forced_tokens();
        Grammar::compile_while(source, &vocabulary, pool, still_needed)
    }

    /// Compiles a grammar in its user's turn, on a thread for blocking work. A source that is
    /// too long is rejected at once: it does not wait, and is not copied. The outer error means
    /// a full queue; it contains the estimated time until capacity is free, if known.
    async fn compile_queued(
        self: &Arc<Self>,
        user: UserId,
        source: &GrammarSource,
        text: TextCodec,
        forces_tokens: bool,
    ) -> Result<Result<Grammar, GrammarError>, Option<Duration>> {
        if let Err(error) = source.check_bytes() {
            return Ok(Err(error));
        }
        let kind = source.kind();
        let limit = self.limits.compile_time_max;
        // Dropped when the caller leaves or its time has passed.
        let caller = Arc::new(());
        let still_needed: Weak<()> = Arc::downgrade(&caller);
        let (on_start, started) = oneshot::channel();
        let grammars = Arc::clone(self);
        let bytes = source.bytes();
        let source = source.clone();
        let work = move || {
            let on_start = || {
                on_start.send(()).ok();
            };
            let still_needed = || still_needed.strong_count() > 0;
            grammars.compile(&source, &text, forces_tokens, on_start, still_needed)
        };
        let mut compiled = std::pin::pin!(self.threads.run(user, bytes, work));
        tokio::select! {
            compiled = &mut compiled => return caller_result(kind, compiled),
            Ok(()) = started => {}
        }
        let compiled = tokio::time::timeout(limit, compiled).await;
        let too_slow = GrammarError::TooSlow { kind, limit };
        caller_result(kind, compiled.unwrap_or(Ok(Err(too_slow))))
    }
}

/// Converts the result of a compilation into the caller's result.
fn caller_result(
    kind: &'static str,
    compiled: Result<Result<Grammar, GrammarError>, BlockingError>,
) -> Result<Result<Grammar, GrammarError>, Option<Duration>> {
    match compiled {
        Ok(compiled) => Ok(compiled),
        Err(BlockingError::Full { retry_after }) => Err(retry_after),
        // llguidance panics on some unexpected grammars.
        Err(BlockingError::Panicked) => Ok(Err(GrammarError::Compile {
            kind,
            what: "the grammar compiler panicked".into(),
        })),
    }
}

/// Whether some tokens cannot be sampled where the grammar allows them. The grammar must then
/// leave it to the model which tokens spell a text.
fn excludes_tokens(request: &Request) -> bool {
    let mut biases = request.logit_bias.values();
    let is_too_short = request.output_tokens_min > 0 && !request.stop_tokens.is_empty();
    is_too_short || biases.any(|bias| *bias == f32::NEG_INFINITY)
}

impl Engine {
    /// Compiles the request's grammar, off the runtime's threads.
    pub(super) async fn grammar(
        &self,
        request: &mut Request,
    ) -> Result<Option<Arc<dyn TokenConstraint>>, SubmitError> {
        let Some(source) = &request.grammar else {
            return Ok(None);
        };
        let text = self.inner.text.clone();
        let text = text.ok_or(SubmitError::NoTokenizer { field: "grammar" })?;
        let user = user_id(request.user.as_deref());
        let forces_tokens = !excludes_tokens(request);
        let grammars = &self.inner.grammars;
        let compiled = grammars.compile_queued(user, source, text, forces_tokens);
        let compiled = match compiled.await {
            Ok(compiled) => compiled,
            Err(retry_after) => {
                let request = std::mem::replace(request, Request::tokens([]));
                return Err(self.queue_full(QueueLimit::Grammars, retry_after, request));
            }
        };
        let constraint = |grammar| Some(Arc::new(grammar) as Arc<dyn TokenConstraint>);
        compiled.map(constraint).map_err(|error| match error {
            GrammarError::Tool { name, error } => SubmitError::ToolSchema {
                name: name.into(),
                why: error.to_string().into(),
            },
            GrammarError::TooExpensive { bound, .. } => SubmitError::GrammarTooExpensive { bound },
            GrammarError::TooSlow { limit, .. } => SubmitError::GrammarTooSlow { limit },
            error => SubmitError::Grammar {
                why: error.to_string().into(),
            },
        })
    }
}

#[cfg(test)]
mod tests;
