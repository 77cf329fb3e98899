//! Folders that a tier cannot use, and files in them that are not its own.

use std::fs;
use std::io;

use motet_protocol::CopyId;
use motet_storage::tiers::{Tier, TierError};

use super::faulty::{Fault, FaultyFiles};
use super::folder::{Folder, IDENTITY, PLENTY_BYTES, copy, limits, load, store};

#[test]
fn folder_is_created_in_an_existing_parent() {
    let folder = Folder::new();
    drop(folder.open());
    assert!(folder.path().is_dir());
    let nested = folder.path().join("nowhere").join("tier");
    let rejected = open(&nested);
    assert!(matches!(rejected, TierError::Missing { .. }), "{rejected}");
    assert!(!folder.path().join("nowhere").exists());
}

#[test]
fn file_is_rejected_as_a_folder() {
    let folder = Folder::new();
    fs::write(folder.path(), "").expect("the file system works");
    for path in [folder.path().to_owned(), folder.path().join("tier")] {
        let rejected = open(&path);
        assert!(
            matches!(rejected, TierError::NotAFolder { .. }),
            "{rejected}"
        );
    }
    fs::remove_file(folder.path()).expect("it goes");
}

fn open(path: &std::path::Path) -> TierError {
    use motet_storage::tiers::{BufferPool, DiskTier};
    let opened = DiskTier::open(
        path,
        limits(PLENTY_BYTES),
        IDENTITY,
        BufferPool::new(0),
        CopyId(0),
    );
    opened.expect_err("it cannot be opened")
}

#[test]
fn a_folder_is_of_one_tier_at_a_time() {
    let folder = Folder::new();
    let (mut tier, _) = folder.open();
    store(&mut tier, 0, &copy(1, 100)).expect("it fits");
    let rejected = folder.open_as(IDENTITY, PLENTY_BYTES).map(drop);
    let rejected = rejected.expect_err("it is in use");
    assert!(matches!(rejected, TierError::Locked { .. }), "{rejected}");
    load(&mut tier, 0, &copy(1, 100)).expect("the first goes on");
    drop(tier);
    assert_eq!(folder.open().1.copies.len(), 1);
}

#[test]
fn files_of_other_models_and_formats_are_removed() {
    let (folder, file) = Folder::with(&copy(1, 100));
    let mut newer = fs::read(&file).expect("it is there");
    newer[8] += 1;
    let opened = folder
        .open_as(IDENTITY + 1, PLENTY_BYTES)
        .expect("it opens");
    let [
        (
            path,
            TierError::OtherModel {
                found, expected, ..
            },
        ),
    ] = &opened.1.removed[..]
    else {
        panic!("{opened:?}");
    };
    assert_eq!((path, *found, *expected), (&file, IDENTITY, IDENTITY + 1));
    drop(opened);

    fs::write(&file, &newer).expect("the file system works");
    let (_tier, recovered) = folder.open();
    let [(_, TierError::OtherFormat { .. })] = &recovered.removed[..] else {
        panic!("{recovered:?}");
    };
    assert!(folder.files().is_empty());
}

#[test]
fn foreign_entries_are_left_alone() {
    let (folder, _) = Folder::with(&copy(1, 100));
    let path_inside = |name: &str| folder.path().join(name);
    fs::write(path_inside("notes.txt"), "mine").expect("the file system works");
    fs::write(path_inside("film.segment"), "mine").expect("the file system works");
    fs::write(path_inside("film.part"), vec![0; 5_000]).expect("the file system works");
    fs::create_dir(path_inside("0000000000000009.segment")).expect("the file system works");
    let (_tier, recovered) = folder.open();
    assert_eq!((recovered.copies.len(), recovered.removed.len()), (1, 0));
    let reasons = recovered.left.iter().map(|(_, why)| why);
    assert_eq!(recovered.left.len(), 2);
    assert!(
        reasons
            .clone()
            .all(|why| matches!(why, TierError::Foreign { .. }))
    );
    assert_eq!(folder.files().len(), 5);
}

#[test]
fn full_disk_is_reported_and_serving_continues() {
    let (folder, files) = (Folder::new(), FaultyFiles::new(None));
    let (mut tier, _) = folder
        .open_with(files.clone(), PLENTY_BYTES)
        .expect("it opens");
    store(&mut tier, 0, &copy(1, 9_000)).expect("it fits");
    let used_bytes = tier.used_bytes();
    // The third operation of a store writes the payload.
    files.plan(2, Fault::Fills);
    for id in 1..3 {
        let rejected = store(&mut tier, id, &copy(2, 9_000)).expect_err("the disk is full");
        let TierError::DiskFull { source, .. } = &rejected else {
            panic!("{rejected}");
        };
        assert_eq!(source.kind(), io::ErrorKind::StorageFull);
        assert_eq!((tier.used_bytes(), folder.files().len()), (used_bytes, 1));
    }
    load(&mut tier, 0, &copy(1, 9_000)).expect("it is there");
    files.heal();
    store(&mut tier, 3, &copy(2, 9_000)).expect("it fits again");
}

