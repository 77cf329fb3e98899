//! Sealed segments: the cached state of a token range, compact and immutable.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::ops;
use super::shape::Shape;
use crate::model::Segment;

/// Keys and values of one contiguous token range, all layers.
pub struct MlxSegment {
    tokens: usize,
    /// Tokens whose state is kept, the range's last: all of them unless the model
    /// has a sliding window.
    kept: usize,
    layers: Vec<SegmentLayer>,
    bytes: usize,
}

/// One layer's share, as attention wants it.
#[derive(Debug)]
pub(super) struct SegmentLayer {
    /// `[2 * kv_heads, kept, head_dim]`: keys, then values. Owns the buffer that
    /// the other two look into.
    pub(super) state: Array,
    /// `[kv_heads, head_dim, kept]`.
    pub(super) keys_transposed: Array,
    /// `[kv_heads, kept, head_dim]`.
    pub(super) values: Array,
}

impl MlxSegment {
    /// From one compact array `[2 * kv_heads, kept, head_dim]` for each layer.
    /// Nothing is evaluated yet.
    pub(super) fn new(shape: &Shape, tokens: usize, states: Vec<Array>) -> Result<Self, Exception> {
        let kept = shape.kept(tokens);
        let (heads, dim) = (shape.kv_heads, shape.head_dim);
        let bytes = states.iter().map(Array::nbytes).sum();
        let layers = states
            .into_iter()
            .map(|state| {
                let keys = ops::slice(&state, [0, 0, 0], [heads, kept as i32, dim])?;
                Ok(SegmentLayer {
                    keys_transposed: keys.swap_axes(1, 2)?,
                    values: ops::slice(&state, [heads, 0, 0], [2 * heads, kept as i32, dim])?,
                    state,
                })
            })
            .collect::<Result<_, Exception>>()?;
        Ok(Self {
            tokens,
            kept,
            layers,
            bytes,
        })
    }

    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    pub(super) fn layer(&self, layer: usize) -> &SegmentLayer {
        &self.layers[layer]
    }

    pub(super) fn layers(&self) -> &[SegmentLayer] {
        &self.layers
    }

    /// The state of kept tokens `from..to`, compact: one array for each layer.
    pub(super) fn compact(&self, from: usize, to: usize) -> Result<Vec<Array>, Exception> {
        self.layers
            .iter()
            .map(|layer| {
                let (heads, dim) = (layer.state.dim(0), layer.state.dim(2));
                let (start, stop) = (from as i32, to as i32);
                ops::slice(&layer.state, [0, start, 0], [heads, stop, dim])?.contiguous()
            })
            .collect()
    }

    /// Every array of the segment, to be evaluated together.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers
            .iter()
            .flat_map(|layer| [&layer.state, &layer.keys_transposed, &layer.values])
    }
}

impl Segment for MlxSegment {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl std::fmt::Debug for MlxSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxSegment")
            .field("tokens", &self.tokens)
            .field("kept", &self.kept)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
