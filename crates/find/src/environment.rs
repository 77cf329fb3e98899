//! Where the programs keep their models, and how the hub is reached: from their own variables.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const HUB: &str = "https://huggingface.co";
/// Where ollama keeps its models as a service on Linux.
const OLLAMA_SERVICE: &str = "/usr/share/ollama/.ollama/models";

/// Finds models. [`from_environment`](Self::from_environment) reads the variables that the
/// programs themselves have.
#[derive(Clone, Debug)]
pub struct Finder {
    /// Hugging Face's hub and its cache.
    pub hub: HubSettings,
    /// Folders of ollama, the first that exists counts: `OLLAMA_MODELS`, `~/.ollama/models`, and
    /// the folder of the service on Linux.
    pub ollama: Vec<PathBuf>,
    /// Folders of LM Studio, looked through in order: `~/.lmstudio/models` and
    /// `~/.cache/lm-studio/models`.
    pub lm_studio: Vec<PathBuf>,
}

/// Hugging Face's hub and its cache.
#[derive(Clone)]
pub struct HubSettings {
    /// `HF_HUB_CACHE`, `HF_HOME/hub` or `~/.cache/huggingface/hub`.
    pub cache: PathBuf,
    /// `HF_ENDPOINT`; a mirror, or the hub itself. A user and a password in it are not printed.
    pub endpoint: String,
    /// `HF_TOKEN`, or the content of `HF_TOKEN_PATH` or `HF_HOME/token`.
    pub token: Option<Token>,
    /// `HF_HUB_OFFLINE`: only the cache is read.
    pub offline: bool,
    /// Longest time for a connection, for the beginning of an answer, and between two parts of it:
    /// `HF_HUB_DOWNLOAD_TIMEOUT` in seconds, or 30 s.
    pub timeout: Duration,
    /// Attempts after the first at which less than a megabyte of new bytes arrives, for each file.
    pub retries: u32,
    /// The wait before the first of them; it doubles each time, up to half a minute.
    pub retry_wait: Duration,
    /// Longest time for which another process may lock a file that does not grow: 10 minutes. It
    /// also computes the digest of a large file in that time.
    pub lock_wait: Duration,
}

impl fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            cache,
            endpoint: _,
            token,
            offline,
            timeout,
            retries,
            retry_wait,
            lock_wait,
        } = self;
        f.debug_struct("HubSettings")
            .field("cache", cache)
            .field("endpoint", &self.shown_endpoint())
            .field("token", token)
            .field("offline", offline)
            .field("timeout", timeout)
            .field("retries", retries)
            .field("retry_wait", retry_wait)
            .field("lock_wait", lock_wait)
            .finish()
    }
}

/// A secret of the caller's. It is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token, without spaces around it; `None` if nothing is left.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty()).then(|| Self(text.to_owned()))
    }

    /// Whether a header may have it: visible characters of ASCII.
    #[cfg(feature = "hub")]
    pub(crate) fn is_header(&self) -> bool {
        self.0.bytes().all(|byte| byte.is_ascii_graphic())
    }

    #[cfg(feature = "hub")]
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Finder {
    /// Reads the variables of this process, and the token's file.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// Reads these variables instead.
    #[must_use]
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let home = path("HOME").or_else(|| path("USERPROFILE"));
        let in_home = |folder: &str| home.as_ref().map(|home| home.join(folder));
        let ollama = [
            path("OLLAMA_MODELS"),
            in_home(".ollama/models"),
            Some(OLLAMA_SERVICE.into()),
        ];
        let pointer = in_home(".lmstudio-home-pointer").and_then(|file| first_line(&file));
        let lm_studio = [
            pointer.map(|folder| Path::new(&folder).join("models")),
            in_home(".lmstudio/models"),
            in_home(".cache/lm-studio/models"),
        ];
        Self {
            hub: HubSettings::from_variables(&set, home.as_deref()),
            ollama: ollama.into_iter().flatten().collect(),
            lm_studio: lm_studio.into_iter().flatten().collect(),
        }
    }
}

impl HubSettings {
    /// The endpoint, without its user and password.
    pub(crate) fn shown_endpoint(&self) -> String {
        self.without_credentials(&self.endpoint)
    }

