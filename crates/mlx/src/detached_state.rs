//! Detached states: segments in transfer between the device and the host.
//!
//! A packed segment is its cached numbers, one layer after another: keys, then values, each
//! `[kv_heads, retained, head_dim]`, in the type in which they are cached. A change of this
//! order needs another `LAYOUT` in the model's identity.
//!
//! One thread may read an array while another steps with it, since neither changes it. The
//! device's thread does change MLX's record of how far an array's evaluation has come, so no
//! other thread reads that record. Where the exported arrays are not computed yet, the detached
//! state has an array of its own that is computed after them, and the packing thread polls that
//! array. MLX's own wait would not do: MLX reports a step's failure to the first thread that
//! waits.
//!
//! On the CPU, imported state lies in memory of a [`Pool`], and MLX gets arrays over that
//! memory. On other devices, and without the bridge, it is copied to MLX's own memory.

use std::thread;
use std::time::Duration;

use mlx_rs::error::Exception;
use mlx_rs::{Array, transforms};

use super::bridge::{self, memory};
use super::error::MlxError;
use super::kv_block::KvBlock;
use super::pool::{Pages, Pool};
use super::segment::MlxSegment;
use super::shape::Shape;
use super::state::State;
use motet_core::protocol::{ModelError, SegmentSize};
use motet_model::{Floats, Packer, Segment, preconditions};

/// Interval at which a detached state is polled for being computed.
const WATCH: Duration = Duration::from_micros(50);

/// Packs and unpacks an MLX model's detached states.
#[derive(Clone, Debug)]
pub struct MlxPacker {
    pub(super) shape: Shape,
    /// Memory for imported state. None where it lies in MLX's own memory.
    pub(super) pool: Option<Pool>,
}

/// A segment's arrays, exported or about to be imported.
pub struct MlxDetachedState {
    segment_size: SegmentSize,
    /// Empty where no token's state is retained.
    layers: Vec<State>,
    /// An array that is computed after all of them. None where they are known to be computed.
    computed: Option<Array>,
}

impl MlxPacker {
    fn array_shape(&self, retained: usize) -> [i32; 3] {
        [
            self.shape.kv_heads,
            retained as i32,
            self.shape.cached_width(),
        ]
    }

    /// The arrays in `bytes`, over one block of the pool.
    fn wrapped_in_pool(
        &self,
        pool: &Pool,
        bytes: &[u8],
        retained: usize,
    ) -> Result<Vec<State>, Exception> {
        let mut block = KvBlock::new(pool, &self.shape, retained, Pages::Large)?;
        block.fill(bytes);
        block.states()
    }

    /// The arrays in `bytes`, copied to MLX's memory.
    fn copied(&self, bytes: &[u8], retained: usize) -> Vec<State> {
        let shape = self.array_shape(retained);
        let array_bytes = bytes.len() / (2 * self.shape.layers);
        let dtype = self.shape.cached.array_dtype();
        let copied = |bytes: &[u8]| memory::copied(bytes, &shape, dtype);
        let layers = bytes.chunks_exact(2 * array_bytes);
        let state = |bytes: &[u8]| State {
            keys: copied(&bytes[..array_bytes]),
            values: copied(&bytes[array_bytes..]),
        };
        layers.map(state).collect()
    }
}

impl Packer for MlxPacker {
    type DetachedState = MlxDetachedState;

    fn packed_bytes(&self, segment_size: SegmentSize) -> usize {
        let retained = self.shape.retained(segment_size);
        retained.saturating_mul(self.shape.bytes_per_token())
    }

    fn is_computed(&self, detached_state: &MlxDetachedState) -> bool {
        let last = detached_state.computed.as_ref();
        last.is_none_or(bridge::is_available)
    }

    fn pack(&self, detached_state: &MlxDetachedState, into: &mut [u8]) -> Result<(), ModelError> {
        let expected = self.packed_bytes(detached_state.segment_size);
        assert_eq!(
            into.len(),
            expected,
            "`into` has as many bytes as the packed segment"
        );
        while !self.is_computed(detached_state) {
            thread::sleep(WATCH);
        }
        let mut rest = into;
        for array in detached_state.layers.iter().flat_map(State::arrays) {
            // SAFETY: the array is computed by now and was found to be row-contiguous. A sealed
            // segment's memory is never changed, and the detached state keeps it alive.
            let bytes = unsafe { memory::bytes(array) };
            let (place, after) = rest.split_at_mut(bytes.len());
            place.copy_from_slice(bytes);
            rest = after;
        }
        Ok(())
    }

    fn unpack(
        &self,
        segment_size: SegmentSize,
        bytes: &[u8],
    ) -> Result<MlxDetachedState, ModelError> {
        preconditions::unpack(segment_size, self.packed_bytes(segment_size), bytes.len())?;
        let retained = self.shape.retained(segment_size);
        let layers = match &self.pool {
            _ if retained == 0 => Vec::new(),
            Some(pool) => self
                .wrapped_in_pool(pool, bytes, retained)
                .map_err(MlxError::from)?,
            None => self.copied(bytes, retained),
        };
        Ok(MlxDetachedState {
            segment_size,
            layers,
            computed: None,
        })
    }

    fn floats(&self, segment_size: SegmentSize) -> Option<Floats> {
        let rows = self.shape.retained(segment_size);
        (rows > 0).then_some(Floats {
            kind: self.shape.cached.kind,
            rows,
            channels: self.shape.head_dim as usize,
        })
    }
}

impl MlxDetachedState {
    /// The arrays of `segment`, which may still be being computed.
    pub(super) fn of(segment: &MlxSegment) -> Result<Self, Exception> {
        let computed = if segment.arrays().all(bridge::is_available) {
            None
        } else {
            let zero = Array::from_f32(0.0);
            let last = zero.add(&zero)?;
            transforms::async_eval(segment.arrays().chain([&last]))?;
            Some(last)
        };
        let contiguous = segment.arrays().all(memory::is_row_contiguous);
        assert!(contiguous, "sealed state is row-contiguous");
        Ok(Self {
            segment_size: segment.segment_size(),
            layers: segment.states().map(State::shared).collect(),
            computed,
        })
    }

    /// Takes these arrays, which have no other user; they are computed before `computed` is.
    pub(super) fn from_copy(
        segment_size: SegmentSize,
        layers: Vec<State>,
        computed: Array,
    ) -> Self {
        Self {
            segment_size,
            layers,
            computed: Some(computed),
        }
    }

    /// Turns the arrays into a segment.
    pub(super) fn into_segment(self, shape: &Shape) -> MlxSegment {
        MlxSegment::new(shape, self.segment_size, self.layers)
    }
}

impl std::fmt::Debug for MlxDetachedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxDetachedState")
            .field("extent", &self.segment_size)
            .finish_non_exhaustive()
    }
}
