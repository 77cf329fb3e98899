//! Start and shutdown of the server.

use std::future::pending;
#[cfg(feature = "grpc")]
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
#[cfg(feature = "grpc")]
use futures_util::FutureExt;
use motet::Shutdown;
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::app::App;
#[cfg(feature = "grpc")]
use crate::arguments::GrpcSettings;
use crate::arguments::{AccessSettings, Arguments, LogForm};
use crate::connections::{self, ConnectionLimits, Connections};
use crate::fleet::kv_events::KvEvents;
#[cfg(feature = "grpc")]
use crate::grpc::{self, GrpcListener};
use crate::keys::Keys;
use crate::{recorder, routes, start, welcome};

/// Time for running requests to finish, where no fleet continues them elsewhere.
const GRACE_SECONDS: u64 = 30;

/// Starts the engine and serves it until the process gets SIGTERM or SIGINT.
///
/// # Errors
///
/// Any error of the start, with the file, setting or address that caused it.
pub async fn run(arguments: &Arguments) -> Result<()> {
    let keys = match &arguments.access.api_keys {
        None => Keys::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            Keys::parse(&text).with_context(|| path.display().to_string())?
        }
    };
    arguments.access.check(&keys)?;
    log_open_access(&arguments.access);
    #[cfg(feature = "grpc")]
    log_open_grpc(arguments);
    let metrics = recorder::install()?;
    let engine = start::engine(arguments).await?;
    arguments.fleet.check(engine.model().context_tokens_max)?;
    let device_memory = engine.device_budget();
    let app = App::new(
        engine,
        arguments.model_names(),
        keys,
        arguments.access.clone(),
    );
    let app = app.metrics(metrics).store(arguments.store);
    #[cfg(feature = "otel")]
    let traces = arguments.traces.provider()?;
    #[cfg(feature = "otel")]
    let app = match &traces {
        Some(provider) => app.traces(provider),
        None => app,
    };
    let app = Arc::new(app);
    #[cfg(feature = "grpc")]
    let mut facts = grpc::FleetFacts {
        tokenizer: arguments.grpc_tokenizer(),
        kv_events: None,
    };
    if let Some(events) = KvEvents::bind(&arguments.fleet).await? {
        let has_salts = arguments.access.api_keys.is_some() && !arguments.access.share_cache;
        if has_salts && !arguments.fleet.kv_events_salts {
            tracing::warn!("each key has a cache of its own, which KV events leave out");
        }
        tracing::info!(
            kv_events = events.address,
            kv_events_replay = events.replay_address,
            "publishing KV events"
        );
        #[cfg(feature = "grpc")]
        {
            facts.kv_events = Some(grpc::KvEventsFacts {
                address: events.address.clone(),
                replay_address: events.replay_address.clone(),
                topic: arguments.fleet.kv_events_topic.clone(),
            });
        }
        tokio::spawn(events.run(Arc::downgrade(&app)));
    }
    let address = (arguments.access.host, arguments.port);
    let listener = TcpListener::bind(address).await;
    let listener =
        listener.with_context(|| format!("cannot listen at {}:{}", address.0, address.1))?;
    let address = listener.local_addr().context("the socket has no address")?;
    tracing::info!(
        %address,
        model = app.model,
        device_memory = %device_memory,
        "serving"
    );
    let listeners = Listeners::from(listener);
    #[cfg(feature = "grpc")]
    let listeners = listeners.grpc(&arguments.grpc, facts).await?;
    #[cfg(feature = "grpc")]
    if let Some(grpc) = listeners.grpc_address() {
        tracing::info!(%grpc, "serving vLLM's gRPC");
    }
    if arguments.log_form == LogForm::Text {
        println!("\n{}\n", welcome::text(&app, address));
    }
    let signals = signals();
    let ends = Ends {
        end: counted(signals.clone(), 1),
        now: counted(signals, 2),
    };
    serve_until(app, listeners, ends).await;
    #[cfg(feature = "otel")]
    if let Some(provider) = traces {
        crate::trace::export_rest(provider).await;
    }
    Ok(())
}

/// Logs settings that an operator may not expect.
fn log_open_access(access: &AccessSettings) {
    let has_keys = access.api_keys.is_some();
    if !has_keys && !access.is_for_this_machine() {
        tracing::warn!("there are no API keys: every client that can connect is served");
    }
    if access.operator_open {
        tracing::warn!("every client that can connect sees metrics, health and the page");
    } else if !has_keys && access.is_local() && !access.is_for_this_machine() {
        tracing::warn!(
            "with --host-name or --origin and no API keys, metrics, details of health, the \
             description and the page are closed: see --operator-open"
        );
    } else if access.operator_key.is_empty() && (has_keys || !access.is_local()) {
        tracing::info!(
            "metrics, details of health and the description are closed: see --operator-key"
        );
    }
}

/// The sockets that a server is reached by.
#[expect(missing_debug_implementations, reason = "TLS has none")]
pub struct Listeners {
    http: TcpListener,
    #[cfg(feature = "grpc")]
    grpc: Option<(GrpcListener, grpc::FleetFacts)>,
}

impl From<TcpListener> for Listeners {
    fn from(http: TcpListener) -> Self {
        Self {
            http,
            #[cfg(feature = "grpc")]
            grpc: None,
        }
    }
}

