//! Files that a person or a program has changed.

use std::fs;
use std::path::Path;

use motet_storage::tiers::{Recovered, TierError};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::folder::{Folder, StoredCopy, copy, load, store};

/// Changes a file.
type Damage = fn(&Path);

/// Replaces the file by `damaged`. The damage must be detected, when the folder is opened or when
/// the copy is loaded, and the file must be gone. A file that does not begin like a tier's own
/// may belong to another program, and stays.
fn check(folder: &Folder, file: &Path, damaged: &[u8], one: &StoredCopy, what: &str) {
    fs::write(file, damaged).expect("the file system works");
    let (mut tier, recovered) = folder.open();
    if !damaged
        .iter()
        .zip(b"motetseg")
        .all(|(one, ours)| one == ours)
    {
        assert!(
            recovered.copies.is_empty() && recovered.removed.is_empty(),
            "{what}"
        );
        let [(path, TierError::Foreign { .. })] = &recovered.left[..] else {
            panic!("{what}: {recovered:?}");
        };
        assert_eq!(path, file, "{what}");
        assert!(fs::read(file).expect("it stays") == damaged, "{what}");
        return;
    }
    assert!(recovered.left.is_empty(), "{what}");
    match &recovered.copies[..] {
        [] => {
            let [(path, why)] = &recovered.removed[..] else {
                panic!("{what}: {recovered:?}");
            };
            assert_eq!(path, file, "{what}");
            is_damage(why, file, what);
        }
        [(id, label)] => {
            assert_eq!(*label, one.label, "{what}");
            let rejected = load(&mut tier, id.0, one);
            is_damage(&rejected.expect_err(what), file, what);
            let again = load(&mut tier, id.0, one);
            assert!(matches!(again, Err(TierError::Unknown(_))), "{what}");
        }
        _ => panic!("{what}: {recovered:?}"),
    }
    assert!(!file.exists(), "{what}");
}

fn is_damage(why: &TierError, file: &Path, what: &str) {
    assert!(
        matches!(
            why,
            TierError::Damaged { .. } | TierError::OtherFormat { .. }
        ),
        "{what}: {why}"
    );
    let name = file.display().to_string();
    assert!(why.to_string().starts_with(&name), "{what}: {why}");
}

#[test]
fn every_bit_and_every_length_of_a_small_file_counts() {
    let one = copy(1, 41);
    let (folder, file) = Folder::with(&one);
    let whole = fs::read(&file).expect("it is there");
    assert_eq!(whole.len(), 192 + 3 * 4 + 41);
    for bit in 0..8 * whole.len() {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        check(&folder, &file, &damaged, &one, &format!("bit {bit}"));
    }
    for length in 0..whole.len() {
        check(
            &folder,
            &file,
            &whole[..length],
            &one,
            &format!("{length} bytes"),
        );
    }
    for more in [1, 4, 1000] {
        let mut damaged = whole.clone();
        damaged.resize(whole.len() + more, 0);
        check(
            &folder,
            &file,
            &damaged,
            &one,
            &format!("{more} bytes more"),
        );
    }
    fs::write(&file, &whole).expect("the file system works");
    let (mut tier, _) = folder.open();
    load(&mut tier, 100, &one).expect("nothing but damage was found out");
}

#[test]
fn random_damage_of_large_files_is_found() {
    let one = copy(1, 300_000);
    let (folder, file) = Folder::with(&one);
    let whole = fs::read(&file).expect("it is there");
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for round in 0..1_000 {
        let mut damaged = whole.clone();
        let at = random.random_range(0..whole.len());
        let what = match round % 4 {
            0 => {
                damaged[at] ^= 1 << random.random_range(0..8);
                format!("a bit of byte {at}")
            }
            1 => {
                damaged.truncate(at);
                format!("only {at} bytes")
            }
            // The rest of a file whose blocks never reached the disk.
            2 => {
                let block = at / 4096 * 4096;
                let end = whole.len().min(block + 4096 * random.random_range(1..8));
                damaged[block..end].fill(0);
                format!("zeros from {block} to {end}")
            }
            _ => {
                let end = whole.len().min(at + random.random_range(8..5000));
                random.fill_bytes(&mut damaged[at..end]);
                format!("noise from {at} to {end}")
            }
        };
        check(&folder, &file, &damaged, &one, &what);
    }
}

#[test]
fn later_damage_is_found() {
    let one = copy(1, 10_000);
    let damages: [(&str, Damage); 4] = [
        ("gone", |file| fs::remove_file(file).expect("it goes")),
        ("empty", |file| {
            fs::write(file, "").expect("the file system works")
        }),
        ("a bit", |file| {
            let mut bytes = fs::read(file).expect("it is there");
            bytes[9_000] ^= 1;
            fs::write(file, bytes).expect("the file system works");
        }),
        ("another program's", |file| {
            fs::write(file, vec![b'x'; 20_000]).expect("the file system works");
        }),
    ];
    for (what, damage) in damages {
        let folder = Folder::new();
        let (mut tier, _) = folder.open();
        store(&mut tier, 0, &one).expect("it fits");
        damage(&folder.files()[0]);
        let rejected = load(&mut tier, 0, &one).expect_err(what);
        assert!(
            matches!(rejected, TierError::Damaged { .. }),
            "{what}: {rejected}"
        );
        assert!(folder.files().is_empty(), "{what}");
        store(&mut tier, 1, &one).expect(what);
        load(&mut tier, 1, &one).expect(what);
    }
}

#[test]
fn renamed_file_is_not_used() {
    let (one, two) = (copy(1, 100), copy(2, 100));
    let renamed = |to: &str| -> (Folder, Recovered) {
        let (folder, file) = Folder::with(&one);
        let (mut tier, _) = folder.open();
        store(&mut tier, 1, &two).expect("it fits");
        drop(tier);
        fs::rename(file, folder.path().join(to)).expect("it moves");
        let recovered = folder.open().1;
        (folder, recovered)
    };
    for to in [
        "0000000000000007.segment",
        "old.segment",
        "0000000000000000.part",
    ] {
        let (folder, recovered) = renamed(to);
        assert_eq!(recovered.removed.len(), 1, "{to}: {recovered:?}");
        assert_eq!(folder.files().len(), 1, "{to}");
    }
    // In place of the other.
    let (_, recovered) = renamed("0000000000000001.segment");
    assert_eq!((recovered.removed.len(), recovered.copies.len()), (1, 0));
}
