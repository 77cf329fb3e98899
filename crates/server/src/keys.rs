//! API keys, and the limit on the concurrent requests of each.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::class::Class;
use crate::error::ApiError;

/// Time after which a caller at its limit may retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Most open pages of one key, so that other keys can watch as well.
pub(crate) const KEY_WATCHERS_MAX: usize = 4;

/// The header that clients of Anthropic's API send the key in.
const API_KEY: &str = "x-api-key";

/// Most readers of responses of one key at once, and of all clients without keys.
const READERS_MAX: usize = 64;

/// The known API keys. Without any, all requests are accepted.
#[derive(Debug)]
pub struct Keys {
    keys: Vec<Key>,
    /// Permits for the responses that clients without keys may read at once.
    reader_permits: Arc<Semaphore>,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            keys: Vec::new(),
            reader_permits: Arc::new(Semaphore::new(READERS_MAX)),
        }
    }
}

#[derive(Debug)]
struct Key {
    name: Arc<str>,
    /// Keys are compared by digest: all have the same length, and no key is kept in memory.
    digest: [u8; 32],
    request_permits: Arc<Semaphore>,
    /// The highest class of its requests, if the file sets one.
    class_max: Option<Class>,
    /// Permits for the pages that it may watch at once.
    watcher_permits: Arc<Semaphore>,
    /// Permits for the responses that it may read at once.
    reader_permits: Arc<Semaphore>,
}

/// The rest of a line of the file, after name and key.
#[derive(Clone, Copy, Debug, Default)]
struct KeyOptions {
    request_permits: Option<usize>,
    class_max: Option<Class>,
}

