//! The handles of all metrics. Names follow vLLM's where vLLM has the metric; `docs/metrics.md`
//! lists them, and a test compares that list with this file.
//!
//! Every series is registered at start, so that the counter of an event that never happened
//! reads 0 instead of being absent.

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use crate::error::SubmitError;
use motet_core::cache::{Miss, MissReason};
use motet_core::pager::{Done, Task};
use motet_core::recovery::Fault;
use motet_protocol::{FinishReason, GenerateError};

/// The handles of all metrics.
// Flat, though it has more than 15 fields: one handle for each row of `docs/metrics.md`. No method
// depends on more than one of them.
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
    pub(super) drafts: Counter,
    pub(super) draft_tokens: Counter,
    pub(super) accepted_tokens: Counter,
    pub(super) cache_queries: Counter,
    pub(super) cache_hits: Counter,
    /// By [`MissReason::ALL`].
    misses: [Counter; MissReason::ALL.len()],
    /// By [`MissReason::ALL`].
    missed_tokens: [Counter; MissReason::ALL.len()],
    pub(super) evicted_segments: Counter,
    pub(super) evicted_tokens: Counter,
    pub(super) forks: Counter,
    pub(super) shifts: Counter,
    pub(super) shifted_tokens: Counter,
    pub(super) sealed_bytes: Gauge,
    pub(super) reserved_bytes: Gauge,
    pub(super) protected_bytes: Gauge,
    pub(super) host_bytes: Gauge,
    pub(super) disk_bytes: Gauge,
    pub(super) host_copies: Gauge,
    pub(super) disk_copies: Gauge,
    /// By [`Task::ALL`].
    moves: [Moves; Task::ALL.len()],
    pub(super) host_hits: Counter,
    pub(super) disk_hits: Counter,
    pub(super) prefetches: Counter,
    pub(super) offloads_rejected: Counter,
    pub(super) computed_instead: Counter,
    pub(super) disk_degraded: Gauge,
    pub(super) remote_asks: Counter,
    pub(super) remote_degraded: Gauge,
    pub(super) decode_tokens: Histogram,
    pub(super) prefill_tokens: Histogram,
    pub(super) draft_tokens_of_step: Histogram,
    pub(super) step_seconds: Histogram,
    pub(super) device_idle_seconds: Histogram,
    pub(super) device_alive: Gauge,
    pub(super) edits_failed: Counter,
    /// By [`Fault::ALL`].
    rebuilds: [Counter; Fault::ALL.len()],
    pub(super) broken: Gauge,
    pub(super) pager_lost: Gauge,
    pub(super) queue_seconds: Histogram,
    pub(super) prefill_seconds: Histogram,
    pub(super) decode_seconds: Histogram,
    pub(super) whole_seconds: Histogram,
    pub(super) first_token_seconds: Histogram,
    pub(super) inter_token_seconds: Histogram,
}

/// The metrics of one copy task.
struct Moves {
    done: Counter,
    failed: Counter,
    seconds: Histogram,
    bytes: Histogram,
}

