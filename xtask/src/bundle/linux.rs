//! The files of a bundle on Linux.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::elf::{Elf, Entry};
use crate::cache::{partial, remove};
use crate::setup::{LIBRARY, MLX_C_LICENSE, MLX_FOLDER, WHEELS};
use crate::{checksum, process, ui};

/// Folder of the libraries in a bundle.
const LIBRARIES: &str = "lib";
const LICENSES: &str = "licenses";

/// A library of the driver, which the target machine has.
const DRIVER: &str = "libcuda.so.1";

/// Copies a program with its libraries, and returns the copy's path.
///
/// # Errors
///
/// When the program does not use the prepared MLX, something cannot be copied, or the loader
/// does not find every library in the bundle.
pub(crate) fn bundle(program: &Path, folder: &Path) -> Result<PathBuf> {
    let name = program.file_name().context("the program has no name")?;
    let name = name.to_string_lossy();
    bundle_all(&[(&*name, program.to_owned())], folder, &|_| false)?;
    Ok(fs::canonicalize(folder)?.join(&*name))
}

/// As [`bundle`], with several programs under these names. Libraries whose places in the bundle are
/// left out come from the target machine.
pub(crate) fn bundle_all(
    programs: &[(&str, PathBuf)],
    folder: &Path,
    is_left_out: &dyn Fn(&Path) -> bool,
) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let folder =
        fs::canonicalize(folder).with_context(|| format!("cannot enter {}", folder.display()))?;
    let mut copied: Option<Copied> = None;
    for (name, program) in programs {
        let program = fs::canonicalize(program)
            .with_context(|| format!("there is no program {}", program.display()))?;
        ensure!(
            program.parent() != Some(&folder),
            "{} is where the program is: name another folder",
            folder.display()
        );
        let (binary, prepared) = relocated(&program)?;
        let libraries = match copied.take().filter(|copied| copied.prepared == prepared) {
            Some(libraries) => libraries,
            None => copy_libraries(&prepared, &folder, is_left_out)?,
        };
        let copy = folder.join(name);
        let own_bytes = put(&copy, &program, Some(binary.bytes()))?;
        let mut elsewhere = vec![prepared.clone()];
        elsewhere.extend(wheels(&prepared)?);
        check(&copy, &elsewhere, &libraries.left_out)?;
        ui::note(&format!(
            "{} ({}) with libraries of {} in {}",
            copy.display(),
            ui::shown_bytes(own_bytes),
            ui::shown_bytes(libraries.bytes),
            folder.join(LIBRARIES).display()
        ));
        copied = Some(libraries);
    }
    Ok(())
}

/// The libraries of a bundle.
struct Copied {
    prepared: PathBuf,
    bytes: u64,
    /// Files that the target machine has.
    left_out: Vec<String>,
}

fn copy_libraries(
    prepared: &Path,
    folder: &Path,
    is_left_out: &dyn Fn(&Path) -> bool,
) -> Result<Copied> {
    let (mut bytes, mut left_out) = (0, vec![DRIVER.to_owned()]);
    let mut files = libraries(prepared)?;
    files.push((
        prepared.join(MLX_C_LICENSE),
        licenses("mlx-c").join("LICENSE"),
    ));
    for (from, to) in &files {
        let to = Path::new(LIBRARIES).join(to);
        if is_left_out(&to) {
            let name = to.file_name().unwrap_or_default();
            left_out.push(name.to_string_lossy().into_owned());
        } else {
            bytes += put(&folder.join(to), from, None)?;
        }
    }
    let library = library(&prepared.join(LIBRARY))?;
    let to = folder.join(LIBRARIES).join(LIBRARY);
    bytes += put(&to, &prepared.join(LIBRARY), Some(library.bytes()))?;
    Ok(Copied {
        prepared: prepared.to_owned(),
        bytes,
        left_out,
    })
}

/// The program with the bundle's search path, and the folder of the library that it needs.
fn relocated(program: &Path) -> Result<(Elf, PathBuf)> {
    let mut binary = read(program)?;
    let needed = binary.names(Entry::Needed);
    let of_mlx = |name: &&&str| {
        Path::new(name)
            .file_name()
            .is_some_and(|name| name == LIBRARY)
    };
    let Some(library) = needed.iter().find(of_mlx).map(ToString::to_string) else {
        bail!(
            "{} does not need {LIBRARY}: build it with feature `mlx` after `cargo xtask setup`",
            program.display()
        );
    };
    if library.starts_with("$ORIGIN/") {
        bail!(
            "{} comes from a bundle: name the program that cargo built",
            program.display()
        );
    }
    let prepared = Path::new(&library)
        .parent()
        .unwrap_or(Path::new("/"))
        .to_owned();
    ensure!(
        prepared.join(LIBRARY).exists(),
        "{library}, which {} needs, is gone: run `cargo xtask setup` and build again",
        program.display()
    );
    let relative = format!("$ORIGIN/{LIBRARIES}/{LIBRARY}");
    binary
        .rename(Entry::Needed, &library, &relative)
        .with_context(|| format!("cannot change {}", program.display()))?;
    Ok((binary, prepared))
}

/// The library without this machine's folders in the fields that the loader reads.
fn library(file: &Path) -> Result<Elf> {
    let mut library = read(file)?;
    let owned = |names: Vec<&str>| names.into_iter().map(String::from).collect::<Vec<_>>();
    let run_path = format!("$ORIGIN/{MLX_FOLDER}");
    for (kind, new) in [
        (Entry::Soname, LIBRARY),
        (Entry::RPath, run_path.as_str()),
        (Entry::RunPath, run_path.as_str()),
    ] {
        for old in owned(library.names(kind)) {
            library
                .rename(kind, &old, new)
                .with_context(|| format!("cannot change {}", file.display()))?;
        }
    }
    Ok(library)
}

