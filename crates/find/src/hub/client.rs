//! Requests to the hub, and which of their errors are worth another attempt.

use std::io::{self, Read};
use std::time::Duration;

use ureq::http::{HeaderMap, Response, header};
use ureq::{Agent, Body};

use super::address::{is_same_origin, target};
use crate::{FindError, HubSettings, Progress};

/// The hub's own downloads are redirected once or twice.
const REDIRECTS_MAX: usize = 8;
const RETRY_WAIT_MAX: Duration = Duration::from_secs(30);
/// Attempts that bring this many new bytes do not count as failed: a long download over a bad
/// line ends.
const GAINED_BYTES_MIN: u64 = 1 << 20;
/// The status for a range that the file does not have.
const NO_SUCH_RANGE: u16 = 416;
/// The hub's header beside the status of an error.
const ERROR_CODE: &str = "x-error-code";

/// A client for one repository.
pub(super) struct Client<'a> {
    agent: Agent,
    settings: &'a HubSettings,
    /// For people.
    shown_endpoint: String,
    repository: &'a str,
}

/// The answer to a request for a file or a listing. Its status is one of success.
pub(super) struct Answer {
    pub(super) status: u16,
    /// The digest and size of the file, as the hub itself says; not the server that it redirects
    /// to.
    pub(super) digest: Option<String>,
    pub(super) size: Option<u64>,
    /// The size of the file that the answer is of.
    pub(super) whole: Option<u64>,
    /// The first byte of the body within the file, unless the answer is a part and its range
    /// cannot be read.
    pub(super) start: Option<u64>,
    pub(super) is_html: bool,
    body: Body,
}

/// A failed attempt.
pub(super) enum Failure {
    /// It may succeed later.
    Passing {
        what: String,
        /// The server's own advice.
        wait: Option<Duration>,
        /// Bytes that no attempt had brought before.
        gained: u64,
    },
    Final(FindError),
}

impl From<FindError> for Failure {
    fn from(error: FindError) -> Self {
        Self::Final(error)
    }
}

impl Failure {
    pub(super) fn passing(what: impl ToString) -> Self {
        Self::Passing {
            what: what.to_string(),
            wait: None,
            gained: 0,
        }
    }
}

