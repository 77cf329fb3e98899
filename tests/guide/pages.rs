//! Checks that the paths and lists in documents match the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const PAGES: [(&str, &str); 3] = [
    ("docs/semantics.md", include_str!("../../docs/semantics.md")),
    (
        "docs/architecture.md",
        include_str!("../../docs/architecture.md"),
    ),
    ("docs/testing.md", include_str!("../../docs/testing.md")),
];

/// Beginnings of paths in this repository.
const ROOTS: [&str; 6] = [
    "src/",
    "crates/",
    "tests/",
    "loom_tests/",
    "examples/",
    "fuzz/",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The paths that a page cites between backticks.
fn cited(page: &str) -> impl Iterator<Item = &str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted.filter(|text| {
        let is_path = ROOTS.iter().any(|root| text.starts_with(root));
        is_path && !text.contains([' ', '{', '*', '<'])
    })
}

/// A file, or all Rust files below a folder.
fn sources(path: PathBuf) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path];
    }
    let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let paths = entries.map(|entry| entry.expect("it is listed").path());
    let selected =
        paths.filter(|path| path.is_dir() || path.extension().is_some_and(|e| e == "rs"));
    selected.flat_map(sources).collect()
}

#[test]
fn the_files_that_pages_cite_exist() {
    let mut seen = 0;
    for (name, page) in PAGES {
        for path in cited(page) {
            assert!(root().join(path).exists(), "{name} cites `{path}`");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen} paths");
}

/// Files that docs/semantics.md cites must hold tests.
#[test]
fn the_files_that_the_semantics_cite_hold_tests() {
    let (name, page) = PAGES[0];
    for path in cited(page) {
        let has_test = |file: &PathBuf| {
            let text = fs::read_to_string(file).expect("a readable file");
            ["#[test]", "#[tokio::test"]
                .iter()
                .any(|mark| text.contains(mark))
        };
        let files = sources(root().join(path));
        assert!(
            files.iter().any(has_test),
            "{name} cites `{path}`: no test there"
        );
    }
}

#[test]
fn unsafe_code_is_only_where_the_architecture_lists_it() {
    let (_, page) = PAGES[1];
    let listed = page.split("**Unsafe code**").nth(1).expect("a list");
    let listed = listed.split(" only,").next().expect("its end");
    let listed: BTreeSet<&str> = cited(listed).collect();
    let mut unlisted = BTreeSet::new();
    let mut used = BTreeSet::new();
    let crates = fs::read_dir(root().join("crates")).expect("the crates");
    let mut folders: Vec<PathBuf> = crates
        .map(|entry| entry.expect("it is listed").path().join("src"))
        .collect();
    folders.push(root().join("src"));
    for file in folders.into_iter().flat_map(sources) {
        let text = fs::read_to_string(&file).expect("a readable file");
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        let marks = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
        let mut lines = code.filter(|line| marks.iter().any(|mark| line.contains(mark)));
        if lines.next().is_none() {
            continue;
        }
        let path = file.strip_prefix(root()).expect("below it");
        match listed.iter().find(|listed| path.starts_with(listed)) {
            Some(listed) => used.insert(*listed),
            None => unlisted.insert(path.to_owned()),
        };
    }
    assert!(
        unlisted.is_empty(),
        "not in docs/architecture.md: {unlisted:?}"
    );
    assert_eq!(used, listed, "all that docs/architecture.md lists");
}
