//! A disk tier serves the model that wrote it. Its files are refused, and removed, by another family
//! and by the same one with another configuration, even if state has the same shapes.

use motet::{Engine, Shutdown};

use crate::folder::open_family;
use crate::harness::one_at_a_time;
use crate::scratch::Scratch;
use crate::ways::{Family, end, in_runtime};
use motet_testkit::folder::Folder;

/// As the family's folder, with one text in the configuration replaced.
fn changed(family: &str, text: &str, by: &str) -> Scratch {
    let folder = open_family(family);
    let path = folder.path().join("config.json");
    let config = std::fs::read_to_string(path).expect("each family has a configuration");
    assert_eq!(config.matches(text).count(), 1, "{text}");
    folder.write("config.json", config.replace(text, by));
    folder
}

fn stored(folder: &Folder) -> Vec<String> {
    let files = std::fs::read_dir(&folder.0).expect("the tier's folder");
    let names = files.map(|file| file.expect("a file").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into()).collect();
    names.retain(|name| name.ends_with(".segment"));
    names.sort();
    names
}

/// Copies that were read from the disk.
fn copies_read(engine: &Engine) -> u64 {
    let pager = engine.stats().pager;
    assert_eq!(pager.failed, 0, "{pager:?}");
    pager.read
}

async fn refuses_files(owner: &Family, other: &Family) {
    let folder = Folder::new("disk-owner");
    for run in ["the first", "again"] {
        let engine = owner.with_disk(&folder).await;
        owner.run_all(&engine, run).await;
        let is_again = run == "again";
        assert_eq!(copies_read(&engine) > 0, is_again, "the owner, {run}");
        engine.shutdown(Shutdown::Finish).await;
    }
    let files = stored(&folder);
    assert!(!files.is_empty(), "state was written");

    let engine = other.with_disk(&folder).await;
    let left = stored(&folder);
    assert_eq!(left, [] as [&str; 0], "files of another model");
    other.run_all(&engine, "another model").await;
    assert_eq!(copies_read(&engine), 0, "state of another model was read");
    end(engine).await;
}

#[test]
fn files_of_another_model_are_rejected() {
    let _serial = one_at_a_time();
    for (owner, other) in [
        (open_family("llama"), open_family("qwen2")),
        (
            open_family("llama"),
            changed("llama", "500000.0", "400000.0"),
        ),
        (open_family("qwen3_5"), changed("qwen3_5", "1e-06", "1e-05")),
    ] {
        in_runtime(async {
            let owner = Family::new(owner.path()).await;
            let other = Family::new(other.path()).await;
            refuses_files(&owner, &other).await;
        });
    }
}
