//! Programs that see an empty cache folder, while other programs go on using it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::process;

/// Puts an empty folder in the cache's place, for one program.
const SCRIPT: &str = "mount --bind \"$1\" \"$2\"; shift 2; exec \"$@\"";

/// Starts programs without the cache.
pub(super) struct Hidden {
    /// The cache's folder by its name, and without links.
    cache: [PathBuf; 2],
    /// The empty folder that is mounted in its place.
    empty: PathBuf,
    /// Home folder of the programs.
    home: PathBuf,
}

impl Hidden {
    pub(super) fn new(cache: &Cache, scratch: &Path) -> Result<Self> {
        let hidden = Self {
            cache: [
                cache.root().to_owned(),
                fs::canonicalize(cache.root()).context("the cache folder does not exist")?,
            ],
            empty: scratch.join("empty"),
            home: scratch.join("home"),
        };
        for folder in [&hidden.empty, &hidden.home] {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(hidden)
    }

    /// Whether a file is in the cache.
    pub(super) fn hides(&self, file: &Path) -> bool {
        self.cache.iter().any(|cache| file.starts_with(cache))
    }

    /// Whether a program can have mounts of its own. Many containers forbid it.
    pub(super) fn is_possible(&self) -> bool {
        process::succeeds(&mut self.empty_for("true"))
    }

    /// A command without any mention of the cache in its environment.
    pub(super) fn unnamed_for(&self, program: impl AsRef<OsStr>) -> Command {
        self.at_home(Command::new(program))
    }

    /// A command that also sees an empty cache folder.
    pub(super) fn empty_for(&self, program: impl AsRef<OsStr>) -> Command {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", "--"]);
        unshare.args(["sh", "-ec", SCRIPT, "sh"]);
        unshare.arg(&self.empty).arg(&self.cache[1]).arg(program);
        self.at_home(unshare)
    }

    fn at_home(&self, mut command: Command) -> Command {
        command.env_clear().current_dir(&self.home);
        command
            .env("HOME", &self.home)
            .env("XDG_CACHE_HOME", &self.home);
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command
    }
}
