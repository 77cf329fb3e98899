//! Start of the engine and its actors.

use std::fmt;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Duration;

use kameo::actor::{ActorRef, Spawn, WeakActorRef};
use kameo::mailbox;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use super::blocking::{Blocking, WorkLimits};
use super::budget::{BudgetCell, DeviceBudget};
use super::file_check::{CheckFiles, FileState};
use super::grammars::Grammars;
use super::snapshot_task::SnapshotTask;
use super::start_pager::PagerParts;
use super::{BoxedFuture, Engine, Inner, vocabulary};
use crate::actors::breakdown::Breakdown;
use crate::actors::cache::{CacheActor, CacheAnswer, CacheArgs};
use crate::actors::pager::PagerActor;
use crate::actors::scheduler::{
    CacheHandle, CoreSettings, DeviceHandle, MAILBOX_MAX, PENDING_ANSWERS_MAX, Scheduler,
    SchedulerArgs, Supervision,
};
use crate::device::{Device, Loaded, Loader};
use crate::error::StartError;
use crate::optional::TextCodec;
use crate::results::ResultsBudget;
use crate::runtime::{EngineRuntime, Runtime};
use crate::telemetry::Budgets;
use crate::telemetry::Telemetry;
use motet_core::cache::CacheCore;
use motet_core::config::{ConfigError, EngineConfig, TextConfig};
use motet_core::recovery::Breaker;
use motet_device::{DraftModel, ModelDrafter};
use motet_model::{Model, Packer};
use motet_protocol::UserId;
use motet_protocol::remote::RemoteTier;
use motet_protocol::{DeclaredPooling, DraftModelSpec, ModelError, ModelSpec};
use motet_sync::admission::Admission;
use motet_sync::heartbeat::Heartbeat;
use motet_sync::primitives::AtomicUsize;

/// Events from the pager that may wait for the cache; further events wait in the pager's actor.
const PAGED_MAX: usize = 256;
/// Cache commands that may wait for the cache at once.
const CACHE_COMMANDS_MAX: usize = 64;

/// Configures and starts an engine. Created by [`Engine::builder`].
pub struct EngineBuilder {
    prepare: Prepare,
    outline: Option<ModelSpec>,
    text: Option<TextCodec>,
    pooling: DeclaredPooling,
    config: EngineConfig,
    check_files: Option<CheckFiles>,
    draft_model: Option<BuildDraft>,
    remote_tier: Option<Arc<dyn RemoteTier>>,
    pub(super) runtime: EngineRuntime,
}

/// The part of a start that depends on the model's type. The rest is compiled once in this
/// crate, and not in each crate that starts an engine.
type Prepare =
    Box<dyn FnOnce(Conditions) -> BoxedFuture<'static, Result<Prepared, StartError>> + Send>;
/// Creates the model. The device thread is compiled once for each type of model, not for each
/// closure.
type Build<M> = Box<dyn Fn() -> Result<M, ModelError> + Send + Sync>;
/// Creates the draft model for a model of this specification, which keeps so many tokens. Returns
/// the bytes that it takes beside its weights as well.
type BuildDraft = Arc<dyn Fn(&ModelSpec, usize) -> Result<DraftBuilt, ModelError> + Send + Sync>;
type DraftBuilt = (Box<dyn DraftModel>, usize);

/// The settings for a device and a pager.
struct Conditions {
    config: EngineConfig,
    check_files: Option<CheckFiles>,
    draft_model: Option<BuildDraft>,
    remote_tier: Option<Arc<dyn RemoteTier>>,
    runtime: EngineRuntime,
}

/// A device thread with its model, and the parts of its pager.
struct Prepared {
    device: Device,
    loader: Loader,
    spec: ModelSpec,
    draft_model: Option<DraftModelSpec>,
    budget: DeviceBudget,
    pager: Option<PagerParts>,
    identity: Option<u64>,
}

