//! Device threads, one after another.
//!
//! A thread that has died is replaced, and so is one that does not answer: it cannot be
//! ended from outside, so it is left behind with all that it holds. Should it come back,
//! nobody listens to it any more, its dock serves another, and it ends.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crossbeam_channel::bounded;
use tokio::sync::{mpsc, oneshot};

use super::table::panic_text;
use super::transfer_queue::DeviceEnd;
use super::{Device, serve, simulated};
use crate::failpoint::Failpoint;
use crate::simulation::{Simulation, WorkerSender};
use motet_core::protocol::{ModelError, ModelSpec, WORK_IN_FLIGHT_MAX};
use motet_model::{DetachedState, Model};

/// Loads the model again, on a new device thread. Clones share the thread that is waited
/// for.
#[derive(Clone)]
pub struct Loader {
    load: Arc<dyn Fn() -> Loading + Send + Sync>,
    /// Resolves when the last thread is gone.
    last: Arc<Mutex<Option<Gone>>>,
}

/// Resolves when a thread is gone and everything that it held is freed.
type Gone = oneshot::Receiver<()>;

/// A device thread on which the model is being loaded. Dropping it ends the thread once
/// that is done.
#[derive(Debug)]
pub struct Loading {
    device: Device,
    ready: oneshot::Receiver<Result<(), ModelError>>,
    gone: Gone,
}

/// What device threads are made with.
pub(super) struct DeviceFactory<M: Model, B> {
    pub(super) build: B,
    /// Each thread has the dock of its own that follows it.
    pub(super) prototype: DeviceEnd<DetachedState<M>>,
    pub(super) failpoint: Failpoint,
    /// The house that is simulated, if it is: then tasks take the threads' place.
    pub(super) simulation: Option<Simulation>,
}

/// What a model that was loaded says of itself.
type ModelInfo<M> = oneshot::Receiver<(ModelSpec, <M as Model>::Packer)>;

impl Loader {
    pub(super) fn new<M, B>(
        device_factory: Arc<DeviceFactory<M, B>>,
        spec: ModelSpec,
        gone: Gone,
    ) -> Self
    where
        M: Model,
        B: Fn() -> Result<M, ModelError> + Send + Sync + 'static,
    {
        let load = move || Loading::start(&device_factory, Some(&spec)).0;
        Self {
            load: Arc::new(load),
            last: Arc::new(Mutex::new(Some(gone))),
        }
    }

    /// Starts another thread, and has it load the model. It serves the dock from now on.
    #[must_use]
    pub fn load(&self) -> Loading {
        (self.load)()
    }

    /// Waits for a model that is being loaded. The thread that it is on is the last then.
    ///
    /// # Errors
    ///
    /// What the loading said; that it panicked; or that the model is not the one that was
    /// loaded first.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it can be waited for again.
    pub async fn loaded(&self, loading: &mut Option<Loading>) -> Result<Device, ModelError> {
        let Some(waited_for) = loading else {
            return std::future::pending().await;
        };
        waited_for.ready().await.inspect_err(|_| *loading = None)?;
        let loaded = loading.take().expect("it was waited for");
        *self.last() = Some(loaded.gone);
        Ok(loaded.device)
    }

