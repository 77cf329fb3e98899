//! Sealed segments: the cached state of a token range, compact and immutable.

use mlx_rs::Array;

use super::shape::Shape;
use super::state::State;
use crate::model::Segment;

/// Keys and values of one contiguous token range, all layers.
pub struct MlxSegment {
    tokens: usize,
    /// Tokens whose state is kept, the range's last: all of them unless the model
    /// has a sliding window.
    kept: usize,
    layers: Vec<State>,
}

impl MlxSegment {
    /// From each layer's state of the kept tokens, compact. Nothing is evaluated.
    pub(super) fn new(shape: &Shape, tokens: usize, layers: Vec<State>) -> Self {
        Self {
            tokens,
            kept: shape.kept(tokens),
            layers,
        }
    }

    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    pub(super) fn layer(&self, layer: usize) -> &State {
        &self.layers[layer]
    }

    pub(super) fn layers(&self) -> &[State] {
        &self.layers
    }

    /// Every array of the segment.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(State::arrays)
    }
}

impl Segment for MlxSegment {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn bytes(&self) -> usize {
        self.layers.iter().map(State::bytes).sum()
    }
}

impl std::fmt::Debug for MlxSegment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxSegment")
            .field("tokens", &self.tokens)
            .field("kept", &self.kept)
            .finish_non_exhaustive()
    }
}
