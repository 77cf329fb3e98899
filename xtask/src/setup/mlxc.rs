//! libmlxc.so: mlx-c and our own C and C++ files in one library, and libmotet_blas.so.
//!
//! To add a file, put it into `xtask/mlx/` and name it in [`OWN_SOURCES`]. A change of any file
//! in that folder, or of [`BRIDGE`], is noticed by its content.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::compiler::{Compiler, Language};
use super::mlx_c::{self, MlxC, Sources};
use crate::cache::Cache;
use crate::{checksum, component, ui};

/// Must be raised when the build changes in a way that no input shows.
const RECIPE: &str = "1";

/// The library's file.
pub(crate) const LIBRARY: &str = "libmlxc.so";

/// OpenBLAS, below its wheel's folder; in a bundle, below the library's folder.
const OPENBLAS: &str = "scipy_openblas32/lib/libscipy_openblas.so";

/// The folder of libmlx.so, below its wheel's folder; in a bundle, below the library's folder.
pub(crate) const MLX_FOLDER: &str = "mlx/lib";

/// File beside the library that lists the wheels' folders, which a program needs too.
pub(crate) const WHEELS: &str = "wheels";

/// mlx-c's licence, beside the library.
pub(crate) const MLX_C_LICENSE: &str = "LICENSE.mlx-c";

/// Our own part of libmlxc.so, beside [`BRIDGE`].
const OWN_SOURCES: &[&str] = &["blas.c", "clock.c", "cuda.c"];

/// MLX primitives that call Rust kernels. The source belongs to the crate in `crates/mlx`, which
/// builds it itself where mlx-sys builds MLX. Undefined symbols are not looked up in the program:
/// pass Rust functions as pointers.
pub(super) const BRIDGE: &str = "crates/mlx/src/device/bridge/bridge.cpp";

/// Result of the build.
pub(super) struct Libraries {
    /// The folder with `libmlxc.so`.
    pub(super) dir: PathBuf,
    /// For LD_PRELOAD: gives the same BLAS to a Python that uses MLX's wheel.
    pub(super) blas_preload: PathBuf,
}

/// Inputs of the libraries.
pub(super) struct Inputs<'a> {
    pub(super) compiler: &'a Compiler,
    pub(super) sources: &'a Sources,
    pub(super) mlx_c: &'a MlxC,
    /// MLX's wheel, unpacked.
    pub(super) mlx: &'a Path,
    /// OpenBLAS' wheel, unpacked.
    pub(super) openblas: &'a Path,
    /// `xtask/mlx/`.
    pub(super) own_sources: &'a Path,
    pub(super) bridge: &'a Path,
}

/// Builds the libraries unless the cache has them.
pub(super) fn ensure(cache: &Cache, inputs: &Inputs<'_>) -> Result<Libraries> {
    let mut key = checksum::Key::default();
    key.add("recipe", RECIPE);
    key.add("mlx-c", inputs.mlx_c.dir.as_os_str().as_encoded_bytes());
    key.add("openblas", inputs.openblas.as_os_str().as_encoded_bytes());
    key.add_dir(inputs.own_sources)?;
    key.add("bridge", fs::read(inputs.bridge).context("the bridge")?);
    let dir = cache.build().join(format!("mlxc-{}", key.finish()));

    component::ensure(&dir, |fresh| {
        let task = ui::Task::start("compile and link libmlxc");
        build(inputs, fresh, &dir)?;
        task.done();
        Ok(())
    })?;
    Ok(Libraries {
        blas_preload: dir.join("libmotet_blas.so"),
        dir,
    })
}

/// Builds into `fresh` the files that will be used from `installed`.
fn build(inputs: &Inputs<'_>, fresh: &Path, installed: &Path) -> Result<()> {
    let openblas = inputs.openblas.join(OPENBLAS);
    let c_flags = [
        "-pthread".to_owned(),
        format!("-DMOTET_OPENBLAS_PATH=\"{}\"", openblas.display()),
        format!("-DMOTET_OPENBLAS_BESIDE=\"{OPENBLAS}\""),
    ];
    let compat = inputs.own_sources.join("compat.h");
    let mut cpp_flags = mlx_c::includes(inputs.sources, inputs.mlx, &compat);
    cpp_flags.push(format!("-DMOTET_MLX_SYS=\"{}\"", inputs.sources.version));

    let bridge_object = fresh.join("bridge.o");
    inputs
        .compiler
        .compile(Language::Cpp, inputs.bridge, &bridge_object, &cpp_flags)?;
    let mut own_objects = vec![bridge_object];
    for name in OWN_SOURCES {
        let source = inputs.own_sources.join(name);
        let object = fresh.join(name).with_extension("o");
        inputs
            .compiler
            .compile(Language::C, &source, &object, &c_flags)?;
        own_objects.push(object);
    }
    let system_libraries = ["-pthread", "-ldl"].map(str::to_owned);
    let blas_object = [fresh.join("blas.o")];
    inputs.compiler.link(
        &blas_object,
        &fresh.join("libmotet_blas.so"),
        &system_libraries,
    )?;

    let objects = [&own_objects[..], &inputs.mlx_c.objects].concat();
    let flags = [link_flags(inputs.mlx, installed), system_libraries.to_vec()].concat();
    inputs
        .compiler
        .link(&objects, &fresh.join(LIBRARY), &flags)?;

    let wheels = format!("{}\n{}\n", inputs.mlx.display(), inputs.openblas.display());
    fs::write(fresh.join(WHEELS), wheels).context("cannot list the wheels")?;
    let license = inputs.sources.root.join("LICENSE");
    fs::copy(license, fresh.join(MLX_C_LICENSE)).context("mlx-c has no licence")?;
    Ok(())
}

/// The library's own name is its absolute path. A program that is linked with it copies that
/// name, and the loader opens a name with slashes as a path. No program needs an rpath or
/// LD_LIBRARY_PATH. It needs no rustflags either, and set-up does not make cargo build everything
/// again. The library's own rpath first names the place of MLX in a bundle, then the wheel.
fn link_flags(mlx: &Path, installed: &Path) -> Vec<String> {
    let mlx_lib = mlx.join(MLX_FOLDER).display().to_string();
    let name = installed.join(LIBRARY).display().to_string();
    let mut flags = vec![format!("-L{mlx_lib}"), "-lmlx".to_owned()];
    // -Xlinker rather than -Wl, because a path may hold a comma.
    for word in [
        "-soname",
        &name,
        "-rpath",
        &format!("$ORIGIN/{MLX_FOLDER}"),
        "-rpath",
        &mlx_lib,
        "--no-undefined",
        "--allow-shlib-undefined",
    ] {
        flags.extend(["-Xlinker".to_owned(), word.to_owned()]);
    }
    flags
}
