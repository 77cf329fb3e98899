//! Timings of the tiers. Run it in release, with the disk's own figures in mind; the numbers are
//! those of one machine: `cargo test --release --test pager_tiers -- --ignored --nocapture
//! --test-threads 1`.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use motet_model::{FloatKind, Floats};
use motet_protocol::CopyId;
use motet_storage::tiers::disk::{Files, OpenFile, SystemFiles};
use motet_storage::tiers::precision::EightBits;
use motet_storage::tiers::{BufferPool, DiskTier, Tier};

use super::folder::{Folder, IDENTITY, PLENTY_BYTES, StoredCopy, copy, limits, load, store};

const MEBI: usize = 1 << 20;

/// Flushes a file before it gets its name, and then the folder.
#[derive(Debug)]
struct FlushedFiles;

impl Files for FlushedFiles {
    fn create_folder(&mut self, folder: &Path) -> io::Result<()> {
        SystemFiles.create_folder(folder)
    }

    fn lock(&mut self, path: &Path) -> Result<File, TryLockError> {
        SystemFiles.lock(path)
    }

    fn is_locked(&mut self, path: &Path, locked: &File) -> io::Result<bool> {
        SystemFiles.is_locked(path, locked)
    }

    fn list(&mut self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        SystemFiles.list(folder)
    }

    fn bytes(&mut self, path: &Path) -> io::Result<u64> {
        SystemFiles.bytes(path)
    }

    fn others_may(&mut self, path: &Path) -> io::Result<u32> {
        SystemFiles.others_may(path)
    }

    fn create(&mut self, path: &Path) -> io::Result<Box<dyn OpenFile>> {
        SystemFiles.create(path)
    }

    fn open(&mut self, path: &Path) -> io::Result<(Box<dyn OpenFile>, u64)> {
        SystemFiles.open(path)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        File::options().write(true).open(from)?.sync_all()?;
        SystemFiles.rename(from, to)?;
        File::open(to.parent().expect("a folder"))?.sync_all()
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        SystemFiles.remove(path)
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed())
}

/// Median and worst, as milliseconds and gigabytes a second.
fn print(what: &str, bytes: usize, mut times: Vec<Duration>) {
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!(
        "{what}, {:.2} MiB: median {:.3} ms ({:.2} GB/s), worst {:.3} ms",
        bytes as f64 / MEBI as f64,
        median.as_secs_f64() * 1e3,
        bytes as f64 / median.as_secs_f64() / 1e9,
        worst.as_secs_f64() * 1e3,
    );
}

#[test]
#[ignore = "measures; nothing to fail"]
fn disk() {
    for bytes in [MEBI / 4, 4 * MEBI, 24 * MEBI] {
        let (plain, flushed) = (Folder::new(), Folder::new());
        let pool = BufferPool::new(2 * bytes);
        let opened = DiskTier::open(
            plain.path(),
            limits(PLENTY_BYTES),
            IDENTITY,
            pool,
            CopyId(0),
        );
        let (mut plain_tier, _) = opened.expect("it opens");
        let opened = flushed.open_with(FlushedFiles, PLENTY_BYTES);
        let (mut flushed_tier, _) = opened.expect("it opens");
        let one = copy(1, bytes);
        let [mut stored, mut synced, mut loaded, mut copied] = [const { Vec::new() }; 4];
        let mut target = vec![1; bytes];
        for id in 0..30 {
            // Alternately, and never many at once, so that both see the same system.
            stored
                .push(timed(|| store(&mut plain_tier, id, &one).expect("the file system works")).1);
            synced.push(
                timed(|| store(&mut flushed_tier, id, &one).expect("the file system works")).1,
            );
            let (bytes, time) = timed(|| plain_tier.load(CopyId(id), &one.label).expect("there"));
            loaded.push(time);
            copied.push(timed(|| target.copy_from_slice(&bytes)).1);
            if id % 4 == 3 {
                for old in id - 3..=id {
                    plain_tier.remove(CopyId(old)).expect("it goes");
                    flushed_tier.remove(CopyId(old)).expect("it goes");
                }
            }
        }
        print("stored", bytes, stored);
        print("stored, flushed file and folder", bytes, synced);
        print("loaded (the system has it in memory)", bytes, loaded);
        print("copied in memory", bytes, copied);
    }
}

#[test]
#[ignore = "measures; nothing to fail"]
fn opening() {
    let folder = Folder::new();
    let (mut tier, _) = folder.open();
    let mut one: StoredCopy = copy(1, 100_000);
    for id in 0..2_000 {
        one.label.tokens = (id as u32..id as u32 + 2_000).collect();
        store(&mut tier, id, &one).expect("the file system works");
    }
    drop(tier);
    let ((mut tier, recovered), time) = timed(|| folder.open());
    println!("{} files found in {time:?}", recovered.copies.len());
    load(&mut tier, 2_099, &one).expect("the newest");
}

#[test]
#[ignore = "measures; nothing to fail"]
fn buffers() {
    for quarters in [1, 4, 8, 10, 14, 16, 18, 32, 96] {
        let bytes = quarters * MEBI / 4;
        let pool = BufferPool::new(64 * MEBI);
        let source = vec![1; bytes];
        let fill = |pool: &BufferPool| {
            let (buffer, time) = timed(|| {
                let mut buffer = pool.take(bytes).expect("memory");
                buffer.copy_from_slice(&source);
                buffer
            });
            drop(buffer);
            time
        };
        let fresh = (0..20).map(|_| {
            pool.trim(Duration::ZERO);
            fill(&pool)
        });
        print("filled, fresh", bytes, fresh.collect());
        print(
            "filled, warm",
            bytes,
            (0..20).map(|_| fill(&pool)).collect(),
        );
    }
}

#[test]
#[ignore = "measures; nothing to fail"]
fn precision() {
    let numbers = 2 * MEBI;
    for kind in [FloatKind::F32, FloatKind::F16, FloatKind::Bf16] {
        for (rows, channels) in [(64, 64), (512, 64), (64, 128)] {
            let planes = EightBits(vec![Floats {
                kind,
                planes: numbers / (rows * channels),
                rows,
                channels,
            }]);
            let values = (0..numbers).map(|i| ((i * 37 % 1001) as f32 - 500.0) / 250.0);
            let full: Vec<u8> = match kind {
                FloatKind::F32 => values.flat_map(f32::to_ne_bytes).collect(),
                FloatKind::F16 => values
                    .flat_map(|x| half::f16::from_f32(x).to_ne_bytes())
                    .collect(),
                FloatKind::Bf16 => values
                    .flat_map(|x| half::bf16::from_f32(x).to_ne_bytes())
                    .collect(),
            };
            let eight_bytes = planes.eight_bytes(full.len()).expect("whole planes");
            let (mut eight, mut back) = (vec![1; eight_bytes], vec![1; full.len()]);
            let encoded = (0..20).map(|_| timed(|| planes.encode(&full, &mut eight).unwrap()).1);
            let encoded = encoded.collect();
            let decoded = (0..20).map(|_| timed(|| planes.decode(&eight, &mut back).unwrap()).1);
            let decoded = decoded.collect();
            let share = eight_bytes as f64 / full.len() as f64;
            println!("{kind:?} [{rows}, {channels}]: {share:.3} of the bytes");
            print("  encoded", full.len(), encoded);
            print("  decoded", full.len(), decoded);
        }
    }
}
