//! Programs and libraries with which crates of others are built: their wheels have them.

use std::ffi::OsString;

use anyhow::Result;

use super::{bindings, pins, requirements, wheels};
use crate::cache::Cache;

/// Environment of a build that needs protoc, and libclang for bindgen. Where there are no wheels for
/// the machine, the user's own are found.
pub(crate) fn build_tools(cache: &Cache) -> Result<Vec<(&'static str, OsString)>> {
    let requirements::Platform::LinuxX86 = requirements::platform()? else {
        return Ok(Vec::new());
    };
    let _lock = cache.lock()?;
    let protoc = wheels::prepared(cache, &[pins::PROTOC])?.join("protoc/data/bin/protoc");
    wheels::make_executable(&protoc)?;
    let libclang = wheels::prepared(cache, &[pins::LIBCLANG])?;
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
