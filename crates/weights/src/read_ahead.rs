//! Reading of all weights into the system's cache, before a step needs them.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::locate::Tensors;

/// Maximum threads that read. Beyond these, the disk or the system is the limit.
const THREADS_MAX: usize = 8;
/// Bytes that a thread reads at once.
const CHUNK_BYTES: usize = 16 << 20;
/// Lower bound of the system's page size.
const PAGE_BYTES: usize = 4096;

/// The state that the threads share.
struct Reading<'a, Chunks> {
    chunks: Chunks,
    read_bytes: usize,
    /// Is called with the bytes that have been read, and with all.
    progress: &'a mut (dyn FnMut(usize, usize) + Send),
}

/// Touches every page of these tensors. Chunks are started in the order of roles, which is about
/// that of the files.
pub(super) fn run(tensors: &Tensors, progress: &mut (dyn FnMut(usize, usize) + Send)) {
    let all = || {
        tensors
            .values()
            .flat_map(|located| located.stored.iter().map(|(stored, _)| stored))
    };
    let all_bytes: usize = all().map(|stored| stored.range.len()).sum();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = all_bytes
        .div_ceil(CHUNK_BYTES)
        .clamp(1, cores.min(THREADS_MAX));
    let reading = &Mutex::new(Reading {
        chunks: all().flat_map(|stored| {
            let chunks = stored.range.clone().step_by(CHUNK_BYTES);
            chunks.map(|begin| {
                (
                    &stored.file,
                    begin..stored.range.end.min(begin + CHUNK_BYTES),
                )
            })
        }),
        read_bytes: 0,
        progress,
    });
    let read_chunks = move || {
        let locked = || reading.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Some((file, range)) = locked().chunks.next() else {
                return;
            };
            file.read_ahead(range.clone());
            for page in file.bytes()[range.clone()].chunks(PAGE_BYTES) {
                black_box(page[0]);
            }
            let mut reading = locked();
            reading.read_bytes += range.len();
            let read_bytes = reading.read_bytes;
            (reading.progress)(read_bytes, all_bytes);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(read_chunks);
        }
        read_chunks();
    });
}