async fn prepare<M: Model>(
    build: Build<M>,
    conditions: Conditions,
) -> Result<Prepared, StartError> {
    let Conditions {
        config,
        check_files,
        draft_model,
        remote_tier,
        runtime,
    } = conditions;
    // The budget is determined with the first loaded model; later loads yield the same model.
    let budget_cell = BudgetCell::default();
    let build = {
        let (budget_cell, config) = (budget_cell.clone(), config.clone());
        move || {
            let model = build()?;
            let built = match &draft_model {
                Some(build) => built_draft(build, model.spec(), &config, budget_cell.is_known())?,
                None => None,
            };
            let (draft_model, draft_bytes) = built.unzip();
            let loaded = Loaded { model, draft_model };
            budget_cell.determine(loaded, draft_bytes.unwrap_or(0), &config)
        }
    };
    let started = Device::start(build, runtime.clone()).await;
    let budget = budget_cell.budget()?;
    let started = started?;
    let outlives_engine = config.pager.disk.is_some() || remote_tier.is_some();
    let identity = if outlives_engine {
        Some(identity(started.packer.clone(), check_files).await?)
    } else {
        None
    };
    let pager = PagerParts::new::<M>(
        &started.spec,
        (&config.pager, remote_tier),
        (started.packer, identity),
        started.host_end,
        // The work before an export may take the device timeout, and the export as long again.
        config.scheduler.device_timeout.saturating_mul(2),
        runtime,
    )?;
    Ok(Prepared {
        device: started.device,
        loader: started.loader,
        spec: started.spec,
        draft_model: started.draft_model,
        // A model is ready only after its budget was determined.
        budget: budget.expect("the budget was determined when the model was loaded"),
        pager,
        identity,
    })
}

/// Builds the draft model, if it can be used. One that could be built once may be missing later.
fn built_draft(
    build: &BuildDraft,
    target: &ModelSpec,
    config: &EngineConfig,
    is_reload: bool,
) -> Result<Option<DraftBuilt>, ModelError> {
    let speculation = &config.scheduler.speculation;
    let tokens_max = speculation.draft_model_tokens_max;
    let is_used = speculation.enabled
        && tokens_max > 0
        && speculation.draft_tokens_max.min(target.draft_tokens_max) > 0;
    if !is_used {
        tracing::info!("the draft model is not loaded: the settings or the model verify no drafts");
        return Ok(None);
    }
    match build(target, tokens_max) {
        Err(error) if is_reload => {
            tracing::warn!("the engine goes on without its draft model: {error}");
            Ok(None)
        }
        built => built.map(Some),
    }
}

/// The identity of a model's packed state. A model may read all of its weights for it, which then
/// have to be those that were opened.
async fn identity<K: Packer>(
    packer: K,
    check_files: Option<CheckFiles>,
) -> Result<u64, StartError> {
    let computed = tokio::task::spawn_blocking(move || {
        let identity = packer.identity();
        check_files
            .map_or(Ok(()), |check| check())
            .map(|()| identity)
    });
    let computed = computed.await;
    let computed = computed.map_err(|error| ModelError::Device(error.to_string()))?;
    Ok(computed?)
}

impl EngineBuilder {
    pub(super) fn new<M, B>(build: B) -> Self
    where
        M: Model,
        B: Fn() -> Result<M, ModelError> + Send + Sync + 'static,
    {
        let build: Build<M> = Box::new(build);
        Self {
            prepare: Box::new(|conditions| Box::pin(prepare(build, conditions))),
            outline: None,
            text: None,
            pooling: DeclaredPooling::Undeclared,
            config: EngineConfig::default(),
            check_files: None,
            draft_model: None,
            remote_tier: None,
            runtime: EngineRuntime::default(),
        }
    }

    /// Sets the model's specification, where it is known before the model is loaded. Settings
    /// are then validated before the load. It has no other effect.
    #[must_use]
    pub fn outline(mut self, outline: ModelSpec) -> Self {
        self.outline = Some(outline);
        self
    }

    /// Sets the tokenizer and chat template. Without them the engine accepts and returns tokens
    /// only.
    #[cfg(feature = "text")]
    #[must_use]
    pub fn text(mut self, text: TextCodec) -> Self {
        self.text = Some(text);
        self
    }

    /// Returns the tokenizer and chat template that were set.
    #[cfg(feature = "mlx")]
    pub(crate) fn text_codec(&self) -> Option<&TextCodec> {
        self.text.as_ref()
    }

