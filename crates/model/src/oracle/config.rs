//! Configuration of an oracle: its shape, its speed, its faults.

use std::time::Duration;

use super::counters::OracleCounters;
use super::faults::Faults;
use super::hash::{HIDDEN_SIZE, mix};
use super::vocabulary::Vocabulary;
use motet_protocol::TokenId;
use motet_protocol::{LayerGroup, LayerKind, ModelSpec};

/// Configuration of an [`Oracle`](super::Oracle). The default is one layer of full attention over
/// a thousand tokens, which never ends a sequence, takes no time and verifies every read.
#[derive(Clone, Debug)]
pub struct OracleConfig {
    /// Token ids are `0..vocab_size`. Two makes collisions of prefixes likely;
    /// a thousand makes accidental equality of tokens unlikely.
    pub vocab_size: usize,
    /// Longest sequence, prompt and output together, in tokens.
    pub context_tokens_max: usize,
    /// The kind of each layer, lowest first; at least one.
    pub layers: Vec<LayerKind>,
    /// Tokens that end a sequence; fewer than the vocabulary has.
    pub end_tokens: Vec<TokenId>,
    /// One row in so many, by hash, produces an end token and nothing else; 0 means never. End
    /// tokens are produced in no other way.
    pub end_one_in: u64,
    /// Device bytes that each layer reports.
    pub layer_bytes: LayerBytes,
    /// Bytes of memory that the simulated device has left when the model is loaded. `None` means
    /// no limit, and the device does not report one.
    pub device_bytes: Option<usize>,
    /// Reported scratch bytes per token of a step, beside cached state.
    pub scratch_bytes_per_token: usize,
    /// Tails report capacity in whole blocks of this many tokens; at least 1.
    pub tail_block_tokens: usize,
    /// Whether the model reports that full attention's state can be moved to other positions.
    pub can_shift: bool,
    /// Duration of a step on the simulated device, from its submission or the end of the step
    /// before it.
    pub cost: StepCost,
    /// Whether every step reads every cached entry again, in time linear in the context. Turn it
    /// off to measure a scheduler: the folds that were taken when the entries were written are
    /// then trusted.
    pub verify: bool,
    /// Stands for the weights: oracles with different seeds give different tokens and have
    /// different identities.
    pub seed: u64,
    /// Handle to inject failures. Keep a clone.
    pub faults: Faults,
    /// Handle to the oracle's counters. Keep a clone.
    pub counters: OracleCounters,
}

/// Device bytes that a layer of an oracle reports. Eight is what it really holds. Larger values
/// make small budgets run out sooner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerBytes {
    /// Bytes per cached token of an attention layer.
    pub token: usize,
    /// Bytes of the state of a recurrent layer.
    pub state: usize,
}

/// Duration of a step, so that policies can be measured on the oracle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCost {
    /// Cost of every step.
    pub base: Duration,
    /// Cost per token evaluated.
    pub per_token: Duration,
    /// Cost per token of each span's path and tail, shared or not.
    pub per_cached_token: Duration,
}

/// An invalid field of an [`OracleConfig`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("oracle: field `{field}` is {found}; expected {expected}")]
#[non_exhaustive]
pub struct OracleConfigError {
    /// The field's name.
    pub field: &'static str,
    /// The value found.
    pub found: String,
    /// The values allowed.
    pub expected: &'static str,
}

impl OracleConfig {
    /// An otherwise default configuration with these layers.
    #[must_use]
    pub fn with_layers(layers: &[LayerKind]) -> OracleConfig {
        OracleConfig {
            layers: layers.to_vec(),
            ..OracleConfig::default()
        }
    }

