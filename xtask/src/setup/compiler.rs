//! The C and C++ compilers, chosen as cargo's build scripts choose them (CC, CXX, CFLAGS, CXXFLAGS).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use super::TARGET;
use crate::process;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    C,
    Cpp,
}

/// Both compilers, and their identity.
pub(super) struct Compiler {
    c: cc::Tool,
    cpp: cc::Tool,
    identity: String,
}

impl Compiler {
    pub(super) fn find() -> Result<Self> {
        let (c, cpp) = (tool(Language::C)?, tool(Language::Cpp)?);
        let mut identity = String::new();
        for tool in [&c, &cpp] {
            let version = process::capture(Command::new(tool.path()).arg("--version"))
                .map_err(|_| missing(&tool.path().display()))?;
            let version = version.lines().next().unwrap_or_default();
            identity.push_str(&format!("{version} {:?}\n", tool.args()));
        }
        Ok(Self { c, cpp, identity })
    }

    /// Version and flags. The output of the compilers may differ where this differs.
    pub(super) fn identity(&self) -> &str {
        &self.identity
    }

    /// Fails, in one line, where the compiler is too old or has no standard library.
    pub(super) fn check(&self) -> Result<()> {
        let probe = std::env::temp_dir().join(format!("motet-probe-{}.cpp", std::process::id()));
        std::fs::write(
            &probe,
            "#include <concepts>\n#include <span>\nstd::span<int> s;\n",
        )
        .context("cannot write to the temporary folder")?;
        let works = process::succeeds(self.cpp.to_command().arg("-fsyntax-only").arg(&probe));
        let _ = std::fs::remove_file(&probe); // a few bytes in the temporary folder
        if works {
            return Ok(());
        }
        Err(anyhow!(
            "the C++ compiler `{}` cannot compile C++20: install g++ 10 or clang 14 or newer with its \
             standard library, or name another in CXX",
            self.cpp.path().display()
        ))
    }

    /// Compiles one file, optimised and position-independent.
    pub(super) fn compile(
        &self,
        language: Language,
        source: &Path,
        object: &Path,
        flags: &[String],
    ) -> Result<()> {
        let tool = if language == Language::C {
            &self.c
        } else {
            &self.cpp
        };
        let mut command = tool.to_command();
        command
            .args(flags)
            .arg("-c")
            .arg(source)
            .arg("-o")
            .arg(object);
        let output = process::output(&mut command)?;
        if !output.status.success() {
            return Err(process::failed(&command, &output)
                .context(format!("cannot compile {}", source.display())));
        }
        Ok(())
    }

    /// Links a shared library.
    pub(super) fn link(&self, objects: &[PathBuf], library: &Path, flags: &[String]) -> Result<()> {
        let mut command = self.cpp.to_command();
        command
            .arg("-shared")
            .arg("-o")
            .arg(library)
            .args(objects)
            .args(flags);
        process::capture(&mut command).map(drop)
    }
}

fn tool(language: Language) -> Result<cc::Tool> {
    let mut build = cc::Build::new();
    build
        .cpp(language == Language::Cpp)
        .target(TARGET)
        .host(TARGET)
        .opt_level(2)
        .debug(false)
        .pic(true)
        .warnings(false)
        .cargo_metadata(false)
        .cargo_warnings(false)
        .define("NDEBUG", None);
    build.std(if language == Language::Cpp {
        "c++20"
    } else {
        "c11"
    });
    build.try_get_compiler().map_err(|_| missing(&"c++"))
}

fn missing(name: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!(
        "the C++ compiler `{name}` is missing: install g++ (Debian, Ubuntu: `apt install g++`), or name another in CXX"
    )
}
