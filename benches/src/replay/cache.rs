//! Replays a trace through the cache core.

use std::time::{Duration, Instant};

use motet::SequenceId;
use motet::config::{CacheConfig, EvictionPolicy};
use motet::model::{LayerGroup, LayerKind, ModelSpec};
use motet_core::cache::{CacheCore, Effect, Message, OpenSlot};

use crate::replay::trace::Trace;

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) asked_tokens: usize,
    pub(crate) hit_tokens: usize,
    pub(crate) requests: usize,
    pub(crate) time: Duration,
}

impl Outcome {
    pub(crate) fn hit_percent(&self) -> f64 {
        100.0 * self.hit_tokens as f64 / self.asked_tokens.max(1) as f64
    }

    pub(crate) fn request_micros(&self) -> f64 {
        self.time.as_secs_f64() * 1e6 / self.requests.max(1) as f64
    }
}

/// Opens and closes one request after another in a cache of `capacity_tokens` tokens.
/// `on_request` is called after each.
pub(crate) fn replay(
    trace: &Trace,
    capacity_tokens: usize,
    eviction: EvictionPolicy,
    on_request: impl Fn(),
) -> Outcome {
    let longest = trace
        .requests
        .iter()
        .map(|r| r.tokens.len() + r.generated.len());
    let config = CacheConfig {
        device_bytes_max: capacity_tokens,
        eviction,
        ..CacheConfig::default()
    };
    let mut cache = CacheCore::new(spec(longest.max().unwrap_or(0)), config);
    let mut outcome = Outcome::default();
    for (index, request) in trace.requests.iter().enumerate() {
        let sequence = SequenceId(index as u64 + 1);
        let started = Instant::now();
        let open_slot = OpenSlot {
            tokens_max: request.asked + request.generated.len(),
            ..OpenSlot::new(sequence, request.tokens.clone(), 0)
        };
        let opened = handle(&mut cache, Message::OpenSlot(open_slot));
        let cached = opened.iter().find_map(|effect| match effect {
            Effect::SlotOpened { cached_tokens, .. } => Some(*cached_tokens),
            _ => None,
        });
        match cached {
            Some(cached) => {
                outcome.hit_tokens += cached.min(request.asked);
                let close = Message::Close {
                    sequence,
                    computed: request.asked + request.generated.len(),
                    generated: request.generated.clone(),
                };
                handle(&mut cache, close);
            }
            // The request is longer than the cache: it counts as asked for, without hits.
            None => {
                handle(&mut cache, Message::Discard { sequence });
            }
        }
        outcome.time += started.elapsed();
        outcome.asked_tokens += request.asked;
        outcome.requests += 1;
        on_request();
    }
    cache.check_integrity();
    outcome
}

fn handle(cache: &mut CacheCore, message: Message) -> Vec<Effect> {
    cache
        .handle(Duration::ZERO, message)
        .expect("a replay sends valid messages")
}

/// A model whose state is one byte a token.
fn spec(context_tokens_max: usize) -> ModelSpec {
    ModelSpec {
        name: "one byte a token".to_owned(),
        vocab_size: usize::MAX,
        hidden_size: 0,
        context_tokens_max,
        end_tokens: Vec::new(),
        layer_groups: vec![LayerGroup {
            kind: LayerKind::Full,
            layers: 1,
            bytes: 1,
        }],
        tail_block_tokens: 1,
        can_shift: false,
        scratch_bytes_per_token: 0,
        overlap_tokens_max: usize::MAX,
        draft_tokens_max: 0,
    }
}
