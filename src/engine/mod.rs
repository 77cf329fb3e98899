//! The engine: starts and supervises the actors, and admits requests.
//!
//! | file | content |
//! |---|---|
//! | `builder.rs` | start of the engine and its actors |
//! | `budget.rs` | the device's memory budget, and the proof that the worst case fits |
//! | `start_pager.rs` | start of the pager, where there is one |
//! | `admission.rs`, `admitted.rs` | a request becomes tokens that fit, or a typed error |
//! | `tokenize_prompt.rs` | prompts become tokens |
//! | `tokenize_text.rs` | so do texts and conversations; long ones on blocking threads |
//! | `prediction.rs`, `predicted_text.rs` | so do predicted outputs |
//! | `prepare_chat.rs` | conversations become tokens before they are submitted |
//! | `blocking.rs` | threads for long work, shared fairly between users |
//! | `sampling_setup.rs` | sampling settings |
//! | `grammars.rs` | compilation of grammars |
//! | `no_text.rs`, `no_grammars.rs` | the same without features `text` and `grammar` |
//! | `sequence_setup.rs` | admission guard, sequence actor and stream of a request |
//! | `multi_output.rs` | several outputs of one request |
//! | `prompt_output.rs` | scores of a prompt's tokens, and embeddings |
//! | `results.rs` | the budget for results that are kept for callers |
//! | `service.rs` | the engine as a service for `tower` |
//! | `file_check.rs` | whether the model's files are as they were |
//! | `health.rs` | health, without waiting |
//! | `cache_control.rs` | warm, pin, clear and flush the cache, and a view of the trie |
//! | `kv_events.rs` | changes of the cached blocks, as they happen |
//! | `validate.rs` | the fields of a request are checked |
//! | `vocabulary.rs` | the tokens that model and tokenizer know together |
//! | `snapshot_task.rs` | the task that takes snapshots while there are subscribers |
//! | `snapshots.rs` | events and snapshots for monitoring |

mod admission;
mod admitted;
mod blocking;
mod budget;
mod builder;
mod cache_control;
mod file_check;
#[cfg(feature = "grammar")]
mod grammars;
#[cfg(not(feature = "grammar"))]
#[path = "no_grammars.rs"]
mod grammars;
mod health;
#[cfg(motet_injected)]
mod injected;
mod kv_events;
mod multi_output;
#[cfg(feature = "text")]
mod predicted_text;
mod prediction;
#[cfg(feature = "text")]
mod prepare_chat;
mod prompt_output;
mod results;
mod sampling_setup;
mod sequence_setup;
#[cfg(feature = "tower")]
mod service;
mod snapshot_task;
mod snapshots;
mod start_pager;
mod tokenize_prompt;
#[cfg(feature = "text")]
mod tokenize_text;
#[cfg(not(feature = "text"))]
#[path = "no_text.rs"]
mod tokenize_text;
mod validate;
mod vocabulary;

use std::pin::Pin;
use std::sync::Arc;

use kameo::actor::{ActorRef, WeakActorRef};
use tokio::sync::{Mutex, Notify, Semaphore, oneshot};
use tokio::time::Instant;

use crate::actors::breakdown::Breakdown;
use crate::actors::cache::CacheActor;
use crate::actors::scheduler::{Abort, AbortKind, Fork, Scheduler};
use crate::device::DeviceGone;
use crate::error::{SubmitError, field_error};
use crate::handle::SequenceHandle;
use crate::optional::TextCodec;
use crate::request::{CacheUse, Request};
use crate::results::ResultsBudget;
use crate::stream::TokenStream;
use crate::telemetry::{EngineStats, Telemetry};
use motet_core::config::EngineConfig;
use motet_core::scheduler;
use motet_model::Model;
use motet_protocol::{DeclaredPooling, ModelError, ModelSpec, TokenMask, UserId};
use motet_sync::admission::Admission;
use motet_sync::heartbeat::Heartbeat;
use motet_sync::primitives::AtomicUsize;
use snapshot_task::SnapshotHandle;

use blocking::Blocking;
use file_check::FileState;
use grammars::Grammars;

pub use crate::actors::cache::BlockBatch;
pub use budget::DeviceBudget;
pub use builder::EngineBuilder;
pub use health::{Health, HealthState};
pub use kv_events::BlockEvents;
pub use results::KeptOutputs;
#[cfg(feature = "tower")]
pub use service::EngineService;
pub use snapshot_task::Snapshots;

