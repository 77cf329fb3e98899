//! The socket, and the end.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use motet::Shutdown;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::app::{self, App};
use crate::arguments::Arguments;
use crate::fleet::kv_events::KvEvents;
use crate::keys::Keys;
use crate::{recorder, start};

/// Starts the engine and serves it until the process is told to end.
///
/// # Errors
///
/// Whatever keeps the server from starting, by name.
pub async fn run(arguments: &Arguments) -> Result<()> {
    let keys = match &arguments.conduct.api_keys {
        None => Keys::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            Keys::parse(&text).with_context(|| path.display().to_string())?
        }
    };
    let metrics = recorder::install()?;
    let engine = start::engine(arguments).await?;
    let app = App::new(
        engine,
        arguments.model_name(),
        keys,
        arguments.conduct.clone(),
    );
    let app = Arc::new(app.metrics(metrics));
    if let Some(events) = KvEvents::bind(&arguments.fleet).await? {
        if arguments.conduct.api_keys.is_some() && !arguments.conduct.share_cache {
            tracing::warn!("each key has a cache of its own, of which KV events tell nothing");
        }
        tracing::info!(
            kv_events = events.address,
            kv_events_replay = events.replay_address,
            "telling what is cached"
        );
        tokio::spawn(events.tell(Arc::downgrade(&app)));
    }
    let address = (arguments.host, arguments.port);
    let listener = TcpListener::bind(address).await;
    let listener =
        listener.with_context(|| format!("cannot listen at {}:{}", address.0, address.1))?;
    let address = listener.local_addr().context("the socket has no address")?;
    tracing::info!(%address, model = arguments.model_name(), "serving");
    serve(app, listener, told_to_end()).await
}

/// Serves until `end` is ready, and those inside have finished, or had their time.
///
/// # Errors
///
/// When the socket fails.
pub async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    end: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let (ended, mut is_ended) = watch::channel(false);
    let grace = Duration::from_secs(app.conduct.grace_seconds);
    let draining = Arc::clone(&app);
    let mut told = is_ended.clone();
    let service = app::router(Arc::clone(&app));
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        told.wait_for(|ended| *ended).await.ok();
    });
    let mut server = tokio::spawn(server.into_future());
    tokio::spawn(async move {
        end.await;
        tracing::info!("ending: those inside may finish");
        ended.send_replace(true);
        // Connections that stay open are told that nothing more is taken in.
        draining.drain().await;
    });
    let late = async {
        is_ended.wait_for(|ended| *ended).await.ok();
        tokio::time::sleep(grace).await;
    };
    tokio::select! {
        served = &mut server => served.context("the server panicked")?.context("the socket")?,
        () = late => {
            tracing::warn!("some are still inside: they end now");
            server.abort();
        }
    }
    finish(app).await;
    Ok(())
}

/// Shuts the engine down, once nobody else has it.
async fn finish(mut app: Arc<App>) {
    let alone = async {
        loop {
            match Arc::try_unwrap(app) {
                Ok(app) => return app,
                Err(shared) => app = shared,
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // Who holds it longer than that keeps it to the end of the process.
    if let Ok(app) = timeout(Duration::from_secs(5), alone).await {
        app.into_engine().shutdown(Shutdown::Abort).await;
    }
}

/// SIGTERM or SIGINT.
async fn told_to_end() {
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
