//! A folder for a disk tier, and copies to put into it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use motet_protocol::CopyId;
use motet_protocol::{Label, Precision};
use motet_protocol::{PrefixKey, Salt};
use motet_storage::tiers::disk::Files;
use motet_storage::tiers::{Buffer, BufferPool, DiskLimits, DiskTier, Recovered, Tier, TierError};

/// The model of these tests.
pub(crate) const IDENTITY: u64 = 0x1DE;
pub(crate) const PLENTY_BYTES: usize = 1 << 30;

/// A folder that is removed when this is dropped.
pub(crate) struct Folder(PathBuf);

/// A copy, with its bytes.
#[derive(Clone, Debug)]
pub(crate) struct StoredCopy {
    pub(crate) label: Label,
    pub(crate) bytes: Arc<Buffer>,
}

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("motet-tier-{}-{count}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn open(&self) -> (DiskTier, Recovered) {
        self.open_as(IDENTITY, PLENTY_BYTES).expect("it opens")
    }

    pub(crate) fn open_as(
        &self,
        identity: u64,
        bytes_max: usize,
    ) -> Result<(DiskTier, Recovered), TierError> {
        let pool = BufferPool::new(0);
        DiskTier::open(&self.0, limits(bytes_max), identity, pool, CopyId(100))
    }

    pub(crate) fn open_with(
        &self,
        files: impl Files + 'static,
        bytes_max: usize,
    ) -> Result<(DiskTier, Recovered), TierError> {
        let pool = BufferPool::new(0);
        let files = Box::new(files);
        DiskTier::open_with(
            files,
            &self.0,
            limits(bytes_max),
            IDENTITY,
            pool,
            CopyId(100),
        )
    }

    /// All files except the lock, by name.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).expect("the folder is there");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut paths: Vec<_> = paths.filter(|path| !path.ends_with("lock")).collect();
        paths.sort();
        paths
    }

    /// A folder in which one copy was stored, and its file.
    pub(crate) fn with(copy: &StoredCopy) -> (Self, PathBuf) {
        let folder = Self::new();
        let (mut tier, _) = folder.open();
        store(&mut tier, 0, copy).expect("it fits");
        let file = folder.files().remove(0);
        (folder, file)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Limits of so many bytes of files, and plenty for labels.
pub(crate) fn limits(bytes_max: usize) -> DiskLimits {
    DiskLimits {
        bytes_max,
        label_bytes_max: PLENTY_BYTES,
    }
}

/// The copy of this name, of so many bytes.
pub(crate) fn copy(name: u32, bytes: usize) -> StoredCopy {
    let pool = BufferPool::new(0);
    let mut buffer = pool.take(bytes).expect("memory");
    for (i, byte) in buffer.iter_mut().enumerate() {
        *byte = (i as u32).wrapping_mul(name * 2 + 1).to_le_bytes()[1] ^ name as u8;
    }
    let label = Label::new(
        PrefixKey::of(Salt::new(format!("tenant {}", name % 2))).digest(),
        &[7, 7, name, u32::MAX],
        1,
        name as usize % 3,
        Precision::Full,
        bytes,
    );
    StoredCopy {
        label,
        bytes: Arc::new(buffer),
    }
}

pub(crate) fn store(tier: &mut dyn Tier, id: u64, copy: &StoredCopy) -> Result<(), TierError> {
    tier.store(CopyId(id), &copy.label, &copy.bytes)
}

/// Loads a copy and compares it.
pub(crate) fn load(tier: &mut dyn Tier, id: u64, copy: &StoredCopy) -> Result<(), TierError> {
    let bytes = tier.load(CopyId(id), &copy.label)?;
    assert!(bytes[..] == copy.bytes[..], "damaged bytes were served");
    Ok(())
}
