//! `cargo xtask setup`: MLX for this machine.
//!
//! On Linux: MLX's wheel, OpenBLAS' wheel, mlx-c compiled against them, bindings, and a
//! cargo configuration that points mlx-sys at the result. On macOS mlx-rs builds MLX by
//! itself, and only its tools are checked.
//!
//! `--for FOLDER` reaches a crate outside this checkout as well (`dependent.rs`).
//!
//! Every part is kept in the cache under a name made from its inputs. It is checked by SHA-256 on
//! each run, and built again when it is missing or damaged.

mod bindings;
mod build_tools;
mod cargo_deny;
mod compiler;
mod config;
mod dependent;
mod llvm;
mod merge;
mod mlx_c;
mod mlxc;
mod pins;
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "the rest is the build script's")
)]
#[path = "../../../crates/mlx/build/prepared.rs"]
mod prepared;
mod requirements;
mod wheels;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use self::config::MlxSys;
use self::dependent::Dependent;
use self::requirements::Platform;
use crate::cache::Cache;
use crate::model::Model;
use crate::{process, ui, workspace};

pub(crate) use self::build_tools::build_tools;
pub(crate) use self::cargo_deny::cargo_deny;
pub(crate) use self::llvm::Llvm;
pub(crate) use self::mlxc::{LIBRARY, MLX_C_LICENSE, MLX_FOLDER, WHEELS};
pub(crate) use self::pins::{
    GEMMA3_270M, GEMMA3_TERMS, QWEN25_CODER_0_5B, QWEN25_CODER_1_5B, SMOLLM2, Wheel,
};
pub(crate) use self::requirements::check_disk;
pub(crate) use self::wheels::{downloaded_file, ensure_downloaded, unpack};

/// The only triple for which there are wheels.
const TARGET: &str = "x86_64-unknown-linux-gnu";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Use MLX for CUDA: version 12 or 13, or the newest that the driver supports
    #[arg(long, value_name = "12|13", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    cuda: Option<String>,

    /// Make `cargo build` work in this folder too: the folder of a crate or workspace that
    /// depends on Motet with feature `mlx`
    #[arg(long = "for", value_name = "FOLDER")]
    dependent: Option<PathBuf>,

    /// Fetch a model too; its license is shown first
    ///
    /// A model that comes in parts is joined from them. Parts that arrived before an
    /// interruption are kept.
    #[arg(long, value_name = "NAME", value_enum)]
    model: Option<Model>,
}

/// A build of MLX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// For processors.
    Cpu,
    /// For CUDA 12.
    Cuda12,
    /// For CUDA 13.
    Cuda13,
}

/// Result of set-up.
#[derive(Debug)]
pub struct Installed {
    /// None on macOS, where mlx-sys builds MLX.
    mlx_sys: Option<MlxSys>,
    /// For LD_PRELOAD: gives a Python that uses MLX's wheel the BLAS that we use.
    /// None on macOS, where MLX uses Accelerate in either.
    pub blas_preload: Option<PathBuf>,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    let cache = Cache::open()?;
    let variant = match arguments.cuda.as_deref() {
        None => Variant::Cpu,
        Some("auto") => detect_cuda()?,
        Some(version) => format!("cuda-{version}").parse()?,
    };
    // First, because the rest takes minutes.
    let dependent = arguments.dependent.as_deref().map(find_dependent);
    let dependent = dependent.transpose()?;
    let installed = install(&cache, Some(variant))?;
    if let Some(dependent) = &dependent {
        installed.reach(dependent)?;
    }
    if let Some(model) = arguments.model {
        let path = model.ensure(&cache)?;
        ui::note(&format!("model: {}", path.display()));
    }
    if let Some(preload) = &installed.blas_preload {
        ui::note(&format!(
            "BLAS for Python's MLX (LD_PRELOAD): {}",
            preload.display()
        ));
    }
    ui::note("`cargo build --features mlx` works now");
    Ok(())
}

/// Lets a crate outside this checkout use the prepared libraries, as `--for` does. Returns
/// whether any file there was written.
pub(crate) fn reach(cache: &Cache, folder: &Path) -> Result<bool> {
    let dependent = find_dependent(folder)?;
    install(cache, None)?.reach(&dependent)
}

fn find_dependent(folder: &Path) -> Result<Dependent> {
    Ok(Dependent::find(folder, &workspace::root())?)
}

impl Installed {
    /// Writes the configuration of a dependent crate, and prints which files were written.
    fn reach(&self, dependent: &Dependent) -> Result<bool> {
        let Some(mlx_sys) = &self.mlx_sys else {
            ui::note("mlx-sys builds MLX itself here: a dependent crate needs no configuration");
            return Ok(false);
        };
        let written = dependent.write(mlx_sys)?;
        for file in &written {
            ui::note(&format!("wrote {}", file.display()));
        }
        if written.is_empty() {
            ui::note(&format!(
                "{} is set up already",
                dependent.folder().display()
            ));
        } else {
            ui::note(&format!(
                "leave .cargo/{} out of version control: it is for this machine alone",
                dependent::FILE
            ));
        }
        Ok(!written.is_empty())
    }
}

/// The variant that the checkout was set up for last, if any.
pub(crate) fn configured() -> Option<Variant> {
    config::variant()
}

