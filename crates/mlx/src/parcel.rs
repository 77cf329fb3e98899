//! Segments on their way between the device and the host.
//!
//! Packed, a segment is its cached numbers, one layer after another: keys, then values,
//! each `[kv_heads, kept, head_dim]`, in the type in which they are cached. Another order is another `LAYOUT` of a model's identity.
//!
//! An array may be read by one thread while another steps with it: neither changes it.
//! What the device's thread does change are MLX's notes on how far an array's
//! evaluation has come, so nobody else looks at those. Where the arrays that are handed
//! over are not computed yet, a parcel has an array of its own that is computed after
//! them, and whoever packs it watches that. To wait for it as MLX does would not do:
//! MLX tells of a step's failure whoever waits first.
//!
//! On the CPU, state that comes in lies in memory of a [`Pool`]; MLX is handed arrays
//! over that. Elsewhere, and without the bridge, it is copied to MLX's own memory.

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
use motet_core::protocol::{Extent, ModelError};
use motet_model::{Floats, Packer, Segment, legal};

/// How often it is looked whether a parcel is computed.
const WATCH: Duration = Duration::from_micros(50);

/// Packs an MLX model's parcels.
#[derive(Clone, Debug)]
pub struct MlxPacker {
    pub(super) shape: Shape,
    /// Where what comes in is to lie; none for memory of MLX's own.
    pub(super) pool: Option<Pool>,
}

/// A segment's arrays, handed over or to be taken in.
pub struct MlxParcel {
    extent: Extent,
    /// None where no token's state is kept.
    layers: Vec<State>,
    /// Computed after all of them; none where they are known to be.
    computed: Option<Array>,
}

impl MlxPacker {
    fn array_shape(&self, kept: usize) -> [i32; 3] {
        [self.shape.kv_heads, kept as i32, self.shape.cached_width()]
    }

    /// The arrays in `bytes`, over one block of the pool's.
    fn adopted(&self, pool: &Pool, bytes: &[u8], kept: usize) -> Result<Vec<State>, Exception> {
        let mut block = KvBlock::new(pool, &self.shape, kept, Pages::Large)?;
        block.fill(bytes);
        block.states()
    }

    /// The arrays in `bytes`, in MLX's memory.
    fn copied(&self, bytes: &[u8], kept: usize) -> Vec<State> {
        let shape = self.array_shape(kept);
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
    type Parcel = MlxParcel;

    fn packed_bytes(&self, extent: Extent) -> usize {
        let kept = self.shape.kept(extent);
        kept.saturating_mul(self.shape.bytes_per_token())
    }

    fn is_computed(&self, parcel: &MlxParcel) -> bool {
        let last = parcel.computed.as_ref();
        last.is_none_or(bridge::is_available)
    }

    fn pack(&self, parcel: &MlxParcel, into: &mut [u8]) -> Result<(), ModelError> {
        let expected = self.packed_bytes(parcel.extent);
        assert_eq!(into.len(), expected, "room for the parcel's bytes");
        while !self.is_computed(parcel) {
            thread::sleep(WATCH);
        }
        let mut rest = into;
        for array in parcel.layers.iter().flat_map(State::arrays) {
            // SAFETY: it is computed by now and was seen to be row-contiguous; a sealed
            // segment's memory is never changed, and the parcel holds it.
            let bytes = unsafe { memory::bytes(array) };
            let (place, after) = rest.split_at_mut(bytes.len());
            place.copy_from_slice(bytes);
            rest = after;
        }
        Ok(())
    }

    fn unpack(&self, extent: Extent, bytes: &[u8]) -> Result<MlxParcel, ModelError> {
        legal::unpack(extent, self.packed_bytes(extent), bytes.len())?;
        let kept = self.shape.kept(extent);
        let layers = match &self.pool {
            _ if kept == 0 => Vec::new(),
            Some(pool) => self.adopted(pool, bytes, kept).map_err(MlxError::from)?,
            None => self.copied(bytes, kept),
        };
        Ok(MlxParcel {
            extent,
            layers,
            computed: None,
        })
    }

    fn floats(&self, extent: Extent) -> Option<Floats> {
        let rows = self.shape.kept(extent);
        (rows > 0).then_some(Floats {
            kind: self.shape.cached.kind,
            rows,
            channels: self.shape.head_dim as usize,
        })
    }
}

impl MlxParcel {
    /// The arrays of `segment`, which may be under way.
    pub(super) fn of(segment: &MlxSegment) -> Result<Self, Exception> {
        let computed = match segment.arrays().all(bridge::is_available) {
            true => None,
            false => {
                let zero = Array::from_f32(0.0);
                let last = zero.add(&zero)?;
                transforms::async_eval(segment.arrays().chain([&last]))?;
                Some(last)
            }
        };
        let contiguous = segment.arrays().all(memory::is_row_contiguous);
        assert!(contiguous, "sealed state is compact");
        Ok(Self {
            extent: segment.extent(),
            layers: segment.states().map(State::shared).collect(),
            computed,
        })
    }

    /// These arrays, which nobody else has; they are computed before `computed` is.
    pub(super) fn apart(extent: Extent, layers: Vec<State>, computed: Array) -> Self {
        Self {
            extent,
            layers,
            computed: Some(computed),
        }
    }

    /// The segment of these arrays.
    pub(super) fn into_segment(self, shape: &Shape) -> MlxSegment {
        MlxSegment::new(shape, self.extent, self.layers)
    }
}

impl std::fmt::Debug for MlxParcel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxParcel")
            .field("extent", &self.extent)
            .finish_non_exhaustive()
    }
}
