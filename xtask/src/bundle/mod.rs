//! `cargo xtask bundle`: a program and the libraries that it needs, in one folder that runs
//! where there is no cache.
//!
//! A program that is built with set-up's configuration names libmlxc.so by its absolute path in
//! the cache. The copy here names it relative to itself, as the loader of glibc allows. Below
//! that library everything keeps the places that wheels give it, since libmlx finds its own
//! libraries relative to itself.
//!
//! ```text
//! FOLDER/PROGRAM
//!       /lib/libmlxc.so                   mlx-c, and Motet's bridge to MLX
//!           /mlx/lib/libmlx.so            from the wheel, as are:
//!           /mlx_cpu.libs/…
//!           /scipy_openblas32/lib/libscipy_openblas.so
//!           /licenses/…
//! ```

#[cfg(target_os = "linux")]
mod elf;

use std::path::PathBuf;

use anyhow::Result;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A program that was built with feature `mlx`
    program: PathBuf,
    /// Folder for the program and its libraries; created if it does not exist
    folder: PathBuf,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    bundle(&arguments.program, &arguments.folder).map(drop)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn bundle(_: &std::path::Path, _: &std::path::Path) -> Result<PathBuf> {
    anyhow::bail!("only on Linux: elsewhere mlx-sys builds MLX into the program")
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn bundle_all(
    _: &[(&str, PathBuf)],
    folder: &std::path::Path,
    _: &dyn Fn(&std::path::Path) -> bool,
) -> Result<()> {
    bundle(folder, folder).map(drop)
}

#[cfg(target_os = "linux")]
pub(crate) use linux::{bundle, bundle_all};

#[cfg(target_os = "linux")]
mod linux;
