//! Files that a tier removes from its folder or leaves there, and their permissions.

use std::fs;
use std::path::PathBuf;

use motet_protocol::CopyId;
use motet_protocol::Label;
use motet_storage::tiers::{BufferPool, DiskLimits, DiskTier, Tier, TierError};

use super::faulty::{Fault, FaultyFiles};
use super::folder::{Folder, IDENTITY, PLENTY_BYTES, StoredCopy, copy, load, store};

/// A folder with so many copies, and the bytes that each of their files takes.
fn filled(copies: u32) -> (Folder, Vec<StoredCopy>, usize) {
    let folder = Folder::new();
    let (mut tier, _) = folder.open();
    let copies: Vec<StoredCopy> = (0..copies).map(|name| copy(name, 5_000)).collect();
    for (id, copy) in (0..).zip(&copies) {
        store(&mut tier, id, copy).expect("it fits");
    }
    let each = tier.used_bytes() / copies.len();
    (folder, copies, each)
}

fn check_all_recovered(folder: &Folder, copies: &[StoredCopy]) {
    let (mut tier, recovered) = folder.open();
    assert_eq!(recovered.copies.len(), copies.len(), "{recovered:?}");
    assert!(recovered.left.is_empty() && recovered.removed.is_empty());
    for ((id, label), copy) in recovered.copies.iter().zip(copies) {
        assert_eq!(*label, copy.label);
        load(&mut tier, id.0, copy).expect("it is whole");
    }
}

#[cfg(unix)]
#[test]
fn stored_copies_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: PathBuf| {
        let found = fs::metadata(&path).expect("it is there");
        found.permissions().mode() & 0o777
    };
    let (folder, files) = (Folder::new(), FaultyFiles::new(None));
    let (mut tier, recovered) = folder
        .open_with(files.clone(), PLENTY_BYTES)
        .expect("it opens");
    assert!(recovered.exposed.is_none());
    store(&mut tier, 0, &copy(1, 100)).expect("it fits");
    // A copy that is being written when the process dies.
    files.plan(2, Fault::DiesWithin);
    store(&mut tier, 1, &copy(2, 100)).expect_err("it is dead");
    let path = folder.path().to_owned();
    assert_eq!(mode(path.clone()), 0o700);
    assert_eq!(mode(path.join("lock")), 0o600);
    let files = folder.files();
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(files.into_iter().all(|file| mode(file) == 0o600));
}

#[cfg(unix)]
#[test]
fn exposed_folder_is_reported_and_left_unchanged() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    fs::create_dir(folder.path()).expect("the file system works");
    for (given, is_wide) in [(0o755, true), (0o710, true), (0o702, true), (0o700, false)] {
        let given = fs::Permissions::from_mode(given);
        fs::set_permissions(folder.path(), given.clone()).expect("ours");
        let exposed = folder.open().1.exposed;
        match exposed {
            Some(TierError::Exposed { ref path, mode }) => {
                assert_eq!((&**path, mode), (folder.path(), given.mode()));
                let message = exposed.expect("some").to_string();
                assert!(
                    message.contains(&format!("{mode:o}")) && message.contains("700"),
                    "{message}"
                );
            }
            other => assert!(!is_wide && other.is_none(), "{other:?}"),
        }
        let now = fs::metadata(folder.path()).expect("it is there");
        assert_eq!(now.permissions().mode() & 0o777, given.mode());
    }
}

