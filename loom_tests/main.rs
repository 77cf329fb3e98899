//! Model checks of the shared primitives, one module each, and of [whole scenarios](scenarios).
//!
//! With `--cfg motet_loom` each test runs under loom in every interleaving within its bounds,
//! and prints their number. Without it the same tests run once, as plain tests. With
//! `--cfg motet_injected_bug` as well, each model is repeated with each bug that it
//! [finds](motet_sync::primitives::inject::InjectedBug), and must fail every time.
//!
//! The data that a primitive protects is a [`Guarded`](world::Guarded) cell in its model. Loom
//! detects an access that is not ordered after the one before, whatever value it reads.

mod admission;
mod cancel;
mod credits;
mod gate;
mod heartbeat;
mod host;
mod lease;
mod page_pool;
mod parking;
mod scenarios;
mod transfer_queue;
mod users;
mod world;

use std::fs;
use std::path::{Path, PathBuf};

/// Every injected bug must be named by a model that finds it.
#[test]
#[cfg_attr(motet_loom, ignore = "reads files only")]
fn each_injected_bug_is_found_by_some_model() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut models = String::new();
    let mut folders: Vec<PathBuf> = vec![root.join("loom_tests")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder of models is readable") {
            let path = entry.expect("the folder's entries are readable").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                models += &fs::read_to_string(path).expect("models are UTF-8 text");
            }
        }
    }
    let injected_bugs = fs::read_to_string(root.join("crates/sync/src/primitives/inject.rs"))
        .expect("inject.rs is readable");
    let named = |line: &&str| line.starts_with("    ") && line.ends_with(',');
    let names = injected_bugs.lines().filter(named).map(str::trim);
    let names = names.map(|name| name.trim_end_matches(','));
    let names: Vec<&str> = names
        .filter(|name| name.chars().all(char::is_alphanumeric))
        .collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let finds = models.contains(&format!("InjectedBug::{name}"));
        assert!(finds, "no model finds {name}");
    }
}
