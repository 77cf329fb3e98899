//! Start of the engine and its actors.

use std::fmt;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Duration;

use kameo::actor::Spawn;
use kameo::mailbox;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Notify, Semaphore, mpsc};
use tokio::time::Instant;

use super::blocking::{Blocking, WorkLimits};
use super::budget::{BudgetCell, DeviceBudget};
use super::sampling_setup::Grammars;
use super::snapshot_task::SnapshotTask;
use super::start_pager::PagerParts;
use super::{BoxedFuture, Engine, Inner};
use crate::actors::breakdown::Breakdown;
use crate::actors::cache::{CacheActor, CacheArgs};
use crate::actors::scheduler::{MAILBOX_MAX, PENDING_ANSWERS_MAX, Scheduler, SchedulerArgs};
use crate::device::{Device, Loader};
use crate::error::StartError;
use crate::failpoint::{Failpoint, Failpoints};
use crate::simulation::Simulation;
use crate::telemetry::Budgets;
use crate::telemetry::Telemetry;
use motet_core::cache::CacheCore;
use motet_core::config::{EngineConfig, TextConfig};
use motet_core::protocol::{ModelError, ModelSpec};
use motet_core::recovery::Breaker;
use motet_model::Model;
use motet_sync::admission::Admission;
use motet_sync::heartbeat::Heartbeat;
use motet_sync::primitives::AtomicUsize;
use motet_text::TextCodec;

/// Events from the pager that may wait for the cache; further events wait in the pager's actor.
const PAGED_MAX: usize = 256;
/// Cache commands that may wait for the cache at once.
const CACHE_COMMANDS_MAX: usize = 64;

/// Configures and starts an engine. Created by [`Engine::builder`].
pub struct EngineBuilder {
    prepare: Prepare,
    outline: Option<ModelSpec>,
    text: Option<TextCodec>,
    config: EngineConfig,
    simulation: Option<Simulation>,
    failpoints: Failpoints,
    has_recovery: bool,
}

/// The part of a start that depends on the model's type. The rest is compiled once in this
/// crate, and not in each crate that starts an engine.
type Prepare =
    Box<dyn FnOnce(Conditions) -> BoxedFuture<'static, Result<Prepared, StartError>> + Send>;
/// Creates the model. The device thread is compiled once for each type of model, not for each
/// closure.
type Build<M> = Box<dyn Fn() -> Result<M, ModelError> + Send + Sync>;

/// The settings for a device and a pager.
struct Conditions {
    config: EngineConfig,
    failpoint: Failpoint,
    simulation: Option<Simulation>,
}

/// A device thread with its model, and the parts of its pager.
struct Prepared {
    device: Device,
    loader: Loader,
    spec: ModelSpec,
    budget: DeviceBudget,
    pager: Option<PagerParts>,
}