    /// Returns the model's name, where it is known before the model is loaded.
    #[cfg(feature = "mlx")]
    pub(crate) fn model_name(&self) -> &str {
        self.outline.as_ref().map_or("", |outline| &outline.name)
    }

    /// Sets how hidden states become embeddings where a request does not say so.
    /// `Engine::open` sets what the model's files declare.
    #[must_use]
    pub fn pooling(mut self, pooling: DeclaredPooling) -> Self {
        self.pooling = pooling;
        self
    }

    /// Sets a function that fails if the model's files are not as they were when they were opened.
    /// It is called from time to time on a thread for blocking work, and
    /// [`Health::files_changed`](crate::Health::files_changed) has its error. New requests are
    /// rejected from then on. `Engine::open` sets one.
    #[must_use]
    pub fn check_files(
        mut self,
        check: impl Fn() -> Result<(), ModelError> + Send + Sync + 'static,
    ) -> Self {
        self.check_files = Some(Arc::new(check));
        self
    }

    /// Sets a draft model: a smaller model with the same tokens, which drafts what the model verifies.
    /// It is built on the device thread, after the model, and is used for the sequences and in the
    /// steps where it pays. Its layers must be of full attention. Its texts take
    /// [`draft_model_tokens_max`](crate::config::SpeculationConfig::draft_model_tokens_max) tokens'
    /// bytes beside [`device_bytes_max`](crate::config::CacheConfig::device_bytes_max). Without
    /// speculation it is not built. If it fails while the engine runs, the engine goes on without it.
    #[must_use]
    pub fn draft_model<M: Model>(
        mut self,
        build: impl Fn() -> Result<M, ModelError> + Send + Sync + 'static,
    ) -> Self {
        self.draft_model = Some(Arc::new(move |target, tokens_max| {
            let model = build()?;
            let mapped_bytes = model.memory_left().map_or(0, |left| left.mapped_bytes);
            let bytes = ModelDrafter::<M>::bytes_max(model.spec(), tokens_max);
            let bytes = bytes.saturating_add(mapped_bytes);
            let drafter = ModelDrafter::new(model, target, tokens_max)?;
            Ok((Box::new(drafter), bytes))
        }));
        self
    }

    /// Sets a tier that several processes share: what one of them has computed, the others load.
    /// `motet-remote` has one over Redis, S3 and others.
    /// [`PagerConfig::remote`](crate::config::PagerConfig::remote) has its settings; without them the
    /// default ones hold. It needs host memory for copies
    /// ([`host_bytes_max`](crate::config::PagerConfig::host_bytes_max)), and the model's weights are
    /// read once for their hash.
    #[must_use]
    pub fn remote_tier(mut self, tier: Arc<dyn RemoteTier>) -> Self {
        self.remote_tier = Some(tier);
        self
    }

    /// Replaces the default settings.
    #[must_use]
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// Loads the model and starts all actors.
    ///
    /// # Errors
    ///
    /// [`StartError`] when a setting is invalid, the model cannot be loaded, or the future runs
    /// outside a tokio runtime with time enabled. Settings are validated before the load, as
    /// far as possible.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future frees everything once the model is loaded.
    pub async fn start(self) -> Result<Engine, StartError> {
        self.start_boxed().await
    }

    fn start_boxed(self) -> BoxedFuture<'static, Result<Engine, StartError>> {
        Box::pin(self.start_actors())
    }

    async fn start_actors(mut self) -> Result<Engine, StartError> {
        check_runtime()?;
        let remote = &mut self.config.pager.remote;
        match &self.remote_tier {
            Some(_) => drop(remote.get_or_insert_default()),
            None if remote.is_some() => {
                return Err(StartError::Config(ConfigError {
                    field: "pager.remote",
                    found: "settings of a tier".into(),
                    expected: "the tier itself, set by `EngineBuilder::remote_tier`".into(),
                }));
            }
            None => {}
        }
        self.config.validate()?;
        if let Some(outline) = &self.outline {
            self.config.validate_for(outline)?;
        }
        let conditions = Conditions {
            config: self.config.clone(),
            check_files: self.check_files.clone(),
            draft_model: self.draft_model,
            remote_tier: self.remote_tier,
            runtime: self.runtime.clone(),
        };
        let prepared = (self.prepare)(conditions).await?;
        let start = ActorStart {
            config: effective_config(self.config, &prepared),
            runtime: self.runtime,
            telemetry: Arc::new(Telemetry::new()),
            started_at: Instant::now(),
        };
        let engine = start.start(prepared, self.text, self.pooling).await;
        if let Some(check) = self.check_files {
            let inner = Arc::downgrade(&engine.inner);
            engine.inner.files.watch(check, inner);
        }
        Ok(engine)
    }
}

