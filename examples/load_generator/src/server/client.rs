//! Connections to a server.
//!
//! hyper's own client and addresses do all that this program needs: with them come 24 crates, 69 with
//! `reqwest` without TLS, and 33 with `url` for two addresses that hyper would parse once more.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::timeout;

use super::answer::Answer;
use super::error::{ServerError, in_full};
use super::url::Addresses;
use super::wire::{self, Question};

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

/// Longest body that is read of an answer that is not streamed.
const BODY_BYTES_MAX: usize = 1 << 20;
/// The wait before a retry if a busy server does not give one.
const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(1);
/// The longest wait before a retry, whatever a server asks for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Settings of a client.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) url: String,
    pub(crate) api_key: Option<String>,
    /// The model's name on the server; `None` is the first that it lists.
    pub(crate) model: Option<String>,
    /// The longest time in which it may send nothing.
    pub(crate) silence_max: Duration,
}

/// A client of one server.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: legacy::Client<Connector, Full<Bytes>>,
    addresses: Addresses,
    authorization: Option<HeaderValue>,
    model: String,
    silence_max: Duration,
}

/// The reason why a request was not accepted.
#[derive(Debug)]
pub(crate) enum AskError {
    /// The request may be retried after this time.
    Busy(Duration),
    Failed(ServerError),
}

impl Client {
    /// Finds the model's name, which also checks that the server is there.
    pub(crate) async fn connect(settings: Settings) -> Result<Self, ServerError> {
        let addresses = Addresses::of(&settings.url)?;
        let authorization = settings.api_key.as_ref().map(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {key}"))?;
            value.set_sensitive(true);
            Ok::<_, header::InvalidHeaderValue>(value)
        });
        let authorization = authorization.transpose().map_err(|_| ServerError::Key)?;
        let mut client = Self {
            http: legacy::Client::builder(TokioExecutor::new())
                // Some servers close a connection while the next request is on its way.
                .pool_max_idle_per_host(0)
                .build(connector()),
            addresses,
            authorization,
            model: String::new(),
            silence_max: settings.silence_max,
        };
        client.model = match settings.model {
            Some(model) => model,
            None => client.first_model().await?,
        };
        Ok(client)
    }

    /// The model's name on the server.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// Sends a request, and returns when the server begins to answer.
    pub(crate) async fn ask(&self, question: &Question<'_>) -> Result<Answer, AskError> {
        let body = question.body(&self.model).into();
        let sent = self.send(Method::POST, &self.addresses.chat, body).await;
        let response = sent.map_err(AskError::Failed)?;
        let status = response.status();
        if status.is_success() {
            return Ok(Answer::new(response.into_body(), self.silence_max));
        }
        match retry_after(status, response.headers()) {
            Some(wait) => Err(AskError::Busy(wait)),
            None => Err(AskError::Failed(
                server_error(status, response.into_body()).await,
            )),
        }
    }

    async fn first_model(&self) -> Result<String, ServerError> {
        let sent = self.send(Method::GET, &self.addresses.models, Bytes::new());
        let response = sent.await?;
        let status = response.status();
        if !status.is_success() {
            return Err(server_error(status, response.into_body()).await);
        }
        let body = whole(response.into_body()).await;
        wire::first_model(&body).ok_or(ServerError::NoModel)
    }

    async fn send(
        &self,
        method: Method,
        to: &Uri,
        body: Bytes,
    ) -> Result<Response<Incoming>, ServerError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = to.clone();
        let headers = request.headers_mut();
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        if let Some(authorization) = &self.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        let sent = timeout(self.silence_max, self.http.request(request)).await;
        let sent = sent.map_err(|_| ServerError::Silent(self.silence_max))?;
        sent.map_err(|error| ServerError::Unreachable(in_full(&error)))
    }
}

#[cfg(not(feature = "tls"))]
fn connector() -> Connector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector
}

#[cfg(feature = "tls")]
fn connector() -> Connector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.enforce_http(false);
    hyper_rustls::HttpsConnectorBuilder::new()
        .with_webpki_roots()
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector)
}

/// The wait before a retry; `None` if a retry is useless.
fn retry_after(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    let header_value = headers.get(header::RETRY_AFTER);
    let header_value = header_value.and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let header_value = header_value.map(Duration::from_secs);
    match status {
        StatusCode::TOO_MANY_REQUESTS => Some(header_value.unwrap_or(RETRY_AFTER_DEFAULT)),
        StatusCode::SERVICE_UNAVAILABLE => header_value,
        _ => None,
    }
    .map(|wait| wait.min(RETRY_AFTER_MAX))
}

async fn server_error(status: StatusCode, body: Incoming) -> ServerError {
    let body = whole(body).await;
    let message = match serde_json::from_slice::<Value>(&body) {
        Ok(error) => wire::message(&error),
        Err(_) => String::from_utf8_lossy(&body).trim().to_owned(),
    };
    ServerError::Status { status, message }
}

/// Reads a short body; an empty one if it is too long or breaks off.
async fn whole(body: Incoming) -> Bytes {
    let collected = Limited::new(body, BODY_BYTES_MAX).collect().await;
    collected.map_or_else(|_| Bytes::new(), |body| body.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_respected_when_busy() {
        let check = |status: StatusCode,
                     header_value: Option<&'static str>,
                     seconds: Option<u64>| {
            let header_value = header_value
                .map(|header_value| (header::RETRY_AFTER, HeaderValue::from_static(header_value)));
            let headers = HeaderMap::from_iter(header_value);
            let expected = seconds.map(Duration::from_secs);
            assert_eq!(retry_after(status, &headers), expected);
        };
        check(StatusCode::TOO_MANY_REQUESTS, Some("3"), Some(3));
        check(StatusCode::TOO_MANY_REQUESTS, None, Some(1));
        check(StatusCode::TOO_MANY_REQUESTS, Some("tomorrow"), Some(1));
        check(StatusCode::TOO_MANY_REQUESTS, Some("86400"), Some(30));
        check(StatusCode::SERVICE_UNAVAILABLE, Some("2"), Some(2));
        check(StatusCode::SERVICE_UNAVAILABLE, None, None);
        check(StatusCode::BAD_REQUEST, Some("1"), None);
    }
}