#[test]
fn a_disk_that_fails_to_read_loses_nothing() {
    let (folder, files) = (Folder::new(), FaultyFiles::new(None));
    let (mut tier, _) = folder
        .open_with(files.clone(), PLENTY_BYTES)
        .expect("it opens");
    store(&mut tier, 0, &copy(1, 9_000)).expect("it fits");
    for operation in 0..4 {
        files.plan(operation, Fault::FailsForGood);
        let rejected = load(&mut tier, 0, &copy(1, 9_000)).expect_err("the disk fails");
        assert!(matches!(rejected, TierError::Io { .. }), "{rejected}");
        files.heal();
        load(&mut tier, 0, &copy(1, 9_000)).expect("it is there");
    }
}

#[test]
fn a_disk_that_has_become_read_only_is_read_from() {
    let (folder, files) = (Folder::new(), FaultyFiles::new(None));
    let (mut tier, _) = folder
        .open_with(files.clone(), PLENTY_BYTES)
        .expect("it opens");
    for id in 0..2 {
        store(&mut tier, id, &copy(id as u32, 9_000)).expect("it fits");
    }
    let each = tier.used_bytes() / 2;
    files.plan(0, Fault::ReadOnly);
    let denied = |error: TierError| assert!(matches!(error, TierError::Denied { .. }), "{error}");
    denied(store(&mut tier, 2, &copy(2, 9_000)).expect_err("nothing can be written"));
    denied(tier.remove(CopyId(0)).expect_err("nothing can be removed"));
    load(&mut tier, 1, &copy(1, 9_000)).expect("it can be read");
    assert!(tier.used_bytes() >= 2 * each, "existing copies still count");
    files.heal();
    store(&mut tier, 3, &copy(2, 9_000)).expect("it fits again");
    assert_eq!((tier.used_bytes(), folder.files().len()), (2 * each, 2));
}

/// The folder disappears with all its files, and comes back.
#[test]
fn copies_in_a_missing_folder_are_neither_damaged_nor_freed() {
    let (folder, moved_folder) = (Folder::new(), Folder::new());
    let (mut tier, _) = folder.open();
    for id in 0..2 {
        store(&mut tier, id, &copy(id as u32, 9_000)).expect("it fits");
    }
    let each = tier.used_bytes() / 2;
    fs::rename(folder.path(), moved_folder.path()).expect("ours");
    let missing = |error: TierError| {
        assert!(matches!(error, TierError::Missing { .. }), "{error}");
        assert!(!error.is_lost(), "it may come back");
    };
    missing(load(&mut tier, 0, &copy(0, 9_000)).expect_err("it is not there"));
    missing(store(&mut tier, 2, &copy(2, 9_000)).expect_err("there is no folder"));
    missing(tier.remove(CopyId(1)).expect_err("it is not there"));
    assert!(tier.used_bytes() >= 2 * each, "existing copies still count");
    fs::rename(moved_folder.path(), folder.path()).expect("ours");
    load(&mut tier, 0, &copy(0, 9_000)).expect("it is there again");
    store(&mut tier, 3, &copy(2, 9_000)).expect("it fits again");
    assert_eq!((tier.used_bytes(), folder.files().len()), (2 * each, 2));
}

/// The folder is removed and created again: the files there are not the tier's, and another tier
/// may have locked it.
#[test]
fn recreated_folder_is_not_used() {
    let folder = Folder::new();
    let (mut tier, _) = folder.open();
    store(&mut tier, 0, &copy(0, 9_000)).expect("it fits");
    let used = tier.used_bytes();
    fs::remove_dir_all(folder.path()).expect("ours");
    let (mut other, _) = folder.open();
    store(&mut other, 0, &copy(3, 9_000)).expect("it fits");
    let there = folder.files();
    let missing = |error: TierError| {
        assert!(matches!(error, TierError::Missing { .. }), "{error}");
    };
    missing(store(&mut tier, 1, &copy(1, 9_000)).expect_err("it is another's"));
    missing(load(&mut tier, 0, &copy(0, 9_000)).expect_err("it is another's"));
    missing(tier.remove(CopyId(0)).expect_err("it is another's"));
    assert_eq!(folder.files(), there, "nothing of the other's was touched");
    assert!(tier.used_bytes() >= used);
    load(&mut other, 0, &copy(3, 9_000)).expect("it is as it was");
    drop(other);
    missing(store(&mut tier, 1, &copy(1, 9_000)).expect_err("the other's files are there"));
    fs::remove_dir_all(folder.path()).expect("ours");
    fs::create_dir(folder.path()).expect("the file system works");
    store(&mut tier, 1, &copy(1, 9_000)).expect("it is empty and unowned");
    let rejected = open(folder.path());
    assert!(matches!(rejected, TierError::Locked { .. }), "{rejected}");
    let lost = load(&mut tier, 0, &copy(0, 9_000)).expect_err("it was there before");
    assert!(lost.is_lost(), "{lost}");
    load(&mut tier, 1, &copy(1, 9_000)).expect("it was stored since");
    assert_eq!(tier.used_bytes(), used, "one file, as before");
}