/// The settings and handles that all actors of an engine start with.
struct ActorStart {
    config: EngineConfig,
    runtime: EngineRuntime,
    telemetry: Arc<Telemetry>,
    started_at: Instant,
}

/// Shared by the scheduler and the engine.
struct Shared {
    heartbeat: Heartbeat,
    wakeup: Arc<Notify>,
    breakdown: Breakdown,
}

impl ActorStart {
    async fn start(
        self,
        mut prepared: Prepared,
        text: Option<TextCodec>,
        pooling: DeclaredPooling,
    ) -> Engine {
        prepared.spec.context_tokens_max = self.config.context_tokens_max(&prepared.spec);
        let text_codec = text.as_ref();
        let known_tokens = text_codec.and_then(|text| vocabulary::join(&mut prepared.spec, text));
        let spec = prepared.spec.clone();
        let (budget, identity) = (prepared.budget, prepared.identity);
        let device_gone = prepared.loader.gone();
        let shared = Shared {
            heartbeat: Heartbeat::new(),
            wakeup: Arc::new(Notify::new()),
            breakdown: Breakdown::default(),
        };
        let (cache, answers) = self.start_cache(&spec, prepared.pager.as_ref());
        let weak_cache = cache.downgrade();
        let (pager, pager_gone) = self.start_pager(prepared.pager, &cache).await.unzip();
        let core = CoreSettings {
            spec: spec.clone(),
            draft_model: prepared.draft_model,
            config: self.config.scheduler.clone(),
            backup_tokens: match pager {
                Some(_) => self.config.pager.backup_tokens,
                None => 0,
            },
        };
        let device = (prepared.device, prepared.loader);
        let cache = CacheHandle::new(cache, answers);
        let scheduler = self.start_scheduler(core, device, cache, &shared);
        let cache_command_permits = Arc::new(Semaphore::new(CACHE_COMMANDS_MAX));
        let snapshot_task = SnapshotTask {
            scheduler: scheduler.downgrade(),
            cache: weak_cache.clone(),
            pager,
            telemetry: Arc::clone(&self.telemetry),
            permits: Arc::clone(&cache_command_permits),
            budgets: budgets(&self.config),
            started_at: self.started_at,
        };
        let config = self.config;
        let results_bytes_max = config.scheduler.admission.results_bytes_max;
        let inner = Inner {
            scheduler,
            cache: weak_cache,
            admission: admission(&config),
            results: ResultsBudget::new(results_bytes_max, Arc::clone(&self.telemetry)),
            guard_released: Arc::new(Notify::new()),
            telemetry: self.telemetry,
            heartbeat: shared.heartbeat,
            wakeup: shared.wakeup,
            started_at: self.started_at,
            text,
            pooling,
            blocking: Blocking::new(config.text.threads, text_limits(&config.text)),
            grammars: Arc::new(Grammars::new(config.grammar.clone(), &spec.end_tokens)),
            spec,
            identity,
            known_tokens,
            budget,
            config,
            sequences_made: AtomicUsize::new(0),
            pins_made: AtomicUsize::new(0),
            cache_command_permits,
            device_gone,
            breakdown: shared.breakdown,
            files: FileState::default(),
            pager_gone: Mutex::new(pager_gone),
            snapshots: snapshot_task.spawn(),
        };
        Engine {
            inner: Arc::new(inner),
        }
    }

