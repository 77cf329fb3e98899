//! The engine as a [`tower_service::Service`], for the layers of `tower`.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::futures::OwnedNotified;
use tower_service::Service;

use super::{BoxedFuture, Engine};
use crate::error::SubmitError;
use crate::request::Request;
use crate::stream::TokenStream;

/// An engine as a service: a [`Request`] is answered with its [`TokenStream`]. Created by
/// [`Engine::service`]; clones share the engine.
///
/// The service is ready while the engine admits requests. While it holds `scheduler.sequences_max`
/// running and `scheduler.admission.queue_max` waiting requests, it is pending until one of them ends:
/// a layer can wait, or shed load. Readiness reserves nothing. Where callers race for the last permit, or
/// another bound is reached, a call fails with [`SubmitError::QueueFull`], which gives the request
/// back, as [`Engine::submit`] does.
///
/// A call is answered when its request is admitted. Layers therefore limit and measure admission, not
/// the output; [`Request::finish_within`] bounds the output.
///
/// Dropping the future of a call cancels its request. Dropping the service ends no stream. A service
/// keeps its engine running, as a clone of the engine does.
pub struct EngineService {
    engine: Engine,
    /// Resolves when a request ends, while the service waits for that.
    guard_released: Option<Pin<Box<OwnedNotified>>>,
}

impl Engine {
    /// Returns the engine as a service for the layers of `tower`.
    #[must_use]
    pub fn service(&self) -> EngineService {
        EngineService {
            engine: self.clone(),
            guard_released: None,
        }
    }

    /// Whether the bound on all requests admits another one.
    fn has_permit(&self) -> Result<bool, SubmitError> {
        self.check_not_broken()?;
        let admission = &self.inner.admission;
        if admission.is_shut() {
            return Err(SubmitError::Draining);
        }
        Ok(admission.inside() < self.inner.config.scheduler.inside_max())
    }
}

impl Service<Request> for EngineService {
    type Response = TokenStream;
    type Error = SubmitError;
    type Future = BoxedFuture<'static, Result<TokenStream, SubmitError>>;

    /// Waits until the engine admits a request.
    ///
    /// # Errors
    ///
    /// [`SubmitError::Draining`] or [`SubmitError::Broken`] once the engine admits no more.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), SubmitError>> {
        if self.guard_released.is_none() && self.engine.has_permit()? {
            return Poll::Ready(Ok(()));
        }
        loop {
            if let Some(guard_released) = &mut self.guard_released {
                ready!(guard_released.as_mut().poll(cx));
                self.guard_released = None;
            }
            // It counts notifications from here on, so that none is missed after the check.
            let guard_released = Arc::clone(&self.engine.inner.guard_released).notified_owned();
            let mut guard_released = Box::pin(guard_released);
            guard_released.as_mut().enable();
            if self.engine.has_permit()? {
                return Poll::Ready(Ok(()));
            }
            self.guard_released = Some(guard_released);
        }
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let engine = self.engine.clone();
        Box::pin(async move { engine.submit(request).await })
    }
}

/// The clone has to become ready by itself.
impl Clone for EngineService {
    fn clone(&self) -> Self {
        self.engine.service()
    }
}

impl fmt::Debug for EngineService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineService").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;
    use crate::Shutdown;
    use motet_core::config::EngineConfig;
    use motet_model::oracle::{Oracle, OracleConfig, StepCost};

    /// An engine that holds two requests, one of which runs.
    async fn engine() -> Engine {
        let oracle = OracleConfig {
            cost: StepCost {
                base: Duration::from_millis(1),
                ..StepCost::default()
            },
            ..OracleConfig::default()
        };
        let mut config = EngineConfig::default();
        config.scheduler.sequences_max = 1;
        config.scheduler.admission.queue_max = 1;
        // Outputs that are not read never end.
        config.scheduler.unread_tokens_max = 8;
        Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")))
            .config(config)
            .start()
            .await
            .expect("the engine starts")
    }

    fn long() -> Request {
        Request::tokens([1, 2, 3]).output_tokens_max(200)
    }

    async fn is_pending(service: &mut EngineService) -> bool {
        poll_fn(|cx| Poll::Ready(service.poll_ready(cx).is_pending())).await
    }

    #[tokio::test]
    async fn a_full_engine_is_pending_until_a_request_ends() {
        let engine = engine().await;
        let mut service = engine.service();
        poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
        let first = service.call(long()).await.expect("it is admitted");
        let _second = service.call(long()).await.expect("it is admitted");
        assert!(is_pending(&mut service).await, "two requests are inside");
        assert!(is_pending(&mut service.clone()).await, "of a clone as well");
        // Readiness was not awaited: the typed error gives the request back.
        let error = service.call(long()).await.expect_err("full");
        assert!(matches!(error, SubmitError::QueueFull { request, .. } if *request == long()));
        drop(first);
        poll_fn(|cx| service.poll_ready(cx)).await.expect("ready");
        service.call(long()).await.expect("it is admitted");
        engine.shutdown(Shutdown::Abort).await;
    }

    #[tokio::test]
    async fn a_pending_service_learns_that_admission_is_closed() {
        let engine = engine().await;
        let mut service = engine.service();
        let _first = service.call(long()).await.expect("it is admitted");
        let _second = service.call(long()).await.expect("it is admitted");
        assert!(is_pending(&mut service).await, "two requests are inside");
        let readiness = tokio::spawn(async move { poll_fn(|cx| service.poll_ready(cx)).await });
        tokio::select! {
            () = engine.drain() => panic!("no request has ended"),
            error = readiness => {
                let error = error.expect("it does not panic").expect_err("it is closed");
                assert!(matches!(error, SubmitError::Draining), "{error}");
            }
        }
        engine.shutdown(Shutdown::Abort).await;
    }

    #[tokio::test]
    async fn a_draining_engine_fails_readiness() {
        let engine = engine().await;
        let mut service = engine.service();
        engine.shutdown(Shutdown::Abort).await;
        let error = poll_fn(|cx| service.poll_ready(cx)).await;
        let error = error.expect_err("it has stopped");
        assert!(matches!(error, SubmitError::Draining), "{error}");
    }
}