/// Captures the log.
#[cfg(unix)]
#[derive(Clone, Default)]
struct LogCapture(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

#[cfg(unix)]
impl tracing::Subscriber for LogCapture {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut logged = self.0.lock().expect("no thread panics meanwhile");
        let mut record_field = |_: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            logged.push(format!("{value:?}"));
        };
        event.record(&mut record_field);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// The folder is lost while the tier runs, and another takes its place.
#[cfg(unix)]
#[test]
fn exposed_replacement_folder_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    for (mode, is_wide) in [(0o755, true), (0o700, false)] {
        let (folder, log_capture) = (Folder::new(), LogCapture::default());
        let (mut tier, _) = folder.open();
        fs::remove_dir_all(folder.path()).expect("ours");
        fs::create_dir(folder.path()).expect("the file system works");
        let given = fs::Permissions::from_mode(mode);
        fs::set_permissions(folder.path(), given).expect("ours");
        tracing::subscriber::with_default(log_capture.clone(), || {
            store(&mut tier, 0, &copy(1, 100)).expect("it is empty and unowned");
            store(&mut tier, 1, &copy(2, 100)).expect("it fits");
        });
        let logged = log_capture.0.lock().expect("no thread panics meanwhile");
        assert_eq!(logged.len(), usize::from(is_wide), "once: {logged:?}");
        let path = folder.path().display().to_string();
        assert!(
            logged.iter().all(|message| message.contains(&path)),
            "{logged:?}"
        );
    }
}

/// As happens when the process has no more file descriptors, or the disk fails for a while.
#[test]
fn file_unreadable_at_one_start_is_recovered_at_the_next() {
    let (folder, copies, each) = filled(4);
    // The first three operations create, lock and list the folder.
    for (at, fault, left) in [
        (3, Fault::FailsForGood, 4),
        (6, Fault::FailsForGood, 3),
        (3, Fault::FailsOnce, 1),
        (4, Fault::FailsOnce, 1),
        (5, Fault::FailsOnce, 1),
        (12, Fault::FailsOnce, 1),
    ] {
        let files = FaultyFiles::new(Some((at, fault)));
        let (mut tier, recovered) = folder
            .open_with(files.clone(), PLENTY_BYTES)
            .expect("the rest is served");
        let what = format!("{fault:?} at {at}: {recovered:?}");
        assert!(recovered.removed.is_empty(), "{what}");
        assert_eq!(recovered.left.len(), left, "{what}");
        let of_system = |why: &TierError| matches!(why, TierError::Io { .. });
        assert!(
            recovered.left.iter().all(|(_, why)| of_system(why)),
            "{what}"
        );
        assert_eq!(recovered.left_bytes, left * each, "{what}");
        assert_eq!(tier.used_bytes(), 4 * each, "{what}");
        // A copy that is stored meanwhile gets a name of its own.
        files.heal();
        store(&mut tier, 0, &copy(9, 5_000)).expect("it fits");
        tier.remove(CopyId(0)).expect("it goes");
        drop(tier);
        check_all_recovered(&folder, &copies);
    }
}

#[test]
fn unreadable_files_count_against_the_budget() {
    let (folder, _, each) = filled(2);
    let files = FaultyFiles::new(Some((3, Fault::FailsOnce)));
    let opened = folder.open_with(files, 3 * each).expect("one is served");
    let (mut tier, recovered) = opened;
    assert_eq!((recovered.copies.len(), recovered.left.len()), (1, 1));
    store(&mut tier, 0, &copy(5, 5_000)).expect("three fit");
    let rejected = store(&mut tier, 1, &copy(6, 5_000)).expect_err("there are three");
    assert!(
        matches!(rejected, TierError::OutOfSpace { .. }),
        "{rejected}"
    );
    drop(tier);
    assert_eq!(folder.open().1.copies.len(), 3);
}

