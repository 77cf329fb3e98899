//! Wheels: downloaded by pip, checked against their pins, unpacked into the cache.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::pins::Wheel;
use super::requirements;
use crate::cache::{Cache, partial, remove};
use crate::{checksum, component, process, ui};

/// Attempts at a download that breaks off or arrives damaged.
const ATTEMPTS: u32 = 2;

/// Interval at which a running download is checked.
const POLL: Duration = Duration::from_millis(100);

/// Space for a download and its unpacked files, as a multiple of the download.
const UNPACKED_FACTOR: u64 = 4;

/// As [`unpacked`], in a cache that may not have its folders yet. The caller holds its lock.
pub(super) fn prepared(cache: &Cache, wheels: &[Wheel]) -> Result<PathBuf> {
    for folder in [cache.downloads(), cache.wheels()] {
        fs::create_dir_all(folder)?;
    }
    unpacked(cache, wheels)
}

/// Makes an unpacked file executable: unpacking drops the permission.
pub(super) fn make_executable(program: &Path) -> Result<()> {
    fs::set_permissions(program, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("{} is not there", program.display()))
}

/// The wheels' files, unpacked over each other into one folder, as pip would install them.
pub(super) fn unpacked(cache: &Cache, wheels: &[Wheel]) -> Result<PathBuf> {
    let [first, ..] = wheels else {
        bail!("no wheels are named")
    };
    let mut key = checksum::Key::default();
    for wheel in wheels {
        key.add(wheel.name, wheel.sha256);
    }
    let dir = cache
        .wheels()
        .join(format!("{}-{}-{}", first.name, first.version, key.finish()));
    component::ensure(&dir, |fresh| {
        for wheel in wheels {
            let file = ensure_downloaded(cache, wheel)?;
            let task = ui::Task::start(format!("unpack {} {}", wheel.name, wheel.version));
            unpack(&file, fresh)?;
            task.done();
        }
        Ok(())
    })?;
    Ok(dir)
}

/// Unpacks a wheel (a zip archive) into `dir`.
pub(crate) fn unpack(file: &Path, dir: &Path) -> Result<()> {
    let python = requirements::python()?;
    process::capture(
        Command::new(python)
            .args(["-m", "zipfile", "-e"])
            .arg(file)
            .arg(dir),
    )?;
    Ok(())
}

/// The place of the wheel's file, whether it is there or not.
pub(crate) fn downloaded_file(cache: &Cache, wheel: &Wheel) -> PathBuf {
    let name = format!("{}-{}.whl", wheel.name, wheel.version);
    cache.downloads().join(name)
}

/// The wheel's file, downloaded unless the cache has it undamaged.
pub(crate) fn ensure_downloaded(cache: &Cache, wheel: &Wheel) -> Result<PathBuf> {
    let file = downloaded_file(cache, wheel);
    if file.exists() {
        match checksum::check_file(&file, wheel.sha256) {
            Ok(()) => return Ok(file),
            Err(damage) => ui::note(&format!("{damage:#}; downloading it again")),
        }
    }
    requirements::check_disk(cache.root(), wheel.bytes * (1 + UNPACKED_FACTOR))?;
    let python = requirements::python_with_pip(cache)?;
    let mut attempt = 1;
    loop {
        match download(&python, wheel, &file) {
            Ok(()) => return Ok(file),
            Err(error) if attempt == ATTEMPTS => return Err(error),
            Err(error) => ui::note(&format!("{error:#}\n  trying once more")),
        }
        attempt += 1;
    }
}

fn download(python: &Path, wheel: &Wheel, file: &Path) -> Result<()> {
    let scratch = partial(file);
    remove(&scratch)?;
    let download_folder = scratch.join("downloaded");
    fs::create_dir_all(&download_folder)
        .with_context(|| format!("cannot create {}", download_folder.display()))?;
    let requirement = scratch.join("requirement.txt");
    let pinned = format!(
        "{}=={} --hash=sha256:{}\n",
        wheel.name, wheel.version, wheel.sha256
    );
    fs::write(&requirement, pinned)?;

    let mut pip = pip_download(python, wheel, &requirement, &download_folder);
    pip.env("TMPDIR", &scratch); // pip's half-finished files go there, where they can be measured
    let what = format!(
        "download {} {} ({})",
        wheel.name,
        wheel.version,
        ui::shown_bytes(wheel.bytes)
    );
    let mut task = ui::Task::start(what);
    watch(&mut pip, &scratch, wheel.bytes, &mut task).with_context(|| {
        format!(
            "cannot download {} {} (is the network there?)",
            wheel.name, wheel.version
        )
    })?;
    let downloaded = checksum::files_below(&download_folder)?;
    let [downloaded] = downloaded.as_slice() else {
        bail!(
            "pip downloaded {} files for {}, expected one",
            downloaded.len(),
            wheel.name
        );
    };
    checksum::check_file(downloaded, wheel.sha256)?;
    fs::rename(downloaded, file)
        .with_context(|| format!("cannot put {} into place", file.display()))?;
    task.done();
    remove(&scratch)
}

/// Names the platform explicitly, so that any pip, old or new, chooses exactly this wheel,
/// independently of its Python.
fn pip_download(python: &Path, wheel: &Wheel, requirement: &Path, to: &Path) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "download", "--quiet", "--progress-bar", "off"])
        .args([
            "--disable-pip-version-check",
            "--no-cache-dir",
            "--no-input",
            "--retries",
            "2",
        ])
        .args([
            "--no-deps",
            "--only-binary",
            ":all:",
            "--python-version",
            "3.12",
        ]);
    if wheel.platform != "any" {
        pip.args(["--platform", wheel.platform]);
    }
    pip.arg("--require-hashes")
        .arg("--requirement")
        .arg(requirement)
        .arg("--dest")
        .arg(to);
    // pip only downloads here and installs nothing: it needs no virtual environment.
    pip.env_remove("PIP_REQUIRE_VIRTUALENV")
        .env_remove("PIP_USER");
    pip
}

/// Runs pip to its end, and shows how many bytes have arrived below `scratch`.
fn watch(pip: &mut Command, scratch: &Path, expected: u64, task: &mut ui::Task) -> Result<()> {
    let pip_log = scratch.join("pip.log");
    pip.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&pip_log)?);
    let mut child = pip.spawn().context("cannot start pip")?;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for pip")? {
            if status.success() {
                return Ok(());
            }
            let pip_log = fs::read_to_string(&pip_log).unwrap_or_default();
            bail!("pip failed ({status}):\n{}", pip_log.trim_end());
        }
        let downloaded_bytes = size_below(scratch).min(expected);
        let percent = downloaded_bytes * 100 / expected.max(1);
        task.progress(&format!(
            "{percent} % ({})",
            ui::shown_bytes(downloaded_bytes)
        ));
        thread::sleep(POLL);
    }
}

/// The size of all files below `dir`. Files that vanish meanwhile do not count.
fn size_below(dir: &Path) -> u64 {
    let files = checksum::files_below(dir).unwrap_or_default();
    files
        .iter()
        .filter_map(|file| fs::metadata(file).ok())
        .map(|metadata| metadata.len())
        .sum()
}
