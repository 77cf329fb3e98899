//! Opens a store by its URL.

use std::time::Duration;

use opendal::layers::{ConcurrentLimitLayer, TimeoutLayer};
use opendal::{Configurator, Operator, OperatorUri, services};
#[cfg(feature = "redis")]
use percent_encoding::percent_decode_str;

use crate::secret::Secret;
use crate::tier::Remote;

/// Longest time of a call of the store.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Most calls of the store at the same time.
const STORE_CALLS_MAX: usize = 16;
/// The name that is looked up to see whether the store answers.
const PROBE: &str = "motet-probe";

/// The error of a store that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL names no store, or has options that the store does not know.
    #[error("{url} is not the URL of a store: {what}; expected such as redis://HOST:6379")]
    Url {
        /// The URL, without user and password.
        url: String,
        /// Description of the error.
        what: String,
    },
    /// This build has no such store.
    #[error("this build has no store for {scheme}: expected one of {}", SCHEMES.join(", "))]
    Scheme {
        /// The scheme of the URL.
        scheme: String,
    },
    /// The store does not answer.
    #[error("{url} does not answer: {what}; expected a store that runs and accepts this user")]
    Unreachable {
        /// The URL, without user and password.
        url: String,
        /// Description of the error.
        what: String,
    },
}

/// The schemes of the stores of this build.
const SCHEMES: &[&str] = &[
    #[cfg(feature = "redis")]
    "redis",
    #[cfg(feature = "redis")]
    "rediss",
    #[cfg(feature = "s3")]
    "s3",
    "fs",
    "memory",
];

impl Remote {
    /// Opens the store at this URL, and asks it for something, for five seconds at most.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub async fn open(url: &str, secret: &Secret) -> Result<Self, OpenError> {
        let store = operator(url)?;
        let store = store
            .layer(
                TimeoutLayer::new()
                    .with_timeout(CALL_TIMEOUT)
                    .with_io_timeout(CALL_TIMEOUT),
            )
            .layer(ConcurrentLimitLayer::new(STORE_CALLS_MAX));
        let asked = store.exists(PROBE).await;
        asked.map_err(|error| OpenError::Unreachable {
            url: without_user(url),
            what: error.to_string(),
        })?;
        Ok(Self::new(store, secret))
    }
}

fn operator(url: &str) -> Result<Operator, OpenError> {
    let wrong = |what: opendal::Error| OpenError::Url {
        url: without_user(url),
        what: what.to_string(),
    };
    let no_options: [(String, String); 0] = [];
    let uri = OperatorUri::new(url, no_options).map_err(wrong)?;
    match uri.scheme() {
        #[cfg(feature = "redis")]
        "redis" | "rediss" => {
            let mut config = services::RedisConfig::from_uri(&uri).map_err(wrong)?;
            if let Some(authority) = uri.authority() {
                config.endpoint = Some(format!("{}://{authority}", uri.scheme()));
            }
            config.username = config.username.or(uri.username().map(decoded));
            config.password = config.password.or(uri.password().map(decoded));
            Operator::from_config(config).map_err(wrong)
        }
        #[cfg(feature = "s3")]
        "s3" => {
            let config = services::S3Config::from_uri(&uri).map_err(wrong)?;
            Operator::from_config(config).map_err(wrong)
        }
        "fs" => {
            let config = services::FsConfig::from_uri(&uri).map_err(wrong)?;
            Operator::from_config(config).map_err(wrong)
        }
        "memory" => Operator::from_config(services::MemoryConfig::default()).map_err(wrong),
        scheme => Err(OpenError::Scheme {
            scheme: scheme.into(),
        }),
    }
}

/// A user or password as it is meant: a URL has `%40` for `@`.
#[cfg(feature = "redis")]
fn decoded(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().into_owned()
}

/// The URL without what may be a secret.
fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
    format!("{scheme}://{rest}")
}
