//! The engine: starts the house, takes requests in, lets them out.
//!
//! | file | what happens there |
//! |---|---|
//! | `builder.rs` | the house is started |
//! | `admit.rs` | a request becomes tokens that fit, or a typed refusal |
//! | `upkeep.rs` | what is kept: warm, pin, clear, and a look at the trie |

mod admit;
mod builder;
mod upkeep;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kameo::actor::{ActorRef, Spawn, WeakActorRef};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

use crate::actors::cache::CacheActor;
use crate::actors::scheduler::{Abort, Fork, Scheduler, Submit};
use crate::actors::sequence::{Guest, Sequence, SequenceArgs};
use crate::config::EngineConfig;
use crate::error::SubmitError;
use crate::model::{Model, ModelError, ModelSpec};
use crate::request::{Priority, Request, field_error};
use crate::scheduler::{self, Submission};
use crate::shared::admission::{Admission, Refusal};
use crate::shared::cancel::CancelWord;
use crate::stream::TokenStream;
use crate::sync::{AtomicUsize, Ordering};
use crate::telemetry::{EngineStats, Telemetry};
use crate::text::{TextCodec, TextOutput};
use crate::{SequenceId, UserId};
use admit::Admitted;
use upkeep::salt;

pub use builder::EngineBuilder;

/// How long a caller is asked to wait at least when the queue is full.
const RETRY_AFTER_MIN: Duration = Duration::from_millis(10);
/// The same, at most.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// The same, while nothing is known of how long sequences take.
const RETRY_AFTER_UNKNOWN: Duration = Duration::from_secs(1);

/// One model, shared by many sequences. The only thing an embedder must know.
///
/// Cheap to share behind an [`Arc`](std::sync::Arc); every method takes `&self`
/// but [`shutdown`](Engine::shutdown). Needs a tokio runtime with time enabled.
#[derive(Debug)]
pub struct Engine {
    scheduler: ActorRef<Scheduler>,
    cache: WeakActorRef<CacheActor>,
    admission: Admission,
    left: Arc<Notify>,
    telemetry: Arc<Telemetry>,
    text: Option<TextCodec>,
    spec: ModelSpec,
    config: EngineConfig,
    sequences_made: AtomicUsize,
    pins_made: AtomicUsize,
    /// Who may ask the cache something at once; the others wait for their turn.
    upkeep_turns: Arc<Semaphore>,
    device_gone: oneshot::Receiver<()>,
}

/// A sequence that is about to be submitted, and the way to it.
struct Newcomer {
    submission: Submission,
    actor: ActorRef<Sequence>,
    stream: TokenStream,
}

impl Engine {
    /// Sets up an engine for the model that `build` makes. `build` runs on the
    /// device thread, where the model will live.
    pub fn builder<M, B>(build: B) -> EngineBuilder<B>
    where
        M: Model,
        B: FnOnce() -> Result<M, ModelError> + Send + 'static,
    {
        EngineBuilder::new(build)
    }

    /// Takes a request in. Its tokens come through the returned stream.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] when a field makes no sense, the request could never fit,
    /// or there is no place for it now. Nothing was spent on it then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready withdraws the request.
    pub async fn submit(&self, request: Request) -> Result<TokenStream, SubmitError> {
        let guest = self.guest(&request)?;
        request.validate()?;
        let prompt = self.admit(&request)?;
        let newcomer = self.newcomer(request, prompt, guest)?;
        let submit = Submit {
            submission: newcomer.submission,
            actor: newcomer.actor,
            cancel: newcomer.stream.cancel.clone(),
        };
        match self.scheduler.tell(submit).send().await {
            Ok(()) => Ok(newcomer.stream),
            Err(_) => Err(SubmitError::Draining),
        }
    }

    /// Continues a sequence that is not over, beside it: the new sequence begins with
    /// the first `at` tokens of `source`, prompt and output (all that it has when the
    /// scheduler hears of it, if none), then the tokens of `request.prompt`, which may
    /// be none: `Request::tokens([])`. Text is tokenised as the continuation that it
    /// is. Cached state is shared, not copied.
    ///
    /// It has the source's `cache_salt` and `at_context_limit`; all else is as
    /// `request` says, its restore points counted from what it appends. Its
    /// [`Usage`](crate::request::Usage) counts what it continues as prompt;
    /// [`TokenStream::prompt_tokens`] counts what it appends.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] as for [`submit`](Engine::submit), and when the source is
    /// another engine's or a conversation is appended. The stream fails with
    /// [`GenerateError`](crate::error::GenerateError) when the source is over or has
    /// fewer than `at` tokens.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready withdraws the request.
    pub async fn fork(
        &self,
        source: &TokenStream,
        at: Option<usize>,
        request: Request,
    ) -> Result<TokenStream, SubmitError> {
        let guest = self.guest(&request)?;
        request.validate()?;
        if source.scheduler.id() != self.scheduler.id() {
            return Err(field_error(
                "source",
                "a stream of another engine",
                "a stream of this engine",
            ));
        }
        let admitted = self.admit_fork(&request, source.at_limit)?;
        let newcomer = self.newcomer(request, admitted, guest)?;
        let fork = Fork {
            fork: scheduler::Fork {
                source: source.sequence(),
                at,
                submission: newcomer.submission,
            },
            actor: newcomer.actor,
            cancel: newcomer.stream.cancel.clone(),
        };
        match self.scheduler.tell(fork).send().await {
            Ok(()) => Ok(newcomer.stream),
            Err(_) => Err(SubmitError::Draining),
        }
    }