impl Metrics {
    /// Describes and registers every metric with the current recorder.
    #[rustfmt::skip] // a table
    pub(super) fn new() -> Self {
        let count = |name, about| { describe_counter!(name, Unit::Count, about); counter!(name) };
        let level = |name, unit, about| { describe_gauge!(name, unit, about); gauge!(name) };
        let spread = |name, unit, about| { describe_histogram!(name, unit, about); histogram!(name) };
        let seconds = |name, about| spread(name, Unit::Seconds, about);
        describe_gauge!(CACHE_BYTES, Unit::Bytes, "bytes of cached state");
        describe_histogram!(STEP_TOKENS, Unit::Count, "tokens of a step");
        let bytes = |kind| gauge!(CACHE_BYTES, "tier" => "device", "kind" => kind);
        describe_gauge!(PAGER_COPIES, Unit::Count, "segments copied off the device");
        let copies = |tier| gauge!(PAGER_COPIES, "tier" => tier);
        describe_counter!(PAGER_HITS, Unit::Count, "copies that a sequence waited for");
        let hits = |tier| counter!(PAGER_HITS, "tier" => tier);
        let copy_bytes = |tier| gauge!(CACHE_BYTES, "tier" => tier, "kind" => "copies");
        let step_tokens = |kind| histogram!(STEP_TOKENS, "kind" => kind);
        Self {
            running: level("motet_num_requests_running", Unit::Count, "sequences with a slot"),
            waiting: level("motet_num_requests_waiting", Unit::Count, "sequences that wait for a slot"),
            paused: level("motet_num_requests_paused", Unit::Count, "sequences paused until their stream is read"),
            preemptions: count("motet_num_preemptions_total", "times that a sequence was preempted"),
            finished: counts("motet_request_success_total", "sequences that finished without an error",
                "finished_reason", FinishReason::ALL.map(FinishReason::label)),
            failed: counts("motet_request_failed_total", "sequences that ended in an error",
                "reason", GenerateError::LABELS),
            rejected: counts("motet_request_rejected_total", "requests that were rejected",
                "reason", SubmitError::LABELS),
            prompt_tokens: count("motet_prompt_tokens_total", "prompt tokens computed"),
            generation_tokens: count("motet_generation_tokens_total", "tokens generated"),
            drafts: count("motet_spec_decode_num_drafts_total", "drafts that were verified"),
            draft_tokens: count("motet_spec_decode_num_draft_tokens_total", "their tokens"),
            accepted_tokens: count("motet_spec_decode_num_accepted_tokens_total", "draft tokens that were right"),
            cache_queries: count("motet_prefix_cache_queries_total", "prompt tokens looked up in the cache"),
            cache_hits: count("motet_prefix_cache_hits_total", "prompt tokens found in the cache"),
            misses: counts("motet_prefix_cache_misses_total", "sequences that reused less of the cache than they might have",
                "reason", MissReason::ALL.map(MissReason::label)),
            missed_tokens: counts("motet_prefix_cache_missed_tokens_total", "tokens that these sequences might have reused in addition",
                "reason", MissReason::ALL.map(MissReason::label)),
            evicted_segments: count("motet_prefix_cache_evicted_segments_total", "segments evicted from the device, or cleared"),
            evicted_tokens: count("motet_prefix_cache_evicted_tokens_total", "tokens of segments evicted from the device, or cleared"),
            forks: count("motet_forks_total", "sequences forked from another"),
            shifts: count("motet_context_shifts_total", "shifts of a full context"),
            shifted_tokens: count("motet_context_shifted_tokens_total", "tokens dropped by context shifts"),
            sealed_bytes: bytes("sealed"),
            reserved_bytes: bytes("reserved"),
            protected_bytes: bytes("protected"),
            host_bytes: copy_bytes("host"),
            disk_bytes: copy_bytes("disk"),
            host_copies: copies("host"),
            disk_copies: copies("disk"),
            moves: moves(),
            host_hits: hits("host"),
            disk_hits: hits("disk"),
            prefetches: count("motet_pager_prefetched_total", "copies prefetched from the disk"),
            offloads_rejected: count("motet_pager_rejected_total", "offload candidates rejected for lack of memory"),
            computed_instead: count("motet_pager_computed_instead_total", "sequences whose prefix was faster to compute than to load"),
            disk_degraded: level("motet_pager_disk_degraded", Unit::Count, "1 while the disk does not answer, or has not worked since its last failure"),
            remote_asks: count("motet_pager_remote_asks_total", "questions to the remote tier"),
            remote_degraded: level("motet_pager_remote_degraded", Unit::Count, "1 while the remote tier does not answer, or has not worked since its last failure"),
            decode_tokens: step_tokens("decode"),
            prefill_tokens: step_tokens("prefill"),
            draft_tokens_of_step: step_tokens("draft"),
            step_seconds: seconds("motet_step_seconds", "time that the device worked on a step"),
            device_idle_seconds: seconds("motet_device_idle_seconds", "time that the device was idle while there was work"),
            device_alive: level("motet_device_alive", Unit::Count, "1 while the device thread is alive"),
            edits_failed: count("motet_edits_failed_total", "submitted works with a failed edit; the sequences that it touched restart"),
            rebuilds: counts("motet_rebuilds_total", "parts that failed and were rebuilt",
                "reason", Fault::ALL.map(Fault::label)),
            broken: level("motet_broken", Unit::Count, "1 once the engine has failed too often"),
            pager_lost: level("motet_pager_lost", Unit::Count, "1 once the pager is gone"),
            queue_seconds: seconds("motet_request_queue_time_seconds", "from submit to the slot"),
            prefill_seconds: seconds("motet_request_prefill_time_seconds", "from the slot to the first token"),
            decode_seconds: seconds("motet_request_decode_time_seconds", "from the first token to the last"),
            whole_seconds: seconds("motet_e2e_request_latency_seconds", "from submit to the end"),
            first_token_seconds: seconds("motet_time_to_first_token_seconds", "from submit to the first token"),
            inter_token_seconds: seconds("motet_inter_token_latency_seconds", "between two tokens of a sequence"),
        }
    }

    /// Counts a job that a copy worker has finished, or failed to.
    pub(super) fn moved(&self, done: &Done) {
        let index = Task::ALL.iter().position(|known| *known == done.task);
        let moves = &self.moves[index.expect("every task is listed")];
        if done.result.is_err() {
            moves.failed.increment(1);
            return;
        }
        moves.done.increment(1);
        let seconds = done.took.as_secs_f64();
        moves.seconds.record(seconds);
        if done.bytes > 0 {
            moves.bytes.record(done.bytes as f64);
        }
    }

    pub(super) fn missed(&self, miss: Miss) {
        let index = MissReason::ALL
            .iter()
            .position(|known| *known == miss.reason);
        let index = index.expect("every reason is listed");
        self.misses[index].increment(1);
        self.missed_tokens[index].increment(miss.tokens as u64);
    }

    pub(super) fn rebuilt(&self, fault: Fault) {
        let index = Fault::ALL.iter().position(|known| *known == fault);
        self.rebuilds[index.expect("every fault is listed")].increment(1);
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
const PAGER_HITS: &str = "motet_pager_hits_total";
const PAGER_COPIES: &str = "motet_pager_copies";
const STEP_TOKENS: &str = "motet_step_tokens";

fn moves() -> [Moves; Task::ALL.len()] {
    let (done, failed) = ("motet_pager_moves_total", "motet_pager_failures_total");
    let (seconds, bytes) = ("motet_pager_move_seconds", "motet_pager_move_bytes");
    describe_counter!(done, Unit::Count, "copy jobs that succeeded");
    describe_counter!(failed, Unit::Count, "copy jobs that failed");
    describe_histogram!(seconds, Unit::Seconds, "time that a copy job takes");
    describe_histogram!(bytes, Unit::Bytes, "bytes that a copy job moves");
    Task::ALL.map(|task| Moves {
        done: counter!(done, "task" => task.label()),
        failed: counter!(failed, "task" => task.label()),
        seconds: histogram!(seconds, "task" => task.label()),
        bytes: histogram!(bytes, "task" => task.label()),
    })
}

/// Registers one counter for each value of a label.
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
