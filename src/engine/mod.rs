//! The engine: starts the house, takes requests in, lets them out.
//!
//! | file | what happens there |
//! |---|---|
//! | `builder.rs` | the house is started |
//! | `admission.rs` | a request becomes tokens that fit, or a typed refusal |
//! | `tokenize_prompt.rs` | its prompt becomes tokens, beside the actors where it is long |
//! | `blocking.rs` | threads for what takes long, users in turn |
//! | `sampling_setup.rs` | what its draws want, and its grammar compiled |
//! | `sequence_setup.rs` | its place in the house, its sequence, the way to its caller |
//! | `multi_output.rs` | several outputs of one request |
//! | `health.rs` | how the engine is, told at once |
//! | `cache_command.rs` | what is kept: warm, pin, clear, flush, and a look at the trie |
//! | `kv_events.rs` | what is cached, told as it changes |
//! | `snapshots.rs` | events and snapshots for those who watch |

mod admission;
mod blocking;
mod budget;
mod builder;
mod cache_control;
mod health;
mod kv_events;
mod multi_output;
mod sampling_setup;
mod sequence_setup;
mod snapshots;
mod start_pager;
mod tokenize_prompt;

use std::pin::Pin;
use std::sync::Arc;

use kameo::actor::{ActorRef, WeakActorRef};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;

use crate::actors::breakdown::Breakdown;
use crate::actors::cache::CacheActor;
use crate::actors::scheduler::{Abort, Fork, Scheduler};
use crate::device::Loader;
use crate::error::SubmitError;
use crate::monitor::SnapshotHandle;
use crate::request::{CacheUse, Request, field_error};
use crate::stream::TokenStream;
use crate::telemetry::{EngineStats, Telemetry};
use motet_core::config::EngineConfig;
use motet_core::protocol::{ModelError, ModelSpec};
use motet_core::{UserId, scheduler};
use motet_model::Model;
use motet_sync::admission::Admission;
use motet_sync::heartbeat::Heartbeat;
use motet_sync::primitives::AtomicUsize;
use motet_text::TextCodec;

use blocking::Blocking;
use sampling_setup::Grammars;

pub use budget::DeviceBudget;
pub use builder::EngineBuilder;
pub use health::{Health, HealthState};
pub use kv_events::{BlockBatch, BlockEvents};

/// A future that is compiled where it is made. An `async fn` is compiled where it is awaited:
/// in each dependent crate, with the actors and grammars behind it.
type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One model, shared by many sequences. The only thing an embedder must know.
///
/// Cheap to share behind an [`Arc`](std::sync::Arc); every method takes `&self`
/// but [`shutdown`](Engine::shutdown). Needs a tokio runtime with time enabled.
#[derive(Debug)]
pub struct Engine {
    scheduler: ActorRef<Scheduler>,
    cache: WeakActorRef<CacheActor>,
    admission: Admission<UserId>,
    guard_released: Arc<Notify>,
    telemetry: Arc<Telemetry>,
    heartbeat: Heartbeat,
    /// Rung by streams that find the scheduler's mailbox full.
    wakeup: Arc<Notify>,
    /// The engine's time counts from here.
    started_at: Instant,
    text: Option<TextCodec>,
    /// Where long texts are rendered and tokenised.
    blocking: Blocking,
    grammars: Arc<Grammars>,
    spec: ModelSpec,
    budget: DeviceBudget,
    config: EngineConfig,
    sequences_made: AtomicUsize,
    pins_made: AtomicUsize,
    /// Who may ask the cache something at once; the others wait for their turn.
    cache_command_permits: Arc<Semaphore>,
    /// Says when the device thread is gone.
    loader: Loader,
    breakdown: Breakdown,
    pager_gone: Option<oneshot::Receiver<()>>,
    snapshots: SnapshotHandle,
}

/// How an engine is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shutdown {
    /// All sequences finish first, as in [`Engine::drain`]. Takes as long as they do: a
    /// caller who reads nothing, and whom no `scheduler.unread_timeout` cuts off, holds
    /// it up.
    Finish,
    /// All sequences end now; their callers get
    /// [`GenerateError::Shutdown`](motet_core::protocol::GenerateError::Shutdown).
    Abort,
}

