//! What the engine tells of itself: figures for [`Engine::stats`] and the same
//! through the `metrics` facade.
//!
//! Handles are looked up once, at start, and kept. No token or text of a request
//! ever appears here.
//!
//! [`Engine::stats`]: crate::Engine::stats

use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use tokio::sync::watch;

use crate::cache::CacheStats;
use crate::device::{Outcome, Work};
use crate::model::DeviceMemory;
use crate::request::{FinishReason, Usage};
use crate::scheduler::SchedulerStats;

/// A picture of the engine at one moment. Sums run from the engine's start.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineStats {
    /// Sequences with a slot on the device.
    pub running: usize,
    /// Sequences that wait for one.
    pub waiting: usize,
    /// Of these, sequences whose beginning another computes just now.
    pub awaiting_prefix: usize,
    /// Sequences that ended as they should.
    pub finished: u64,
    /// Sequences that ended in an error.
    pub failed: u64,
    /// Prompt tokens of all sequences that started.
    pub prompt_tokens: u64,
    /// Of these, tokens whose state was in the cache.
    pub cached_tokens: u64,
    /// Tokens that the device evaluated, prompt and output, failed steps included.
    pub evaluated_tokens: u64,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Forward passes.
    pub steps: u64,
    /// How many steps had this many sequences; index 0 is for one sequence.
    pub steps_by_sequences: Vec<u64>,
    /// Time that the device worked.
    pub device_busy: Duration,
    /// The device's own count of bytes.
    pub device_memory: DeviceMemory,
    /// Whether the device thread is alive.
    pub device_alive: bool,
    /// What is cached.
    pub cache: CacheStats,
    /// Mean time between two sequences' ends lately; zero before the second.
    pub finish_interval: Duration,
}

/// Where everyone reports to.
#[derive(Debug)]
pub(crate) struct Telemetry {
    stats: watch::Sender<EngineStats>,
    last_finish: std::sync::Mutex<Option<Instant>>,
    metrics: Metrics,
}

/// The `metrics` handles.
struct Metrics {
    running: Gauge,
    waiting: Gauge,
    cached_bytes: Gauge,
    reserved_bytes: Gauge,
    /// By [`FinishReason`].
    finished: [Counter; 4],
    failed: Counter,
    rejected: Counter,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    output_tokens: Counter,
    step_tokens: Histogram,
    step_seconds: Histogram,
    queue_seconds: Histogram,
    first_token_seconds: Histogram,
    inter_token_seconds: Histogram,
}

impl Telemetry {
    pub(crate) fn new() -> Self {
        let stats = EngineStats {
            running: 0,
            waiting: 0,
            awaiting_prefix: 0,
            finished: 0,
            failed: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            evaluated_tokens: 0,
            output_tokens: 0,
            steps: 0,
            steps_by_sequences: Vec::new(),
            device_busy: Duration::ZERO,
            device_memory: DeviceMemory::default(),
            device_alive: true,
            cache: CacheStats::default(),
            finish_interval: Duration::ZERO,
        };
        Self {
            stats: watch::Sender::new(stats),
            last_finish: std::sync::Mutex::new(None),
            metrics: Metrics::new(),
        }
    }

    pub(crate) fn stats(&self) -> EngineStats {
        self.stats.borrow().clone()
    }

    pub(crate) fn finish_interval(&self) -> Duration {
        self.stats.borrow().finish_interval
    }

    pub(crate) fn scheduler(&self, now: SchedulerStats) {
        self.metrics.running.set(now.running as f64);
        self.metrics.waiting.set(now.waiting as f64);
        self.stats.send_modify(|stats| {
            stats.running = now.running;
            stats.waiting = now.waiting;
            stats.awaiting_prefix = now.awaiting_prefix;
        });
    }

    pub(crate) fn cache(&self, now: CacheStats) {
        self.metrics.cached_bytes.set(now.sealed_bytes as f64);
        self.metrics.reserved_bytes.set(now.reserved_bytes as f64);
        self.stats.send_modify(|stats| stats.cache = now);
    }

