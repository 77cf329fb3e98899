//! Model checks of the shared words, one module a primitive, and of [whole
//! hand-overs](scenarios).
//!
//! With `--cfg motet_loom` each test runs under loom in every interleaving that
//! its bounds allow, counts them and prints the count; without it the same tests
//! run once, as plain tests. With `--cfg motet_injected_bug` as well, each model is repeated
//! with each mistake that it says it [finds](motet_sync::primitives::inject::InjectedBug), and must fail every time.
//!
//! What a primitive protects is a [`Guarded`](world::Guarded) cell in its model: loom notices
//! when an access is not ordered after the one before, whatever value it happens to see.

mod admission;
mod buffers;
mod cancel;
mod credits;
mod gate;
mod heartbeat;
mod host;
mod lease;
mod parking;
mod scenarios;
mod transfer_queue;
mod users;
mod world;

use std::fs;
use std::path::{Path, PathBuf};

/// A mistake that no model says it finds would prove nothing.
#[test]
#[cfg_attr(motet_loom, ignore = "it looks at files only")]
fn each_injected_bug_is_found_by_some_model() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut models = String::new();
    let mut folders: Vec<PathBuf> = vec![root.join("loom_tests")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the models") {
            let path = entry.expect("a file").path();
            match path.is_dir() {
                true => folders.push(path),
                false => models += &fs::read_to_string(path).expect("text"),
            }
        }
    }
    let injected_bugs = fs::read_to_string(root.join("crates/sync/src/primitives/inject.rs"))
        .expect("the mistakes");
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
