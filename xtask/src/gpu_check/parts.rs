//! An archive in parts: tar and xz, cut at a size.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::cache::remove;
use crate::{checksum, ui};

/// Ways to a machine without a network take files of some tens of megabytes.
pub(super) const PART_BYTES_MAX: u64 = 60_000_000;
/// The file of digests, as `sha256sum --check` reads it.
const SUMS: &str = "SHA256SUMS";
/// Higher levels took several times as long, and less than a hundredth off.
const LEVEL: &str = "-3";

/// A written part.
#[derive(Debug, PartialEq)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) bytes: u64,
    sha256: String,
}

/// Removes a folder that has nothing but what an earlier pack wrote. Others of its entries begin with one
/// of `names`.
///
/// # Errors
///
/// When it has anything else. Then nothing is removed.
pub(super) fn remove_earlier(output: &Path, names: &[&str]) -> Result<()> {
    if !output.exists() {
        return Ok(());
    }
    let entries =
        fs::read_dir(output).with_context(|| format!("cannot list {}", output.display()))?;
    for entry in entries {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != SUMS && !names.iter().any(|ours| name.starts_with(ours)) {
            let folder = output.display();
            bail!("{folder} has `{name}`, which no pack wrote: name an empty folder, or a new one");
        }
    }
    remove(output)
}

/// Writes these files below `folder` as the parts `NAME-000`, `NAME-001` and so on.
///
/// # Errors
///
/// When tar or xz is missing or fails, or a part cannot be written.
pub(super) fn write(
    folder: &Path,
    files: &[&Path],
    name: &str,
    output: &Path,
) -> Result<Vec<Part>> {
    let task = ui::Task::start(format!("compress {} files for {name}", files.len()));
    let list = output.join(format!("{name}.list"));
    let mut lines = File::create(&list)?;
    for file in files {
        writeln!(lines, "{}", file.display())?;
    }
    let mut tar = Command::new("tar");
    tar.args(["--create", "--owner=0", "--group=0", "--file", "-"]);
    tar.arg("--directory")
        .arg(folder)
        .arg("--files-from")
        .arg(&list);
    let mut tar = piped(tar.stdin(Stdio::null()))?;
    let archive = tar.stdout.take().context("tar has no output")?;
    let mut xz = Command::new("xz");
    let mut xz = piped(xz.args([LEVEL, "--threads=0", "--stdout"]).stdin(archive))?;
    let compressed = xz.stdout.take().context("xz has no output")?;
    let parts = cut(compressed, name, output, PART_BYTES_MAX)?;
    for mut child in [tar, xz] {
        ensure!(child.wait()?.success(), "tar or xz failed for {name}");
    }
    fs::remove_file(list)?;
    task.done();
    Ok(parts)
}

/// Writes the parts' digests.
pub(super) fn write_sums(parts: &[Part], output: &Path) -> Result<()> {
    let lines = parts.iter();
    let lines = lines.map(|part| format!("{}  {}\n", part.sha256, part.name));
    Ok(fs::write(output.join(SUMS), lines.collect::<String>())?)
}

fn piped(command: &mut Command) -> Result<Child> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.stdout(Stdio::piped()).spawn();
    child.with_context(|| format!("cannot start {program}: install it"))
}

/// Writes what `from` has into parts of at most so many bytes.
fn cut(mut from: impl Read, name: &str, output: &Path, bytes_max: u64) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    loop {
        let name = format!("{name}-{:03}", parts.len());
        let path: PathBuf = output.join(&name);
        let mut file = File::create(&path)?;
        let bytes = io::copy(&mut from.by_ref().take(bytes_max), &mut file)?;
        if bytes == 0 {
            fs::remove_file(path)?;
            return Ok(parts);
        }
        let sha256 = checksum::sha256_of_file(&path)?;
        parts.push(Part {
            name,
            bytes,
            sha256,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_other_files_is_kept() {
        let folder = std::env::temp_dir().join(format!("xtask-earlier-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for name in ["part-000", SUMS, "mine"] {
            fs::write(folder.join(name), "").unwrap();
        }
        assert!(remove_earlier(&folder, &["part-"]).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        fs::remove_file(folder.join("mine")).unwrap();
        remove_earlier(&folder, &["part-"]).unwrap();
        assert!(!folder.exists());
        remove_earlier(&folder, &[]).unwrap();
    }

    #[test]
    fn parts_have_the_largest_size_and_together_the_whole() {
        let folder = std::env::temp_dir().join(format!("xtask-parts-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (length, expected) in [
            (0, vec![]),
            (10, vec![10]),
            (20, vec![10, 10]),
            (21, vec![10, 10, 1]),
        ] {
            let whole: Vec<u8> = (0..length).collect();
            let parts = cut(&whole[..], "part", &folder, 10).unwrap();
            let sizes: Vec<u64> = parts.iter().map(|part| part.bytes).collect();
            assert_eq!(sizes, expected);
            let read = parts
                .iter()
                .map(|part| fs::read(folder.join(&part.name)).unwrap());
            assert_eq!(read.collect::<Vec<_>>().concat(), whole);
            for part in &parts {
                checksum::check_file(&folder.join(&part.name), &part.sha256).unwrap();
            }
        }
        remove(&folder).unwrap();
    }
}
