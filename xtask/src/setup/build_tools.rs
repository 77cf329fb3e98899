//! Programs and libraries with which crates of others are built: their wheels have them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result};

use super::{bindings, pins, requirements, wheels};
use crate::cache::Cache;

/// Environment of a build that needs protoc, and libclang for bindgen. Where there are no wheels for
/// the machine, the user's own are found.
pub(crate) fn build_tools(cache: &Cache) -> Result<Vec<(&'static str, OsString)>> {
    let requirements::Platform::LinuxX86 = requirements::platform()? else {
        return Ok(Vec::new());
    };
    let _lock = cache.lock()?;
    for folder in [cache.downloads(), cache.wheels()] {
        fs::create_dir_all(folder)?;
    }
    let protoc = wheels::unpacked(cache, &[pins::PROTOC])?.join("protoc/data/bin/protoc");
    // Unpacking drops the permission to run it.
    fs::set_permissions(&protoc, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("{} is not there", protoc.display()))?;
    let libclang = wheels::unpacked(cache, &[pins::LIBCLANG])?;
    let headers = bindings::compiler_headers()?;
    Ok(vec![
        ("PROTOC", protoc.into()),
        ("LIBCLANG_PATH", bindings::find_library(&libclang)?.into()),
        // The wheel has no headers of its own for what the compiler supplies (stddef.h …).
        (
            "BINDGEN_EXTRA_CLANG_ARGS",
            format!("-isystem {headers}").into(),
        ),
    ])
}
