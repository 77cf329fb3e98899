//! Device threads, one after another.
//!
//! A thread that has died or does not answer is replaced. A thread that does not answer cannot
//! be ended from outside, so it is abandoned with all that it holds. Should it continue later,
//! its outcomes are dropped, its transfer queue belongs to another thread, and it ends.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Receiver;
use tokio::sync::{mpsc, oneshot};

use super::{Device, Loaded, serve};
use crate::runtime::{EngineRuntime, Runtime, Worker};
use motet_device::{DeviceEnd, DraftModel, panic_text};
use motet_model::{DetachedState, Model};
use motet_protocol::{DraftModelSpec, ModelError, ModelSpec, Outcome, WORK_IN_FLIGHT_MAX, Work};

const THREAD_IS_THERE: &str = "a model was loaded on a thread";

/// Loads the model again on a new device thread. Clones share the current thread.
#[derive(Clone)]
pub(crate) struct Loader {
    load: Arc<dyn Fn() -> Loading + Send + Sync>,
    /// Resolves when the latest thread is gone.
    last: DeviceGone,
}

/// The end of the latest device thread. Unlike a [`Loader`], it holds nothing of the transfer
/// queue.
#[derive(Clone, Debug)]
pub(crate) struct DeviceGone(Arc<Mutex<Option<Gone>>>);

/// Resolves when a thread has ended and has freed everything that it held.
type Gone = oneshot::Receiver<()>;

/// A device thread that is loading the model. Dropping it ends the thread after the load.
#[derive(Debug)]
pub(crate) struct Loading {
    /// `None` if there is no thread, which `ready` receives the reason for.
    device: Option<Device>,
    ready: oneshot::Receiver<Result<(), ModelError>>,
    gone: Gone,
}

/// Everything that device threads are started with.
pub(super) struct DeviceFactory<M: Model, B> {
    pub(super) build: B,
    /// The transfer queue's device end; each thread gets a successor of it.
    pub(super) prototype: DeviceEnd<DetachedState<M>>,
    pub(super) runtime: EngineRuntime,
}

/// A device thread before it has built its model.
pub(super) struct DeviceWorker<M: Model, B> {
    factory: Arc<DeviceFactory<M, B>>,
    /// The specification of the model that was loaded first.
    expected: Option<ModelSpec>,
    transfer_queue: DeviceEnd<DetachedState<M>>,
    outcomes: mpsc::Sender<Outcome>,
    model_info: oneshot::Sender<(ModelSpec, Option<DraftModelSpec>, M::Packer)>,
    ready: oneshot::Sender<Result<(), ModelError>>,
    gone: oneshot::Sender<()>,
}

/// A device thread that has built its model.
pub(super) struct BuiltDevice<M: Model> {
    pub(super) model: M,
    pub(super) draft_model: Option<Box<dyn DraftModel>>,
    pub(super) transfer_queue: DeviceEnd<DetachedState<M>>,
    pub(super) outcomes: mpsc::Sender<Outcome>,
    pub(super) runtime: EngineRuntime,
}

/// Specification and packer of a loaded model, and the specification of its draft model.
type ModelInfo<M> = oneshot::Receiver<(ModelSpec, Option<DraftModelSpec>, <M as Model>::Packer)>;

impl Loader {
    pub(super) fn new<M, B>(
        device_factory: Arc<DeviceFactory<M, B>>,
        spec: ModelSpec,
        gone: Gone,
    ) -> Self
    where
        M: Model,
        B: Fn() -> Result<Loaded<M>, ModelError> + Send + Sync + 'static,
    {
        let load = move || Loading::start(&device_factory, Some(&spec)).0;
        Self {
            load: Arc::new(load),
            last: DeviceGone(Arc::new(Mutex::new(Some(gone)))),
        }
    }

    /// Starts another thread that loads the model. The thread takes over the transfer queue.
    #[must_use]
    pub(crate) fn load(&self) -> Loading {
        (self.load)()
    }

    /// Waits for a model that is being loaded. Its thread then becomes the latest one.
    ///
    /// # Errors
    ///
    /// The error of the load, a panic during the load, or an error that the model differs from
    /// the first one.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the wait can be repeated.
    pub(crate) async fn loaded(&self, loading: &mut Option<Loading>) -> Result<Device, ModelError> {
        let Some(waited_for) = loading else {
            return std::future::pending().await;
        };
        waited_for.ready().await.inspect_err(|_| *loading = None)?;
        let loaded = loading.take().expect("the load was awaited above");
        *self.last.lock() = Some(loaded.gone);
        Ok(loaded.device.expect(THREAD_IS_THERE))
    }

    /// The end of the latest thread, now and after later loads.
    #[must_use]
    pub(crate) fn gone(&self) -> DeviceGone {
        self.last.clone()
    }
}