    /// Waits until the last thread is gone and everything that it held is freed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nobody to wait for.
    pub async fn gone(&self) {
        let last = self.last().take();
        if let Some(last) = last {
            // The thread says that it is gone, or is gone without a word.
            last.await.ok();
        }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Option<Gone>> {
        // Nothing but a move happens under this lock.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loading {
    /// Starts a thread that builds a model; `expected` is what it must be.
    pub(super) fn start<M, B>(
        device_factory: &Arc<DeviceFactory<M, B>>,
        expected: Option<&ModelSpec>,
    ) -> (Self, ModelInfo<M>)
    where
        M: Model,
        B: Fn() -> Result<M, ModelError> + Send + Sync + 'static,
    {
        let (outcome_sender, outcomes) = mpsc::channel(WORK_IN_FLIGHT_MAX);
        let (ready_sender, ready) = oneshot::channel();
        let (model_info_sender, description) = oneshot::channel();
        let (gone_sender, gone) = oneshot::channel();
        let (transfer_queue, expected) = (device_factory.prototype.successor(), expected.cloned());
        let factory = Arc::clone(device_factory);
        let build = move || factory.build_on_thread(expected, model_info_sender, ready_sender);
        let failpoint = device_factory.failpoint.clone();
        let (work, started) = if let Some(simulation) = &device_factory.simulation {
            let (work_sender, work) = mpsc::channel(WORK_IN_FLIGHT_MAX);
            let task_simulation = simulation.clone();
            simulation.spawn(move || async move {
                let exported = task_simulation.exported.clone();
                if let Some(model) = build() {
                    simulated::serve(
                        model,
                        transfer_queue,
                        work,
                        outcome_sender,
                        failpoint,
                        task_simulation,
                    )
                    .await;
                }
                exported.notify_one();
                gone_sender.send(()).ok();
            });
            (WorkerSender::Task(work_sender), Ok(()))
        } else {
            let (work_sender, work) = bounded(WORK_IN_FLIGHT_MAX);
            let thread = move || {
                if let Some(model) = build() {
                    serve(model, transfer_queue, work, outcome_sender, failpoint);
                }
                // Nobody may be waiting for the end any more.
                gone_sender.send(()).ok();
            };
            let thread_builder = thread::Builder::new().name("motet-device".into());
            (
                WorkerSender::Thread(work_sender),
                thread_builder.spawn(thread).map(drop),
            )
        };
        let ready = match started {
            Ok(()) => ready,
            Err(error) => {
                let (sender, ready) = oneshot::channel();
                let error = ModelError::Device(format!("no thread for the device: {error}"));
                sender.send(Err(error)).expect("the receiver is here");
                ready
            }
        };
        let loading = Self {
            device: Device { work, outcomes },
            ready,
            gone,
        };
        (loading, description)
    }

    /// Waits for the model, then gives out the device's end, and what resolves when its
    /// thread is gone.
    pub(super) async fn wait(mut self) -> Result<(Device, Gone), ModelError> {
        self.ready().await?;
        Ok((self.device, self.gone))
    }

    async fn ready(&mut self) -> Result<(), ModelError> {
        let ended = || ModelError::Device("the device thread ended while it loaded".into());
        (&mut self.ready).await.map_err(|_| ended())?
    }
}

impl<M, B> DeviceFactory<M, B>
where
    M: Model,
    B: Fn() -> Result<M, ModelError>,
{
    /// A model, unless it could not be built, is another than expected, or nobody waits.
    fn build_on_thread(
        &self,
        expected: Option<ModelSpec>,
        description: oneshot::Sender<(ModelSpec, M::Packer)>,
        ready: oneshot::Sender<Result<(), ModelError>>,
    ) -> Option<M> {
        let built = catch_unwind(AssertUnwindSafe(|| (self.build)()));
        let built = built.unwrap_or_else(|panic| {
            let text = panic_text(&*panic);
            let why = format!("the model panicked while loading: {text}");
            Err(ModelError::Device(why))
        });
        let model = built.and_then(|model| match expected {
            Some(expected) if expected != *model.spec() => Err(ModelError::Device(
                "what was loaded again is not the model that was loaded first".into(),
            )),
            _ => Ok(model),
        });
        match model {
            Ok(model) => {
                // Who loads again knows.
                description
                    .send((model.spec().clone(), model.packer()))
                    .ok();
                // Whoever started this may have given up waiting.
                ready.send(Ok(())).is_ok().then_some(model)
            }
            Err(error) => {
                ready.send(Err(error)).ok();
                None
            }
        }
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Loader")
    }
}