/// A future that is compiled in this crate. An `async fn` is compiled where it is awaited: in
/// each dependent crate, with the actors and grammars behind it.
pub(crate) type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One model, shared by many sequences: the main handle for an embedder.
///
/// Clones are cheap and share one engine, which ends when the last of them is dropped or one of
/// them [shuts it down](Engine::shutdown). Needs a tokio runtime with time enabled.
#[derive(Clone, Debug)]
#[doc(alias = "continuous batching")]
#[doc(alias = "LLMEngine")]
pub struct Engine {
    inner: Arc<Inner>,
}

/// The actors' addresses, and the state that all clones of an engine share.
// More than 15 fields: the list of parts that a start creates. Each is a component of its own, and
// none is kept in step with another here.
#[derive(Debug)]
struct Inner {
    scheduler: ActorRef<Scheduler>,
    cache: WeakActorRef<CacheActor>,
    admission: Admission<UserId>,
    results: ResultsBudget,
    guard_released: Arc<Notify>,
    telemetry: Arc<Telemetry>,
    heartbeat: Heartbeat,
    /// Notified by streams and handles that find the scheduler's mailbox full.
    wakeup: Arc<Notify>,
    /// The origin of the engine's clock.
    started_at: Instant,
    text: Option<TextCodec>,
    /// The pooling that the model's files declare, for embeddings.
    pooling: DeclaredPooling,
    /// Threads that render and tokenise long texts.
    blocking: Blocking,
    grammars: Arc<Grammars>,
    spec: ModelSpec,
    identity: Option<u64>,
    /// The tokens that model and tokenizer both know, where the model has more.
    known_tokens: Option<Arc<TokenMask>>,
    budget: DeviceBudget,
    config: EngineConfig,
    sequences_made: AtomicUsize,
    pins_made: AtomicUsize,
    /// Permits for messages to the cache; further senders wait.
    cache_command_permits: Arc<Semaphore>,
    /// Resolves when the device thread is gone.
    device_gone: DeviceGone,
    breakdown: Breakdown,
    /// Whether the model's files are as they were.
    files: FileState,
    /// Resolves when the pager has ended. Locked by a shutdown for as long as it takes.
    pager_gone: Mutex<Option<oneshot::Receiver<()>>>,
    snapshots: SnapshotHandle,
}

/// How an engine is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shutdown {
    /// All sequences finish first, as in [`Engine::drain`]. This takes as long as they do: a
    /// caller that does not read delays it, unless `scheduler.unread_timeout` fails the
    /// sequence.
    Finish,
    /// All sequences end now; their callers get
    /// [`GenerateError::Shutdown`](motet_protocol::GenerateError::Shutdown).
    Abort,
    /// All sequences end as soon as the steps in flight have finished, for another engine to continue:
    /// their callers get the tokens of these steps, then
    /// [`GenerateError::HandedOver`](motet_protocol::GenerateError::HandedOver). The same request with
    /// these tokens as its [`output_so_far`](field@crate::Request::output_so_far) goes on with the
    /// tokens that would have followed. The state is written to the disk tier, if there is one, so that an
    /// engine that opens the same folder need not compute it again.
    HandOver,
}

impl Engine {
    /// Sets up an engine for the model that `build` creates. `build` runs on the device thread,
    /// where the model stays, and again on a new thread should that one fail. It must create
    /// the same model each time.
    pub fn builder<M, B>(build: B) -> EngineBuilder
    where
        M: Model,
        B: Fn() -> Result<M, ModelError> + Send + Sync + 'static,
    {
        EngineBuilder::new(build)
    }

    /// Submits a request. Its tokens arrive through the returned stream.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] when a field is invalid, the request asks for more than one output (see
    /// [`submit_many`](Engine::submit_many)), the request can never fit, or the queue is full.
    /// A text that cannot fit is rejected by its length, before it is rendered or tokenised.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready cancels the request.
    #[doc(alias = "generate")]
    #[doc(alias = "add_request")]
    pub async fn submit(&self, request: Request) -> Result<TokenStream, SubmitError> {
        let submitted = self.submit_boxed(request).await;
        submitted.inspect_err(|error| self.inner.telemetry.rejected(error))
    }

