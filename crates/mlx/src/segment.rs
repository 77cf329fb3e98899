//! Sealed segments: the cached state of a token range, compact and immutable.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::shape::Shape;
use super::state::State;
use motet_core::protocol::SegmentSize;
use motet_model::Segment;

/// Keys and values of one contiguous token range, for all layers.
pub struct MlxSegment {
    segment_size: SegmentSize,
    /// Tokens whose state is retained, the last ones of the range: all of them unless the model
    /// has a sliding window.
    retained: usize,
    /// Empty where no token's state is retained.
    layers: Vec<State>,
}

impl MlxSegment {
    /// A segment of each layer's state of the retained tokens, row-contiguous. Nothing is
    /// evaluated.
    pub(super) fn new(shape: &Shape, segment_size: SegmentSize, layers: Vec<State>) -> Self {
        Self {
            segment_size,
            retained: shape.retained(segment_size),
            layers,
        }
    }

    pub(super) fn retained(&self) -> usize {
        self.retained
    }

    pub(super) fn layer(&self, layer: usize) -> &State {
        &self.layers[layer]
    }

    /// Number of layers with state: 0 where no token's state is retained.
    pub(super) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Tokens `from..to` of the retained ones, as a segment of this size.
    pub(super) fn part(
        &self,
        shape: &Shape,
        segment_size: SegmentSize,
        from: usize,
        to: usize,
    ) -> Result<Self, Exception> {
        let layers = self.layers.iter().filter(|_| from < to);
        let layers = layers.map(|layer| layer.compact(from, to));
        Ok(Self::new(
            shape,
            segment_size,
            layers.collect::<Result<_, _>>()?,
        ))
    }

    /// The state that this segment and `lower`, which follows it, retain for one segment in
    /// their place.
    pub(super) fn merged(&self, shape: &Shape, lower: &Self) -> Result<Self, Exception> {
        let segment_size = self.segment_size.merged(lower.segment_size);
        // A merged segment retains at least what the lower one retains. If that is nothing,
        // there is nothing to merge.
        let taken = shape.retained(segment_size) - lower.retained;
        if taken == 0 {
            return lower.part(shape, segment_size, 0, lower.retained);
        }
        let layers = self.layers.iter().zip(&lower.layers);
        let layers = layers.map(|(upper, lower)| {
            let upper = upper.view(self.retained - taken, self.retained)?;
            State::joined(&[&upper, lower])
        });
        Ok(Self::new(
            shape,
            segment_size,
            layers.collect::<Result<_, _>>()?,
        ))
    }

    /// The state of every layer that has any.
    pub(super) fn states(&self) -> impl Iterator<Item = &State> {
        self.layers.iter()
    }

    /// Every array of the segment.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(State::arrays)
    }
}

impl Segment for MlxSegment {
    fn segment_size(&self) -> SegmentSize {
        self.segment_size
    }

    fn bytes(&self) -> usize {
        self.layers.iter().map(State::bytes).sum()
    }
}

impl std::fmt::Debug for MlxSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxSegment")
            .field("extent", &self.segment_size)
            .field("retained", &self.retained)
            .finish_non_exhaustive()
    }
}