impl DeviceGone {
    /// Waits until the latest thread has ended and has freed everything that it held.
    ///
    /// # Cancel safety
    ///
    /// Only the first call waits; dropping its future loses the wait.
    pub(crate) async fn wait(&self) {
        let last = self.lock().take();
        if let Some(last) = last {
            // The thread either sends a message at its end or drops the sender.
            last.await.ok();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Gone>> {
        // Only moves happen under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loading {
    /// Starts a thread that builds a model; the model's specification must equal `expected`.
    pub(super) fn start<M, B>(
        device_factory: &Arc<DeviceFactory<M, B>>,
        expected: Option<&ModelSpec>,
    ) -> (Self, ModelInfo<M>)
    where
        M: Model,
        B: Fn() -> Result<Loaded<M>, ModelError> + Send + Sync + 'static,
    {
        let (outcome_sender, outcomes) = mpsc::channel(WORK_IN_FLIGHT_MAX);
        let (ready_sender, ready) = oneshot::channel();
        let (model_info_sender, description) = oneshot::channel();
        let (gone_sender, gone) = oneshot::channel();
        let worker = DeviceWorker {
            factory: Arc::clone(device_factory),
            expected: expected.cloned(),
            transfer_queue: device_factory.prototype.successor(),
            outcomes: outcome_sender,
            model_info: model_info_sender,
            ready: ready_sender,
            gone: gone_sender,
        };
        let (device, ready) = match device_factory.runtime.spawn(worker) {
            Ok(work) => (Some(Device { work, outcomes }), ready),
            Err(error) => {
                let (sender, ready) = oneshot::channel();
                let error = ModelError::Device(format!("no thread for the device: {error}"));
                sender.send(Err(error)).expect("the receiver is here");
                (None, ready)
            }
        };
        let loading = Self {
            device,
            ready,
            gone,
        };
        (loading, description)
    }

    /// Waits for the model, then returns the device, and a receiver that resolves when its
    /// thread is gone.
    pub(super) async fn wait(mut self) -> Result<(Device, Gone), ModelError> {
        self.ready().await?;
        let device = self.device.expect(THREAD_IS_THERE);
        Ok((device, self.gone))
    }

    async fn ready(&mut self) -> Result<(), ModelError> {
        let ended = || ModelError::Device("the device thread ended while it loaded".into());
        (&mut self.ready).await.map_err(|_| ended())?
    }
}

impl<M, B> Worker for DeviceWorker<M, B>
where
    M: Model,
    B: Fn() -> Result<Loaded<M>, ModelError> + Send + Sync + 'static,
{
    type Job = Work;
    const NAME: &'static str = "motet-device";
    const JOBS_MAX: usize = WORK_IN_FLIGHT_MAX;

    fn run(self, work: Receiver<Work>) {
        let (device, gone) = self.build();
        if let Some(device) = device {
            serve(device, work);
        }
        // The receiver may be gone already.
        gone.send(()).ok();
    }
}

impl<M, B> DeviceWorker<M, B>
where
    M: Model,
    B: Fn() -> Result<Loaded<M>, ModelError>,
{
    /// Builds the model. There is none if the build failed, the model is not the expected one,
    /// or the receiver is gone. The sender is for the end of the thread.
    pub(super) fn build(self) -> (Option<BuiltDevice<M>>, oneshot::Sender<()>) {
        let built = catch_unwind(AssertUnwindSafe(|| (self.factory.build)()));
        let built = built.unwrap_or_else(|panic| {
            let text = panic_text(&*panic);
            let why = format!("the model panicked while loading: {text}");
            Err(ModelError::Device(why))
        });
        let loaded = built.and_then(|loaded| match &self.expected {
            Some(expected) if expected != loaded.model.spec() => Err(ModelError::Device(
                "the reloaded model differs from the model that was loaded first".into(),
            )),
            _ => Ok(loaded),
        });
        let loaded = match loaded {
            Ok(loaded) => {
                // A reload has no receiver: the specification is known.
                let draft_model = loaded.draft_model.as_ref().map(|model| model.spec());
                let model = &loaded.model;
                self.model_info
                    .send((model.spec().clone(), draft_model, model.packer()))
                    .ok();
                // The caller that started the load may have given up.
                self.ready.send(Ok(())).is_ok().then_some(loaded)
            }
            Err(error) => {
                self.ready.send(Err(error)).ok();
                None
            }
        };
        let device = loaded.map(|loaded| BuiltDevice {
            model: loaded.model,
            draft_model: loaded.draft_model,
            transfer_queue: self.transfer_queue,
            outcomes: self.outcomes,
            runtime: self.factory.runtime.clone(),
        });
        (device, self.gone)
    }
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Loader")
    }
}
