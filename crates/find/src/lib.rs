//! Finds language models where people keep them.
//!
//! | name | model |
//! |---|---|
//! | a path | a GGUF file, the first part of a split one, or a folder |
//! | `hf:ORG/NAME`, `hf:ORG/NAME:FILE`, `hf:ORG/NAME:Q4_K_M` | a repository of Hugging Face's hub, from its cache or downloaded |
//! | `ollama:NAME`, `ollama:NAME:TAG` | a model that ollama has pulled |
//! | `lmstudio:PUBLISHER/NAME`, `lmstudio:PUBLISHER/NAME:FILE` | a model that LM Studio has downloaded |
//!
//! ```no_run
//! use motet_find::{Finder, Progress};
//!
//! # fn main() -> Result<(), motet_find::FindError> {
//! let finder = Finder::from_environment();
//! let path = finder.find("hf:HuggingFaceTB/SmolLM2-135M-Instruct", |progress| {
//!     if let Progress::Downloading { file, bytes, bytes_all } = progress {
//!         eprintln!("{file}: {bytes} of {bytes_all} bytes");
//!     }
//! })?;
//! # let _ = path;
//! # Ok(())
//! # }
//! ```
//!
//! # Which file
//!
//! A choice after the last colon is a file's name, or a part of one such as a quantisation, in
//! any case. Without a choice, a repository or folder with `config.json` and safetensors is the
//! model. Otherwise it is the only GGUF file, or the only one of the first quantisation in
//! [`PREFERRED`] that there is. Projectors of vision towers (`mmproj`) and importance matrices are
//! no models. A GGUF file in parts is chosen as a whole, and its first part is returned.
//!
//! # Downloads
//!
//! Feature `hub` downloads what Motet reads and nothing else, into Hugging Face's cache, in the
//! layout and under the locks of `huggingface_hub`. A file has its final name only once it is
//! whole and its digest is the one that the hub lists. An interrupted download continues where it
//! ended. Every wait and every number of retries is bounded ([`HubSettings`]).
//!
//! A model in the cache is used without asking the hub once it is known what else its commit has:
//! Motet keeps the names of its files when it downloads. Otherwise the hub is asked once for the
//! commit that the cache has, and missing files are downloaded. Without an answer, or offline, the
//! model is used as the cache has it.

mod environment;
mod error;
#[cfg(feature = "hub")]
mod hub;
mod hub_cache;
mod listing;
mod lm_studio;
mod name;
mod ollama;
mod progress;
mod select;

use std::path::{Path, PathBuf};

pub use environment::{Finder, HubSettings, Token};
pub use error::FindError;
use hub_cache::{Cached, Candidate};
pub use name::ModelName;
pub use progress::{Progress, ProgressLines};
pub use select::PREFERRED;

impl Finder {
    /// Returns the path of the model that `name` names. It blocks, for as long as a download
    /// takes, and calls `progress` at each stage and during downloads.
    ///
    /// # Errors
    ///
    /// [`FindError`] says what was found and what to write instead.
    pub fn find(
        &self,
        name: &str,
        mut progress: impl FnMut(Progress<'_>),
    ) -> Result<PathBuf, FindError> {
        let path = match name.parse()? {
            ModelName::Path(path) => at_path(&path)?,
            ModelName::Hub { repository, choice } => {
                self.find_hub(&repository, choice.as_deref(), &mut progress)?
            }
            ModelName::Ollama { name, tag } => ollama::find(&self.ollama, &name, &tag)?,
            ModelName::LmStudio { folder, choice } => {
                lm_studio::find(&self.lm_studio, &folder, choice.as_deref())?
            }
        };
        progress(Progress::Found { path: &path });
        Ok(path)
    }

    fn find_hub(
        &self,
        repository: &str,
        choice: Option<&str>,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<PathBuf, FindError> {
        let cache = hub_cache::Repository::new(&self.hub.cache, repository);
        let may_ask = cfg!(feature = "hub") && !self.hub.offline;
        match cache.find(choice)? {
            Cached::Model(path) => Ok(path),
            Cached::Candidate(Candidate { path, .. }) if !may_ask => Ok(path),
            Cached::Candidate(candidate) => {
                complete(&self.hub, &cache, repository, choice, candidate, progress)
            }
            Cached::Nothing if self.hub.offline => Err(FindError::Offline {
                repository: repository.to_owned(),
                cache: cache.folder().to_owned(),
            }),
            Cached::Nothing => download(&self.hub, &cache, repository, choice, progress),
        }
    }
}

#[cfg(feature = "hub")]
use hub::{complete, download};

#[cfg(not(feature = "hub"))]
fn complete(
    _: &HubSettings,
    _: &hub_cache::Repository,
    _: &str,
    _: Option<&str>,
    candidate: Candidate,
    _: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, FindError> {
    Ok(candidate.path)
}

#[cfg(not(feature = "hub"))]
fn download(
    _: &HubSettings,
    cache: &hub_cache::Repository,
    repository: &str,
    _: Option<&str>,
    _: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, FindError> {
    Err(FindError::NoClient {
        repository: repository.to_owned(),
        cache: cache.folder().to_owned(),
    })
}

/// A file is returned as it is, or as the first part of its model. A folder is a model itself or
/// contains one.
fn at_path(path: &Path) -> Result<PathBuf, FindError> {
    if path.is_dir() {
        if path.join(select::CONFIG).exists() {
            return Ok(path.to_owned()); // what it lacks is known where it is opened
        }
        let files = listing::files(path)?;
        let place = path.display().to_string();
        return select::in_folder(path, &files, None, &place);
    }
    if !path.exists() {
        return Err(nothing_at(path));
    }
    let first = select::first_part(path);
    Ok(first.filter(|first| first.exists()).unwrap_or(path.into()))
}

/// The error for a path at which there is nothing. It may be the name of a repository.
fn nothing_at(path: &Path) -> FindError {
    let text = path.display().to_string();
    let is_repository =
        text.split('/').count() == 2 && format!("hf:{text}").parse::<ModelName>().is_ok();
    let hint = if is_repository {
        format!(". On Hugging Face it may be hf:{text}")
    } else {
        String::new()
    };
    FindError::Path {
        path: path.to_owned(),
        hint,
    }
}

#[cfg(test)]
mod tests;
