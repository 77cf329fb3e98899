//! Downloads of models from Hugging Face's hub, or another that answers as it does.
//!
//! | file | content |
//! |---|---|
//! | `client.rs` | requests, redirects, timeouts; which errors are worth another attempt |
//! | `repository.rs` | the listing of a repository |
//! | `download.rs` | one file: lock, continue, check, put into place |
//! | `digest.rs` | digests of files, as the hub lists them |

mod client;
mod digest;
mod download;
mod repository;

use std::path::PathBuf;

use crate::hub_cache::Repository;
use crate::select::{self, Selection, Weights};
use crate::{FindError, HubSettings, Progress};
use client::Client;
use download::Download;
use repository::{Listed, Listing};

/// Downloads what Motet reads of a repository into the cache, and returns the model's path.
pub(crate) fn download(
    settings: &HubSettings,
    cache: &Repository,
    repository: &str,
    choice: Option<&str>,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<PathBuf, FindError> {
    let client = Client::new(settings, repository);
    let listing = repository::list(&client, progress)?;
    let selection = select::select(&listing.names(), choice, cache.place())?;
    let download = Download {
        client: &client,
        cache,
        commit: &listing.commit,
    };
    let mut get = |name: &str| download.file(listed(&client, &listing, cache, name)?, progress);
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
