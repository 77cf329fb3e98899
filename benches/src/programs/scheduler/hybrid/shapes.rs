//! Oracles of the layers and the bytes of real families, at an eighth to a third of their depth.

use motet::model::LayerKind;
use motet::model::oracle::OracleConfig;
use motet_model::oracle::LayerBytes;

const FULL: LayerKind = LayerKind::Full;
const STATE: LayerKind = LayerKind::Recurrent;
const WINDOW: LayerKind = LayerKind::Window { tokens: 512 };
/// Bytes of a token's keys and values in a layer: only the ratios to others matter.
const TOKEN_BYTES: usize = 32;

/// A family's layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    layers: &'static [LayerKind],
    /// The weight of a recurrent layer's state, in keys and values of one token of one layer.
    state_tokens: usize,
}

impl Shape {
    pub(crate) const ALL: [Self; 3] = [
        Self {
            name: "LFM2",
            layers: &[STATE, STATE, FULL, STATE, STATE, FULL, STATE, FULL],
            // Two rows of the hidden width beside eight heads of keys and of values.
            state_tokens: 2,
        },
        Self {
            name: "Qwen3.5",
            layers: &[STATE, STATE, STATE, FULL],
            // The states of all layers weigh as much as 800 tokens.
            state_tokens: 267,
        },
        Self {
            name: "a window of 512",
            layers: &[WINDOW, WINDOW, WINDOW, WINDOW, WINDOW, FULL],
            state_tokens: 0,
        },
    ];

    pub(crate) fn oracle(&self) -> OracleConfig {
        self.with_layers(self.layers.to_vec())
    }

    /// The same shape with full attention in all layers.
    pub(crate) fn full(&self) -> OracleConfig {
        self.with_layers(vec![FULL; self.layers.len()])
    }

    fn with_layers(&self, layers: Vec<LayerKind>) -> OracleConfig {
        OracleConfig {
            vocab_size: 10_000,
            layers,
            layer_bytes: LayerBytes {
                token: TOKEN_BYTES,
                state: self.state_tokens * TOKEN_BYTES,
            },
            verify: false,
            ..OracleConfig::default()
        }
    }
}