    /// Continues a sequence that has not finished, in parallel. The new sequence starts with the
    /// first `at` tokens of `source`, a stream or a handle: prompt and output. `None` means all tokens that the
    /// source has when the scheduler handles the fork. The tokens of `request.prompt` follow;
    /// they may be empty: `Request::tokens([])`. Text is tokenised as a continuation. Cached
    /// state is shared, not copied.
    ///
    /// The fork inherits the source's `cache`, `cache_salt` and `at_context_limit`; `request`
    /// decides the rest, with restore points counted from the appended tokens. Its
    /// [`Usage`](motet_protocol::Usage) counts the source's tokens as prompt;
    /// [`TokenStream::prompt_tokens`] counts the appended tokens.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] as for [`submit`](Engine::submit), and when the source belongs to
    /// another engine or a conversation is appended. The stream fails with
    /// [`GenerateError`](motet_protocol::GenerateError) when the source has finished or
    /// has fewer than `at` tokens.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready cancels the request.
    pub async fn fork(
        &self,
        source: impl AsRef<SequenceHandle>,
        at: Option<usize>,
        request: Request,
    ) -> Result<TokenStream, SubmitError> {
        let source = source.as_ref().clone();
        let submitted = self.submit_fork_boxed(source, at, request, false).await;
        submitted.inspect_err(|error| self.inner.telemetry.rejected(error))
    }

    /// Ends a sequence and continues it from an earlier token: the new sequence starts with the
    /// first `at` tokens of `source`, prompt and output, followed by the tokens of
    /// `request.prompt`. Otherwise it is a [fork](Engine::fork), except that it continues in
    /// the slot of `source` where possible: state after `at` is dropped, and nothing is copied.
    /// Handles of `source` get its finish, with
    /// [`FinishReason::Cancelled`](motet_protocol::FinishReason::Cancelled).
    ///
    /// # Errors
    ///
    /// As for [`fork`](Engine::fork). The source ends in any case.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the source and the request.
    pub async fn rewind(
        &self,
        source: TokenStream,
        at: usize,
        request: Request,
    ) -> Result<TokenStream, SubmitError> {
        let handle = source.handle();
        let submitted = self
            .submit_fork_boxed(handle, Some(at), request, true)
            .await;
        let submitted = submitted.inspect_err(|error| self.inner.telemetry.rejected(error));
        let mut stream = submitted?;
        // If the source were dropped here, its end would be handled before the new sequence's
        // start.
        stream.replaced = Some(Box::new(source));
        Ok(stream)
    }