    /// Starts the cache, and returns it with its answers.
    fn start_cache(
        &self,
        spec: &ModelSpec,
        pager: Option<&PagerParts>,
    ) -> (ActorRef<CacheActor>, mpsc::Receiver<CacheAnswer>) {
        let (answer_sender, answers) = mpsc::channel(PENDING_ANSWERS_MAX);
        let mut core = CacheCore::new(spec.clone(), self.config.cache.clone());
        if let Some(pager) = pager {
            core = core.with_pager(&self.config.pager, pager.found());
        }
        let cache = CacheActor::spawn_with_mailbox(
            CacheArgs {
                core,
                answers: answer_sender,
                runtime: self.runtime.clone(),
                breaker: Breaker::new(self.config.recovery.clone()),
            },
            // Never full: commands, snapshots and views, and kameo's own signals are all
            // bounded.
            mailbox::bounded(PENDING_ANSWERS_MAX + CACHE_COMMANDS_MAX + PAGED_MAX + 16),
        );
        (cache, answers)
    }

    /// Starts the pager, if there is one, and returns it with a receiver for its end.
    async fn start_pager(
        &self,
        pager: Option<PagerParts>,
        cache: &ActorRef<CacheActor>,
    ) -> Option<(WeakActorRef<PagerActor>, oneshot::Receiver<()>)> {
        let (telemetry, recovery) = (&self.telemetry, &self.config.recovery);
        Some(pager?.attach(cache, telemetry, recovery).await)
    }

    fn start_scheduler(
        &self,
        core: CoreSettings,
        (device, loader): (Device, Loader),
        cache: CacheHandle,
        shared: &Shared,
    ) -> ActorRef<Scheduler> {
        let config = &self.config.scheduler;
        let heartbeat = shared.heartbeat.clone();
        let args = SchedulerArgs {
            core,
            device: DeviceHandle::new(device, loader, heartbeat, config.device_timeout),
            cache,
            supervision: Supervision::new(
                Breaker::new(self.config.recovery.clone()),
                shared.breakdown.clone(),
                config.step_retries_max,
            ),
            telemetry: Arc::clone(&self.telemetry),
            wakeup: Arc::clone(&shared.wakeup),
            runtime: self.runtime.clone(),
            started_at: self.started_at,
        };
        let mailbox_max = self.runtime.mailbox_max(MAILBOX_MAX);
        Scheduler::spawn_with_mailbox(args, mailbox::bounded(mailbox_max))
    }
}

/// The settings that the actors work with, now that the device's memory is known.
fn effective_config(mut config: EngineConfig, prepared: &Prepared) -> EngineConfig {
    let budget = &prepared.budget;
    // A step's scratch memory is not available to the cache.
    config.cache.device_bytes_max = budget.bytes - budget.scratch_bytes;
    let pinned = config.cache.pinned_bytes_max();
    config.cache.pinned_bytes_max = Some(pinned.min(config.cache.device_bytes_max));
    tracing::info!(
        bytes = budget.bytes,
        proven_bytes = budget.proven_bytes,
        "device memory: {budget}"
    );
    config
}

fn admission(config: &EngineConfig) -> Admission<UserId> {
    let scheduler = &config.scheduler;
    let admission = Admission::new(scheduler.inside_max(), scheduler.admission.queue_tokens_max);
    match scheduler.admission.user_limits() {
        None => admission,
        Some(limits) => admission.with_user_limits(limits),
    }
}

fn budgets(config: &EngineConfig) -> Budgets {
    Budgets {
        device_bytes: config.cache.device_bytes_max,
        host_bytes: config.pager.host_bytes_max,
        disk_bytes: config.pager.disk.as_ref().map_or(0, |disk| disk.bytes_max),
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Fails where actors cannot run: each of them would panic at its first wait.
fn check_runtime() -> Result<(), StartError> {
    if Handle::try_current().is_err() {
        return Err(StartError::Runtime { found: "none" });
    }
    // tokio has no other way to query whether time is enabled.
    let has_time = catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok();
    if !has_time {
        return Err(StartError::Runtime {
            found: "one without time",
        });
    }
    Ok(())
}

fn text_limits(config: &TextConfig) -> WorkLimits {
    WorkLimits {
        count_max: config.queue_max,
        bytes_max: config.queue_bytes_max,
    }
}
