//! The listing of a repository.

use serde_json::Value;

use super::client::{Client, Failure};
use super::digest;
use crate::hub_cache::is_digest;
use crate::{FindError, Progress};

/// Repositories of a thousand files have a listing of half a megabyte.
const LISTING_BYTES_MAX: u64 = 32 << 20;
/// Far above any model's.
const FILES_MAX: usize = 100_000;
const EXPECTED: &str = "the listing of a repository, in JSON";

/// The files of a repository at one commit.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<Listed>,
}

/// A file of a repository.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: String,
    /// Both if the hub lists them.
    pub(super) digest: Option<String>,
    pub(super) size: Option<u64>,
}

impl Listing {
    /// The names of the files, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.files.iter().map(|file| file.name.clone()).collect();
        names.sort();
        names
    }
}

/// The files at a branch's or another commit.
pub(super) fn list(
    client: &Client<'_>,
    revision: &str,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Listing, FindError> {
    let repository = client.repository();
    progress(Progress::Listing {
        repository,
        endpoint: client.endpoint(),
    });
    let path = format!("/api/models/{repository}/revision/{revision}?blobs=true");
    client.attempts(repository, progress, |_| {
        let answer = client.get(&path, repository, None)?;
        if answer.is_html {
            return Err(client.wrong(repository, "a page of HTML", EXPECTED).into());
        }
        let wrong = |what: &str| Failure::Final(client.wrong(repository, what, EXPECTED));
        let bytes = answer.read(LISTING_BYTES_MAX).map_err(Failure::passing)?;
        let bytes = bytes.ok_or_else(|| wrong("more than 32 MiB"))?;
        let json: Value = match serde_json::from_slice(&bytes) {
            Ok(json) => json,
            Err(error) if error.is_eof() => return Err(Failure::passing("the answer is cut off")),
            Err(error) => return Err(wrong(&error.to_string())),
        };
        let listing = listing(&json).map_err(wrong)?;
        if is_digest(revision) && listing.commit != revision {
            return Err(wrong("the listing of another commit"));
        }
        Ok(listing)
    })
}

fn listing(json: &Value) -> Result<Listing, &'static str> {
    let commit = json["sha"].as_str().filter(|sha| is_digest(sha));
    let commit = commit.ok_or("no commit in `sha`")?;
    let files = json["siblings"]
        .as_array()
        .ok_or("no files in `siblings`")?;
    if files.len() > FILES_MAX {
        return Err("more than 100,000 files");
    }
    let file = |file: &Value| {
        let lfs = &file["lfs"];
        let digest = lfs["sha256"].as_str().or(file["blobId"].as_str());
        // The blob of a file that is stored apart is a pointer to it.
        let digest = digest.filter(|_| lfs.is_null() || lfs["sha256"].is_string());
        Some(Listed {
            name: file["rfilename"].as_str()?.to_owned(),
            digest: digest
                .filter(|digest| digest::is_known(digest))
                .map(str::to_owned),
            size: lfs["size"].as_u64().or(file["size"].as_u64()),
        })
    };
    let files: Option<Vec<Listed>> = files.iter().map(file).collect();
    Ok(Listing {
        commit: commit.to_owned(),
        files: files.ok_or("a file without `rfilename`")?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_listing_is_bounded() {
        let check = |files: usize, error: &str| {
            let json = json!({"sha": "0".repeat(40), "siblings": vec![Value::Null; files]});
            assert_eq!(listing(&json).err(), Some(error));
        };
        check(FILES_MAX, "a file without `rfilename`");
        check(FILES_MAX + 1, "more than 100,000 files");
    }
}
