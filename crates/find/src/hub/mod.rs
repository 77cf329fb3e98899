//! Downloads of models from Hugging Face's hub, or another that answers as it does.
//!
//! | file | content |
//! |---|---|
//! | `address.rs` | which redirects are followed, and where the token goes |
//! | `client.rs` | requests, redirects, timeouts; which errors are worth another attempt |
//! | `repository.rs` | the listing of a repository |
//! | `download.rs` | one file: lock, continue, check, put into place |
//! | `digest.rs` | digests of files, as the hub lists them |

mod address;
mod client;
mod digest;
mod download;
mod repository;

use std::path::PathBuf;
use std::time::Duration;

use crate::hub_cache::{BRANCH, Candidate, Repository};
use crate::select::{self, Selection, Weights};
use crate::{FindError, HubSettings, Progress};
use client::Client;
use download::Download;
use repository::{Listed, Listing};

/// Longest wait for an answer about a model that the cache has.
const CANDIDATE_TIMEOUT: Duration = Duration::from_secs(10);

/// Downloads what Motet reads of a repository into the cache, and returns the model's path.
pub(crate) fn download(
    settings: &HubSettings,
    cache: &Repository,
    repository: &str,
    choice: Option<&str>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, FindError> {
    let client = Client::new(settings, repository)?;
    let listing = repository::list(&client, BRANCH, progress)?;
    files(&client, cache, &listing, choice, progress)
}

/// Asks once which files the candidate's commit has, and downloads those that the cache lacks of
/// the model. Without an answer the candidate is the model.
pub(crate) fn complete(
    settings: &HubSettings,
    cache: &Repository,
    repository: &str,
    choice: Option<&str>,
    candidate: Candidate,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, FindError> {
    let once = HubSettings {
        retries: 0,
        timeout: settings.timeout.min(CANDIDATE_TIMEOUT),
        ..settings.clone()
    };
    let listing = Client::new(&once, repository)
        .and_then(|client| repository::list(&client, &candidate.commit, progress));
    match listing {
        Ok(listing) => {
            let client = Client::new(settings, repository)?;
            files(&client, cache, &listing, choice, progress)
        }
        Err(error) => {
            let error = &error;
            progress(Progress::NoListing { repository, error });
            Ok(candidate.path)
        }
    }
}

/// Downloads the model among the listed files.
fn files(
    client: &Client<'_>,
    cache: &Repository,
    listing: &Listing,
    choice: Option<&str>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, FindError> {
    let names = listing.names();
    let selection = select::select(&names, choice, cache.place())?;
    let download = Download {
        client,
        cache,
        commit: &listing.commit,
    };
    let mut get = |name: &str| download.file(listed(client, listing, cache, name)?, progress);
    let snapshot = cache.snapshot(&listing.commit);
    let path = match &selection {
        Selection::Gguf(parts) => {
            parts.iter().try_for_each(|part| get(part))?;
            snapshot.join(&parts[0])
        }
        Selection::Folder { beside, weights } => {
            // The weights come last: a snapshot that has them is whole.
            beside.iter().try_for_each(|name| get(name))?;
            let (Weights::Whole(file) | Weights::Index(file)) = weights;
            get(file)?;
            if let Weights::Index(_) = weights {
                let path = snapshot.join(file);
                let json =
                    std::fs::read(&path).map_err(|error| FindError::io("read", &path, error))?;
                let shards =
                    select::shards(&json).map_err(|what| FindError::Damaged { path, what })?;
                shards.iter().try_for_each(|shard| get(shard))?;
            }
            snapshot
        }
    };
    cache.set_branch(&listing.commit)?;
    // A cache that this process only reads may be whole. The hub is asked again then.
    let _ = cache.keep_names(&listing.commit, &names);
    Ok(path)
}

/// The entry of a file that the model needs.
fn listed<'a>(
    client: &Client<'_>,
    listing: &'a Listing,
    cache: &Repository,
    name: &str,
) -> Result<&'a Listed, FindError> {
    if !select::is_inside(name) {
        return Err(FindError::UnsafeName {
            endpoint: client.endpoint().to_owned(),
            file: name.to_owned(),
        });
    }
    let entry = listing.files.iter().find(|listed| listed.name == name);
    entry.ok_or_else(|| FindError::Incomplete {
        place: cache.place().to_owned(),
        file: name.to_owned(),
    })
}