impl Listeners {
    /// Opens gRPC's socket, if the settings have one.
    ///
    /// # Errors
    ///
    /// The error names the setting.
    #[cfg(feature = "grpc")]
    pub async fn grpc(self, settings: &GrpcSettings, facts: grpc::FleetFacts) -> Result<Self> {
        let listener = GrpcListener::bind(settings).await?;
        Ok(Self {
            grpc: listener.map(|listener| (listener, facts)),
            ..self
        })
    }

    /// The address of gRPC's socket.
    #[cfg(feature = "grpc")]
    #[must_use]
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc.as_ref()?.0.listener.local_addr().ok()
    }

    /// Time for running requests to finish. Behind gRPC there is a fleet that continues them elsewhere.
    fn grace(&self, access: &AccessSettings) -> Duration {
        let default_seconds = if self.has_grpc() { 0 } else { GRACE_SECONDS };
        Duration::from_secs(access.grace_seconds.unwrap_or(default_seconds))
    }

    #[cfg(feature = "grpc")]
    fn has_grpc(&self) -> bool {
        self.grpc.is_some()
    }

    #[cfg(not(feature = "grpc"))]
    fn has_grpc(&self) -> bool {
        false
    }
}

/// When a server ends.
#[derive(Debug)]
pub struct Ends<E, N> {
    /// When it accepts no more requests. Running ones may then finish within the time limit.
    pub end: E,
    /// When the running ones end at once.
    pub now: N,
}

/// Serves until `end` is ready. Running requests may then finish within the time limit; the
/// others are handed over.
///
/// # Errors
///
/// There are none at present; a failed accept is retried.
pub async fn serve(
    app: Arc<App>,
    listeners: impl Into<Listeners>,
    end: impl Future<Output = ()>,
) -> Result<()> {
    let ends = Ends {
        end,
        now: pending(),
    };
    serve_until(app, listeners.into(), ends).await;
    Ok(())
}

/// Logs that an operator may not expect gRPC to be open.
#[cfg(feature = "grpc")]
fn log_open_grpc(arguments: &Arguments) {
    let settings = &arguments.grpc;
    let is_local = |address: SocketAddr| address.ip().to_canonical().is_loopback();
    let is_open = arguments.access.api_keys.is_none() && settings.grpc_tls_clients.is_none();
    if settings.grpc.is_some_and(|address| !is_local(address)) && is_open {
        tracing::warn!(
            "--grpc has neither API keys nor certificates of clients: every client that can connect is \
             served, and can abort the requests of others"
        );
    }
}

/// Serves until its end.
pub async fn serve_until(
    app: Arc<App>,
    listeners: Listeners,
    ends: Ends<impl Future<Output = ()>, impl Future<Output = ()>>,
) {
    let grace = listeners.grace(&app.access);
    let limits = ConnectionLimits::new(&app.access, usize::from(listeners.has_grpc()));
    let mut http = Connections::http(&app, routes::router(Arc::clone(&app)), &limits);
    #[cfg(feature = "grpc")]
    let all = {
        let end = ends.end.shared();
        let accepted = http.accept(listeners.http, end.clone());
        match listeners.grpc {
            None => {
                accepted.await;
                vec![http]
            }
            Some((socket, facts)) => {
                let GrpcListener {
                    address,
                    listener,
                    tls,
                } = socket;
                let router = grpc::router(Arc::clone(&app), facts);
                let mut grpc = Connections::grpc(&app, router, (address, tls), &limits);
                tokio::join!(accepted, grpc.accept(listener, end));
                vec![http, grpc]
            }
        }
    };
    #[cfg(not(feature = "grpc"))]
    let all = {
        http.accept(listeners.http, ends.end).await;
        vec![http]
    };
    tracing::info!(
        seconds = grace.as_secs(),
        "shutting down: running requests may finish"
    );
    connections::close(all, &app, grace, ends.now).await;
    finish(app).await;
}

/// Shuts the engine down once no other task holds it.
async fn finish(mut app: Arc<App>) {
    let sole_owner = async {
        loop {
            match Arc::try_unwrap(app) {
                Ok(app) => return app,
                Err(shared) => app = shared,
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match timeout(Duration::from_secs(5), sole_owner).await {
        Ok(app) => app.into_engine().shutdown(Shutdown::Abort).await,
        Err(_) => tracing::error!("the engine is still in use: state that is not on disk is lost"),
    }
}

/// The number of SIGTERMs and SIGINTs so far.
fn signals() -> watch::Receiver<u32> {
    let (count, counted) = watch::channel(0);
    #[cfg(unix)]
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let count = count.clone();
        tokio::spawn(async move {
            let Ok(mut signals) = signal(kind) else {
                return;
            };
            while signals.recv().await.is_some() {
                count.send_modify(|count| *count += 1);
            }
        });
    }
    #[cfg(not(unix))]
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            count.send_modify(|count| *count += 1);
        }
    });
    counted
}

/// Returns when there have been so many signals.
async fn counted(mut signals: watch::Receiver<u32>, count: u32) {
    let counted = signals.wait_for(|signals| *signals >= count).await;
    if counted.is_err() {
        // There are no signals on this system.
        pending().await
    }
}