    /// Work goes to the device.
    pub(crate) fn work(&self, work: &Work) {
        if work.spans.is_empty() {
            return;
        }
        let tokens: usize = work.spans.iter().map(|span| span.input.tokens()).sum();
        self.metrics.step_tokens.record(tokens as f64);
        self.stats.send_modify(|stats| {
            stats.steps += 1;
            stats.evaluated_tokens += tokens as u64;
            let sequences = work.spans.len();
            if stats.steps_by_sequences.len() < sequences {
                stats.steps_by_sequences.resize(sequences, 0);
            }
            stats.steps_by_sequences[sequences - 1] += 1;
        });
    }

    /// Sequences have new tokens.
    pub(crate) fn drawn(&self, tokens: usize) {
        if tokens > 0 {
            self.metrics.output_tokens.increment(tokens as u64);
            self.stats
                .send_modify(|stats| stats.output_tokens += tokens as u64);
        }
    }

    /// The device has answered.
    pub(crate) fn outcome(&self, outcome: &Outcome) {
        self.metrics.step_seconds.record(outcome.busy);
        self.stats.send_modify(|stats| {
            stats.device_busy += outcome.busy;
            stats.device_memory = outcome.memory;
        });
    }

    pub(crate) fn device_gone(&self) {
        self.stats.send_modify(|stats| stats.device_alive = false);
    }

    pub(crate) fn rejected(&self) {
        self.metrics.rejected.increment(1);
    }

    /// A sequence has got its slot.
    pub(crate) fn started(&self, usage: &Usage, submitted_at: Instant) {
        self.metrics.queue_seconds.record(submitted_at.elapsed());
        self.metrics
            .prompt_tokens
            .increment(usage.prompt_tokens as u64);
        self.metrics
            .cached_tokens
            .increment(usage.cached_tokens as u64);
        self.stats.send_modify(|stats| {
            stats.prompt_tokens += usage.prompt_tokens as u64;
            stats.cached_tokens += usage.cached_tokens as u64;
        });
    }

    pub(crate) fn first_token(&self, since_submit: Duration) {
        self.metrics.first_token_seconds.record(since_submit);
    }

    pub(crate) fn next_token(&self, since_last: Duration) {
        self.metrics.inter_token_seconds.record(since_last);
    }

    pub(crate) fn finished(&self, reason: FinishReason) {
        self.metrics.finished[reason as usize].increment(1);
        let now = Instant::now();
        let before = self
            .last_finish
            .lock()
            .expect("nothing panics while it holds this lock")
            .replace(now);
        self.stats.send_modify(|stats| {
            stats.finished += 1;
            if let Some(before) = before {
                // An exponential mean over about eight intervals.
                stats.finish_interval = match stats.finish_interval {
                    Duration::ZERO => now - before,
                    mean => (mean * 7 + (now - before)) / 8,
                };
            }
        });
    }

    pub(crate) fn failed(&self) {
        self.metrics.failed.increment(1);
        self.stats.send_modify(|stats| stats.failed += 1);
    }
}

impl Metrics {
    fn new() -> Self {
        Self {
            running: gauge!("motet_sequences_running"),
            waiting: gauge!("motet_sequences_waiting"),
            cached_bytes: gauge!("motet_cache_sealed_bytes"),
            reserved_bytes: gauge!("motet_cache_reserved_bytes"),
            finished: ["end_token", "length", "stop_string", "cancelled"]
                .map(|reason| counter!("motet_sequences_finished_total", "reason" => reason)),
            failed: counter!("motet_sequences_failed_total"),
            rejected: counter!("motet_requests_rejected_total"),
            prompt_tokens: counter!("motet_prompt_tokens_total"),
            cached_tokens: counter!("motet_prompt_tokens_cached_total"),
            output_tokens: counter!("motet_output_tokens_total"),
            step_tokens: histogram!("motet_step_tokens"),
            step_seconds: histogram!("motet_step_seconds"),
            queue_seconds: histogram!("motet_queue_seconds"),
            first_token_seconds: histogram!("motet_time_to_first_token_seconds"),
            inter_token_seconds: histogram!("motet_inter_token_seconds"),
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}