/// Names like a tier's own, with other contents.
#[test]
fn foreign_files_are_left_alone() {
    let (folder, copies, each) = filled(2);
    let film = &[0x5A; 9_000][..];
    let files = [
        ("0000000000000000.part", film),
        ("0000000000000002.segment", film),
        ("0000000000000003.part", film),
        ("0000000000000004.segment", film),
        ("00000000000000ff.segment", film),
        ("ffffffffffffffff.segment", film),
        ("film.segment", film),
        // Without a number, only the whole magic makes a file the tier's own.
        ("notes.part", b""),
        ("letters.part", b"m"),
        ("music.segment", b"motetse"),
    ];
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).expect("the file system works");
    }
    let zeros = folder.path().join("0000000000000005.segment");
    fs::write(&zeros, [0; 4_096]).expect("the file system works");
    let (mut tier, recovered) = folder.open();
    assert_eq!((recovered.copies.len(), recovered.removed.len()), (2, 0));
    assert_eq!(recovered.left.len(), files.len() + 1, "{recovered:?}");
    for (_, why) in &recovered.left {
        assert!(matches!(why, TierError::Foreign { .. }), "{why}");
    }
    assert_eq!((recovered.left_bytes, tier.used_bytes()), (0, 2 * each));
    for id in 0..6 {
        store(&mut tier, id, &copy(10 + id as u32, 5_000)).expect("it fits");
    }
    for id in 0..6 {
        load(&mut tier, id, &copy(10 + id as u32, 5_000)).expect("it is there");
        tier.remove(CopyId(id)).expect("it goes");
    }
    drop(tier);
    for (name, bytes) in files {
        let found = fs::read(folder.path().join(name)).expect("it is there");
        assert!(found == bytes, "{name} is as it was");
        fs::remove_file(folder.path().join(name)).expect("ours");
    }
    fs::remove_file(zeros).expect("ours");
    check_all_recovered(&folder, &copies);
}

/// These files are the tier's own: they are empty, or begin like one of its files.
#[test]
fn unfinished_files_are_removed() {
    let (folder, copies, _) = filled(1);
    for (name, bytes) in [
        ("0000000000000007.part", &b""[..]),
        ("0000000000000008.part", b"motet"),
        ("0000000000000009.segment", b""),
        ("000000000000000a.segment", b"motetseg"),
    ] {
        fs::write(folder.path().join(name), bytes).expect("the file system works");
        let (_, recovered) = folder.open();
        assert_eq!(
            (recovered.removed.len(), recovered.left.len()),
            (1, 0),
            "{name}"
        );
        check_all_recovered(&folder, &copies);
    }
}

#[test]
fn a_file_that_cannot_be_removed_does_not_fail_the_start() {
    let (folder, copies, each) = filled(2);
    let torn = folder.path().join("00000000000000ff.part");
    fs::write(&torn, "motetseg, and no more").expect("the file system works");
    let whole = {
        let files = FaultyFiles::new(None);
        drop(
            folder
                .open_with(files.clone(), PLENTY_BYTES)
                .expect("it opens"),
        );
        files.operations()
    };
    let mut failed = 0;
    for at in 3..whole {
        fs::write(&torn, "motetseg, and no more").expect("the file system works");
        let files = FaultyFiles::new(Some((at, Fault::ReadOnly)));
        let opened = folder.open_with(files.clone(), PLENTY_BYTES);
        let (mut tier, recovered) = opened.expect("the rest is served");
        assert_eq!(recovered.copies.len(), 2, "operation {at}");
        if recovered.removed.is_empty() {
            let [(path, TierError::Denied { .. })] = &recovered.left[..] else {
                panic!("operation {at}: {recovered:?}");
            };
            assert_eq!(*path, torn);
            assert_eq!(
                (recovered.left_bytes, tier.used_bytes()),
                (4096, 2 * each + 4096)
            );
            files.heal();
            store(&mut tier, 0, &copy(9, 5_000)).expect("it fits");
            assert!(!torn.exists(), "it goes when it can");
            assert_eq!(tier.used_bytes(), 3 * each);
            tier.remove(CopyId(0)).expect("it goes");
            failed += 1;
        }
        drop(tier);
        check_all_recovered(&folder, &copies);
    }
    assert!(failed > 0, "some could not be removed");
}

/// Labels of copies take host memory: the newest that fit are kept.
#[test]
fn recovered_copies_fit_the_label_budget() {
    let (folder, copies, _) = filled(6);
    let each = Label::host_bytes(copies[0].label.tokens.len());
    for retained in [4, 1, 0] {
        let limits = DiskLimits {
            bytes_max: PLENTY_BYTES,
            label_bytes_max: retained * each + each - 1,
        };
        let pool = BufferPool::new(0);
        let opened = DiskTier::open(folder.path(), limits, IDENTITY, pool, CopyId(1));
        let (_, recovered) = opened.expect("it opens");
        let labels = recovered.copies.iter().map(|(_, label)| label);
        assert!(labels.eq(copies[6 - retained..].iter().map(|copy| &copy.label)));
        for (_, why) in &recovered.removed {
            assert!(matches!(why, TierError::OutOfSpace { .. }), "{why}");
        }
        assert_eq!(folder.files().len(), retained);
    }
}