    /// A text in which the endpoint may stand, without the endpoint's user and password.
    pub(crate) fn without_credentials(&self, text: &str) -> String {
        let start = self.endpoint.find("//").map_or(0, |at| at + 2);
        let authority = self.endpoint[start..].split(['/', '?', '#']).next();
        match authority.and_then(|authority| authority.rsplit_once('@')) {
            Some((credentials, _)) => text.replace(&format!("{credentials}@"), "…@"),
            None => text.to_owned(),
        }
    }

    fn from_variables(set: &dyn Fn(&str) -> Option<OsString>, home: Option<&Path>) -> Self {
        let path = |name: &str| set(name).map(PathBuf::from);
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        let is_set = |name: &str| text(name).is_some_and(|value| is_yes(&value));
        let caches = path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
        let caches = caches.or_else(|| home.map(|home| home.join(".cache")));
        let base = path("HF_HOME").or_else(|| caches.map(|caches| caches.join("huggingface")));
        // Without a home, models are kept where the program runs.
        let base = base.unwrap_or_else(|| "huggingface".into());
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let token = text("HF_TOKEN")
            .or_else(|| first_line(&path("HF_TOKEN_PATH").unwrap_or_else(|| base.join("token"))));
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| HUB.to_owned());
        let seconds = text("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse::<u32>().ok());
        Self {
            cache: cache.unwrap_or_else(|| base.join("hub")),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.as_deref().and_then(Token::new),
            offline: is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE"),
            timeout: Duration::from_secs(
                seconds.filter(|seconds| *seconds > 0).unwrap_or(30).into(),
            ),
            retries: 5,
            retry_wait: Duration::from_secs(1),
            lock_wait: Duration::from_secs(600),
        }
    }
}

/// As `huggingface_hub` reads a switch.
fn is_yes(text: &str) -> bool {
    matches!(
        text.to_ascii_uppercase().as_str(),
        "1" | "ON" | "YES" | "TRUE"
    )
}

fn first_line(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().next()?.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finder(variables: &[(&str, &str)]) -> Finder {
        Finder::from_variables(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn folders_are_where_the_programs_keep_them() {
        let cache = |variables: &[(&str, &str)], expected: &str| {
            let home = [("HOME", "/h")];
            let finder = finder(&[variables, &home].concat());
            assert_eq!(finder.hub.cache, Path::new(expected), "{variables:?}");
        };
        cache(&[], "/h/.cache/huggingface/hub");
        cache(&[("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub");
        cache(&[("HF_HOME", "/hf")], "/hf/hub");
        cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")], "/c");
        cache(
            &[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "")],
            "/old",
        );
        let home = finder(&[("HOME", "/h")]);
        assert_eq!(home.ollama[0], Path::new("/h/.ollama/models"));
        assert_eq!(home.lm_studio[0], Path::new("/h/.lmstudio/models"));
        let set = finder(&[("HOME", "/h"), ("OLLAMA_MODELS", "/o")]);
        assert_eq!(set.ollama[0], Path::new("/o"));
        assert!(finder(&[]).lm_studio.is_empty());
    }

    #[test]
    fn the_hub_is_reached_as_its_variables_say() {
        let hub = finder(&[
            ("HF_ENDPOINT", "http://127.0.0.1:9/"),
            ("HF_TOKEN", " hf_secret\n"),
            ("HF_HUB_OFFLINE", "true"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "7"),
        ]);
        let hub = hub.hub;
        assert_eq!(hub.endpoint, "http://127.0.0.1:9");
        assert_eq!(hub.token, Token::new("hf_secret"));
        assert!(!format!("{hub:?}").contains("secret"));
        let mirror = finder(&[("HF_ENDPOINT", "https://ann:pass@word@h/mirror")]).hub;
        assert_eq!(mirror.shown_endpoint(), "https://…@h/mirror");
        assert!(!format!("{mirror:?}").contains("word"));
        assert!(hub.offline);
        assert_eq!(hub.timeout, Duration::from_secs(7));
        let plain = finder(&[("HF_HUB_OFFLINE", "0"), ("HF_HUB_DOWNLOAD_TIMEOUT", "0")]).hub;
        assert_eq!((plain.endpoint.as_str(), plain.offline), (HUB, false));
        assert_eq!(
            (plain.token, plain.timeout),
            (None, Duration::from_secs(30))
        );
    }
}
