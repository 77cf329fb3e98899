//! Downloads from a hub on this machine, which fails in every way that a hub can.

mod cached;
mod interrupted;
#[path = "../loopback/mod.rs"]
mod loopback;
mod rejected;
mod whole;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use loopback::{Hub, Manners, Stored};
use motet_find::{FindError, Finder};

const REPOSITORY: &str = "org/small";
const GGUF: &str = "small-Q8_0.gguf";
const GGUF_BYTES: usize = 300_000;

/// A hub, and an empty cache beside it.
struct Case {
    hub: Hub,
    finder: Finder,
    root: PathBuf,
}

impl Case {
    fn new(name: &str, files: Vec<Stored>, manners: Manners) -> Self {
        let root = std::env::temp_dir().join(format!("motet-hub-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root); // left by an earlier process of the same number
        let hub = Hub::serve("127.0.0.1:0", REPOSITORY, files, manners);
        let mut finder = Finder::from_variables(|variable| match variable {
            "HF_HOME" => Some(root.clone().into()),
            "HF_ENDPOINT" => Some(hub.endpoint().into()),
            _ => None,
        });
        finder.hub.retries = 2;
        finder.hub.retry_wait = Duration::from_millis(1);
        Self { hub, finder, root }
    }

    fn gguf(name: &str) -> Self {
        Self::new(name, vec![gguf(GGUF)], Manners::default())
    }

    fn find(&self, name: &str) -> Result<PathBuf, FindError> {
        self.finder.find(name, |_| {})
    }

    /// The error of a search after which no model is in the cache.
    fn failure(&self, name: &str) -> String {
        let error = self.find(name).expect_err("there is no model");
        let mut finder = self.finder.clone();
        finder.hub.offline = true;
        finder
            .find(name, |_| {})
            .expect_err("nothing unfinished is found");
        error.to_string()
    }

    /// The bytes of the partial file, if there is one.
    fn partial(&self) -> Option<u64> {
        let blobs = fs::read_dir(self.repository().join("blobs")).ok()?;
        let mut files = blobs.flatten();
        let partial = files.find(|file| file.path().extension().is_some_and(|e| e == "incomplete"));
        Some(partial?.metadata().expect("a file").len())
    }

    fn repository(&self) -> PathBuf {
        self.root.join("hub/models--org--small")
    }

    /// Requests for bytes since the last call.
    fn requests(&self) -> Vec<String> {
        let all = self.hub.requests().into_iter();
        all.filter(|line| line.starts_with("/small") || line.starts_with("/model"))
            .collect()
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root); // some bytes in the temporary folder
    }
}

/// Bytes of which no two pieces are alike.
fn content(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| ((at + seed) * (at / 251 + 7) % 256) as u8)
        .collect()
}

fn gguf(name: &str) -> Stored {
    Stored::bytes(name, content(1, GGUF_BYTES))
}

fn check_gguf(path: &Path) {
    assert!(fs::read(path).expect("the model") == content(1, GGUF_BYTES));
}
