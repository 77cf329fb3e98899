//! Sealed segments: the cached state of a token range, compact and immutable.

use mlx_rs::Array;
use mlx_rs::error::Exception;

use super::shape::Shape;
use super::state::State;
use motet_core::protocol::Extent;
use motet_model::Segment;

/// Keys and values of one contiguous token range, all layers.
pub struct MlxSegment {
    extent: Extent,
    /// Tokens whose state is kept, the range's last: all of them unless the model
    /// has a sliding window.
    kept: usize,
    /// None where no token's state is kept.
    layers: Vec<State>,
}

impl MlxSegment {
    /// From each layer's state of the kept tokens, compact. Nothing is evaluated.
    pub(super) fn new(shape: &Shape, extent: Extent, layers: Vec<State>) -> Self {
        Self {
            extent,
            kept: shape.kept(extent),
            layers,
        }
    }

    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    pub(super) fn layer(&self, layer: usize) -> &State {
        &self.layers[layer]
    }

    /// Layers that there is state of: none where no token's is kept.
    pub(super) fn layers(&self) -> usize {
        self.layers.len()
    }

    /// Tokens `from..to` of those whose state is kept, as a segment of this extent.
    pub(super) fn part(
        &self,
        shape: &Shape,
        extent: Extent,
        from: usize,
        to: usize,
    ) -> Result<Self, Exception> {
        let layers = self.layers.iter().filter(|_| from < to);
        let layers = layers.map(|layer| layer.compact(from, to));
        Ok(Self::new(shape, extent, layers.collect::<Result<_, _>>()?))
    }

    /// What this and `lower`, which follows it, keep for one segment in their place.
    pub(super) fn merged(&self, shape: &Shape, lower: &Self) -> Result<Self, Exception> {
        let extent = self.extent.merged(lower.extent);
        // What the lower one keeps, one in their place would; so if it keeps nothing,
        // there is nothing to keep.
        let taken = shape.kept(extent) - lower.kept;
        if taken == 0 {
            return lower.part(shape, extent, 0, lower.kept);
        }
        let layers = self.layers.iter().zip(&lower.layers);
        let layers = layers.map(|(upper, lower)| {
            let upper = upper.view(self.kept - taken, self.kept)?;
            State::joined(&[&upper, lower])
        });
        Ok(Self::new(shape, extent, layers.collect::<Result<_, _>>()?))
    }

    /// The state of every layer that there is state of.
    pub(super) fn states(&self) -> impl Iterator<Item = &State> {
        self.layers.iter()
    }

    /// Every array of the segment.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(State::arrays)
    }
}

impl Segment for MlxSegment {
    fn extent(&self) -> Extent {
        self.extent
    }

    fn bytes(&self) -> usize {
        self.layers.iter().map(State::bytes).sum()
    }
}

impl std::fmt::Debug for MlxSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxSegment")
            .field("extent", &self.extent)
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}