    /// Returns statistics: current levels, and sums since the start.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.inner.telemetry.stats()
    }

    /// Returns the model's specification. Its `context_tokens_max` is the limit in this engine,
    /// which [`EngineConfig::context_tokens_max`] may lower. With a tokenizer, its `vocab_size` is
    /// that of the tokenizer if that has fewer tokens, and its `end_tokens` are those that the
    /// model, the tokenizer or the chat template name.
    #[must_use]
    pub fn model(&self) -> &ModelSpec {
        &self.inner.spec
    }

    /// Returns a number that is the same for engines whose state and tokens are the same to the bit: that
    /// of the model, its weights and its arithmetic. `None` without a disk tier or a remote one: it is
    /// computed for these.
    #[must_use]
    pub fn model_identity(&self) -> Option<u64> {
        self.inner.identity
    }

    /// Returns the engine's settings. `cache.device_bytes_max` excludes the scratch memory of a
    /// step.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    /// Returns the device memory that the engine uses: as configured, or as chosen at the
    /// start.
    #[must_use]
    pub fn device_budget(&self) -> DeviceBudget {
        self.inner.budget
    }

    /// Returns the tokenizer and chat template, if the engine has them.
    #[cfg(feature = "text")]
    #[must_use]
    pub fn text(&self) -> Option<&TextCodec> {
        self.inner.text.as_ref()
    }

    /// Closes admission and waits until all requests inside have ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the waiting; admission stays closed.
    pub async fn drain(&self) {
        self.close_admission();
        loop {
            let mut guard_released = std::pin::pin!(self.inner.guard_released.notified());
            guard_released.as_mut().enable();
            if self.inner.admission.inside() == 0 {
                return;
            }
            guard_released.await;
        }
    }

    /// Closes admission, ends or finishes the requests inside, and [flushes](Engine::flush) the
    /// state that they computed to the disk tier, if there is one. Then waits until the device
    /// has freed everything, for at most `scheduler.device_timeout`.
    ///
    /// All clones of the engine are shut down with it. A second call waits for the first; with
    /// [`Shutdown::Abort`] it cuts a first one with [`Shutdown::Finish`] short.
    ///
    /// # Cancel safety
    ///
    /// Once the future has been polled, dropping it leaves the engine closed to new requests;
    /// requests inside may continue. Call it again to complete the shutdown, or drop all clones.
    pub async fn shutdown(&self, how: Shutdown) {
        if how == Shutdown::Finish {
            self.drain().await;
        }
        self.abort(match how {
            Shutdown::HandOver => AbortKind::HandOver,
            Shutdown::Finish | Shutdown::Abort => AbortKind::Now,
        })
        .await;
        let mut pager_gone = self.inner.pager_gone.lock().await;
        if self.inner.scheduler.is_alive()
            && let Err(error) = self.flush().await
        {
            tracing::warn!("the cache was not completely written to the disk: {error}");
        }
        // A scheduler that has ended needs no stopping.
        self.inner.scheduler.stop_gracefully().await.ok();
        // A device that does not answer is not awaited any longer.
        let timeout = self.inner.config.scheduler.device_timeout;
        tokio::time::timeout(timeout, self.inner.device_gone.wait())
            .await
            .ok();
        // The pager ends after it has written the rest to its disk.
        if let Some(gone) = pager_gone.as_mut() {
            let pager = &self.inner.config.pager;
            let timeout = pager.flush_time.saturating_add(pager.disk_timeout);
            // A disk that does not answer is not awaited any longer.
            tokio::time::timeout(timeout, gone).await.ok();
            *pager_gone = None;
        }
        self.inner.snapshots.end();
        self.inner.telemetry.end_events();
    }

    /// Closes admission. A service that waits for a permit gets none.
    fn close_admission(&self) {
        self.inner.admission.shut();
        self.inner.guard_released.notify_waiters();
    }

    /// Closes admission and ends the requests inside.
    async fn abort(&self, how: AbortKind) {
        self.close_admission();
        let (ended, has_ended) = oneshot::channel();
        let abort = Abort { how, ended };
        // A scheduler that is gone has no sequences left.
        self.inner.scheduler.tell(abort).send().await.ok();
        has_ended.await.ok();
    }

    /// Fails if the engine is broken, or if the model's files cannot be trusted any more.
    fn check_not_broken(&self) -> Result<(), SubmitError> {
        let broken = self.inner.breakdown.reason();
        match broken.or_else(|| self.inner.files.reason()) {
            None => Ok(()),
            Some(reason) => Err(SubmitError::Broken {
                reason: reason.to_owned(),
            }),
        }
    }

    fn submit_boxed(&self, request: Request) -> BoxedFuture<'_, Result<TokenStream, SubmitError>> {
        Box::pin(self.submit_request(request))
    }

    fn submit_fork_boxed(
        &self,
        source: SequenceHandle,
        at: Option<usize>,
        request: Request,
        replaces: bool,
    ) -> BoxedFuture<'_, Result<TokenStream, SubmitError>> {
        Box::pin(self.submit_fork(source, at, request, replaces))
    }

    async fn submit_request(&self, request: Request) -> Result<TokenStream, SubmitError> {
        self.check_not_broken()?;
        self.check_single_output(&request)?;
        let kept = KeptOutputs::default();
        let mut results = self.no_results(request.user.as_deref());
        let submitted = self.submit_outputs(vec![request], kept, &mut results);
        let mut streams = submitted.await?;
        let only = streams.pop().and_then(|mut outputs| outputs.pop());
        Ok(only.expect("one output was asked for"))
    }

    async fn submit_fork(
        &self,
        source: SequenceHandle,
        at: Option<usize>,
        mut request: Request,
        replaces: bool,
    ) -> Result<TokenStream, SubmitError> {
        self.check_not_broken()?;
        let mut admission_guard = match self.admission_guard(&request) {
            Ok(admission_guard) => admission_guard,
            Err(error) => return Err(self.admission_error(error, request)),
        };
        self.check_single_output(&request)?;
        if !source.belongs_to(self.inner.scheduler.id()) {
            return Err(field_error(
                "source",
                "a sequence of another engine",
                "a sequence of this engine",
            ));
        }
        if request.cache == CacheUse::Off {
            return Err(field_error(
                "cache",
                "off, in a fork",
                "nothing: a fork uses the cache as its source does",
            ));
        }
        let admitted = self
            .admit_fork(&mut request, source.at_context_limit())
            .await?;
        if let Err(error) = admission_guard.claim(admitted.waiting_tokens()) {
            return Err(self.admission_error(error, request));
        }
        let mut results = self.no_results(request.user.as_deref());
        self.admit_results(&mut results, admitted.prompt_logprobs_bytes(), &request)?;
        let sampling_spec = self.sampling_spec(&mut request).await?;
        let sequence_setup = self.sequence_setup(
            &request,
            admitted,
            sampling_spec,
            admission_guard,
            Arc::new(results),
        )?;
        let (submit, stream) = sequence_setup.into_parts();
        let fork = Fork {
            fork: scheduler::Fork {
                source: source.sequence(),
                at,
                replaces,
                submission: submit.submission,
            },
            actor: submit.actor,
            cancel: submit.cancel,
            credits: submit.credits,
        };
        match self.inner.scheduler.tell(fork).send().await {
            Ok(()) => Ok(stream),
            Err(_) => Err(SubmitError::Draining),
        }
    }
}