/// The caller of a request, for as long as the request lasts. Clones are the same request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// The key's name, not the key; `None` if no keys are required.
    pub(crate) name: Option<Arc<str>>,
    /// The highest class of the key's requests, if its line sets one.
    pub(crate) class_max: Option<Class>,
    _permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Keys {
    /// Parses a file of keys. Each line has a name, the key and, optionally, the most concurrent
    /// requests of the key and their highest class, as `class=urgent`. `#` begins a comment.
    ///
    /// # Errors
    ///
    /// An invalid line is named by its number, never by its content.
    pub fn parse(text: &str) -> Result<Self> {
        let mut keys = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let words = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = words.split_whitespace().collect();
            let (name, key, options) = match *words {
                [] => continue,
                [name, key, ref options @ ..] => (name, key, options),
                [_] => bail!("line {number}: expected a name and a key"),
            };
            KeyOptions::parse(options)
                .and_then(|options| keys.add(name, key, options))
                .with_context(|| format!("line {number}"))?;
        }
        ensure!(!keys.keys.is_empty(), "there is no key in it");
        Ok(keys)
    }

    fn add(&mut self, name: &str, key: &str, options: KeyOptions) -> Result<()> {
        let digest = Sha256::digest(key).into();
        let is_new = |known: &Key| *known.name != *name && known.digest != digest;
        ensure!(
            self.keys.iter().all(is_new),
            "its name or key is there twice"
        );
        self.keys.push(Key {
            name: name.into(),
            digest,
            request_permits: Arc::new(Semaphore::new(
                options.request_permits.unwrap_or(Semaphore::MAX_PERMITS),
            )),
            class_max: options.class_max,
            watcher_permits: Arc::new(Semaphore::new(KEY_WATCHERS_MAX)),
            reader_permits: Arc::new(Semaphore::new(READERS_MAX)),
        });
        Ok(())
    }

    /// Whether requests need a key.
    pub(crate) fn are_required(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Admits a request if its key is valid and below its limit.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        if !self.are_required() {
            return Ok(Caller::default());
        }
        let key = self.sent_key(headers)?;
        let permit = Arc::clone(&key.request_permits).try_acquire_owned();
        let permit = permit.map_err(|_| {
            let message = "this key has as many requests running or waiting as it may have";
            ApiError::busy(message, RETRY_AFTER)
        })?;
        Ok(Caller {
            name: Some(Arc::clone(&key.name)),
            class_max: key.class_max,
            _permit: Some(Arc::new(permit)),
        })
    }

    /// Checks that a request has a key with an allowed name, and returns the key's watcher permits.
    /// The request does not count against the key's limit.
    pub(crate) fn check(
        &self,
        headers: &HeaderMap,
        is_allowed: impl FnOnce(&str) -> bool,
    ) -> Result<Arc<Semaphore>, ApiError> {
        let key = self.sent_key(headers)?;
        if is_allowed(&key.name) {
            Ok(Arc::clone(&key.watcher_permits))
        } else {
            Err(ApiError::wrong_key())
        }
    }

    /// The name of the key that a request has, where keys are required. The request does not count
    /// against the key's limit.
    #[cfg(feature = "grpc")]
    pub(crate) fn name(&self, headers: &HeaderMap) -> Result<Option<Arc<str>>, ApiError> {
        if !self.are_required() {
            return Ok(None);
        }
        Ok(Some(Arc::clone(&self.sent_key(headers)?.name)))
    }

    /// Admits a reader of a response that its key has. It does not count against the key's limit of
    /// requests: a key at its limit can read what it waits for, and cancel it.
    pub(crate) fn admit_reader(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let (name, permits) = if self.are_required() {
            let key = self.sent_key(headers)?;
            (Some(Arc::clone(&key.name)), &key.reader_permits)
        } else {
            (None, &self.reader_permits)
        };
        let permit = Arc::clone(permits).try_acquire_owned().map_err(|_| {
            let message = format!("this key has {READERS_MAX} readers, as many as it may have");
            ApiError::busy(message, RETRY_AFTER)
        })?;
        Ok(Caller {
            name,
            class_max: None,
            _permit: Some(Arc::new(permit)),
        })
    }

    /// The caller of a request that began before this server's start, without a place in its key's limit.
    /// `None` if there is no such key any more.
    pub(crate) fn caller(&self, name: Option<&str>) -> Option<Caller> {
        match name {
            None => (!self.are_required()).then(Caller::default),
            Some(name) => self.named(name).map(|key| Caller {
                name: Some(Arc::clone(&key.name)),
                class_max: key.class_max,
                _permit: None,
            }),
        }
    }

    /// Gives the caller a place in its key's limit, if there is one.
    pub(crate) fn place(&self, caller: &Caller) -> Option<Caller> {
        let key = caller.name.as_deref().and_then(|name| self.named(name));
        let Some(key) = key else {
            return Some(caller.clone());
        };
        let permit = Arc::clone(&key.request_permits).try_acquire_owned().ok()?;
        Some(Caller {
            _permit: Some(Arc::new(permit)),
            ..caller.clone()
        })
    }

    fn named(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| *key.name == *name)
    }

    /// The names of all keys.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.keys.iter().map(|key| &key.name)
    }

    fn sent_key(&self, headers: &HeaderMap) -> Result<&Key, ApiError> {
        let bearer = headers.get(header::AUTHORIZATION);
        let bearer = bearer.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        let plain = headers.get(API_KEY).and_then(|value| value.to_str().ok());
        let sent_key = bearer.or(plain);
        let key = self.find(sent_key.ok_or_else(ApiError::unauthorized)?);
        key.ok_or_else(ApiError::unauthorized)
    }

    /// Compares every key, so that the time reveals nothing.
    fn find(&self, sent_key: &str) -> Option<&Key> {
        let digest: [u8; 32] = Sha256::digest(sent_key.trim()).into();
        self.keys.iter().fold(None, |found, key| {
            if bool::from(key.digest.ct_eq(&digest)) {
                Some(key)
            } else {
                found
            }
        })
    }
}

