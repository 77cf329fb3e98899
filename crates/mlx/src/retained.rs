//! Weights that outlive the thread that loaded them.
//!
//! A device thread that has died is replaced by another, which needs the same weights. They are
//! the largest thing that a model holds, the slowest to load, and no step changes them. So a
//! copy of their handles is kept beside the threads, and the next thread takes them over.
//!
//! An array of MLX's may be used by another thread than the one that made it if nothing changes
//! it any more. Weights are evaluated when they are loaded, and have no link to the stream that
//! evaluated them then; MLX's notes on that have come to rest, since all were seen to be
//! available. MLX writes into an input's memory only where nobody else holds the input, and what
//! is kept here holds it.
//!
//! What killed the thread may have written where it should not. So weights are believed only if
//! their bytes have the digest that they had when they were loaded, and only if a step has landed
//! with them since they were taken over last. Otherwise they are read from their files again.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use mlx_rs::{Array, Dtype};

use super::bridge::{self, memory};
use super::weights::Weights;

/// Threads that weights are looked through on, at most: beyond these memory is what they wait
/// for.
const THREADS_MAX: usize = 8;
/// Bytes that are digested at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// An odd number without a pattern (Knuth's multiplier of linear congruences, MMIX).
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;
const LANES: usize = 8;

/// Where the weights of one model are kept for its next device thread. Clones share them. They
/// are freed with the last clone, and with the last model that has them.
#[derive(Clone, Default)]
pub struct RetainedWeights(Arc<Mutex<Option<RetainedEntry>>>);

struct RetainedEntry {
    weights: Weights,
    /// What they were loaded as.
    form: Form,
    digest: u64,
    /// Whether a step has landed since they were loaded or taken over last.
    is_proven: bool,
}

/// What weights are loaded as: those of another form are of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// The files' [identity](motet_weights::ModelFiles::identity).
    pub(super) files: u64,
    pub(super) dtype: Dtype,
    pub(super) keeps_quantised: bool,
}

impl RetainedWeights {
    /// Whether there are weights for the next thread.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locked().is_none()
    }

    /// Lets a test find the weights changed.
    #[doc(hidden)]
    pub fn corrupt(&self) {
        if let Some(retained) = &mut *self.locked() {
            retained.digest ^= 1;
        }
    }

    /// The weights that are kept, if they are of this form and can be believed. Others are
    /// dropped.
    pub(super) fn reuse(&self, form: Form) -> Option<Weights> {
        let mut locked = self.locked();
        let retained = locked.as_mut()?;
        let is_sound = retained.form == form && retained.is_proven && {
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

    /// Keeps weights that were just loaded, if all can be shared.
    pub(super) fn store(&self, weights: &Weights, form: Form) {
        let all_at_rest = weights.arrays().into_iter().all(bridge::is_available);
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

    /// A step has landed with them.
    pub(super) fn mark_proven(&self) {
        if let Some(retained) = &mut *self.locked() {
            retained.is_proven = true;
        }
    }

    fn locked(&self) -> MutexGuard<'_, Option<RetainedEntry>> {
        // Nothing panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RetainedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = self.locked().as_ref().map(|retained| retained.form);
        f.debug_tuple("RetainedWeights").field(&form).finish()
    }
}

/// A digest of all bytes; none where some do not lie side by side. It finds what was overwritten
/// by mistake, not what somebody forged.
fn digest(weights: &Weights) -> Option<u64> {
    let arrays = weights.arrays();
    if !arrays.iter().all(|array| memory::is_row_contiguous(array)) {
        return None;
    }
    let all = arrays.into_iter().map(|array: &Array| {
        // SAFETY: they were evaluated when they were loaded, and are side by side; nothing
        // writes to weights.
        unsafe { memory::bytes(array) }
    });
    let chunks: Vec<&[u8]> = all.flat_map(|bytes| bytes.chunks(CHUNK_BYTES)).collect();
    Some(digest_chunks(&chunks))
}

fn digest_chunks(chunks: &[&[u8]]) -> u64 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(THREADS_MAX).min(chunks.len().max(1));
    let digest_share = |thread: usize| {
        let own = chunks.iter().enumerate().skip(thread).step_by(threads);
        own.map(|(chunk_index, chunk)| digest_bytes(chunk, chunk_index as u64))
            .fold(0u64, u64::wrapping_add)
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|thread| scope.spawn(move || digest_share(thread)))
            .collect();
        let own = digest_share(0);
        let others = others.into_iter();
        let others = others.map(|other| other.join().expect("adding up does not panic"));
        others.fold(own, u64::wrapping_add)
    })
}

/// Depends on each bit and on where it stands.
fn digest_bytes(bytes: &[u8], chunk_index: u64) -> u64 {
    let mut lanes = [chunk_index ^ MULTIPLIER; LANES];
    let (words, rest) = bytes.as_chunks::<8>();
    for group in words.chunks(LANES) {
        for (lane, word) in lanes.iter_mut().zip(group) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(MULTIPLIER);
        }
    }
    for (lane, byte) in lanes.iter_mut().zip(rest) {
        *lane = (*lane ^ u64::from(*byte)).wrapping_mul(MULTIPLIER);
    }
    let fold = |all: u64, lane: &u64| (all ^ lane).wrapping_mul(MULTIPLIER).rotate_left(29);
    lanes.iter().fold(chunk_index, fold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_depends_on_each_byte_and_its_position() {
        let bytes: Vec<u8> = (0..200_u8).collect();
        let digest = digest_bytes(&bytes, 0);
        for at in 0..bytes.len() {
            for bit in [0, 3, 7] {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                assert_ne!(digest_bytes(&other, 0), digest, "bit {bit} of byte {at}");
            }
        }
        assert_ne!(digest_bytes(&bytes, 1), digest);
        let (one, other) = bytes.split_at(96);
        assert_ne!(digest_chunks(&[one, other]), digest_chunks(&[other, one]));
    }
}