impl<'a> Client<'a> {
    /// # Errors
    ///
    /// [`FindError::Token`].
    pub(super) fn new(settings: &'a HubSettings, repository: &'a str) -> Result<Self, FindError> {
        let shown_endpoint = settings.shown_endpoint();
        if settings
            .token
            .as_ref()
            .is_some_and(|token| !token.is_header())
        {
            return Err(FindError::Token {
                endpoint: shown_endpoint,
            });
        }
        let timeout = Some(settings.timeout);
        let config = Agent::config_builder()
            .user_agent(concat!("motet/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // Redirects are followed here: their headers name the digest, and the token stays
            // with the hub.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(timeout)
            .timeout_send_request(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout)
            .build();
        Ok(Self {
            agent: config.into(),
            settings,
            shown_endpoint,
            repository,
        })
    }

    /// The hub, as people see it.
    pub(super) fn endpoint(&self) -> &str {
        &self.shown_endpoint
    }

    pub(super) fn settings(&self) -> &HubSettings {
        self.settings
    }

    pub(super) fn repository(&self) -> &str {
        self.repository
    }

    /// The hub's answer to `GET path`, with a range of bytes if there is one. A server that has no
    /// such range is asked for the whole.
    pub(super) fn get(
        &self,
        path: &str,
        file: &str,
        range: Option<&str>,
    ) -> Result<Answer, Failure> {
        let endpoint = &self.settings.endpoint;
        let mut url = format!("{endpoint}{path}");
        let (mut digest, mut size) = (None, None);
        for _ in 0..=REDIRECTS_MAX {
            let response = self.send(&url, range)?;
            if is_same_origin(endpoint, &url) {
                digest = linked_digest(response.headers()).or(digest);
                size = number(response.headers(), "x-linked-size").or(size);
            }
            if response.status().as_u16() == NO_SUCH_RANGE && range.is_some() {
                return self.get(path, file, None);
            }
            if !response.status().is_redirection() {
                return self.answer(response, file, digest, size);
            }
            let location = text(response.headers(), header::LOCATION.as_str());
            let next = location.and_then(|location| target(&url, location));
            let Some(next) = next else {
                return Err(self
                    .wrong(file, "a redirect that leads nowhere", "an address")
                    .into());
            };
            url = next;
        }
        let what = format!("more than {REDIRECTS_MAX} redirects");
        Err(self.wrong(file, &what, "a file").into())
    }

    fn send(&self, url: &str, range: Option<&str>) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(url);
        if let Some(range) = range {
            request = request.header(header::RANGE, range);
        }
        // The file's bytes are wanted as they are stored.
        request = request.header(header::ACCEPT_ENCODING, "identity");
        let token = self.settings.token.as_ref();
        if let Some(token) = token.filter(|_| is_same_origin(&self.settings.endpoint, url)) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.secret()));
        }
        request.call().map_err(|error| {
            let what = self.settings.without_credentials(&error.to_string());
            match error {
                ureq::Error::Http(_) | ureq::Error::BadUri(_) => {
                    Failure::Final(self.wrong(self.repository, &what, "a usable address"))
                }
                _ => Failure::passing(what),
            }
        })
    }

    fn answer(
        &self,
        response: Response<Body>,
        file: &str,
        digest: Option<String>,
        size: Option<u64>,
    ) -> Result<Answer, Failure> {
        let headers = response.headers();
        let status = response.status().as_u16();
        if !response.status().is_success() {
            return Err(self.failure(status, headers, file));
        }
        let (start, whole) = match text(headers, header::CONTENT_RANGE.as_str()) {
            range if status == 206 => range.and_then(content_range).unzip(),
            _ => (
                Some(0),
                Some(number(headers, header::CONTENT_LENGTH.as_str())),
            ),
        };
        let kind = text(headers, header::CONTENT_TYPE.as_str()).unwrap_or_default();
        Ok(Answer {
            status,
            digest,
            size,
            whole: whole.flatten(),
            start,
            is_html: kind.starts_with("text/html"),
            body: response.into_body(),
        })
    }

    fn failure(&self, status: u16, headers: &HeaderMap, file: &str) -> Failure {
        let endpoint = self.endpoint().to_owned();
        let repository = self.repository.to_owned();
        let code = text(headers, ERROR_CODE).unwrap_or_default();
        let error = match (status, code) {
            // The hub answers 401 for what does not exist, unless there is a token.
            (_, "RepoNotFound" | "RevisionNotFound") => FindError::Unknown {
                endpoint,
                repository,
            },
            (401 | 403, _) => FindError::Denied {
                endpoint,
                repository,
                status,
                has_token: self.settings.token.is_some(),
            },
            (404, _) if file == repository => FindError::Unknown {
                endpoint,
                repository,
            },
            (408 | 429 | 500.., _) => {
                let seconds = number(headers, header::RETRY_AFTER.as_str());
                return Failure::Passing {
                    what: format!("status {status}"),
                    wait: seconds.map(Duration::from_secs),
                    gained: 0,
                };
            }
            _ => self.wrong(file, &format!("status {status}"), "status 200"),
        };
        Failure::Final(error)
    }

    pub(super) fn wrong(&self, file: &str, what: &str, expected: &'static str) -> FindError {
        FindError::Answer {
            endpoint: self.endpoint().to_owned(),
            file: file.to_owned(),
            what: what.to_owned(),
            expected,
        }
    }

    /// Repeats attempts that may succeed later, within the settings' bounds.
    pub(super) fn attempts<T>(
        &self,
        file: &str,
        progress: &mut dyn FnMut(Progress<'_>),
        mut attempt: impl FnMut(&mut dyn FnMut(Progress<'_>)) -> Result<T, Failure>,
    ) -> Result<T, FindError> {
        let (mut failed, mut all) = (0, 0);
        loop {
            let (what, advice, gained) = match attempt(progress) {
                Ok(done) => return Ok(done),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Passing { what, wait, gained }) => (what, wait, gained),
            };
            all += 1;
            if gained >= GAINED_BYTES_MIN {
                failed = 0;
            }
            failed += 1;
            if failed > self.settings.retries {
                return Err(FindError::Unreachable {
                    endpoint: self.endpoint().to_owned(),
                    file: file.to_owned(),
                    what,
                    attempts: all,
                });
            }
            let doubled = self
                .settings
                .retry_wait
                .saturating_mul(1 << (failed - 1).min(16));
            let wait = advice.unwrap_or(doubled).min(RETRY_WAIT_MAX);
            let what = &what;
            progress(Progress::Retrying { file, what, wait });
            std::thread::sleep(wait);
        }
    }
}

impl Answer {
    /// Reads the whole body, unless it has more than `most` bytes.
    pub(super) fn read(self, most: u64) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let read = self.into_reader().take(most + 1).read_to_end(&mut bytes)?;
        Ok((read as u64 <= most).then_some(bytes))
    }

    pub(super) fn into_reader(self) -> impl Read {
        self.body.into_reader()
    }
}

/// The digest of a file that is stored apart from its repository, or of the file itself.
fn linked_digest(headers: &HeaderMap) -> Option<String> {
    let tag = text(headers, "x-linked-etag").or_else(|| text(headers, header::ETAG.as_str()))?;
    Some(tag.trim_start_matches("W/").trim_matches('"').to_owned())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

/// `bytes 100-199/1000` as the first byte and the length of the whole.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (start, _) = range.split_once('-')?;
    Some((start.parse().ok()?, whole.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_servers_write_them() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 5-9/*"), Some((5, None)));
        assert_eq!(content_range("bytes */10"), None);
    }
}
