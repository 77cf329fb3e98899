//! Why no model was found.

use std::io;
use std::path::{Path, PathBuf};

/// The forms of names.
const FORMS: &str = "a path, hf:ORG/NAME, hf:ORG/NAME:FILE, hf:ORG/NAME:Q4_K_M, ollama:NAME or \
                     lmstudio:PUBLISHER/NAME";
/// Names of files that an error lists.
const NAMES_MAX: usize = 20;
/// Most bytes of a hub's or a caller's text in an error.
const TEXT_BYTES_MAX: usize = 300;

/// Why no model was found, or none that is whole. Each says what to write or do instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// The name is of no known form.
    #[error("`{}` names no model: {}; expected {FORMS}", shown(name), shown(what))]
    Name {
        /// The name.
        name: String,
        /// The mistake in it.
        what: String,
    },
    /// There is no such file or folder.
    #[error("there is no model at {}; expected {FORMS}{hint}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// A name that may be meant.
        hint: String,
    },
    /// A program does not have the model.
    #[error("{program} has no model `{name}`; it has {}{hint}", listed(found))]
    NotThere {
        /// The program, and its folders.
        program: String,
        /// The model's name there.
        name: String,
        /// The models that it has.
        found: Vec<String>,
        /// How to get it.
        hint: String,
    },
    /// Files, but no model that Motet reads.
    #[error(
        "{place} has no model that Motet reads: it has {}; expected GGUF files, or config.json \
         beside model.safetensors or model.safetensors.index.json. Look for a repository that \
         has one of these",
        listed(found)
    )]
    NoModel {
        /// The repository or folder.
        place: String,
        /// Its files.
        found: Vec<String>,
    },
    /// Several models, none of which is preferred.
    #[error("{place} has several models; {}: {}", advice(place), listed(found))]
    Several {
        /// The repository or folder.
        place: String,
        /// The files to choose from.
        found: Vec<String>,
    },
    /// No file is the chosen one.
    #[error(
        "{place} has no GGUF file `{}`; it has {}",
        shown(choice),
        listed(found)
    )]
    NoSuchFile {
        /// The repository or folder.
        place: String,
        /// The choice.
        choice: String,
        /// The files to choose from.
        found: Vec<String>,
    },
    /// A file that the model needs is missing.
    #[error("{place} has no {}, which is a part of the model", shown(file))]
    Incomplete {
        /// The repository, folder or program.
        place: String,
        /// The missing file.
        file: String,
    },
    /// A file is not of its form.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The mistake in it.
        what: String,
    },
    /// The system cannot read or write a file.
    #[error("cannot {action} {}: {source}{hint}", path.display())]
    Io {
        /// The intended action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
        /// The missing resource.
        hint: String,
    },
    /// The model is not in the cache, and the hub may not be asked.
    #[error(
        "{repository} is not in Hugging Face's cache, or not all of it ({}), and HF_HUB_OFFLINE \
         is set: unset it, or download the model elsewhere and copy that folder",
        cache.display()
    )]
    Offline {
        /// The repository.
        repository: String,
        /// Its folder in the cache.
        cache: PathBuf,
    },
    /// The model is not in the cache, and this program cannot download it.
    #[error(
        "{repository} is not in Hugging Face's cache, or not all of it ({}), and this program was \
         built without feature `hub`, which downloads: get it with `hf download {repository}`",
        cache.display()
    )]
    NoClient {
        /// The repository.
        repository: String,
        /// Its folder in the cache.
        cache: PathBuf,
    },
    /// Another process keeps a file's lock, and the file does not grow.
    #[error(
        "another process has locked {} for {seconds} s, and {} does not grow: end that process, or \
         remove the lock file if there is none",
        lock.display(),
        shown(file)
    )]
    Locked {
        /// The lock file.
        lock: PathBuf,
        /// The file that it is for.
        file: String,
        /// The wait.
        seconds: u64,
    },
    /// The token has characters that no request may carry.
    #[error(
        "the token for {endpoint} has a space, a line end or another character that tokens do not \
         have: check HF_TOKEN, or the file in HF_TOKEN_PATH or HF_HOME/token"
    )]
    Token {
        /// The hub.
        endpoint: String,
    },
    /// The hub has no such repository, or does not show it to this caller.
    #[error(
        "{endpoint} has no model repository {repository}, or it is private: check its spelling, \
         and set HF_TOKEN to a token that may read it"
    )]
    Unknown {
        /// The hub.
        endpoint: String,
        /// The repository.
        repository: String,
    },
    /// The hub denies access.
    #[error(
        "{endpoint} denies access to {repository} (status {status}): {}. Accept the model's terms \
         at {endpoint}/{repository}, and set HF_TOKEN to a token of that account",
        if *has_token { "the token in use may not read it" } else { "no token is set" }
    )]
    Denied {
        /// The hub.
        endpoint: String,
        /// The repository.
        repository: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The hub does not answer, or with errors only.
    #[error(
        "cannot get {} from {endpoint}: {}, after {attempts} attempts. What has arrived is kept, \
         and the next start continues there",
        shown(file),
        shown(what)
    )]
    Unreachable {
        /// The hub.
        endpoint: String,
        /// The file, or the listing of the repository.
        file: String,
        /// The last failure.
        what: String,
        /// The number of attempts.
        attempts: u32,
    },
    /// The hub's answer is not what a hub answers.
    #[error(
        "{endpoint} gave a wrong answer for {}: {}; expected {expected}. Check HF_ENDPOINT",
        shown(file),
        shown(what)
    )]
    Answer {
        /// The hub.
        endpoint: String,
        /// The file, or the listing of the repository.
        file: String,
        /// The answer.
        what: String,
        /// The expected answer.
        expected: &'static str,
    },
    /// A received file has another digest. It has been removed.
    #[error(
        "{} has arrived with the digest {found}, and {endpoint} lists {expected}: it was removed. \
         Try again, or another mirror",
        shown(file)
    )]
    Digest {
        /// The hub.
        endpoint: String,
        /// The file.
        file: String,
        /// The digest of the bytes.
        found: String,
        /// The digest that the hub lists.
        expected: String,
    },
    /// The hub names a file that would lie outside its folder.
    #[error(
        "{endpoint} lists a file `{}`, whose name leads out of its repository",
        shown(file)
    )]
    UnsafeName {
        /// The hub.
        endpoint: String,
        /// The name.
        file: String,
    },
}

impl FindError {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source,
            hint: String::new(),
        }
    }
}

/// How to write one of several models.
fn advice(place: &str) -> String {
    let is_name = ["hf:", "lmstudio:"]
        .iter()
        .any(|scheme| place.starts_with(scheme));
    if is_name {
        format!(
            "write `{place}:FILE`, where FILE is one of these or a part of a name that no other has, \
             such as its quantisation"
        )
    } else {
        "write the path of one of these".to_owned()
    }
}

/// A text of a caller or a hub: without control characters, and not long.
fn shown(text: &str) -> String {
    let plain: String = text.chars().filter(|letter| !letter.is_control()).collect();
    if plain.len() <= TEXT_BYTES_MAX {
        return plain;
    }
    let end = plain.floor_char_boundary(TEXT_BYTES_MAX);
    format!("{} […]", &plain[..end])
}

fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "nothing".to_owned();
    }
    let mut text: Vec<String> = names
        .iter()
        .take(NAMES_MAX)
        .map(|name| shown(name))
        .collect();
    if names.len() > NAMES_MAX {
        text.push(format!("{} more", names.len() - NAMES_MAX));
    }
    text.join(", ")
}
