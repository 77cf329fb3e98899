//! mlx-c, the C interface that mlx-rs calls: its sources come with the mlx-sys crate,
//! are compiled here against the wheel's headers, and read by bindgen.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::compiler::{Compiler, Language};
use super::{TARGET, bindings, pins, wheels};
use crate::cache::Cache;
use crate::{checksum, component, process, ui, workspace};

/// Must be raised when the build changes in a way that no input shows.
const RECIPE: &str = "2";

/// Maximum units that mlx-c is compiled in. Each takes ten seconds for MLX's headers alone.
const UNITS_MAX: usize = 4;

/// mlx-c's sources, below the mlx-sys crate in cargo's registry.
pub(super) struct Sources {
    pub(super) root: PathBuf,
    pub(super) version: String,
    /// The version of this checkout's Motet.
    pub(super) motet: String,
}

/// Result of the build: a folder with `bindings.rs` and the objects.
pub(super) struct MlxC {
    pub(super) dir: PathBuf,
    pub(super) objects: Vec<PathBuf>,
}

/// Builds the objects and the bindings, unless the cache has them.
pub(super) fn ensure(
    cache: &Cache,
    compiler: &Compiler,
    sources: &Sources,
    mlx: &Path,
    own_sources: &Path,
) -> Result<MlxC> {
    let compat = own_sources.join("compat.h");
    let mut key = checksum::Key::default();
    key.add("recipe", RECIPE);
    key.add("compiler", compiler.identity())
        .add("libclang", pins::LIBCLANG.sha256);
    key.add(
        "mlx",
        mlx.file_name().unwrap_or_default().as_encoded_bytes(),
    );
    key.add("compat", fs::read(&compat).context("cannot read compat.h")?);
    key.add_dir(&sources.root.join("mlx"))?;
    let dir = cache
        .build()
        .join(format!("mlx-c-{}-{}", sources.version, key.finish()));

    component::ensure(&dir, |fresh| {
        compiler.check()?;
        let libclang = wheels::unpacked(cache, &[pins::LIBCLANG])?;
        let task = ui::Task::start("generate the bindings");
        bindings::generate(
            &sources.root,
            &compat,
            &libclang,
            &fresh.join("bindings.rs"),
        )?;
        task.done();
        compile(compiler, sources, mlx, &compat, fresh)
    })?;
    let objects = checksum::files_below(&dir.join("objects"))?;
    Ok(MlxC { dir, objects })
}

/// Include flags for every C++ file that uses MLX.
pub(super) fn includes(sources: &Sources, mlx: &Path, compat: &Path) -> Vec<String> {
    // As system headers: the compiler does not warn about headers that are not ours.
    vec![
        format!("-isystem{}", sources.root.display()),
        format!("-isystem{}", mlx.join("mlx/include").display()),
        "-include".to_owned(),
        compat.display().to_string(),
    ]
}

fn compile(
    compiler: &Compiler,
    sources: &Sources,
    mlx: &Path,
    compat: &Path,
    fresh: &Path,
) -> Result<()> {
    let [objects, units] = ["objects", "units"].map(|name| fresh.join(name));
    fs::create_dir(&objects)?;
    fs::create_dir(&units)?;
    let files: Vec<PathBuf> = fs::read_dir(sources.root.join("mlx/c"))
        .context("mlx-c's sources are not where they are expected")?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "cpp"))
        .collect();
    let flags = includes(sources, mlx, compat);
    let total = files.len();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let files = units_of(files, workers.min(UNITS_MAX), &units)?;
    let mut task = ui::Task::start(format!("compile mlx-c {} ({total} files)", sources.version));
    let count = files.len();
    let left = Mutex::new(files);
    let (finished, results) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let (left, flags, objects) = (&left, &flags, &objects);
            let finished = finished.clone();
            scope.spawn(move || {
                while let Some(file) = left.lock().ok().and_then(|mut files| files.pop()) {
                    let object =
                        objects.join(file.with_extension("o").file_name().unwrap_or_default());
                    let result = compiler.compile(Language::Cpp, &file, &object, flags);
                    if finished.send(result).is_err() {
                        break; // another file failed; the receiver is gone
                    }
                }
            });
        }
        drop(finished);
        for (done, result) in results.into_iter().enumerate() {
            result?;
            task.progress(&format!("unit {} of {count}", done + 1));
        }
        anyhow::Ok(())
    })?;
    task.done();
    Ok(())
}

