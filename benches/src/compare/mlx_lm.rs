//! mlx-lm, installed into the cache, with the weights that we run.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use xtask::bench::REQUIREMENTS;
use xtask::cache::Cache;
use xtask::packages::{self, Packages};
use xtask::{checksum, component, process, ui};

/// The program that measures mlx-lm.
const PEER: &str = "benches/peers/mlx_lm_peer.py";
/// The program that starts mlx-lm's own server.
const SERVER: &str = "benches/peers/mlx_lm_server.py";
/// The program that quantises a model as mlx-lm's converter does.
const QUANTISE: &str = "benches/peers/mlx_lm_quantise.py";
/// If set, both sides run the model quantised to so many bits, in groups of 64.
const BITS: &str = "MOTET_BENCH_BITS";
/// Part of the exported weights' name: raise it when `programs/model/export.rs` changes.
const EXPORT_VERSION: &str = "1";

/// mlx-lm and its dependencies.
pub(super) struct MlxLm(Packages);

/// Installs mlx-lm unless the cache has it.
///
/// # Errors
///
/// When there is no Python with pip, or pip cannot get the packages.
pub(super) fn install(cache: &Cache) -> Result<MlxLm> {
    packages::install(cache, "mlx-lm", REQUIREMENTS).map(MlxLm)
}

/// A folder with the model as f32 safetensors. If it is missing, the program that `exporter`
/// builds writes it.
pub(super) fn weights(
    cache: &Cache,
    exporter: impl FnOnce() -> Result<PathBuf>,
    model: &Path,
) -> Result<PathBuf> {
    let mut key = checksum::Key::default();
    key.add("model", checksum::sha256_of_file(model)?)
        .add("export", EXPORT_VERSION);
    let name = model.file_stem().unwrap_or_default().to_string_lossy();
    let dir = cache.models().join(format!("{name}-f32-{}", key.finish()));
    let _lock = cache.lock()?;
    component::ensure(&dir, |fresh| {
        let exporter = exporter()?;
        let task = ui::Task::start("write the weights for mlx-lm");
        process::capture(Command::new(exporter).arg("export").arg(model).arg(fresh))?;
        task.done();
        Ok(())
    })?;
    Ok(dir)
}

/// Bits of the weights that both sides run. None for the model as it is.
///
/// # Errors
///
/// When the variable has another value than 2, 3, 4, 5, 6 or 8.
pub(super) fn bits() -> Result<Option<u8>> {
    let Ok(text) = std::env::var(BITS) else {
        return Ok(None);
    };
    match text.parse() {
        Ok(bits @ (2..=6 | 8)) => Ok(Some(bits)),
        _ => anyhow::bail!("{BITS} is `{text}`; expected 2, 3, 4, 5, 6 or 8"),
    }
}

impl MlxLm {
    /// A folder with the weights in `weights`, quantised to `bits` bits.
    pub(super) fn quantised(&self, cache: &Cache, weights: &Path, bits: u8) -> Result<PathBuf> {
        let name = weights.file_name().unwrap_or_default().to_string_lossy();
        let dir = cache.models().join(format!("{name}-{bits}bit"));
        let _lock = cache.lock()?;
        component::ensure(&dir, |fresh| {
            let task = ui::Task::start(format!("quantise the weights to {bits} bits"));
            let mut command = self.program(QUANTISE, weights, None);
            process::capture(command.arg(fresh).arg(bits.to_string()))?;
            task.done();
            Ok(())
        })?;
        Ok(dir)
    }

    /// The peer on these weights, with the BLAS that we use.
    pub(super) fn peer(&self, weights: &Path, blas_preload: Option<&Path>) -> Command {
        self.program(PEER, weights, blas_preload)
    }

    /// mlx-lm's own server on these weights. Its tokenizer is that of the GGUF file; `folder`
    /// holds both.
    pub(super) fn server(
        &self,
        weights: &Path,
        model: &Path,
        folder: &Path,
        blas_preload: Option<&Path>,
    ) -> Command {
        let mut command = self.program(SERVER, weights, blas_preload);
        command.arg(model).arg(folder);
        command
    }

    fn program(&self, program: &str, weights: &Path, blas_preload: Option<&Path>) -> Command {
        let mut command = self.0.program(program);
        command.arg(self.0.folder()).arg(weights);
        if let Some(library) = blas_preload {
            command.env("LD_PRELOAD", library);
        }
        command
    }
}
