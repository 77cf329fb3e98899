//! The time that work takes: of Dynamo's simulated engine (`aisimulate-core`, its default).

use std::time::Duration;

/// Tokens a second that a worker loads from the shared tier: 128 KiB each at 100 Gbit/s.
const LOADED_TOKENS_PER_SECOND: f64 = 95_000.0;

/// The time of a step that computes so many tokens of prompts, and one more of each sequence that
/// decodes. `used` is the part of the memory that the decoding sequences' tokens fill.
pub(crate) fn step(prompt_tokens: usize, decoding: usize, used: f64) -> Duration {
    let tokens = prompt_tokens as f64;
    let prefill = if prompt_tokens > 0 {
        4.209_989e-7 * tokens * tokens + 1.518_344e-2 * tokens + 16.501_42
    } else {
        0.0
    };
    let used = used.min(1.0);
    let decode = if decoding > 0 {
        -25.74 * used * used + 54.01 * used + 5.74
    } else {
        0.0
    };
    Duration::from_secs_f64((prefill + decode) / 1e3)
}

/// The time of a load from the shared tier.
pub(crate) fn load(tokens: usize) -> Duration {
    Duration::from_secs_f64(tokens as f64 / LOADED_TOKENS_PER_SECOND)
}
