//! How far a search or a download is.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::FindError;

/// Time between two lines about one download.
const INTERVAL: Duration = Duration::from_secs(1);

/// A stage of a search, or a part of a download.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Progress<'a> {
    /// The hub is asked for the files of a repository.
    Listing {
        /// The repository.
        repository: &'a str,
        /// The hub.
        endpoint: &'a str,
    },
    /// The hub does not tell which files the cached commit has: the model is used as the cache has
    /// it, and files may be missing.
    NoListing {
        /// The repository.
        repository: &'a str,
        /// Why the hub does not tell.
        error: &'a FindError,
    },
    /// Another process downloads this file.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// A part of a file has arrived. The first is of the bytes that an earlier download left. A
    /// server that ignores ranges begins at 0 again.
    Downloading {
        /// The file.
        file: &'a str,
        /// Bytes that are there.
        bytes: u64,
        /// Bytes of the whole file.
        bytes_all: u64,
    },
    /// A request has failed and is repeated.
    Retrying {
        /// The file, or the listing of the repository.
        file: &'a str,
        /// Why it failed.
        what: &'a str,
        /// The time until it is repeated.
        wait: Duration,
    },
    /// All bytes of a file have arrived, and its digest is computed.
    Checking {
        /// The file.
        file: &'a str,
    },
    /// The model is there.
    Found {
        /// Its file or folder.
        path: &'a Path,
    },
}

/// Makes lines for people of [`Progress`]: a line for each stage, and during downloads one a
/// second with bytes and speed.
#[derive(Debug, Default)]
pub struct ProgressLines {
    download: Option<Download>,
}

/// The download of one file.
#[derive(Debug)]
struct Download {
    file: String,
    started_at: Instant,
    bytes_at_start: u64,
    line_at: Instant,
}

impl ProgressLines {
    /// The line, unless the last one was printed just now.
    pub fn line(&mut self, progress: &Progress<'_>) -> Option<String> {
        let line = match *progress {
            Progress::Listing {
                repository,
                endpoint,
            } => format!("asking {endpoint} for the files of {repository}"),
            Progress::NoListing { repository, error } => {
                format!("{repository} is used as the cache has it, files may be missing: {error}")
            }
            Progress::Waiting { file } => format!("{file}: another process downloads it"),
            Progress::Downloading {
                file,
                bytes,
                bytes_all,
            } => return self.downloading(file, bytes, bytes_all),
            Progress::Retrying { file, what, wait } => {
                format!(
                    "{file}: {what}; trying again in {:.1} s",
                    wait.as_secs_f64()
                )
            }
            Progress::Checking { file } => format!("{file}: has arrived, checking its digest"),
            Progress::Found { path } => format!("the model is {}", path.display()),
        };
        Some(line)
    }

    fn downloading(&mut self, file: &str, bytes: u64, bytes_all: u64) -> Option<String> {
        let now = Instant::now();
        let same = self.download.as_mut().filter(|known| known.file == file);
        let Some(download) = same else {
            self.download = Some(Download {
                file: file.to_owned(),
                started_at: now,
                bytes_at_start: bytes,
                line_at: now,
            });
            return Some(line(file, bytes, bytes_all, None));
        };
        let is_last = bytes == bytes_all;
        if now - download.line_at < INTERVAL && !is_last {
            return None;
        }
        download.line_at = now;
        let seconds = (now - download.started_at).as_secs_f64().max(1e-3);
        let speed = bytes.saturating_sub(download.bytes_at_start) as f64 / seconds;
        Some(line(file, bytes, bytes_all, Some(speed)))
    }
}

fn line(file: &str, bytes: u64, bytes_all: u64, speed: Option<f64>) -> String {
    let megabytes = |bytes: f64| format!("{:.1}", bytes / 1e6);
    let (done, all) = (megabytes(bytes as f64), megabytes(bytes_all as f64));
    match speed {
        Some(speed) => format!("{file}: {done} of {all} MB, {} MB/s", megabytes(speed)),
        None => format!("{file}: {done} of {all} MB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_has_a_first_and_a_last_line_and_few_between() {
        let mut lines = ProgressLines::default();
        let mut at = |bytes| {
            lines.line(&Progress::Downloading {
                file: "m.gguf",
                bytes,
                bytes_all: 98_000_000,
            })
        };
        assert_eq!(at(500_000).as_deref(), Some("m.gguf: 0.5 of 98.0 MB"));
        let between = (0..1000).filter_map(|step| at(600_000 + step)).count();
        assert!(between < 1000, "{between}");
        let last = at(98_000_000).expect("a last line");
        assert!(last.starts_with("m.gguf: 98.0 of 98.0 MB, "), "{last}");
        assert!(last.ends_with(" MB/s"), "{last}");
    }
}
