use std::path::PathBuf;

use motet::model::find::{FindError, Finder, ProgressLines};

/// Blocks for as long as a download takes: in async code, call it by `spawn_blocking`.
fn find(name: &str) -> Result<PathBuf, FindError> {
    let mut lines = ProgressLines::default();
    Finder::from_environment().find(name, |progress| {
        if let Some(line) = lines.line(&progress) {
            eprintln!("{line}");
        }
    })
}

// The guide shows what stands above.

#[tokio::test]
async fn a_path_is_found_and_other_names_are_explained() {
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let found = tokio::task::spawn_blocking(|| find(here)).await;
    let found = found.expect("it does not panic").expect("a file");
    assert_eq!(found.as_os_str(), here);
    let error = find("nowhere.gguf").expect_err("it is not there");
    assert!(error.to_string().contains("hf:ORG/NAME"), "{error}");
}
