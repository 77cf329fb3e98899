//! Rust declarations of mlx-c's functions, as mlx-sys' own build script makes them on macOS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;

/// Writes `bindings.rs`. `libclang` is its wheel, unpacked.
pub(super) fn generate(mlx_c: &Path, compat: &Path, libclang: &Path, to: &Path) -> Result<()> {
    let library = find_library(libclang)?;
    // SAFETY: xtask has started no other thread yet that could read the environment.
    unsafe { std::env::set_var("LIBCLANG_PATH", library) };

    let mut headers: Vec<PathBuf> = fs::read_dir(mlx_c.join("mlx/c"))
        .context("mlx-c's headers are not where they are expected")?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    headers.retain(|path| path.extension().is_some_and(|extension| extension == "h"));
    headers.sort();

    let rust_target = "1.73.0"
        .parse()
        .ok()
        .context("bindgen does not know its Rust version")?;
    let mut builder = bindgen::Builder::default()
        .rust_target(rust_target)
        .formatter(bindgen::Formatter::None)
        .clang_arg(format!("-I{}", mlx_c.display()))
        .clang_args(["-include", &compat.display().to_string()])
        // The wheel has no headers of its own for what the compiler supplies (stddef.h …).
        .clang_args(["-isystem", &compiler_headers()?])
        // Their C types trip a lint of rustc's; mlx-sys leaves them out too.
        .blocklist_function("malloc")
        .blocklist_function("realloc");
    for header in headers {
        builder = builder.header(header.display().to_string());
    }
    let bindings = builder
        .generate()
        .context("bindgen cannot read mlx-c's headers")?;
    bindings
        .write_to_file(to)
        .with_context(|| format!("cannot write {}", to.display()))
}

/// The folder with libclang.so, wherever in the wheel it is.
pub(super) fn find_library(libclang: &Path) -> Result<PathBuf> {
    crate::checksum::files_below(libclang)?
        .into_iter()
        .find(|path| path.file_name().is_some_and(|name| name == "libclang.so"))
        .and_then(|path| path.parent().map(PathBuf::from))
        .context("the libclang wheel has no libclang.so")
}

/// The folder of the headers that the C compiler supplies.
pub(super) fn compiler_headers() -> Result<String> {
    let dir = process::capture(Command::new("cc").arg("-print-file-name=include")).context(
        "the C compiler `cc` is missing: install gcc (Debian, Ubuntu: `apt install gcc`)",
    )?;
    Ok(dir.trim().to_owned())
}
