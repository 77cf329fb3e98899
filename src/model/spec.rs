//! What a model is, in numbers that the control plane can reckon with.

use crate::TokenId;

/// How a layer remembers the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Full attention: keys and values of every token; can be cut anywhere.
    Full,
    /// Sliding window: the last `tokens` tokens, the present one included.
    Window {
        /// Width of the window; at least 1.
        tokens: usize,
    },
    /// Recurrent: one state, restorable only at the offset where it was taken.
    Recurrent,
}

/// Layers of one kind, and what their state weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerGroup {
    /// The kind of all layers in this group.
    pub kind: LayerKind,
    /// Number of layers.
    pub layers: usize,
    /// Device bytes of the whole group: per cached token for attention, per
    /// state for recurrent layers.
    pub bytes: usize,
}

/// What a model is: its vocabulary, its context, its layers.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// A name for people, for example `SmolLM2 135M Instruct`.
    pub name: String,
    /// Token ids are `0..vocab_size`.
    pub vocab_size: usize,
    /// Longest sequence, prompt and output together, in tokens.
    pub context_tokens_max: usize,
    /// Tokens that end a sequence unless the request ignores them.
    pub end_tokens: Vec<TokenId>,
    /// The layers, grouped by kind.
    pub layer_groups: Vec<LayerGroup>,
    /// Tails grow by whole blocks of this many tokens.
    pub tail_block_tokens: usize,
}

impl ModelSpec {
    /// Whether cached state can be cut after any token: true when every layer
    /// uses full attention.
    #[must_use]
    pub fn cuts_anywhere(&self) -> bool {
        self.layer_groups
            .iter()
            .all(|group| group.kind == LayerKind::Full)
    }

    /// Device bytes of a sealed segment of `tokens` tokens.
    #[must_use]
    pub fn segment_bytes(&self, tokens: usize) -> usize {
        self.layer_groups
            .iter()
            .map(|group| match group.kind {
                LayerKind::Full => group.bytes * tokens,
                LayerKind::Window { tokens: window } => group.bytes * tokens.min(window),
                LayerKind::Recurrent => group.bytes,
            })
            .sum()
    }

    /// Device bytes of a tail that holds `tokens` tokens, room to grow included.
    #[must_use]
    pub fn tail_bytes(&self, tokens: usize) -> usize {
        self.segment_bytes(tokens.next_multiple_of(self.tail_block_tokens.max(1)))
    }
}
