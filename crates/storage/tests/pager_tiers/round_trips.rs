//! Copies are loaded as they were stored.

use motet_protocol::CopyId;
use motet_protocol::Precision;
use motet_protocol::{ActiveAdapter, AdapterKey, PrefixKey, Salt};
use motet_storage::tiers::{HostTier, Tier, TierError};

use super::folder::{Folder, StoredCopy, copy, load, store};

const LENGTHS: [usize; 6] = [0, 1, 4095, 4096, 300_000, 1 << 20];

fn keeps_copies(tier: &mut dyn Tier) {
    let copies: Vec<StoredCopy> = (0..).zip(LENGTHS).map(|(n, b)| copy(n, b)).collect();
    for (id, copy) in (0..).zip(&copies) {
        store(tier, id, copy).expect("it fits");
        let used_bytes = tier.used_bytes();
        store(tier, id, copy).expect("it is there already");
        assert_eq!(tier.used_bytes(), used_bytes);
    }
    for (id, copy) in (0..).zip(&copies) {
        load(tier, id, copy).expect("it is there");
    }
    tier.remove(CopyId(3)).expect("it goes");
    tier.remove(CopyId(3)).expect("it is gone already");
    for (id, copy) in (0..).zip(&copies) {
        match load(tier, id, copy) {
            Ok(()) => assert_ne!(id, 3),
            Err(TierError::Unknown(CopyId(3))) => assert_eq!(id, 3),
            Err(error) => panic!("{error}"),
        }
        tier.remove(CopyId(id)).expect("it goes");
    }
    assert_eq!(tier.used_bytes(), 0);
}

const ADAPTER: ActiveAdapter = ActiveAdapter {
    key: AdapterKey {
        digest: [3; 32],
        scale: 7,
    },
    from: 1,
};

#[test]
fn the_host_tier_keeps_copies() {
    keeps_copies(&mut HostTier::new(1 << 30));
}

#[test]
fn the_disk_tier_keeps_copies() {
    let folder = Folder::new();
    keeps_copies(&mut folder.open().0);
    assert_eq!(folder.files().len(), 0);
}

#[test]
fn a_restart_finds_all_copies_again_the_oldest_first() {
    let folder = Folder::new();
    let mut copies: Vec<StoredCopy> = (0..).zip(LENGTHS).map(|(n, b)| copy(n, b)).collect();
    copies[1].label.precision = Precision::Eight;
    copies[2].label.key = PrefixKey::default().digest();
    copies[4].label.key.adapter = Some(ADAPTER);
    copies[3].label.tokens = (0..50_000).collect();
    copies[3].label.start = 49_999;
    for ids in [0, 100, 100] {
        let (mut tier, recovered) = folder.open();
        assert!(recovered.removed.is_empty() && recovered.left.is_empty());
        let found = recovered.copies.iter();
        let found = found.map(|(id, label)| (id.0, label));
        if ids == 0 {
            assert_eq!(found.count(), 0);
            for (id, copy) in (0..).zip(&copies) {
                store(&mut tier, id, copy).expect("it fits");
            }
        } else {
            let expected = (100..).zip(copies.iter().map(|copy| &copy.label));
            assert!(found.eq(expected));
        }
        for (id, copy) in (ids..).zip(&copies) {
            load(&mut tier, id, copy).expect("it is there");
        }
    }
    // A new copy gets a file of its own.
    let (mut tier, _) = folder.open();
    store(&mut tier, 200, &copy(9, 10)).expect("it fits");
    assert_eq!(folder.files().len(), copies.len() + 1);
}

#[test]
fn newest_of_duplicate_copies_is_retained() {
    let folder = Folder::new();
    let one = copy(1, 100);
    let mut eight = copy(1, 60);
    eight.label.precision = Precision::Eight;
    let (mut tier, _) = folder.open();
    store(&mut tier, 0, &one).expect("it fits");
    store(&mut tier, 1, &eight).expect("it fits");
    drop(tier);

    let (mut tier, recovered) = folder.open();
    assert_eq!(recovered.copies, [(CopyId(100), eight.label.clone())]);
    let [(_, TierError::Twice { .. })] = &recovered.removed[..] else {
        panic!("{recovered:?}");
    };
    load(&mut tier, 100, &eight).expect("it is there");
}

#[test]
fn a_copy_is_not_served_for_another() {
    let folder = Folder::new();
    let one = copy(1, 100);
    let mut changes = vec![one.label.clone(); 7];
    changes[0].key.salt = Salt::new("somebody else").digest();
    changes[6].key.adapter = Some(ADAPTER);
    changes[1].tokens = [7, 7, 2, u32::MAX].into();
    changes[2].start = 2;
    changes[3].state_lag += 1;
    changes[4].precision = Precision::Eight;
    changes[5].bytes = 99;
    for label in changes {
        let (mut tier, _) = folder.open();
        store(&mut tier, 0, &one).expect("it fits");
        let loaded = tier.load(CopyId(0), &label);
        assert!(
            matches!(loaded, Err(TierError::Damaged { .. })),
            "{label:?}"
        );
        assert_eq!((tier.used_bytes(), folder.files().len()), (0, 0));
    }
}
