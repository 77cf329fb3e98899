//! Weights that outlive the thread that loaded them.
//!
//! A new device thread that replaces a dead one needs the same weights. They are the largest
//! part of a model and the slowest to load, and no step changes them. A copy of their handles
//! is therefore kept outside the threads, and the next thread takes them over.
//!
//! An MLX array may be used by another thread than the one that made it if nothing changes it
//! any more. Weights are evaluated when they are loaded, and have no link to the stream that
//! evaluated them. MLX no longer updates its record of their evaluation, since all were found
//! to be available. MLX writes into an input's memory only where nothing else holds the input,
//! and these handles hold it.
//!
//! Whatever killed the thread may have written to the weights by mistake. They are reused on
//! two conditions: their bytes have the digest from when they were loaded, and a step has
//! finished with them since they were last taken over. Otherwise they are read from their files
//! again. The digest leaves out mapped bytes, which this process cannot write to: that no other
//! one has is known by the length and the time of each file, which a load checks
//! ([`FileWatch`](motet_weights::FileWatch)).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use mlx_rs::{Array, Dtype};
use rapidhash::v3::rapidhash_v3;

use crate::device::bridge::{self, memory};
use crate::device::stored_matrix::StoredMatrix;
use crate::layers::weights::Weights;
use crate::weights::{MatrixForm, WeightParts};
use motet_weights::LazyIdentity;

/// Maximum threads that compute the digest. Beyond these, memory bandwidth is the limit.
const THREADS_MAX: usize = 8;
/// Bytes per digested chunk.
const CHUNK_BYTES: usize = 1 << 20;

/// Storage for the weights of one model, for its next device thread. Clones share them. They
/// are freed with the last clone and the last model that uses them.
#[derive(Clone, Default)]
pub struct RetainedWeights(Arc<Mutex<Option<RetainedEntry>>>);

struct RetainedEntry {
    weights: Weights,
    /// The form in which they were loaded.
    form: Form,
    digest: u64,
    /// Whether a step has finished since they were loaded or last taken over.
    is_proven: bool,
}

/// The form in which weights are loaded. Weights of another form cannot be reused.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub(crate) files: LazyIdentity,
    pub(crate) dtype: Dtype,
    pub(crate) matrices: MatrixForm,
}

impl Form {
    /// Whether weights of one form can be used as the other. Files that were opened again may have
    /// changed.
    fn is_same(&self, other: &Form) -> bool {
        self.files.is_same_opening(&other.files)
            && (self.dtype, self.matrices) == (other.dtype, other.matrices)
    }
}

impl RetainedWeights {
    /// Whether there are no weights for the next thread.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locked().is_none()
    }

    /// Makes the weights fail their check, for tests.
    #[doc(hidden)]
    pub fn corrupt(&self) {
        if let Some(retained) = &mut *self.locked() {
            retained.digest ^= 1;
        }
    }

    /// The retained weights, if they have this form and pass their check. Others are dropped.
    pub(crate) fn reuse(&self, form: &Form) -> Option<Weights> {
        let mut locked = self.locked();
        let retained = locked.as_mut()?;
        let is_sound = retained.form.is_same(form) && retained.is_proven && {
            retained.is_proven = false;
            digest(&retained.weights) == Some(retained.digest)
        };
        if is_sound {
            return Some(retained.weights.clone());
        }
        let dropped = locked.take();
        drop(locked);
        drop(dropped);
        None
    }

    /// Retains weights that were just loaded, if all can be shared.
    pub(crate) fn store(&self, weights: &Weights, form: Form) {
        let all_at_rest = weights.parts().arrays.into_iter().all(bridge::is_available);
        let digest = digest(weights).filter(|_| all_at_rest);
        let retained = digest.map(|digest| RetainedEntry {
            weights: weights.clone(),
            form,
            digest,
            is_proven: false,
        });
        let before = std::mem::replace(&mut *self.locked(), retained);
        drop(before);
    }

    /// Records that a step has finished with the weights.
    pub(crate) fn mark_proven(&self) {
        if let Some(retained) = &mut *self.locked() {
            retained.is_proven = true;
        }
    }

    fn locked(&self) -> MutexGuard<'_, Option<RetainedEntry>> {
        // No code panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RetainedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = self.locked().as_ref().map(|retained| retained.form.clone());
        f.debug_tuple("RetainedWeights").field(&form).finish()
    }
}

/// A digest of all bytes that this process can write to: those of mapped files are not among
/// them, and are watched by their files' times. None where some array is not row-contiguous. It
/// finds accidental overwrites, not forgery.
fn digest(weights: &Weights) -> Option<u64> {
    let WeightParts { arrays, stored } = weights.parts();
    if !arrays.iter().all(|array| memory::is_row_contiguous(array)) {
        return None;
    }
    let all = arrays.into_iter().map(|array: &Array| {
        // SAFETY: the arrays were evaluated when they were loaded and are row-contiguous.
        // Nothing writes to weights.
        unsafe { memory::bytes(array) }
    });
    let own = stored.into_iter().flat_map(StoredMatrix::own_bytes);
    let chunks: Vec<&[u8]> = all
        .chain(own)
        .flat_map(|bytes| bytes.chunks(CHUNK_BYTES))
        .collect();
    Some(digest_chunks(&chunks))
}

/// The hash of the chunks' hashes, in their order. rapidhash V3 reads at the speed of memory, as
/// the lanes of multiplications did that stood here before: 22 and 10 GB/s from the cache of an
/// Epyc.
fn digest_chunks(chunks: &[&[u8]]) -> u64 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(THREADS_MAX).min(chunks.len().max(1));
    let share = chunks.len().div_ceil(threads).max(1);
    let mut hashes = vec![0; chunks.len()];
    thread::scope(|scope| {
        for (chunks, hashes) in chunks.chunks(share).zip(hashes.chunks_mut(share)) {
            scope.spawn(move || {
                for (chunk, hash) in chunks.iter().zip(hashes) {
                    *hash = rapidhash_v3(chunk);
                }
            });
        }
    });
    rapidhash_v3(bytemuck::cast_slice(&hashes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_depends_on_each_byte_and_its_position() {
        let bytes: Vec<u8> = (0..200_u8).collect();
        let (one, other) = bytes.split_at(96);
        let digest = digest_chunks(&[one, other]);
        for at in 0..bytes.len() {
            for bit in [0, 3, 7] {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                let (one, other) = changed.split_at(96);
                let found = digest_chunks(&[one, other]);
                assert_ne!(found, digest, "bit {bit} of byte {at}");
            }
        }
        assert_ne!(digest_chunks(&[other, one]), digest);
        assert_ne!(digest_chunks(&[one]), digest);
    }
}
