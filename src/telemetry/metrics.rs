//! The handles of all metrics. Names follow vLLM's where it has one; `docs/metrics.md`
//! lists them, and a test compares that list with this file.
//!
//! Every series is registered at start, so that a counter of what never happened reads
//! 0 and is not missing.

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use crate::error::{GenerateError, SubmitError};
use crate::request::FinishReason;

/// The handles.
pub(super) struct Metrics {
    pub(super) running: Gauge,
    pub(super) waiting: Gauge,
    pub(super) paused: Gauge,
    pub(super) preemptions: Counter,
    /// By [`FinishReason`].
    finished: [Counter; FinishReason::ALL.len()],
    /// By [`GenerateError::LABELS`].
    failed: [Counter; GenerateError::LABELS.len()],
    /// By [`SubmitError::LABELS`].
    rejected: [Counter; SubmitError::LABELS.len()],
    pub(super) prompt_tokens: Counter,
    pub(super) generation_tokens: Counter,
    pub(super) cache_queries: Counter,
    pub(super) cache_hits: Counter,
    pub(super) sealed_bytes: Gauge,
    pub(super) reserved_bytes: Gauge,
    pub(super) protected_bytes: Gauge,
    pub(super) decode_tokens: Histogram,
    pub(super) prefill_tokens: Histogram,
    pub(super) step_seconds: Histogram,
    pub(super) device_idle_seconds: Histogram,
    pub(super) device_alive: Gauge,
    pub(super) queue_seconds: Histogram,
    pub(super) prefill_seconds: Histogram,
    pub(super) decode_seconds: Histogram,
    pub(super) whole_seconds: Histogram,
    pub(super) first_token_seconds: Histogram,
    pub(super) inter_token_seconds: Histogram,
}

impl Metrics {
    /// Describes and registers everything with the recorder of this moment.
    #[rustfmt::skip] // a table
    pub(super) fn new() -> Self {
        let count = |name, about| { describe_counter!(name, Unit::Count, about); counter!(name) };
        let level = |name, unit, about| { describe_gauge!(name, unit, about); gauge!(name) };
        let spread = |name, unit, about| { describe_histogram!(name, unit, about); histogram!(name) };
        let seconds = |name, about| spread(name, Unit::Seconds, about);
        describe_gauge!(CACHE_BYTES, Unit::Bytes, "bytes of cached state");
        describe_histogram!(STEP_TOKENS, Unit::Count, "tokens of a step");
        let bytes = |kind| gauge!(CACHE_BYTES, "tier" => "device", "kind" => kind);
        let step_tokens = |kind| histogram!(STEP_TOKENS, "kind" => kind);
        Self {
            running: level("motet_num_requests_running", Unit::Count, "sequences with a slot"),
            waiting: level("motet_num_requests_waiting", Unit::Count, "sequences without one"),
            paused: level("motet_num_requests_paused", Unit::Count, "sequences that wait for their reader"),
            preemptions: count("motet_num_preemptions_total", "sequences that lost their slot for want of memory"),
            finished: counts("motet_request_success_total", "sequences that ended as they should",
                "finished_reason", FinishReason::ALL.map(FinishReason::label)),
            failed: counts("motet_request_failed_total", "sequences that ended in an error",
                "reason", GenerateError::LABELS),
            rejected: counts("motet_request_rejected_total", "requests that were not taken in",
                "reason", SubmitError::LABELS),
            prompt_tokens: count("motet_prompt_tokens_total", "prompt tokens computed"),
            generation_tokens: count("motet_generation_tokens_total", "tokens generated"),
            cache_queries: count("motet_prefix_cache_queries_total", "prompt tokens looked up in the cache"),
            cache_hits: count("motet_prefix_cache_hits_total", "prompt tokens found there"),
            sealed_bytes: bytes("sealed"),
            reserved_bytes: bytes("reserved"),
            protected_bytes: bytes("protected"),
            decode_tokens: step_tokens("decode"),
            prefill_tokens: step_tokens("prefill"),
            step_seconds: seconds("motet_step_seconds", "time that the device worked on a step"),
            device_idle_seconds: seconds("motet_device_idle_seconds", "time between two steps while there was work"),
            device_alive: level("motet_device_alive", Unit::Count, "1 while the device thread lives"),
            queue_seconds: seconds("motet_request_queue_time_seconds", "from submit to the slot"),
            prefill_seconds: seconds("motet_request_prefill_time_seconds", "from the slot to the first token"),
            decode_seconds: seconds("motet_request_decode_time_seconds", "from the first token to the last"),
            whole_seconds: seconds("motet_e2e_request_latency_seconds", "from submit to the end"),
            first_token_seconds: seconds("motet_time_to_first_token_seconds", "from submit to the first token"),
            inter_token_seconds: seconds("motet_inter_token_latency_seconds", "between two tokens of a sequence"),
        }
    }

    pub(super) fn finished(&self, reason: FinishReason) {
        let index = FinishReason::ALL.iter().position(|known| *known == reason);
        self.finished[index.expect("every reason is listed")].increment(1);
    }

    pub(super) fn failed(&self, error: &GenerateError) {
        increment(&self.failed, &GenerateError::LABELS, error.label());
    }

    pub(super) fn rejected(&self, error: &SubmitError) {
        increment(&self.rejected, &SubmitError::LABELS, error.label());
    }
}

const CACHE_BYTES: &str = "motet_cache_bytes";
const STEP_TOKENS: &str = "motet_step_tokens";

/// One counter for each value of a label.
fn counts<const N: usize>(
    name: &'static str,
    about: &'static str,
    label: &'static str,
    values: [&'static str; N],
) -> [Counter; N] {
    describe_counter!(name, Unit::Count, about);
    values.map(|value| counter!(name, label => value))
}

fn increment(counters: &[Counter], labels: &[&str], label: &str) {
    let index = labels.iter().position(|known| *known == label);
    counters[index.expect("every label is listed")].increment(1);
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}