async fn prepare<M: Model>(
    build: Build<M>,
    conditions: Conditions,
) -> Result<Prepared, StartError> {
    let Conditions {
        config,
        failpoint,
        simulation,
    } = conditions;
    // The budget is determined with the first loaded model; later loads yield the same model.
    let budget_cell = BudgetCell::default();
    let build = {
        let (budget_cell, config) = (budget_cell.clone(), config.clone());
        move || budget_cell.determine(build()?, &config)
    };
    let started = Device::start(build, failpoint, simulation.clone()).await;
    let budget = budget_cell.budget()?;
    let started = started?;
    let pager = PagerParts::new::<M>(
        &started.spec,
        &config.pager,
        started.packer,
        started.host_end,
        // The work before an export may take the device timeout, and the export as long again.
        config.scheduler.device_timeout.saturating_mul(2),
        simulation.as_ref(),
    )?;
    Ok(Prepared {
        device: started.device,
        loader: started.loader,
        spec: started.spec,
        // A model is ready only after its budget was determined.
        budget: budget.expect("the budget was determined when the model was loaded"),
        pager,
    })
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
            config: EngineConfig::default(),
            simulation: None,
            failpoints: Failpoints::default(),
            has_recovery: true,
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
    #[must_use]
    pub fn text(mut self, text: TextCodec) -> Self {
        self.text = Some(text);
        self
    }

    /// Replaces the default settings.
    #[must_use]
    pub fn config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// Starts tasks instead of threads: see [`simulation`](crate::simulation).
    #[doc(hidden)]
    #[must_use]
    pub fn simulated(mut self, simulation: Simulation) -> Self {
        self.simulation = Some(simulation);
        self
    }

    /// Sets failpoints, with which a test makes the actors and the device threads panic.
    #[doc(hidden)]
    #[must_use]
    pub fn failpoints(mut self, failpoints: Failpoints) -> Self {
        self.failpoints = failpoints;
        self
    }

    /// Turns off the records that an actor keeps to rebuild a panicked core; a panic then ends
    /// the actor. Used to measure the cost of the records.
    #[doc(hidden)]
    #[must_use]
    pub fn without_recovery(mut self) -> Self {
        self.has_recovery = false;
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

    async fn start_actors(self) -> Result<Engine, StartError> {
        check_runtime()?;
        self.config.validate()?;
        if let Some(outline) = &self.outline {
            self.config.validate_for(outline)?;
        }
        let conditions = Conditions {
            config: self.config.clone(),
            failpoint: self.failpoints.device,
            simulation: self.simulation.clone(),
        };
        let Prepared {
            device,
            loader,
            mut spec,
            budget,
            pager,
        } = (self.prepare)(conditions).await?;
        spec.context_tokens_max = self.config.context_tokens_max(&spec);
        let mut config = self.config;
        // A step's scratch memory is not available to the cache.
        config.cache.device_bytes_max = budget.bytes - budget.scratch_bytes;
        let pinned = config.cache.pinned_bytes_max();
        config.cache.pinned_bytes_max = Some(pinned.min(config.cache.device_bytes_max));
        tracing::info!(
            bytes = budget.bytes,
            proven_bytes = budget.proven_bytes,
            "device memory: {budget}"
        );
        let telemetry = Arc::new(Telemetry::new());
        let heartbeat = Heartbeat::new();
        let wakeup = Arc::new(Notify::new());
        let started_at = Instant::now();
        let (answer_sender, answers) = mpsc::channel(PENDING_ANSWERS_MAX);
        let mut core = CacheCore::new(spec.clone(), config.cache.clone());
        if let Some(pager) = &pager {
            core = core.with_pager(&config.pager, pager.found());
        }
        let cache = CacheActor::spawn_with_mailbox(
            CacheArgs {
                core,
                answers: answer_sender,
                simulation: self.simulation.clone(),
                breaker: Breaker::new(config.recovery.clone()),
                failpoint: self.failpoints.cache,
                has_recovery: self.has_recovery,
            },
            // Never full: commands, snapshots and views, and kameo's own signals are all
            // bounded.
            mailbox::bounded(PENDING_ANSWERS_MAX + CACHE_COMMANDS_MAX + PAGED_MAX + 16),
        );
        let weak_cache = cache.downgrade();
        let (pager, pager_gone) = match pager {
            Some(pager) => {
                let failpoint = self.failpoints.pager;
                let recovery = &config.recovery;
                let attached =
                    pager.attach(&cache, weak_cache.clone(), &telemetry, recovery, failpoint);
                let (pager, gone) = attached.await;
                (Some(pager), Some(gone))
            }
            None => (None, None),
        };
        let breakdown = Breakdown::default();
        let device_gone = loader.gone();
        let scheduler = Scheduler::spawn_with_mailbox(
            SchedulerArgs {
                spec: spec.clone(),
                config: config.scheduler.clone(),
                device,
                loader,
                breaker: Breaker::new(config.recovery.clone()),
                breakdown: breakdown.clone(),
                failpoint: self.failpoints.scheduler,
                has_recovery: self.has_recovery,
                backup_tokens: match pager {
                    Some(_) => config.pager.backup_tokens,
                    None => 0,
                },
                cache,
                answers,
                telemetry: Arc::clone(&telemetry),
                heartbeat: heartbeat.clone(),
                wakeup: wakeup.clone(),
                simulation: self.simulation.clone(),
                started_at,
            },
            mailbox::bounded(Simulation::mailbox_max(
                self.simulation.as_ref(),
                MAILBOX_MAX,
            )),
        );
        let (inside_max, tokens_max) = (
            config.scheduler.inside_max(),
            config.scheduler.queue_tokens_max,
        );
        let admission = Admission::new(inside_max, tokens_max);
        let admission = match config.scheduler.user_limits() {
            None => admission,
            Some(limits) => admission.with_user_limits(limits),
        };
        let cache_command_permits = Arc::new(Semaphore::new(CACHE_COMMANDS_MAX));
        let snapshot_task = SnapshotTask {
            scheduler: scheduler.downgrade(),
            cache: weak_cache.clone(),
            pager,
            telemetry: Arc::clone(&telemetry),
            permits: Arc::clone(&cache_command_permits),
            budgets: Budgets {
                device_bytes: config.cache.device_bytes_max,
                host_bytes: config.pager.host_bytes_max,
                disk_bytes: config.pager.disk.as_ref().map_or(0, |disk| disk.bytes_max),
            },
            started_at,
        };
        let inner = Inner {
            scheduler,
            cache: weak_cache,
            admission,
            guard_released: Arc::new(Notify::new()),
            telemetry,
            heartbeat,
            wakeup,
            started_at,
            text: self.text,
            blocking: Blocking::new(config.text.threads, text_limits(&config.text)),
            grammars: Arc::new(Grammars::new(config.grammar.clone())),
            spec,
            budget,
            config,
            sequences_made: AtomicUsize::new(0),
            pins_made: AtomicUsize::new(0),
            cache_command_permits,
            device_gone,
            breakdown,
            pager_gone: Mutex::new(pager_gone),
            snapshots: snapshot_task.spawn(),
        };
        Ok(Engine {
            inner: Arc::new(inner),
        })
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
