//! Detached states: segments in transfer between the device and the host.
//!
//! A packed segment is its cached numbers, group after group. A group of layers with keys and
//! values packs one layer after another: keys, then values, each `[kv_heads, retained,
//! head_dim]`, in the type in which they are cached. In eight bits, a head of a token is a row of
//! groups with their scales, as the kernels read it. After all of these come the recurrent
//! groups, if the segment holds their state: one layer after another, its arrays in their order
//! ([`RecurrentShape::arrays`]), in single precision. A change of this order needs another
//! `LAYOUT` in the model's identity.
//!
//! One thread may read an array while another steps with it, since neither changes it. The
//! device's thread does change MLX's record of how far an array's evaluation has come, so no
//! other thread reads that record. Where the exported arrays are not computed yet, the detached
//! state has an array of its own that is computed after them, and the packing thread polls that
//! array. MLX's own wait would not do: MLX reports a step's failure to the first thread that
//! waits.
//!
//! On a GPU the packing thread reads a copy, whose memory has no other user. MLX for CUDA moves an
//! array's memory to the host when the host first reads it, and frees the memory on the device,
//! which a step in flight may be reading.
//!
//! On the CPU, imported keys and values lie in memory of a [`Pool`], and MLX gets arrays over
//! that memory. On other devices, and without the bridge, they are copied to MLX's own memory,
//! and so is recurrent state on every device.

use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

use mlx_rs::error::Exception;
use mlx_rs::ops::concatenate;
use mlx_rs::{Array, Dtype, transforms};

use super::groups::{Arrays, KvShape, LayerGroups, RecurrentShape};
use super::kv_block::KvBlock;
use super::layer_state::State;
use super::pool::Pool;
use super::segment::{KvPart, MlxSegment};
use super::tail::TailCopy;
use crate::device::bridge::{self, memory};
use crate::error::MlxError;
use motet_model::{Floats, Packer, Segment, preconditions};
use motet_protocol::{ModelError, SegmentSize};
use motet_sync::page_pool::PageSize;

/// Interval at which a detached state is polled for being computed.
const WATCH: Duration = Duration::from_micros(50);

/// The identity of a model, computed when it is first asked for. That reads all weights.
pub(crate) type Identity = LazyLock<u64, Box<dyn FnOnce() -> u64 + Send>>;

/// Packs and unpacks an MLX model's detached states.
#[derive(Clone, Debug)]
pub struct MlxPacker {
    pub(crate) identity: Arc<Identity>,
    pub(crate) groups: Arc<LayerGroups>,
    /// Memory for imported state. None where it lies in MLX's own memory.
    pub(crate) pool: Option<Pool>,
}

/// A segment's arrays, exported or about to be imported.
pub struct MlxDetachedState {
    /// The same arrays as a segment.
    segment: MlxSegment,
    /// An array that is computed after all of them. None where they are known to be computed.
    computed: Option<Array>,
    /// Their bytes, packed, for the host to read. None where it reads the arrays themselves.
    copy: Option<Array>,
}

impl MlxPacker {
    /// The keys and values of a group in `bytes`.
    fn unpacked_kv(
        &self,
        shape: &KvShape,
        bytes: &[u8],
        retained: usize,
    ) -> Result<Vec<State>, Exception> {
        match &self.pool {
            _ if retained == 0 => Ok(Vec::new()),
            Some(pool) => {
                let mut block = KvBlock::new(pool, shape, retained, PageSize::Large)?;
                block.fill(bytes);
                block.states()
            }
            None => Ok(copied_kv(shape, bytes, retained)),
        }
    }
}

/// The keys and values of a group in `bytes`, copied to MLX's memory.
fn copied_kv(shape: &KvShape, bytes: &[u8], retained: usize) -> Vec<State> {
    let array_shape = [shape.kv_heads, retained as i32, shape.cached_width()];
    let array_bytes = bytes.len() / (2 * shape.layers);
    let dtype = shape.cached.array_dtype();
    let copied = |bytes: &[u8]| memory::copied(bytes, &array_shape, dtype);
    let layers = bytes.chunks_exact(2 * array_bytes);
    let state = |bytes: &[u8]| State {
        keys: copied(&bytes[..array_bytes]),
        values: copied(&bytes[array_bytes..]),
    };
    layers.map(state).collect()
}

/// The state of a recurrent group's layers in `bytes`, copied to MLX's memory.
fn copied_recurrent(shape: &RecurrentShape, mut bytes: &[u8]) -> Vec<Arrays> {
    let mut array = |(shape, array_bytes): (&Vec<i32>, usize)| {
        let (own, rest) = bytes.split_at(array_bytes);
        bytes = rest;
        memory::copied(own, shape, Dtype::Float32)
    };
    let layers = (0..shape.layers).map(|_| {
        let arrays = shape.arrays.iter().zip(shape.array_bytes());
        arrays.map(&mut array).collect()
    });
    layers.collect()
}