/// Writes units that include these files. Most of the time goes into MLX's headers, which each unit
/// reads once. The files are dealt out by their size.
fn units_of(files: Vec<PathBuf>, count: usize, to: &Path) -> Result<Vec<PathBuf>> {
    let mut sizes = files
        .into_iter()
        .map(|file| anyhow::Ok((fs::metadata(&file)?.len(), file)))
        .collect::<Result<Vec<_>>>()?;
    sizes.sort_unstable();
    let mut units = vec![(0, String::new()); count];
    for (size, file) in sizes.into_iter().rev() {
        let unit = units.iter_mut().min_by_key(|(bytes, _)| *bytes);
        let (bytes, text) = unit.context("no unit to compile")?;
        *bytes += size;
        writeln!(text, "#include \"{}\"", file.display())?;
    }
    let written = units.into_iter().enumerate().map(|(index, (_, text))| {
        let path = to.join(format!("unit{index}.cpp"));
        fs::write(&path, text)?;
        Ok(path)
    });
    written.collect()
}

/// Asks cargo where the mlx-sys crate of this checkout's lock file is.
pub(super) fn sources() -> Result<Sources> {
    let metadata = || {
        let mut cargo = workspace::cargo();
        cargo.args(["metadata", "--offline", "--format-version", "1"]);
        process::capture(cargo.args(["--features", "mlx", "--filter-platform", TARGET]))
    };
    let text = metadata().or_else(|_| {
        // A crate is not there yet: let cargo show how it fetches them.
        process::run(workspace::cargo().args(["fetch", "--target", TARGET]))?;
        metadata()
    })?;
    let metadata: Value = serde_json::from_str(&text).context("cannot read cargo's metadata")?;
    find_mlx_sys(&metadata)
}

fn find_mlx_sys(metadata: &Value) -> Result<Sources> {
    let packages = metadata["packages"]
        .as_array()
        .context("cargo's metadata has no packages")?;
    let find = |name| packages.iter().find(|package| package["name"] == name);
    let Some(package) = find("mlx-sys") else {
        bail!("the workspace does not depend on mlx-sys");
    };
    let motet = find("motet").and_then(|motet| motet["version"].as_str());
    let (Some(manifest), Some(version), Some(motet)) = (
        package["manifest_path"].as_str(),
        package["version"].as_str(),
        motet,
    ) else {
        bail!("cargo's metadata lacks a version or a path of mlx-sys or motet");
    };
    let root = Path::new(manifest).with_file_name("src").join("mlx-c");
    Ok(Sources {
        root,
        version: version.to_owned(),
        motet: motet.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_have_equal_shares_of_the_sources() {
        let folder = std::env::temp_dir().join(format!("motet-units-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, bytes| {
            let path = folder.join(name);
            fs::write(&path, vec![b' '; bytes]).unwrap();
            path
        };
        let files = vec![file("a", 3), file("b", 5), file("c", 2)];
        let units = units_of(files, 2, &folder).unwrap();
        let texts = units.iter().map(|unit| fs::read_to_string(unit).unwrap());
        let names =
            texts.map(|text| ["a", "b", "c"].map(|name| text.contains(&format!("/{name}\""))));
        let names: Vec<[bool; 3]> = names.collect();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(names, [[false, true, false], [true, false, true]]);
    }

    #[test]
    fn mlx_sys_is_found_by_name() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "motet", "version": "0.3.0", "manifest_path": "/m/Cargo.toml" },
            { "name": "mlx-rs", "version": "0.33.0", "manifest_path": "/r/mlx-rs/Cargo.toml" },
            { "name": "mlx-sys", "version": "0.7.0", "manifest_path": "/r/mlx-sys/Cargo.toml" },
        ]});
        let sources = find_mlx_sys(&metadata).unwrap();
        assert_eq!(sources.root, Path::new("/r/mlx-sys/src/mlx-c"));
        assert_eq!(sources.version, "0.7.0");
        assert_eq!(sources.motet, "0.3.0");
        assert!(find_mlx_sys(&serde_json::json!({ "packages": [] })).is_err());
    }
}