/// Sets MLX up. Without `variant`, the checkout keeps its variant; a new checkout gets the CPU's.
///
/// # Errors
///
/// When this machine cannot have MLX, or a part cannot be downloaded or built.
pub fn install(cache: &Cache, variant: Option<Variant>) -> Result<Installed> {
    let started = Instant::now();
    let platform = requirements::platform()?;
    ui::heading(&format!(
        "MLX for this machine, in {}",
        cache.root().display()
    ));
    let installed = match platform {
        Platform::AppleSilicon => install_macos(cache, variant),
        Platform::LinuxX86 => install_linux(
            cache,
            variant.or_else(config::variant).unwrap_or(Variant::Cpu),
        ),
    }?;
    ui::note(&format!(
        "MLX is ready ({})",
        ui::duration(started.elapsed())
    ));
    Ok(installed)
}

fn install_macos(cache: &Cache, variant: Option<Variant>) -> Result<Installed> {
    if matches!(variant, Some(Variant::Cuda12 | Variant::Cuda13)) {
        bail!("there is no CUDA on macOS: run `cargo xtask setup` without --cuda");
    }
    requirements::check_macos_tools()?;
    config::write(cache, None)?;
    Ok(Installed {
        mlx_sys: None,
        blas_preload: None,
    })
}

fn install_linux(cache: &Cache, variant: Variant) -> Result<Installed> {
    requirements::check_glibc()?;
    let _lock = cache.lock()?;
    let compiler = compiler::Compiler::find()?;
    let sources = mlx_c::sources()?;
    ensure!(
        sources.version == prepared::MLX_SYS,
        "Cargo.lock has mlx-sys {}, and Motet's build script accepts only {}",
        sources.version,
        prepared::MLX_SYS
    );
    let own_sources = workspace::root().join("xtask/mlx");
    for folder in [
        cache.downloads(),
        cache.wheels(),
        cache.build(),
        cache.models(),
    ] {
        std::fs::create_dir_all(folder)?;
    }
    let mlx = wheels::unpacked(cache, variant.wheels())?;
    let openblas = wheels::unpacked(cache, &[pins::OPENBLAS])?;
    let mlx_c = mlx_c::ensure(cache, &compiler, &sources, &mlx, &own_sources)?;
    let inputs = mlxc::Inputs {
        compiler: &compiler,
        sources: &sources,
        mlx_c: &mlx_c,
        mlx: &mlx,
        openblas: &openblas,
        own_sources: &own_sources,
        bridge: &workspace::root().join(mlxc::BRIDGE),
    };
    let libraries = mlxc::ensure(cache, &inputs)?;
    let bridge = std::fs::read_to_string(inputs.bridge).context("the bridge")?;
    let bridge = prepared::bridge_version(&bridge).context("the bridge has no version")?;
    let mlx_sys = MlxSys {
        variant,
        bindings: mlx_c.dir.clone(),
        libraries: libraries.dir,
        motet: sources.motet.clone(),
        version: sources.version.clone(),
        bridge: bridge.to_owned(),
    };
    config::write(cache, Some(&mlx_sys))?;
    Ok(Installed {
        mlx_sys: Some(mlx_sys),
        blas_preload: Some(libraries.blas_preload),
    })
}

/// The newest CUDA that the driver supports.
fn detect_cuda() -> Result<Variant> {
    let Ok(text) = process::capture(&mut Command::new("nvidia-smi")) else {
        bail!(
            "`nvidia-smi` does not answer: install NVIDIA's driver, or name the version (--cuda=12 or --cuda=13)"
        );
    };
    match parse_cuda_version(&text) {
        Some(13..) => Ok(Variant::Cuda13),
        Some(12) => Ok(Variant::Cuda12),
        Some(older) => {
            bail!("NVIDIA's driver supports CUDA {older} only: install one for CUDA 12 or newer")
        }
        None => bail!("`nvidia-smi` names no CUDA version: name it (--cuda=12 or --cuda=13)"),
    }
}

/// The major version in nvidia-smi's `CUDA Version: 12.8`.
fn parse_cuda_version(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("CUDA Version:")?;
    rest.trim_start()
        .split(|c: char| !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

impl Variant {
    fn wheels(self) -> &'static [pins::Wheel] {
        match self {
            Variant::Cpu => pins::MLX_CPU,
            Variant::Cuda12 => pins::MLX_CUDA_12,
            Variant::Cuda13 => pins::MLX_CUDA_13,
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::Cpu => "cpu",
            Variant::Cuda12 => "cuda-12",
            Variant::Cuda13 => "cuda-13",
        })
    }
}

impl FromStr for Variant {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "cpu" => Ok(Variant::Cpu),
            "cuda-12" => Ok(Variant::Cuda12),
            "cuda-13" => Ok(Variant::Cuda13),
            other => bail!("there is no MLX for {other}: choose --cuda=12 or --cuda=13"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_survive_the_round_trip_through_the_configuration() {
        for variant in [Variant::Cpu, Variant::Cuda12, Variant::Cuda13] {
            assert_eq!(variant.to_string().parse::<Variant>().unwrap(), variant);
        }
        assert!("cuda-11".parse::<Variant>().is_err());
    }

    #[test]
    fn the_driver_names_its_cuda_version() {
        let text = "| NVIDIA-SMI 570.1  Driver Version: 570.1  CUDA Version: 12.8 |";
        assert_eq!(parse_cuda_version(text), Some(12));
        assert_eq!(parse_cuda_version("CUDA Version: N/A"), None);
        assert_eq!(parse_cuda_version(""), None);
    }
}
