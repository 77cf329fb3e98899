//! Requirements of the machine. A missing one is named in one line.
//!
//! Each check is made where its requirement is first needed. With a warm cache, no Python,
//! compiler or network is needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cache::{Cache, remove};
use crate::{process, ui};

/// Platforms that can run MLX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Platform {
    LinuxX86,
    AppleSilicon,
}

/// # Errors
/// On a machine for which there is no MLX.
pub(super) fn platform() -> Result<Platform> {
    match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") if cfg!(target_env = "gnu") => Ok(Platform::LinuxX86),
        ("macos", "aarch64") => Ok(Platform::AppleSilicon),
        (os, arch) => bail!(
            "no MLX for {os} on {arch}: the `mlx` feature needs Linux on x86-64 with glibc, or macOS \
             on Apple silicon. Everything else in Motet works here without it"
        ),
    }
}

/// The C library must be as new as the one that the wheels were built for.
pub(super) fn check_glibc() -> Result<()> {
    const OLDEST: (u32, u32) = (2, 35);
    let text = process::capture(Command::new("getconf").arg("GNU_LIBC_VERSION"))
        .context("cannot tell the version of the C library")?;
    match parse_glibc(&text) {
        Some(found) if found < OLDEST => bail!(
            "glibc {}.{} is too old for MLX: it needs {}.{} (Ubuntu 22.04, Debian 12, Fedora 36 or newer)",
            found.0,
            found.1,
            OLDEST.0,
            OLDEST.1
        ),
        Some(_) => Ok(()),
        None => bail!("cannot tell the version of the C library from {text:?}"),
    }
}

fn parse_glibc(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}

/// A Python, with or without pip.
pub(crate) fn python() -> Result<PathBuf> {
    let python = PathBuf::from("python3");
    if !process::succeeds(Command::new(&python).args(["-c", "import zipfile"])) {
        bail!(
            "python3 is missing: install it (Debian, Ubuntu: `apt install python3 python3-venv`)"
        );
    }
    Ok(python)
}

/// A Python with pip: the system's, or a virtual environment of our own in the cache.
pub(super) fn python_with_pip(cache: &Cache) -> Result<PathBuf> {
    let has_pip =
        |python: &Path| process::succeeds(Command::new(python).args(["-m", "pip", "--version"]));
    let system = python()?;
    if has_pip(&system) {
        return Ok(system);
    }
    let own = cache.tools().join("python");
    let own_python = own.join("bin/python3");
    if has_pip(&own_python) {
        return Ok(own_python);
    }
    ui::note("python3 has no pip: creating a virtual environment with pip in the cache");
    remove(&own)?;
    let made = process::succeeds(Command::new(&system).args(["-m", "venv"]).arg(&own));
    if !made || !has_pip(&own_python) {
        bail!(
            "python3 has no pip and cannot supply it: install either (Debian, Ubuntu: \
             `apt install python3-pip` or `apt install python3-venv`)"
        );
    }
    Ok(own_python)
}

/// Fails when the file system of `folder` has fewer free bytes than this.
pub(crate) fn check_disk(folder: &Path, needed_bytes: u64) -> Result<()> {
    let text = process::capture(Command::new("df").arg("-Pk").arg(folder))?;
    if let Some(free_bytes) = parse_df(&text)
        && free_bytes < needed_bytes
    {
        bail!(
            "too little disk space: {} has {} free and {} are needed; free some, or set MOTET_CACHE \
             to a folder elsewhere",
            folder.display(),
            ui::shown_bytes(free_bytes),
            ui::shown_bytes(needed_bytes)
        );
    }
    Ok(())
}

/// The free bytes that `df -Pk` reports: the fourth column of its second line.
fn parse_df(text: &str) -> Option<u64> {
    let free_kib: u64 = text
        .lines()
        .nth(1)?
        .split_whitespace()
        .nth(3)?
        .parse()
        .ok()?;
    Some(free_kib * 1024)
}

/// mlx-rs builds MLX itself on macOS, with these.
pub(super) fn check_macos_tools() -> Result<()> {
    if !process::succeeds(Command::new("xcode-select").arg("-p")) {
        bail!("the Xcode command line tools are missing: run `xcode-select --install`");
    }
    if !process::succeeds(Command::new("xcrun").args(["--sdk", "macosx", "--find", "metal"])) {
        bail!(
            "the Metal compiler is missing: install Xcode, then run `xcode-select --switch \
             /Applications/Xcode.app` and `xcodebuild -downloadComponent MetalToolchain`"
        );
    }
    if !process::succeeds(Command::new("cmake").arg("--version")) {
        bail!("cmake is missing: install it (`brew install cmake`)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_glibc() {
        assert_eq!(parse_glibc("glibc 2.36\n"), Some((2, 36)));
        assert_eq!(parse_glibc("glibc 2.31.9000"), Some((2, 31)));
        assert_eq!(parse_glibc("musl libc"), None);
    }

    #[test]
    fn free_space() {
        let text = "Filesystem 1024-blocks Used Available Capacity Mounted on\n\
                    /dev/vda 263174212 12345 83000000 13% /\n";
        assert_eq!(parse_df(text), Some(83_000_000 * 1024));
        assert_eq!(parse_df(""), None);
    }
}
