//! The Rust files of a checkout, parsed once.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Folders that hold no source of this project.
const SKIPPED: [&str; 4] = ["target", ".git", "node_modules", "corpus"];

/// A Rust file.
pub(super) struct Source {
    /// From the root of the checkout, with `/` between its parts.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) parsed: syn::File,
    /// Whether it is library code: in `src/` of `motet` or of a crate under `crates/`, and not
    /// a module of tests.
    pub(super) is_library: bool,
}

impl Source {
    /// The crate that a library file belongs to, as its package is called, and the file's path
    /// within `src/`.
    pub(super) fn within_crate(&self) -> Option<(String, &str)> {
        if let Some(inside) = self.path.strip_prefix("src/") {
            return Some(("motet".into(), inside));
        }
        let (name, inside) = self.path.strip_prefix("crates/")?.split_once("/src/")?;
        Some((format!("motet-{name}"), inside))
    }
}

/// All Rust files of a checkout, in the order of their paths.
pub(super) struct Sources(pub(super) Vec<Source>);

impl Sources {
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut paths = Vec::new();
        files(root, "rs", &mut paths)?;
        let read = |path: &PathBuf| {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let parsed = syn::parse_file(&text)
                .with_context(|| format!("cannot parse {}", path.display()))?;
            let path = relative(root, path);
            let is_library = is_library(&path);
            Ok(Source {
                path,
                text,
                parsed,
                is_library,
            })
        };
        paths.iter().map(read).collect::<Result<_>>().map(Self)
    }

    /// Files with these paths and texts.
    #[cfg(test)]
    pub(super) fn of<'a>(files: impl Iterator<Item = (String, &'a str)>) -> Self {
        let files = files.map(|(path, text)| Source {
            parsed: syn::parse_file(text).expect("the text is Rust"),
            is_library: is_library(&path),
            text: text.to_owned(),
            path,
        });
        Self(files.collect())
    }

    pub(super) fn library(&self) -> impl Iterator<Item = &Source> {
        self.0.iter().filter(|source| source.is_library)
    }
}

fn is_library(path: &str) -> bool {
    let in_source = path.starts_with("src/")
        || path
            .strip_prefix("crates/")
            .and_then(|inside| inside.split_once('/'))
            .is_some_and(|(_, inside)| inside.starts_with("src/"));
    in_source && !is_of_tests(path)
}

/// Whether a file or a folder of its path is named as tests are: `tests`, `state_tests`.
fn is_of_tests(path: &str) -> bool {
    let mut parts = path.trim_end_matches(".rs").split('/');
    parts.any(|part| part.ends_with("tests"))
}

/// The path from `root`, with `/` between its parts.
pub(super) fn relative(root: &Path, path: &Path) -> String {
    let path = path.strip_prefix(root).unwrap_or(path);
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
}

/// Adds all files below `folder` whose names end with `.extension`, in order.
pub(super) fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            let name = entry.file_name();
            if !SKIPPED.iter().any(|skipped| name == *skipped) {
                files(&path, extension, found)?;
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    Ok(())
}

/// Whether an item is compiled for tests only.
pub(super) fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return attribute.path().is_ident("test");
        };
        list.path.is_ident("cfg")
            && list
                .tokens
                .clone()
                .into_iter()
                .any(|token| matches!(token, proc_macro2::TokenTree::Ident(name) if name == "test"))
    })
}
