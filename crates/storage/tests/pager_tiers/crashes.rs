//! After a failure of any disk operation, a stored copy is either served or gone.

use motet_protocol::CopyId;
use motet_protocol::Label;
use motet_storage::tiers::{DiskTier, Tier, TierError};

use super::faulty::{Fault, FaultyFiles};
use super::folder::{Folder, PLENTY_BYTES, StoredCopy, copy, load, store};

/// The last report about a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    Nothing,
    Stored,
    /// Storing or removing it failed.
    Unknown,
    Removed,
}

const COPIES: usize = 5;

/// Operations on a tier: stores, loads and removes. Returns whether all of them succeeded.
fn run_operations(
    tier: &mut DiskTier,
    copies: &[StoredCopy],
    reported: &mut [Reported; COPIES],
) -> bool {
    let mut succeeded = true;
    let mut record = |moved: Result<(), TierError>, reported: &mut Reported, then: Reported| {
        succeeded &= moved.is_ok();
        // The tier does not know a copy that it could not store, so it cannot remove it.
        let is_known = moved.is_ok() && *reported != Reported::Unknown;
        *reported = if is_known { then } else { Reported::Unknown };
    };
    for id in 0..3 {
        let stored = store(tier, id as u64, &copies[id]);
        record(stored, &mut reported[id], Reported::Stored);
    }
    record(tier.remove(CopyId(1)), &mut reported[1], Reported::Removed);
    for id in 3..COPIES {
        let stored = store(tier, id as u64, &copies[id]);
        record(stored, &mut reported[id], Reported::Stored);
    }
    record(tier.remove(CopyId(4)), &mut reported[4], Reported::Removed);
    for (id, copy) in copies.iter().enumerate() {
        if reported[id] != Reported::Stored {
            continue;
        }
        match load(tier, id as u64, copy) {
            Ok(()) => {}
            // Removed, because the bytes read were not the bytes written.
            Err(TierError::Damaged { .. }) => {
                reported[id] = Reported::Unknown;
                succeeded = false;
            }
            // The disk failed, and the copy stays.
            Err(TierError::Io { .. }) => succeeded = false,
            Err(error) => panic!("{error}"),
        }
    }
    succeeded
}

fn check_folder(folder: &Folder, copies: &[StoredCopy], reported: &[Reported; COPIES], what: &str) {
    let (mut tier, recovered) = folder.open();
    let ids = |label: &Label| copies.iter().position(|copy| copy.label == *label);
    let mut found = [false; COPIES];
    for (id, label) in &recovered.copies {
        let at = ids(label).unwrap_or_else(|| panic!("{what}: {label:?} was never stored"));
        load(&mut tier, id.0, &copies[at]).unwrap_or_else(|error| panic!("{what}: {error}"));
        found[at] = true;
    }
    for at in 0..COPIES {
        match reported[at] {
            Reported::Stored => assert!(found[at], "{what}: {at} was stored and is gone"),
            Reported::Nothing | Reported::Removed => {
                assert!(!found[at], "{what}: {at} must not be there");
            }
            Reported::Unknown => {}
        }
    }
    assert_eq!(folder.files().len(), recovered.copies.len(), "{what}");
}

#[test]
fn any_disk_operation_may_fail_or_be_the_last() {
    use Fault::{DiesAfter, DiesBefore, DiesWithin, FailsForGood, FailsOnce, Fills, ReadsWrong};
    let copies: Vec<StoredCopy> = (0..COPIES as u32).map(|n| copy(n, 600_000)).collect();
    let whole = {
        let (folder, files) = (Folder::new(), FaultyFiles::new(None));
        let (mut tier, _) = folder
            .open_with(files.clone(), PLENTY_BYTES)
            .expect("it opens");
        assert!(run_operations(
            &mut tier,
            &copies,
            &mut [Reported::Nothing; COPIES]
        ));
        files.operations()
    };
    assert!(whole > 30, "{whole} operations");
    let mut errors = 0;
    for fault in [
        DiesBefore,
        DiesWithin,
        DiesAfter,
        Fills,
        FailsOnce,
        FailsForGood,
        ReadsWrong,
    ] {
        for at in 0..whole {
            let (folder, files) = (Folder::new(), FaultyFiles::new(Some((at, fault))));
            let what = format!("{fault:?} at operation {at}");
            let mut reported = [Reported::Nothing; COPIES];
            if let Ok((mut tier, _)) = folder.open_with(files.clone(), PLENTY_BYTES) {
                errors += usize::from(!run_operations(&mut tier, &copies, &mut reported));
                files.heal();
                // Space that could not be freed is freed by the next store.
                if matches!(fault, FailsOnce | FailsForGood | Fills) {
                    let stored_again = store(&mut tier, 50, &copies[0]);
                    stored_again.unwrap_or_else(|error| panic!("{what}: {error}"));
                    let each = DiskTier::bytes_taken(3, 600_000);
                    assert_eq!(tier.used_bytes(), each * folder.files().len(), "{what}");
                    tier.remove(CopyId(50)).expect("it works again");
                }
            }
            check_folder(&folder, &copies, &reported, &what);
        }
    }
    assert!(errors > 3 * whole, "most faults are reported: {errors}");
}

#[test]
fn any_operation_of_opening_may_fail() {
    let (one, two) = (copy(1, 5_000), copy(2, 5_000));
    for at in 0.. {
        let (folder, file) = Folder::with(&one);
        let (mut tier, _) = folder.open();
        store(&mut tier, 1, &two).expect("it fits");
        drop(tier);
        std::fs::write(folder.path().join("00000000000000ff.part"), "motet")
            .expect("the file system works");
        let files = FaultyFiles::new(Some((at, Fault::FailsOnce)));
        let opened = folder.open_with(files.clone(), PLENTY_BYTES);
        let is_finished = files.operations() <= at;
        if let Ok((tier, recovered)) = opened {
            drop(tier);
            let gone = recovered.removed.len() + recovered.left.len();
            let all = recovered.copies.len() + gone;
            assert_eq!(all, 3, "operation {at}: {recovered:?}");
            let each = DiskTier::bytes_taken(3, 5_000);
            let copies_left = 2 - recovered.copies.len();
            assert!(recovered.left_bytes >= copies_left * each, "operation {at}");
        }
        let (mut tier, recovered) = folder.open();
        assert_eq!(recovered.copies.len(), 2, "operation {at}: nothing is lost");
        assert!(recovered.left.is_empty(), "operation {at}: {recovered:?}");
        for (id, label) in recovered.copies {
            let copy = if label == one.label { &one } else { &two };
            load(&mut tier, id.0, copy).expect("it is whole");
        }
        if is_finished {
            assert!(file.exists());
            return;
        }
    }
}

#[test]
fn misread_data_is_not_served() {
    let one = copy(1, 700_000);
    let mut served = 0;
    for at in 0.. {
        let (folder, files) = (Folder::new(), FaultyFiles::new(None));
        let (mut tier, _) = folder
            .open_with(files.clone(), PLENTY_BYTES)
            .expect("it opens");
        store(&mut tier, 0, &one).expect("it fits");
        let before = files.operations();
        files.plan(at, Fault::ReadsWrong);
        match load(&mut tier, 0, &one) {
            // Opening reads no file.
            Ok(()) => served += 1,
            Err(error) => assert!(
                matches!(
                    error,
                    TierError::Damaged { .. } | TierError::OtherFormat { .. }
                ),
                "{error}"
            ),
        }
        if files.operations() <= before + at {
            break;
        }
    }
    assert_eq!(served, 2, "one wrong opening, one with nothing wrong");
}
