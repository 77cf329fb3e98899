//! What tells models apart: SHA-256, cut to 64 bits, of all that a model computes with.

use std::thread;

use sha2::{Digest, Sha256};

use super::ModelFiles;

/// Threads that weights are hashed on, at most: beyond these memory is what they wait for.
const THREADS_MAX: usize = 8;
/// Weights of so many bytes are worth a thread.
const THREAD_BYTES: usize = 4 << 20;

pub(super) struct Fingerprint(Sha256);

impl Fingerprint {
    pub(super) fn new() -> Self {
        Self(Sha256::new())
    }

    /// Takes in a string of bytes; its length counts, so that two strings cannot
    /// pass for one.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.update(bytes);
    }

    pub(super) fn number(&mut self, number: u64) {
        self.0.update(number.to_le_bytes());
    }

    pub(super) fn finish(self) -> u64 {
        let digest = self.0.finalize();
        let first = digest.first_chunk().expect("it has 32 bytes");
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
    // Large ones first, in turn: each thread has about as much to do.
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

/// As it is computed with: in both containers the rows are in the same order.
fn tensor_digest(files: &ModelFiles, name: &str) -> [u8; 32] {
    let tensor = files.tensor(name).expect("the name is one of its own");
    Sha256::digest(tensor.bytes()).into()
}
