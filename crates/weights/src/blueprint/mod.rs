//! The description of a model: what it computes, layer by layer, in the same form for all
//! families and both containers.
//!
//! A family turns a configuration into a [`Blueprint`]. A backend interprets the blueprint with
//! one loop over the layers, for all families. A layer is a mixer and an MLP, each between norms
//! and each added to the residual stream:
//!
//! ```text
//! x = embedding_scale * embedding[token]
//! for each layer:
//!     x = x + residual_scale * after_mixer(mixer(before_mixer(x)))
//!     x = x + residual_scale * after_mlp(mlp(before_mlp(x)))
//! logits = softcap(logit_scale * head(final_norm(x)))
//! ```

mod attention;
mod mlp;
mod recurrent;
mod rope;

pub use attention::{Attention, Biases, PositionScale, QkNorm};
pub use mlp::{Activation, Experts, Gated, Mlp, Routing, SharedExpert};
pub use recurrent::{DeltaNet, Mamba2, ShortConv};
pub use rope::{Frequencies, Rope, RopeScaling};

use motet_protocol::TokenId;

/// A model's description. Equal descriptions with equal tensors compute the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Blueprint {
    /// The family's name, for example `qwen3`.
    pub family: &'static str,
    /// A human-readable name: the folder's name, or the one in the GGUF file.
    pub name: String,
    /// The sizes and constants outside the layers.
    pub stem: Stem,
    /// The layers, from the embedding to the head.
    pub layers: Vec<Layer>,
    /// Longest sequence that the model was trained for, in tokens.
    pub context_tokens_max: usize,
    /// Tokens that end an answer, in the file's order.
    pub end_tokens: Vec<TokenId>,
    /// The token that a text begins with.
    pub begin_token: Option<TokenId>,
}

/// The embedding, the final norm and the output head.
#[derive(Clone, Debug, PartialEq)]
pub struct Stem {
    /// Rows of the embedding; token ids are `0..vocab_size`.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Added to the mean square before each norm's root.
    pub norm_eps: f32,
    /// Factor of the embedding's rows; usually 1.
    pub embedding_scale: f32,
    /// Whether the output head is the embedding. There is no tensor of the head then.
    pub tied_embeddings: bool,
    /// Factor of the logits; usually 1.
    pub logit_scale: f32,
    /// Logits `x` become `cap * tanh(x / cap)` after the factor.
    pub logit_softcap: Option<f32>,
}

/// One layer: a mixer of past and present tokens, then an MLP.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Where the residual stream, or a block's output, is normalised.
    pub norms: Norms,
    /// The block that sees other tokens.
    pub mixer: Mixer,
    /// The block that sees each token alone.
    pub mlp: Mlp,
    /// Factor of both blocks' outputs; usually 1.
    pub residual_scale: f32,
}

/// The norms of a layer (root mean square, Zhang and Sennrich 2019).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Norms {
    /// The mixer's input.
    pub before_mixer: bool,
    /// The mixer's output.
    pub after_mixer: bool,
    /// The MLP's input.
    pub before_mlp: bool,
    /// The MLP's output.
    pub after_mlp: bool,
}

impl Norms {
    /// Norms of the blocks' inputs, as in Llama.
    pub const BEFORE: Self = Self {
        before_mixer: true,
        after_mixer: false,
        before_mlp: true,
        after_mlp: false,
    };
    /// Norms of the blocks' outputs, as in OLMo 2.
    pub const AFTER: Self = Self {
        before_mixer: false,
        after_mixer: true,
        before_mlp: false,
        after_mlp: true,
    };
    /// Norms on both sides, as in Gemma 2.
    pub const AROUND: Self = Self {
        before_mixer: true,
        after_mixer: true,
        before_mlp: true,
        after_mlp: true,
    };
}

/// The block of a layer that sees other tokens.
#[derive(Clone, Debug, PartialEq)]
pub enum Mixer {
    /// Softmax attention over cached keys and values.
    Attention(Attention),
    /// LFM2's gated short convolution.
    ShortConv(ShortConv),
    /// Gated delta net (Yang et al. 2024).
    DeltaNet(DeltaNet),
    /// Mamba 2 (Dao and Gu 2024).
    Mamba2(Mamba2),
}
