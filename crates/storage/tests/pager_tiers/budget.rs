//! No tier takes more bytes than its budget.

use std::collections::BTreeMap;
use std::fs;

use motet_protocol::CopyId;
use motet_storage::tiers::{DiskTier, HostTier, Tier, TierError};
use proptest::prelude::*;

use super::folder::{Folder, StoredCopy, copy, load, store};

/// Bytes of the files by the system's own account.
#[cfg(unix)]
fn disk_bytes(folder: &Folder) -> usize {
    use std::os::unix::fs::MetadataExt;
    let files = folder.files();
    let blocks = files
        .iter()
        .map(|file| fs::metadata(file).expect("a file").blocks());
    512 * blocks.sum::<u64>() as usize
}

#[cfg(not(unix))]
fn disk_bytes(folder: &Folder) -> usize {
    let files = folder.files();
    let lengths = files
        .iter()
        .map(|file| fs::metadata(file).expect("a file").len());
    lengths.sum::<u64>() as usize
}

/// Stores and removes, and compares with a naive account.
fn check(
    tier: &mut dyn Tier,
    bytes_max: usize,
    moves: &[(u64, usize, bool)],
    bytes_taken: impl Fn(&StoredCopy) -> usize,
    outside: impl Fn() -> usize,
) -> Result<(), TestCaseError> {
    let mut retained: BTreeMap<u64, StoredCopy> = BTreeMap::new();
    for (id, bytes, is_store) in moves {
        let account = |retained: &BTreeMap<u64, StoredCopy>| {
            retained.values().map(&bytes_taken).sum::<usize>()
        };
        if *is_store {
            let new = copy(*id as u32, *bytes);
            let is_present = retained.contains_key(id);
            let fits = is_present || account(&retained) + bytes_taken(&new) <= bytes_max;
            match store(tier, *id, &new) {
                Ok(()) if is_present => {}
                Ok(()) => {
                    prop_assert!(fits);
                    retained.insert(*id, new);
                }
                Err(TierError::OutOfSpace { .. }) => prop_assert!(!fits),
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
        } else {
            tier.remove(CopyId(*id)).expect("it goes");
            retained.remove(id);
        }
        prop_assert_eq!(tier.used_bytes(), account(&retained));
        prop_assert!(outside() <= tier.used_bytes());
        prop_assert!(tier.used_bytes() <= bytes_max);
    }
    for (id, copy) in &retained {
        load(tier, *id, copy).expect("it is there");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn tiers_stay_within_their_budgets(
        bytes_max in 0_usize..60_000,
        moves in prop::collection::vec((0_u64..12, 0_usize..20_000, prop::bool::weighted(0.7)), 1..60),
    ) {
        let mut host = HostTier::new(bytes_max);
        check(&mut host, bytes_max, &moves, |copy| HostTier::bytes_taken(copy.label.bytes), || 0)?;

        let folder = Folder::new();
        let (mut disk, _) = folder.open_as(1, bytes_max).expect("it opens");
        let bytes_taken = |copy: &StoredCopy| {
            DiskTier::bytes_taken(copy.label.tokens.len(), copy.label.bytes)
        };
        check(&mut disk, bytes_max, &moves, bytes_taken, || disk_bytes(&folder))?;
    }
}

#[test]
fn a_smaller_budget_keeps_the_newest() {
    let folder = Folder::new();
    let copies: Vec<StoredCopy> = (0..6).map(|n| copy(n, 5_000)).collect();
    let (mut tier, _) = folder.open();
    for (id, copy) in (0..).zip(&copies) {
        store(&mut tier, id, copy).expect("it fits");
    }
    drop(tier);
    let each = DiskTier::bytes_taken(3, 5_000);
    for retained in [4, 4, 1, 0] {
        let (mut tier, recovered) = folder
            .open_as(super::folder::IDENTITY, each * retained + 4095)
            .expect("it opens");
        let labels = recovered.copies.iter().map(|(_, label)| label);
        assert!(labels.eq(copies[6 - retained..].iter().map(|copy| &copy.label)));
        assert_eq!(folder.files().len(), retained);
        let reasons = recovered.removed.iter().map(|(_, why)| why);
        assert!(
            reasons
                .clone()
                .all(|why| matches!(why, TierError::OutOfSpace { .. }))
        );
        for (id, copy) in (100..).zip(&copies[6 - retained..]) {
            load(&mut tier, id, copy).expect("it is there");
        }
    }
}

/// A copy that does not fit goes alone.
#[test]
fn copy_that_does_not_fit_evicts_no_older_copy() {
    let folder = Folder::new();
    let copies: Vec<StoredCopy> = (0..3).map(|n| copy(n, 5_000)).collect();
    let (mut tier, _) = folder.open();
    for (id, copy) in (0..).zip(&copies) {
        store(&mut tier, id, copy).expect("it fits");
    }
    store(&mut tier, 3, &copy(3, 90_000)).expect("it fits");
    drop(tier);
    let each = DiskTier::bytes_taken(3, 5_000);
    let opened = folder.open_as(super::folder::IDENTITY, 3 * each);
    let (mut tier, recovered) = opened.expect("it opens");
    let labels = recovered.copies.iter().map(|(_, label)| label);
    assert!(labels.eq(copies.iter().map(|copy| &copy.label)));
    let [(_, TierError::OutOfSpace { bytes, .. })] = recovered.removed[..] else {
        panic!("{recovered:?}");
    };
    assert_eq!(bytes, DiskTier::bytes_taken(3, 90_000));
    for (id, copy) in (100..).zip(&copies) {
        load(&mut tier, id, copy).expect("it is there");
    }
}