impl Packer for MlxPacker {
    type DetachedState = MlxDetachedState;

    fn identity(&self) -> u64 {
        **self.identity
    }

    fn packed_bytes(&self, segment_size: SegmentSize) -> usize {
        let kv = self.groups.kv.iter().map(|shape| {
            let retained = shape.retained(segment_size);
            retained.saturating_mul(shape.bytes_per_token())
        });
        let recurrent = segment_size.has_recurrent_state();
        let recurrent = recurrent.then(|| self.groups.recurrent_bytes());
        kv.chain(recurrent).fold(0, usize::saturating_add)
    }

    fn is_computed(&self, detached_state: &MlxDetachedState) -> bool {
        let last = detached_state.computed.as_ref();
        last.is_none_or(bridge::is_available)
    }

    fn pack(&self, detached_state: &MlxDetachedState, into: &mut [u8]) -> Result<(), ModelError> {
        let segment = &detached_state.segment;
        let expected = self.packed_bytes(segment.segment_size());
        assert_eq!(
            into.len(),
            expected,
            "`into` has as many bytes as the packed segment"
        );
        while !self.is_computed(detached_state) {
            thread::sleep(WATCH);
        }
        if let Some(copy) = &detached_state.copy {
            // SAFETY: the copy is computed by now, it is row-contiguous as each result of a
            // concatenation is, and it belongs to the detached state alone.
            let bytes = unsafe { memory::bytes(copy) };
            into.copy_from_slice(&bytes[..expected]);
            return Ok(());
        }
        let mut rest = into;
        for array in segment.arrays() {
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
        let (mut kv, mut rest) = (Vec::with_capacity(self.groups.kv.len()), bytes);
        for shape in &self.groups.kv {
            let retained = shape.retained(segment_size);
            let (own, after) = rest.split_at(retained * shape.bytes_per_token());
            let layers = self.unpacked_kv(shape, own, retained);
            kv.push(KvPart::new(retained, layers.map_err(MlxError::from)?));
            rest = after;
        }
        let mut recurrent = Vec::new();
        if segment_size.has_recurrent_state() {
            for shape in &self.groups.recurrent {
                let (own, after) = rest.split_at(shape.bytes());
                recurrent.push(copied_recurrent(shape, own));
                rest = after;
            }
        }
        Ok(MlxDetachedState {
            segment: MlxSegment::new(segment_size, kv, recurrent),
            computed: None,
            copy: None,
        })
    }

    fn floats(&self, segment_size: SegmentSize) -> Vec<Floats> {
        let sections = self.groups.kv.iter().filter_map(|shape| {
            Some(Floats {
                kind: shape.cached.kind.float()?,
                planes: shape.layers * 2 * shape.kv_heads as usize,
                rows: shape.retained(segment_size),
                channels: shape.head_dim as usize,
            })
        });
        sections.filter(|floats| floats.rows > 0).collect()
    }
}

impl MlxDetachedState {
    /// The arrays of `segment`, which may still be being computed.
    pub(crate) fn of(segment: &MlxSegment) -> Result<Self, Exception> {
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
            segment: segment.shared(),
            computed,
            copy: None,
        })
    }

    /// As [`of`](Self::of), but the host reads a copy of the arrays.
    pub(crate) fn with_copy(segment: &MlxSegment) -> Result<Self, Exception> {
        let arrays = segment.arrays().filter(|array| array.nbytes() > 0);
        let bytes = arrays.map(|array| array.flatten(None, None)?.view::<u8>());
        let mut bytes: Vec<Array> = bytes.collect::<Result<_, _>>()?;
        if bytes.is_empty() {
            return Self::of(segment);
        }
        // MLX returns a single array as it is. A further byte makes sure of a copy.
        bytes.push(Array::from_slice(&[0_u8], &[1]));
        let copy = concatenate(&bytes, 0)?;
        transforms::async_eval([&copy])?;
        Ok(Self {
            segment: segment.shared(),
            computed: Some(copy.clone()),
            copy: Some(copy),
        })
    }

    /// Takes the copy of `tokens` tokens of a tail, whose arrays have no other user.
    pub(crate) fn from_copy(tokens: usize, copy: TailCopy) -> Self {
        let kv = copy.layers.into_iter();
        let kv = kv.map(|layers| KvPart::new(tokens, layers)).collect();
        Self {
            segment: MlxSegment::new(SegmentSize::whole(tokens), kv, Vec::new()),
            computed: Some(copy.computed),
            copy: None,
        }
    }

    /// The arrays as a segment.
    pub(crate) fn into_segment(self) -> MlxSegment {
        self.segment
    }
}

impl std::fmt::Debug for MlxDetachedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxDetachedState")
            .field("segment_size", &self.segment.segment_size())
            .finish_non_exhaustive()
    }
}