impl KeyOptions {
    fn parse(words: &[&str]) -> Result<Self> {
        let mut options = Self::default();
        for word in words {
            let is_new = match word.strip_prefix("class=") {
                Some(class) => {
                    let class = Class::named(class)
                        .context("`class=` is to name background, normal or urgent")?;
                    options.class_max.replace(class).is_none()
                }
                None => {
                    let request_permits = word.parse().ok();
                    let request_permits =
                        request_permits.filter(|n| (1..=Semaphore::MAX_PERMITS).contains(n));
                    let request_permits = request_permits.context(
                        "behind the key, expected a number, 1 or more, or `class=` and a class",
                    )?;
                    options.request_permits.replace(request_permits).is_none()
                }
            };
            ensure!(is_new, "there are two numbers or two classes");
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(value: &str) -> HeaderMap {
        let value = value.parse().expect("a header");
        HeaderMap::from_iter([(header::AUTHORIZATION, value)])
    }

    #[test]
    fn keys_admit_and_limit_requests() {
        let keys = Keys::parse("# ours\nann secret-a 1\nbob secret-b # unlimited\n").expect("two");
        for rejected in [
            "",
            "Bearer ",
            "Bearer secret",
            "secret-a",
            "Bearer secret-aa",
        ] {
            let error = keys.admit(&headers(rejected)).expect_err(rejected);
            assert_eq!(error.status, 401, "{rejected}");
        }
        assert_eq!(keys.admit(&HeaderMap::new()).expect_err("none").status, 401);

        let plain = HeaderValue::from_static("secret-b");
        let plain = HeaderMap::from_iter([(HeaderName::from_static(API_KEY), plain)]);
        let plain = keys.admit(&plain).expect("bob");
        assert_eq!(plain.name.as_deref(), Some("bob"));
        drop(plain);

        let first = keys.admit(&headers("Bearer secret-a")).expect("ann");
        assert_eq!(first.name.as_deref(), Some("ann"));
        let second = keys.admit(&headers("Bearer secret-a"));
        assert_eq!(second.expect_err("one at once").status, 429);
        let others: Vec<_> = (0..100)
            .map(|_| keys.admit(&headers("Bearer secret-b")).expect("bob"))
            .collect();
        drop((first, others));
        keys.admit(&headers("Bearer secret-a")).expect("again");

        let open = Keys::default().admit(&HeaderMap::new()).expect("open");
        assert_eq!(open.name, None);
    }

    #[test]
    fn key_line_sets_the_highest_class() {
        let text = "ann secret-a class=urgent\nbob secret-b 2 class=background\n\
                    carol secret-c class=normal 1\ndave secret-d 3";
        let keys = Keys::parse(text).expect("four");
        for (key, class_max, request_permits) in [
            ("a", Some(Class::Urgent), Semaphore::MAX_PERMITS),
            ("b", Some(Class::Background), 2),
            ("c", Some(Class::Normal), 1),
            ("d", None, 3),
        ] {
            let headers = headers(&format!("Bearer secret-{key}"));
            let caller = keys.admit(&headers).expect(key);
            assert_eq!(caller.class_max, class_max, "{key}");
            let found = keys.find(&format!("secret-{key}")).expect(key);
            assert_eq!(
                found.request_permits.available_permits(),
                request_permits - 1,
                "{key}"
            );
        }
    }

    #[test]
    fn invalid_key_files_are_rejected_without_their_content() {
        for (text, expected) in [
            ("", "there is no key in it"),
            ("ann", "line 1: expected a name"),
            ("ann secret many", "line 1: behind the key, expected"),
            ("ann secret 0", "line 1: behind the key, expected"),
            ("ann secret 1 1", "line 1: there are two numbers"),
            ("ann secret class=secret", "line 1: `class=` is to name"),
            ("ann secret class=", "line 1: `class=` is to name"),
            (
                "ann secret class=urgent 1 class=urgent",
                "line 1: there are two numbers or two classes",
            ),
            ("ann secret\n\nann other", "line 3: its name or key"),
            ("ann secret\nbob secret", "line 2: its name or key"),
        ] {
            let error = format!("{:#}", Keys::parse(text).expect_err(text));
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
