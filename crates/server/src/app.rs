//! The state that all routes share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use metrics_exporter_prometheus::PrometheusHandle;
use motet::{Engine, Shutdown};

use crate::activity::Activity;
use crate::arguments::{AccessSettings, StoreSettings};
use crate::body::{BodyReceiver, ReceivesBodies};
use crate::keys::Keys;
use crate::model_names::ModelNames;
use crate::trace::Tracer;

/// The state that all routes share.
#[derive(Debug)]
pub struct App {
    pub(crate) engine: Engine,
    /// The model's name in answers.
    pub(crate) model: String,
    /// Its names in requests.
    pub(crate) model_names: ModelNames,
    pub(crate) keys: Keys,
    pub(crate) access: AccessSettings,
    /// The bounds of the store of responses.
    pub(crate) store_settings: StoreSettings,
    /// Receives bodies within a memory budget.
    pub(crate) body_receiver: BodyReceiver,
    /// The parts of running answers.
    pub(crate) activity: Arc<Activity>,
    pub(crate) metrics: Option<PrometheusHandle>,
    /// Records the spans of requests.
    pub(crate) tracer: Tracer,
    /// Start time, in seconds since 1970.
    pub(crate) created: u64,
    /// A random prefix of generated names, which end in a number.
    instance: u32,
    names_given: AtomicU64,
}

impl App {
    /// Creates the server's state from its parts.
    #[must_use]
    pub fn new(
        engine: Engine,
        model_names: ModelNames,
        keys: Keys,
        access: AccessSettings,
    ) -> Self {
        Self {
            engine,
            model: model_names.first().to_owned(),
            model_names,
            activity: Arc::default(),
            keys,
            store_settings: StoreSettings::default(),
            body_receiver: BodyReceiver::new(&access),
            access,
            metrics: None,
            tracer: Tracer::default(),
            created: now(),
            instance: rand::random(),
            names_given: AtomicU64::new(0),
        }
    }

    /// Adds a metrics recorder, which `/metrics` renders.
    #[must_use]
    pub fn metrics(mut self, metrics: PrometheusHandle) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Adds a provider of traces, which records spans of requests and sequences.
    #[cfg(feature = "otel")]
    #[must_use]
    pub fn traces(mut self, provider: &opentelemetry_sdk::trace::SdkTracerProvider) -> Self {
        self.tracer = Tracer::new(provider, self.model.clone());
        self
    }

    /// Sets the bounds of the store of responses.
    #[must_use]
    pub fn store(mut self, settings: StoreSettings) -> Self {
        self.store_settings = settings;
        self
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the engine, to shut it down.
    #[must_use]
    pub fn into_engine(self) -> Engine {
        self.engine
    }

    /// Accepts no more requests, and returns when all have finished.
    pub async fn drain(&self) {
        self.engine.drain().await;
    }

    /// Accepts no more requests and ends the current ones.
    pub(crate) async fn shutdown(&self, how: Shutdown) {
        self.engine.shutdown(how).await;
    }

    /// Returns a unique name.
    pub(crate) fn name(&self, prefix: &str) -> String {
        let number = self.names_given.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{:08x}{number:08x}", self.instance)
    }
}

impl ReceivesBodies for Arc<App> {
    fn receiver(&self) -> (&BodyReceiver, &AccessSettings) {
        (&self.body_receiver, &self.access)
    }
}

/// The current time in seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
