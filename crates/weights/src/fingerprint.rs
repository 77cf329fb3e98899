//! The fingerprint that identifies a model: BLAKE3, cut to 64 bits, of everything that it
//! computes with.
//!
//! BLAKE3 hashes several parts of its input side by side in wide registers: SHA-256 takes several
//! times as long.

use std::thread;

use blake3::Hasher;
use motet_formats::Format;

use super::blueprint::Blueprint;
use super::locate::Tensors;
use super::located::Located;

/// Maximum threads that hash weights. Beyond these, memory bandwidth is the limit.
const THREADS_MAX: usize = 8;
/// Minimum bytes of weights for each thread.
const THREAD_BYTES: usize = 4 << 20;

/// The identity of a model with this description and these tensors.
pub(super) fn identity(blueprint: &Blueprint, tensors: &Tensors) -> u64 {
    // Names and tokens are not part of the arithmetic, and containers write different ones. The
    // family is not: a GGUF file calls some families by another's name. A new field must be
    // named here or it does not compile.
    let Blueprint {
        family: _,
        name: _,
        stem,
        layers,
        context_tokens_max: _,
        end_tokens: _,
        begin_token: _,
    } = blueprint;
    let mut fingerprint = Fingerprint(Hasher::new());
    // The derived text has every field, and each number in as many digits as tell it from all
    // others.
    fingerprint.bytes(format!("{stem:?}").as_bytes());
    for layer in layers {
        fingerprint.bytes(format!("{layer:?}").as_bytes());
    }
    let digests = tensor_digests(tensors);
    for (((layer, role), located), digest) in tensors.iter().zip(digests) {
        fingerprint.bytes(format!("{layer:?} {role:?} {:?}", located.shape).as_bytes());
        fingerprint.bytes(&digest);
    }
    fingerprint.finish()
}

struct Fingerprint(Hasher);

impl Fingerprint {
    /// Adds a string of bytes with its length, so that two strings never hash like one.
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    fn finish(self) -> u64 {
        let digest = self.0.finalize();
        let first = digest.as_bytes().first_chunk();
        u64::from_le_bytes(*first.expect("a digest has 32 bytes"))
    }
}

/// BLAKE3 of all bytes of each tensor, in the tensors' order.
fn tensor_digests(tensors: &Tensors) -> Vec<[u8; 32]> {
    let mut by_bytes: Vec<(usize, usize, &Located)> = tensors
        .values()
        .enumerate()
        .map(|(index, located)| (located.bytes(), index, located))
        .collect();
    by_bytes.sort_by_key(|(bytes, index, _)| (usize::MAX - bytes, *index));
    let all_bytes: usize = by_bytes.iter().map(|(bytes, ..)| bytes).sum();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = (all_bytes / THREAD_BYTES).clamp(1, cores.min(THREADS_MAX));
    // Distributes tensors by size, the largest first, so that threads have about equal work.
    let of_thread = &|thread: usize| -> Vec<(usize, [u8; 32])> {
        let own = by_bytes.iter().skip(thread).step_by(threads);
        own.map(|(_, index, located)| (*index, tensor_digest(located)))
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

/// The digest of the tensor in the form used for computing: it does not depend on the container
/// nor on how many of the files' tensors it consists of. Codes, scales and offsets that lie apart
/// have a digest each, since they continue in the next part.
fn tensor_digest(located: &Located) -> [u8; 32] {
    let mut arrays = [Hasher::new(), Hasher::new(), Hasher::new()];
    let mut format = None;
    for part in located.tensor().parts() {
        if format != Some(part.format) {
            arrays[0].update(part.format.name().as_bytes());
            if let Format::Affine(affine) = part.format {
                arrays[0].update(format!("{affine:?}").as_bytes());
            }
            format = Some(part.format);
        }
        for (array, bytes) in arrays.iter_mut().zip(part.arrays()) {
            array.update(bytes);
        }
    }
    let mut digest = Hasher::new();
    for array in arrays {
        digest.update(array.finalize().as_bytes());
    }
    digest.finalize().into()
}
