//! The fingerprint that identifies a model: SHA-256, cut to 64 bits, of everything that it
//! computes with.

use std::thread;

use sha2::{Digest, Sha256};

use super::ModelFiles;

/// Maximum threads that hash weights. Beyond these, memory bandwidth is the limit.
const THREADS_MAX: usize = 8;
/// Minimum bytes of weights for each thread.
const THREAD_BYTES: usize = 4 << 20;

pub(super) struct Fingerprint(Sha256);

impl Fingerprint {
    pub(super) fn new() -> Self {
        Self(Sha256::new())
    }

    /// Adds a string of bytes with its length, so that two strings never hash like one.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    pub(super) fn finish(self) -> u64 {
        let digest = self.0.finalize();
        let first = digest.first_chunk().expect("a digest has 32 bytes");
        u64::from_le_bytes(*first)
    }
}

/// SHA-256 of all bytes of each tensor, in alphabetical order of their names.
pub(super) fn tensor_digests(files: &ModelFiles) -> Vec<[u8; 32]> {
    let mut by_bytes: Vec<(usize, &str, usize)> = files
        .tensors
        .iter()
        .enumerate()
        .map(|(index, (name, located))| (located.stored.range.len(), name.as_str(), index))
        .collect();
    by_bytes.sort_unstable_by(|one, other| other.cmp(one));
    let all_bytes: usize = by_bytes.iter().map(|(bytes, ..)| bytes).sum();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (all_bytes / THREAD_BYTES).clamp(1, cores.min(THREADS_MAX));
    // Distributes tensors by size, the largest first, so that threads have about equal work.
    let of_thread = |thread: usize| -> Vec<(usize, [u8; 32])> {
        let own = by_bytes.iter().skip(thread).step_by(threads);
        own.map(|(_, name, index)| (*index, tensor_digest(files, name)))
            .collect()
    };
    let mut digests = vec![[0; 32]; by_bytes.len()];
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|thread| scope.spawn(move || of_thread(thread)))
            .collect();
        let mut found = of_thread(0);
        for other in others {
            found.extend(other.join().expect("hashing does not panic"));
        }
        for (index, digest) in found {
            digests[index] = digest;
        }
    });
    digests
}

/// The digest of the tensor in the form used for computing: rows are in the same order for both
/// containers.
fn tensor_digest(files: &ModelFiles, name: &str) -> [u8; 32] {
    let tensor = files
        .tensor(name)
        .expect("the files contain every tensor that they name");
    Sha256::digest(tensor.bytes()).into()
}
