//! Files of the disk tier.

use std::sync::Arc;

use motet::CopyId;
use motet::cache::{ActiveAdapter, AdapterKey, PrefixKey, Salt};
use motet_core::pager::{Label, Precision};
use motet_storage::tiers::{BufferPool, DiskLimits, DiskTier, Recovered, Tier};

use super::input::FuzzInput;
use super::scratch::Scratch;

const IDENTITY: u64 = 0x1DE;
const PLENTY_BYTES: usize = 1 << 24;
const BYTES: usize = 41;

/// A file as it is, or damage to a stored file: anything that is then accepted is what was
/// stored.
pub fn disk(input: &[u8]) {
    let mut input = FuzzInput(input);
    let folder = Scratch::new();
    let key = PrefixKey {
        salt: Salt::new("a tenant"),
        adapter: Some(ActiveAdapter {
            key: AdapterKey {
                digest: [3; 32],
                scale: 1,
            },
            from: 1,
        }),
    };
    let label = Label::new(
        key.digest(),
        &[7, 7, 1, u32::MAX],
        1,
        1,
        Precision::Full,
        BYTES,
    );
    let mut stored = BufferPool::new(0).take(BYTES).expect("memory");
    stored.fill(0xA5);
    let stored = Arc::new(stored);
    let (mut tier, _) = open(&folder);
    tier.store(CopyId(1), &label, &stored).expect("it fits");
    drop(tier);
    let segment = |entry: &std::fs::DirEntry| entry.path().extension().is_some();
    let files = std::fs::read_dir(folder.path()).expect("the folder is there");
    let mut files = files.map(|entry| entry.expect("an entry"));
    let file = files.find(segment).expect("a file").path();
    let whole = std::fs::read(&file).expect("it is there");
    let changed = if input.bit() {
        input.0.to_vec()
    } else {
        damaged(whole.clone(), &mut input)
    };
    std::fs::write(&file, &changed).expect("the folder is writable");
    let (mut tier, recovered) = open(&folder);
    for (copy, of) in &recovered.copies {
        if let Ok(loaded) = tier.load(*copy, of) {
            assert_eq!(changed, whole, "a damaged file is accepted");
            assert!(
                *of == label && loaded[..] == stored[..],
                "it is what was stored"
            );
        }
    }
    let gone = recovered.copies.is_empty() && recovered.left.is_empty();
    assert!(!gone || !file.exists(), "a rejected file is removed");
    let is_ours = changed
        .iter()
        .zip(b"motetseg")
        .all(|(one, ours)| one == ours);
    assert!(is_ours || file.exists(), "other files stay");
}

fn open(folder: &Scratch) -> (DiskTier, Recovered) {
    let pool = BufferPool::new(0);
    let limits = DiskLimits {
        bytes_max: PLENTY_BYTES,
        label_bytes_max: PLENTY_BYTES,
    };
    DiskTier::open(folder.path(), limits, IDENTITY, pool, CopyId(100)).expect("it opens")
}

/// Bytes are changed, cut off or added.
fn damaged(mut bytes: Vec<u8>, input: &mut FuzzInput<'_>) -> Vec<u8> {
    while !input.is_empty() {
        let at = usize::from(input.byte()) * 256 + usize::from(input.byte());
        match input.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.resize(bytes.len() + at, input.byte()),
            _ if bytes.is_empty() => {}
            _ => {
                let at = at % bytes.len();
                bytes[at] = input.byte();
            }
        }
    }
    bytes
}