    /// Checks that an oracle can be built from this configuration.
    ///
    /// # Errors
    ///
    /// [`OracleConfigError`] names the first invalid field.
    pub fn validate(&self) -> Result<(), OracleConfigError> {
        let vocab = 1..=TokenId::MAX as usize;
        let ends = self.distinct_end_tokens();
        let checks = [
            (
                vocab.contains(&self.vocab_size),
                "vocab_size",
                self.vocab_size.to_string(),
                "1 to 4294967295",
            ),
            (
                self.context_tokens_max > 0,
                "context_tokens_max",
                self.context_tokens_max.to_string(),
                "at least 1",
            ),
            (
                !self.layers.is_empty() && !self.layers.contains(&LayerKind::Window { tokens: 0 }),
                "layers",
                format!("{:?}", self.layers),
                "at least one layer, and windows of at least one token",
            ),
            (
                ends.len() < self.vocab_size
                    && ends.iter().all(|end| (*end as usize) < self.vocab_size),
                "end_tokens",
                format!("{ends:?}"),
                "tokens of the vocabulary, and not all of them",
            ),
            (
                self.tail_block_tokens > 0,
                "tail_block_tokens",
                self.tail_block_tokens.to_string(),
                "at least 1",
            ),
        ];
        for (holds, field, found, expected) in checks {
            if !holds {
                return Err(OracleConfigError {
                    field,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }

    /// The [`ModelSpec`] of this configuration; layers of one kind form one group.
    #[must_use]
    pub fn spec(&self) -> ModelSpec {
        let mut layer_groups: Vec<LayerGroup> = Vec::new();
        for &kind in &self.layers {
            let bytes = match kind {
                LayerKind::Full | LayerKind::Window { .. } => self.layer_bytes.token,
                LayerKind::Recurrent => self.layer_bytes.state,
            };
            match layer_groups.iter_mut().find(|group| group.kind == kind) {
                Some(group) => {
                    group.layers += 1;
                    group.bytes += bytes;
                }
                None => layer_groups.push(LayerGroup {
                    kind,
                    layers: 1,
                    bytes,
                }),
            }
        }
        ModelSpec {
            name: "oracle".to_owned(),
            vocab_size: self.vocab_size,
            hidden_size: HIDDEN_SIZE,
            context_tokens_max: self.context_tokens_max,
            end_tokens: self.distinct_end_tokens(),
            layer_groups,
            tail_block_tokens: self.tail_block_tokens,
            can_shift: self.can_shift,
            scratch_bytes_per_token: self.scratch_bytes_per_token,
            overlap_tokens_max: usize::MAX,
            draft_tokens_max: usize::MAX,
        }
    }

    pub(super) fn vocabulary(&self) -> Vocabulary {
        Vocabulary::new(self.vocab_size, &self.end_tokens, self.end_one_in)
    }

    /// Identity that two oracles must share for one to import the other's state.
    pub(super) fn identity(&self) -> u64 {
        let kinds = self.layers.iter().map(|kind| match kind {
            LayerKind::Full => 0,
            LayerKind::Recurrent => 1,
            LayerKind::Window { tokens } => 1 + *tokens as u64,
        });
        let words: Vec<u64> = [self.seed, self.vocab_size as u64]
            .into_iter()
            .chain(kinds)
            .collect();
        mix(&words)
    }

    fn distinct_end_tokens(&self) -> Vec<TokenId> {
        let mut ends = self.end_tokens.clone();
        ends.sort_unstable();
        ends.dedup();
        ends
    }
}

impl Default for OracleConfig {
    fn default() -> Self {
        OracleConfig {
            vocab_size: 1_000,
            context_tokens_max: 4_096,
            layers: vec![LayerKind::Full],
            end_tokens: vec![0],
            end_one_in: 0,
            layer_bytes: 8.into(),
            device_bytes: None,
            scratch_bytes_per_token: 0,
            tail_block_tokens: 16,
            can_shift: true,
            cost: StepCost::default(),
            verify: true,
            seed: 0,
            faults: Faults::default(),
            counters: OracleCounters::default(),
        }
    }
}

/// As many bytes per token as per state.
impl From<usize> for LayerBytes {
    fn from(bytes: usize) -> Self {
        LayerBytes {
            token: bytes,
            state: bytes,
        }
    }
}

impl StepCost {
    /// Duration of a step that evaluates `tokens` and reads `cached_tokens`.
    #[must_use]
    pub fn of(&self, tokens: usize, cached_tokens: usize) -> Duration {
        let times = |cost: Duration, count: usize| {
            cost.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
        };
        self.base
            .saturating_add(times(self.per_token, tokens))
            .saturating_add(times(self.per_cached_token, cached_tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_fields_are_named() {
        let check = |field: Option<&str>, change: fn(&mut OracleConfig)| {
            let mut config = OracleConfig::default();
            change(&mut config);
            let found = config.validate().err().map(|error| error.field);
            assert_eq!(found, field);
        };
        check(None, |_| ());
        check(None, |c| c.end_tokens.clear());
        check(Some("vocab_size"), |c| c.vocab_size = 0);
        check(Some("context_tokens_max"), |c| c.context_tokens_max = 0);
        check(Some("layers"), |c| c.layers.clear());
        check(Some("layers"), |c| {
            c.layers.push(LayerKind::Window { tokens: 0 });
        });
        check(Some("end_tokens"), |c| c.end_tokens.push(1_000));
        check(Some("end_tokens"), |c| {
            c.vocab_size = 2;
            c.end_tokens = vec![1, 0, 1];
        });
        check(Some("tail_block_tokens"), |c| c.tail_block_tokens = 0);
    }

    #[test]
    fn layers_of_one_kind_form_one_group() {
        let window = LayerKind::Window { tokens: 3 };
        let config = OracleConfig::with_layers(&[LayerKind::Full, window, LayerKind::Full]);
        let groups = config.spec().layer_groups;
        let found: Vec<_> = groups.iter().map(|g| (g.kind, g.layers, g.bytes)).collect();
        assert_eq!(found, [(LayerKind::Full, 2, 16), (window, 1, 8)]);
    }
}