fn read(file: &Path) -> Result<Elf> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Elf::parse(bytes).with_context(|| format!("cannot bundle {}", file.display()))
}

/// The folders of the wheels that the library was linked with.
fn wheels(prepared: &Path) -> Result<Vec<PathBuf>> {
    let list = fs::read_to_string(prepared.join(WHEELS)).with_context(|| {
        format!(
            "{} was prepared by an older version: run `cargo xtask setup` and build again",
            prepared.display()
        )
    })?;
    Ok(list.lines().map(PathBuf::from).collect())
}

/// The wheels' files to copy: their paths, and their places below the folder of libraries.
fn libraries(prepared: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut files = Vec::new();
    for wheel in wheels(prepared)? {
        let name = wheel
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        for file in checksum::files_below(&wheel)? {
            let inside = file.strip_prefix(&wheel).unwrap_or(&file);
            if let Some(bundle_path) = bundle_path(inside, name.contains("cuda")) {
                files.push((file, bundle_path));
            }
        }
    }
    Ok(files)
}

/// The place in a bundle of a wheel's file, if a program needs the file or it is a licence. MLX
/// for CUDA compiles kernels at run time, and reads headers for that.
fn bundle_path(inside: &Path, cuda: bool) -> Option<PathBuf> {
    let mut parts = inside
        .components()
        .map(|part| part.as_os_str().to_string_lossy());
    let first = parts.next()?;
    if let Some(package) = first.strip_suffix(".dist-info") {
        let below: PathBuf = inside.components().skip(2).collect();
        return (parts.next()? == LICENSES).then(|| licenses(package).join(below));
    }
    let name = inside.file_name()?.to_string_lossy();
    let is_library = name.ends_with(".so") || name.contains(".so.");
    let is_header = inside
        .components()
        .any(|part| part.as_os_str() == "include");
    (is_library || cuda && is_header).then(|| inside.to_owned())
}

fn licenses(package: &str) -> PathBuf {
    Path::new(LICENSES).join(package)
}

/// Copies a file, or writes `bytes` with the file's permissions. A program that runs from the old
/// file is not disturbed. Returns the size.
fn put(to: &Path, from: &Path, bytes: Option<&[u8]>) -> Result<u64> {
    let folder = to.parent().context("a file without a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let fresh = partial(to);
    remove(&fresh)?;
    let written = match bytes {
        None => fs::copy(from, &fresh).map(drop),
        Some(bytes) => fs::write(&fresh, bytes)
            .and_then(|()| fs::set_permissions(&fresh, fs::metadata(from)?.permissions())),
    };
    written
        .and_then(|()| fs::rename(&fresh, to))
        .and_then(|()| Ok(fs::metadata(to)?.len()))
        .with_context(|| format!("cannot write {}", to.display()))
}

/// Asks the loader, as `ldd` does, whether it finds every library but those that are left out, and
/// none below `elsewhere`.
fn check(program: &Path, elsewhere: &[PathBuf], left_out: &[String]) -> Result<()> {
    let mut trace = Command::new(program);
    trace
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("LD_PRELOAD");
    let found = process::capture(&mut trace)?;
    let wrong = found.lines().find(|line| {
        let outside = |folder: &PathBuf| line.contains(&*folder.to_string_lossy());
        let name = line.split_whitespace().next().unwrap_or_default();
        let is_missing = line.contains("not found") && !left_out.iter().any(|left| left == name);
        is_missing || elsewhere.iter().any(outside)
    });
    if let Some(line) = wrong {
        bail!("the bundle is incomplete: {}", line.trim());
    }
    ensure!(
        found.contains(LIBRARY),
        "the loader does not list the libraries of {}",
        program.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_licences_are_taken_and_headers_only_for_cuda() {
        let check = |inside: &str, cuda: bool, expected: Option<&str>| {
            let bundle_path = bundle_path(Path::new(inside), cuda);
            assert_eq!(bundle_path, expected.map(PathBuf::from), "{inside}");
        };
        let libraries = ["mlx/lib/libmlx.so", "mlx_cpu.libs/libblas-bd8a.so.3.10.0"];
        for library in libraries {
            check(library, false, Some(library));
        }
        let license = "mlx_cpu-0.32.2.dist-info/licenses/sub/LICENSE";
        check(license, false, Some("licenses/mlx_cpu-0.32.2/sub/LICENSE"));
        for left in [
            "mlx_cpu-0.32.2.dist-info/RECORD",
            "MANIFEST.sha256",
            "scipy_openblas32/__init__.py",
            "mlx/share/cmake/MLX/MLXConfig.cmake",
        ] {
            check(left, false, None);
            check(left, true, None);
        }
        let header = "nvidia/cuda_runtime/include/cuda_fp16.h";
        check(header, false, None);
        check(header, true, Some(header));
    }

    #[test]
    fn program_without_mlx_is_rejected_by_name() {
        let own = std::env::current_exe().expect("a program");
        let folder = std::env::temp_dir().join(format!("xtask-bundle-{}", std::process::id()));
        let rejected = bundle(&own, &folder)
            .expect_err("it does not use MLX")
            .to_string();
        assert!(rejected.contains("feature `mlx`"), "{rejected}");
        assert!(!folder.join(own.file_name().expect("a name")).exists());
        let beside = own.parent().expect("a folder");
        let rejected = bundle(&own, beside)
            .expect_err("it would be overwritten")
            .to_string();
        assert!(rejected.contains("name another folder"), "{rejected}");
        remove(&folder).expect("it can be removed");
    }
}