    /// What the engine is doing, and has done.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.telemetry.stats()
    }

    /// What the model is.
    #[must_use]
    pub fn model(&self) -> &ModelSpec {
        &self.spec
    }

    /// The tokenizer and chat template, if the engine has them.
    #[must_use]
    pub fn text(&self) -> Option<&TextCodec> {
        self.text.as_ref()
    }

    /// Takes no new requests and waits until all inside have ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the waiting; the engine stays closed to new
    /// requests.
    pub async fn drain(&self) {
        self.admission.shut();
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.admission.inside() == 0 {
                return;
            }
            left.await;
        }
    }

    /// Ends all sequences now (their callers get [`Shutdown`]) and waits until the
    /// device has freed everything. To let them finish, [`drain`] first.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the shutdown to go on by itself.
    ///
    /// [`drain`]: Engine::drain
    /// [`Shutdown`]: crate::error::GenerateError::Shutdown
    pub async fn shutdown(self) {
        self.admission.shut();
        // A scheduler that is gone has nothing left to end.
        self.scheduler.tell(Abort).send().await.ok();
        drop(self.scheduler);
        // The thread says it is gone, or is gone without a word.
        self.device_gone.await.ok();
    }

    /// A place in the house for a request.
    fn guest(&self, request: &Request) -> Result<Guest, SubmitError> {
        match self.admission.enter() {
            Ok(permit) => Ok(Guest::new(permit, Arc::clone(&self.left))),
            Err(refusal) => Err(self.refused(refusal, request.clone())),
        }
    }

    /// Makes the sequence of an admitted request, and the way to its caller.
    fn newcomer(
        &self,
        request: Request,
        admitted: Admitted,
        guest: Guest,
    ) -> Result<Newcomer, SubmitError> {
        let text = match &self.text {
            Some(text) => Some(TextOutput::new(text, &request.stop_strings)?),
            None if request.stop_strings.is_empty() => None,
            None => {
                return Err(SubmitError::NoTokenizer {
                    field: "stop_strings",
                });
            }
        };
        let number = self.sequences_made.fetch_add(1, Ordering::Relaxed);
        let sequence = SequenceId(number as u64 + 1);
        let cancel = CancelWord::new();
        // A piece for each token, the text held back, and how it ended.
        let (sender, output) = mpsc::channel(admitted.output_tokens_max + 2);
        let prompt_tokens = admitted.tokens.len();
        let stream = TokenStream {
            sequence,
            prompt_tokens,
            output,
            cancel: cancel.clone(),
            scheduler: self.scheduler.downgrade(),
            at_limit: request.at_context_limit,
            finish: None,
            over: false,
        };
        let actor = Sequence::spawn(SequenceArgs {
            id: sequence,
            prompt_tokens,
            text,
            output: sender,
            scheduler: self.scheduler.clone(),
            cancel,
            telemetry: Arc::clone(&self.telemetry),
            submitted_at: Instant::now(),
            guest,
        });
        let submission = Submission {
            sequence,
            prompt: admitted.tokens.into(),
            output_tokens_max: admitted.output_tokens_max,
            sampling: request.sampling,
            end_tokens: match request.ignore_end_tokens {
                true => Arc::default(),
                false => self.spec.end_tokens.as_slice().into(),
            },
            user: UserId::default(),
            weight: 1.0,
            class: Priority::default(),
            start_by: None,
            finish_by: None,
            at_limit: request.at_context_limit,
            salt: salt(request.cache_salt.as_deref()),
            restore_points: admitted.restore_points,
            retention: request.retention,
        };
        Ok(Newcomer {
            submission,
            actor,
            stream,
        })
    }

    fn refused(&self, refusal: Refusal, request: Request) -> SubmitError {
        self.telemetry.rejected();
        match refusal {
            Refusal::Shut => SubmitError::Draining,
            Refusal::Full => SubmitError::QueueFull {
                retry_after: match self.telemetry.finish_interval() {
                    Duration::ZERO => RETRY_AFTER_UNKNOWN,
                    interval => interval.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX),
                },
                request: Box::new(request),
            },
        }
    }
}