impl Engine {
    /// Sets up an engine for the model that `build` makes. `build` runs on the
    /// device thread, where the model will live, and again on another should that one fail:
    /// it must make the same model each time.
    pub fn builder<M, B>(build: B) -> EngineBuilder
    where
        M: Model,
        B: Fn() -> Result<M, ModelError> + Send + Sync + 'static,
    {
        EngineBuilder::new(build)
    }

    /// Takes a request in. Its tokens come through the returned stream.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] when a field makes no sense, more than one output is wanted (see
    /// [`submit_many`](Engine::submit_many)), the request could never fit,
    /// or there is no place for it now. A text that cannot fit is refused by its length,
    /// before it is rendered or tokenised.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is ready withdraws the request.
    pub async fn submit(&self, request: Request) -> Result<TokenStream, SubmitError> {
        let submitted = self.submit_boxed(request).await;
        submitted.inspect_err(|error| self.telemetry.rejected(error))
    }

    /// Continues a sequence that is not over, beside it: the new sequence begins with
    /// the first `at` tokens of `source`, prompt and output (all that it has when the
    /// scheduler hears of it, if none), then the tokens of `request.prompt`, which may
    /// be none: `Request::tokens([])`. Text is tokenised as the continuation that it
    /// is. Cached state is shared, not copied.
    ///
    /// It has the source's `cache`, `cache_salt` and `at_context_limit`; all else is as
    /// `request` says, its restore points counted from what it appends. Its
    /// [`Usage`](motet_core::protocol::Usage) counts what it continues as prompt;
    /// [`TokenStream::prompt_tokens`] counts what it appends.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] as for [`submit`](Engine::submit), and when the source is
    /// another engine's or a conversation is appended. The stream fails with
    /// [`GenerateError`](motet_core::protocol::GenerateError) when the source is over or has
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
        let submitted = self.submit_fork_boxed(source, at, request).await;
        submitted.inspect_err(|error| self.telemetry.rejected(error))
    }

    /// Ends a sequence and continues it from an earlier token: the new sequence begins with the
    /// first `at` tokens of `source`, prompt and output, then the tokens of `request.prompt`.
    /// It is a [fork](Engine::fork) in all else, but that it goes on in the slot of `source`
    /// where it can: what was computed after `at` is given up, and nothing is copied.
    ///
    /// # Errors
    ///
    /// As for [`fork`](Engine::fork). The source ends in any case.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future cancels the source, and withdraws the request.
    pub async fn rewind(
        &self,
        source: TokenStream,
        at: usize,
        request: Request,
    ) -> Result<TokenStream, SubmitError> {
        let submitted = self.submit_fork(&source, Some(at), request, true).await;
        let submitted = submitted.inspect_err(|error| self.telemetry.rejected(error));
        let mut stream = submitted?;
        // Its end would be heard before the new sequence is.
        stream.replaced = Some(Box::new(source));
        Ok(stream)
    }

    /// What the engine is doing, and has done.
    #[must_use]
    pub fn stats(&self) -> EngineStats {
        self.telemetry.stats()
    }

    /// What the model is. Its `context_tokens_max` is what sequences may have here, if
    /// [`EngineConfig::context_tokens_max`] is less.
    #[must_use]
    pub fn model(&self) -> &ModelSpec {
        &self.spec
    }

    /// The settings that it runs with. What a step needs of `cache.device_bytes_max` is
    /// taken off.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// The device memory that it runs with: as it was set, or as it was chosen at the start.
    #[must_use]
    pub fn device_budget(&self) -> DeviceBudget {
        self.budget
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
            let mut guard_released = std::pin::pin!(self.guard_released.notified());
            guard_released.as_mut().enable();
            if self.admission.inside() == 0 {
                return;
            }
            guard_released.await;
        }
    }

    /// Takes no new requests and ends those inside: their callers get
    /// [`GenerateError::Shutdown`](motet_core::protocol::GenerateError::Shutdown). For whoever shares
    /// the engine with tasks that hold it until their streams end, and cannot
    /// [shut it down](Engine::shutdown) before.
    ///
    /// # Cancel safety
    ///
    /// Once it was polled, dropping the future leaves the engine closed to new requests;
    /// those inside may go on.
    pub async fn abort(&self) {
        self.admission.shut();
        // A scheduler that is gone has nothing left to end.
        self.scheduler.tell(Abort).send().await.ok();
    }

    /// Takes no new requests, ends or finishes those inside, [flushes](Engine::flush) what
    /// they have computed to the disk tier, if there is one, and waits until the device has
    /// freed everything, for `scheduler.device_timeout` at most.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the shutdown to go on by itself once all sequences
    /// have ended; before that, they go on while they have callers.
    pub async fn shutdown(self, how: Shutdown) {
        if how == Shutdown::Finish {
            self.drain().await;
        }
        self.abort().await;
        if let Err(error) = self.flush().await {
            tracing::warn!("not all that was cached is on the disk: {error}");
        }
        drop(self.scheduler);
        // A device that does not answer is not waited for.
        let timeout = self.config.scheduler.device_timeout;
        tokio::time::timeout(timeout, self.loader.gone()).await.ok();
        // Where there is a disk it writes what is not there yet.
        if let Some(gone) = self.pager_gone {
            let pager = &self.config.pager;
            let timeout = pager.flush_time.saturating_add(pager.disk_timeout);
            // A disk that does not answer is not waited for.
            tokio::time::timeout(timeout, gone).await.ok();
        }
    }

    /// Whether anything can be taken in at all.
    fn check_not_broken(&self) -> Result<(), SubmitError> {
        match self.breakdown.reason() {
            None => Ok(()),
            Some(reason) => Err(SubmitError::Broken {
                reason: reason.to_owned(),
            }),
        }
    }

    fn submit_boxed(&self, request: Request) -> BoxedFuture<'_, Result<TokenStream, SubmitError>> {
        Box::pin(self.submit_request(request))
    }

    fn submit_fork_boxed<'a>(
        &'a self,
        source: &'a TokenStream,
        at: Option<usize>,
        request: Request,
    ) -> BoxedFuture<'a, Result<TokenStream, SubmitError>> {
        Box::pin(self.submit_fork(source, at, request, false))
    }

    async fn submit_request(&self, mut request: Request) -> Result<TokenStream, SubmitError> {
        self.check_not_broken()?;
        let mut admission_guard = match self.admission_guard(&request) {
            Ok(admission_guard) => admission_guard,
            Err(error) => return Err(self.admission_error(error, request)),
        };
        self.check_single_output(&request)?;
        let admitted = self.admit(&mut request).await?;
        if let Err(error) = admission_guard.claim(admitted.tokens.len()) {
            return Err(self.admission_error(error, request));
        }
        let sampling_spec = self.sampling_spec(&mut request).await?;
        let sequence_setup =
            self.sequence_setup(&request, admitted, sampling_spec, admission_guard)?;
        let (submit, stream) = sequence_setup.into_parts();
        match self.scheduler.tell(submit).send().await {
            Ok(()) => Ok(stream),
            Err(_) => Err(SubmitError::Draining),
        }
    }

    async fn submit_fork(
        &self,
        source: &TokenStream,
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
        if source.scheduler.id() != self.scheduler.id() {
            return Err(field_error(
                "source",
                "a stream of another engine",
                "a stream of this engine",
            ));
        }
        if request.cache == CacheUse::Off {
            return Err(field_error(
                "cache",
                "off, in a fork",
                "nothing: a fork uses the cache as its source does",
            ));
        }
        let admitted = self.admit_fork(&mut request, source.at_limit).await?;
        if let Err(error) = admission_guard.claim(admitted.tokens.len()) {
            return Err(self.admission_error(error, request));
        }
        let sampling_spec = self.sampling_spec(&mut request).await?;
        let sequence_setup =
            self.sequence_setup(&request, admitted, sampling_spec, admission_guard)?;
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
        match self.scheduler.tell(fork).send().await {
            Ok(()) => Ok(stream),
            Err(_) => Err(SubmitError::Draining),
        }
    }
}