/// A copy of so many tokens of its own.
fn long_copy(name: u32, tokens: usize) -> StoredCopy {
    let one = copy(name, 5_000);
    let conversation = vec![name; tokens];
    let key = one.label.key;
    let label = Label::new(key, &conversation, 0, 0, one.label.precision, 5_000);
    StoredCopy { label, ..one }
}

/// Opens the folder with so much host memory for labels. Returns the labels that are kept, and
/// the errors of the files that were dropped.
fn recovered_within(folder: &Folder, label_bytes_max: usize) -> (Vec<Label>, Vec<TierError>) {
    let limits = DiskLimits {
        bytes_max: PLENTY_BYTES,
        label_bytes_max,
    };
    let pool = BufferPool::new(0);
    let opened = DiskTier::open(folder.path(), limits, IDENTITY, pool, CopyId(1));
    let (_, recovered) = opened.expect("it opens");
    assert!(recovered.left.is_empty(), "{recovered:?}");
    let labels = recovered.copies.into_iter().map(|(_, label)| label);
    let reasons = recovered.removed.into_iter().map(|(_, why)| why);
    (labels.collect(), reasons.collect())
}

/// The newest copy has more tokens than the label budget holds: it is whole, but does not fit.
#[test]
fn oversized_label_is_not_damage_and_evicts_no_older_copy() {
    let (folder, copies, _) = filled(3);
    let (mut tier, _) = folder.open();
    store(&mut tier, 0, &long_copy(8, 5_000)).expect("it fits");
    drop(tier);
    let each = Label::host_bytes(copies[0].label.tokens.len());
    let (retained, reasons) = recovered_within(&folder, 3 * each);
    assert!(retained.iter().eq(copies.iter().map(|copy| &copy.label)));
    let [TierError::OutOfSpace { bytes, .. }] = reasons[..] else {
        panic!("{reasons:?}");
    };
    assert_eq!(bytes, Label::host_bytes(5_000));
}

/// The file of a copy that is stored already needs no space, and takes none from older files.
#[test]
fn older_duplicate_evicts_no_older_copy() {
    let folder = Folder::new();
    let (old, duplicate, other) = (copy(1, 5_000), long_copy(2, 100), long_copy(3, 100));
    let (mut tier, _) = folder.open();
    for (id, copy) in (0..).zip([&old, &duplicate, &other, &duplicate]) {
        store(&mut tier, id, copy).expect("it fits");
    }
    drop(tier);
    let tokens = [&old, &duplicate, &other].map(|copy| copy.label.tokens.len());
    let exactly = tokens.map(Label::host_bytes).iter().sum();
    let (retained, reasons) = recovered_within(&folder, exactly);
    assert_eq!(retained, [old.label, other.label, duplicate.label]);
    assert!(
        matches!(reasons[..], [TierError::Twice { .. }]),
        "{reasons:?}"
    );
}

/// A copy's file has the same size wherever the copy is in its conversation.
#[test]
fn a_file_has_its_own_tokens_only() {
    let folder = Folder::new();
    let (mut tier, _) = folder.open();
    let one = copy(1, 100);
    let conversation: Vec<u32> = (0..100_000).collect();
    for (id, end) in [(0, 64), (1, 50_000), (2, 100_000)] {
        let label = Label::new(
            one.label.key,
            &conversation[..end],
            end - 64,
            0,
            one.label.precision,
            100,
        );
        tier.store(CopyId(id), &label, &one.bytes).expect("it fits");
    }
    for file in folder.files() {
        let bytes = fs::metadata(&file).expect("it is there").len();
        assert_eq!(bytes, 192 + 4 * 64 + 100);
    }
    drop(tier);
    let (_, recovered) = folder.open();
    let (_, last) = &recovered.copies[2];
    assert!(last.is_of(one.label.key, &conversation));
    assert_eq!((last.start, last.end()), (100_000 - 64, 100_000));
}
