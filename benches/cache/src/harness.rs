//! Cores and texts for measurements.

use std::time::Duration;

use motet_core::cache::{CacheCore, Effect, Message, OpenSlot};
use motet_core::config::CacheConfig;
use motet_protocol::{LayerGroup, LayerKind, ModelSpec};
use motet_protocol::{SequenceId, TokenId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Ids come from a vocabulary of this size.
const VOCAB_SIZE: u32 = 50_000;
/// Device bytes of one token's state: keys and values of SmolLM2-135M in f32.
const TOKEN_BYTES: usize = 46_080;

/// Texts of random tokens, the same in each run.
pub(crate) struct Texts(ChaCha8Rng);

impl Texts {
    pub(crate) fn new() -> Self {
        Self(ChaCha8Rng::seed_from_u64(1))
    }

    pub(crate) fn next(&mut self, tokens: usize) -> Vec<TokenId> {
        (0..tokens)
            .map(|_| self.0.random_range(0..VOCAB_SIZE))
            .collect()
    }

    /// `beginning`, followed by so many tokens of its own.
    pub(crate) fn after(&mut self, beginning: &[TokenId], tokens: usize) -> Vec<TokenId> {
        [beginning, &self.next(tokens)].concat()
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0.random_range(0..end)
    }
}

/// A cache core without a device, and the ids that it has seen.
pub(crate) struct CacheHarness {
    pub(crate) core: CacheCore,
    sequences: u64,
}

impl CacheHarness {
    /// Creates an empty core with the default configuration and enough memory for everything.
    pub(crate) fn new() -> Self {
        let config = CacheConfig {
            device_bytes_max: 1 << 50,
            ..CacheConfig::default()
        };
        Self {
            core: CacheCore::new(spec(), config),
            sequences: 0,
        }
    }

    /// Opens a slot that stays open.
    pub(crate) fn open_slot(&mut self, tokens: &[TokenId]) -> SequenceId {
        self.sequences += 1;
        let sequence = SequenceId(self.sequences);
        let open_slot = OpenSlot::new(sequence, tokens, 16);
        self.send(Message::OpenSlot(open_slot));
        sequence
    }

    /// Runs a sequence to its end: its computed tokens are cached.
    pub(crate) fn converse(&mut self, tokens: &[TokenId]) {
        let sequence = self.open_slot(tokens);
        self.send(Message::Close {
            sequence,
            computed: tokens.len(),
            generated: Vec::new(),
        });
    }

    /// An unused id.
    pub(crate) fn next_sequence(&self) -> SequenceId {
        SequenceId(self.sequences + 1)
    }

    fn send(&mut self, message: Message) -> Vec<Effect> {
        let effects = self.core.handle(Duration::ZERO, message);
        effects.expect("the message is valid")
    }
}

/// A model with full attention.
fn spec() -> ModelSpec {
    ModelSpec {
        name: "a model with full attention".into(),
        vocab_size: VOCAB_SIZE as usize,
        hidden_size: 0,
        context_tokens_max: 1 << 20,
        end_tokens: Vec::new(),
        layer_groups: vec![LayerGroup {
            kind: LayerKind::Full,
            layers: 30,
            bytes: TOKEN_BYTES,
        }],
        tail_block_tokens: 256,
        can_shift: true,
        scratch_bytes_per_token: 0,
        overlap_tokens_max: usize::MAX,
        draft_tokens_max: 0,
    }
}
