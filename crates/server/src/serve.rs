//! Start and shutdown of the server.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use motet::Shutdown;
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::app::App;
use crate::arguments::{AccessSettings, Arguments, LogForm};
use crate::connections::Connections;
use crate::fleet::kv_events::KvEvents;
use crate::keys::Keys;
use crate::{recorder, start, welcome};

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
    let metrics = recorder::install()?;
    let engine = start::engine(arguments).await?;
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
    if let Some(events) = KvEvents::bind(&arguments.fleet).await? {
        if arguments.access.api_keys.is_some() && !arguments.access.share_cache {
            tracing::warn!("each key has a cache of its own, which KV events leave out");
        }
        tracing::info!(
            kv_events = events.address,
            kv_events_replay = events.replay_address,
            "publishing KV events"
        );
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
    if arguments.log_form == LogForm::Text {
        println!("\n{}\n", welcome::text(&app, address));
    }
    serve(app, listener, shutdown_signal()).await?;
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

/// Serves until `end` is ready. Running requests may then finish within the time limit; the
/// others end with an error.
///
/// # Errors
///
/// There are none at present; a failed accept is retried.
pub async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    end: impl Future<Output = ()>,
) -> Result<()> {
    let mut connections = Connections::new(&app);
    connections.accept(listener, end).await;
    tracing::info!("shutting down: running requests may finish");
    let grace = Duration::from_secs(app.access.grace_seconds);
    connections.close(&app, grace).await;
    finish(app).await;
    Ok(())
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

/// Waits for SIGTERM or SIGINT.
async fn shutdown_signal() {
    let interrupted = async { tokio::signal::ctrl_c().await.ok() };
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = pending::<()>();
    tokio::select! {
        _ = interrupted => {}
        _ = terminated => {}
    }
}
