//! Statistics of the engine: sums and levels for [`Engine::stats`]; most of them, with labels
//! and distributions, also through the `metrics` facade. `docs/metrics.md` compares the two.
//!
//! Subscribers of [events](crate::monitor::Events) receive each event as it happens.
//!
//! Handles are looked up once at start and kept. Values that change with every token are
//! atomics; values that change with a step or a request are behind one lock, held for a few
//! stores. No token or text of a request ever appears here.
//!
//! [`Engine::stats`]: crate::Engine::stats

mod event;
mod metrics;
mod prefill;
mod restore;
mod snapshot;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::error::SubmitError;
use metrics::Metrics;
use motet_core::cache::{CacheStats, Miss};
use motet_core::pager::{Done, PagerStats};
use motet_core::recovery::Fault;
use motet_core::scheduler::{DraftCounts, SchedulerStats};
use motet_protocol::SequenceId;
use motet_protocol::time::mean;
use motet_protocol::{DeviceMemory, Failure, FinishReason, GenerateError, Outcome, Usage, Work};
use motet_sync::primitives::{AtomicUsize, Ordering};
use prefill::PrefillRate;
use restore::RestoreMetrics;

pub use event::{EngineEvent, Events, SpanView, StepView};
pub use snapshot::{Budgets, Snapshot};

/// Statistics of an engine at one moment. Sums run from the engine's start.
// Flat, though it has more than 15 fields: a public list of counters, which no code keeps in step.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Sequences with a slot on the device.
    pub running: usize,
    /// Sequences that wait for a slot.
    pub waiting: usize,
    /// The part of them that waits for a prefix that another sequence is computing.
    pub awaiting_prefix: usize,
    /// Sequences that are paused until their stream is read.
    pub paused: usize,
    /// Preemptions: a sequence lost its slot to a higher class, to a user with less service, or
    /// for lack of memory.
    pub preempted: u64,
    /// Sequences that were forked from another.
    pub forked: u64,
    /// Context shifts.
    pub shifted: u64,
    /// Requests that were rejected.
    pub rejected: u64,
    /// Sequences that finished without an error.
    pub finished: u64,
    /// Sequences that ended in an error.
    pub failed: u64,
    /// Prompt tokens of all sequences that started.
    pub prompt_tokens: u64,
    /// The part of them whose state came from the cache.
    pub cached_tokens: u64,
    /// Tokens that the device evaluated, prompt and output, including those of failed steps. Draft
    /// tokens count where they were right.
    pub evaluated_tokens: u64,
    /// Drafts that were verified, and their tokens.
    #[doc(alias = "speculative decoding")]
    pub drafts: DraftCounts,
    /// Tokens generated.
    pub output_tokens: u64,
    /// Forward passes.
    pub steps: u64,
    /// Number of steps by the number of their sequences; index 0 is for one sequence.
    pub steps_by_sequences: Vec<u64>,
    /// Time that the device worked.
    pub device_busy: Duration,
    /// Time that the device was idle while there was work.
    pub device_idle: Duration,
    /// The device's memory, as it reports it.
    pub device_memory: DeviceMemory,
    /// Whether the device thread is alive.
    pub device_alive: bool,
    /// Rebuilds of the device thread, the scheduler, the cache or the pager.
    pub rebuilds: u64,
    /// Statistics of the cache.
    pub cache: CacheStats,
    /// Statistics of the pager.
    pub pager: PagerStats,
    /// Recent mean time between the ends of two sequences; zero before the second.
    pub finish_interval: Duration,
}

impl EngineStats {
    /// Returns the share of time that the device was idle while there was work; 0 before the
    /// first step.
    #[must_use]
    pub fn device_idle_share(&self) -> f64 {
        let whole = self
            .device_busy
            .saturating_add(self.device_idle)
            .as_secs_f64();
        if whole > 0.0 {
            self.device_idle.as_secs_f64() / whole
        } else {
            0.0
        }
    }
}

/// Collects the statistics of all parts of the engine.
#[derive(Debug)]
pub(crate) struct Telemetry {
    metrics: Metrics,
    restore: RestoreMetrics,
    running: AtomicUsize,
    waiting: AtomicUsize,
    awaiting_prefix: AtomicUsize,
    paused: AtomicUsize,
    output_tokens: AtomicUsize,
    disk_degraded: AtomicUsize,
    pager_lost: AtomicUsize,
    sums: Mutex<Sums>,
    /// `None` once the engine is shut down: the subscriptions have ended.
    events: RwLock<Option<broadcast::Sender<EngineEvent>>>,
}

/// Values that change with a step or a request.
#[derive(Debug)]
struct Sums {
    /// Without the values that are counted in atomics.
    stats: EngineStats,
    last_finish: Option<Instant>,
    prefill: PrefillRate,
}

impl Telemetry {
    pub(crate) fn new() -> Self {
        let metrics = Metrics::new();
        metrics.device_alive.set(1.0);
        let count = || AtomicUsize::new(0);
        Self {
            metrics,
            restore: RestoreMetrics::default(),
            running: count(),
            waiting: count(),
            awaiting_prefix: count(),
            paused: count(),
            output_tokens: count(),
            disk_degraded: count(),
            pager_lost: count(),
            sums: Mutex::new(Sums {
                stats: EngineStats {
                    device_alive: true,
                    ..EngineStats::default()
                },
                last_finish: None,
                prefill: PrefillRate::default(),
            }),
            events: RwLock::new(Some(broadcast::Sender::new(Events::WAITING_MAX))),
        }
    }

    pub(crate) fn stats(&self) -> EngineStats {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        EngineStats {
            running: load(&self.running),
            waiting: load(&self.waiting),
            awaiting_prefix: load(&self.awaiting_prefix),
            paused: load(&self.paused),
            output_tokens: load(&self.output_tokens) as u64,
            ..self.sums().stats.clone()
        }
    }

    /// Returns how many sequences are running, waiting and paused. Reads atomics only, so it
    /// never blocks.
    pub(crate) fn sequences(&self) -> (usize, usize, usize) {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        (load(&self.running), load(&self.waiting), load(&self.paused))
    }

    /// Recent mean time between the ends of two sequences; `None` before the second.
    pub(crate) fn finish_interval(&self) -> Option<Duration> {
        let interval = self.sums().stats.finish_interval;
        (!interval.is_zero()).then_some(interval)
    }

    /// Returns how long this many prompt tokens take to compute, at the recent rate.
    pub(crate) fn prefill_time(&self, tokens: usize) -> Option<Duration> {
        self.sums().prefill.time(tokens)
    }

    pub(crate) fn scheduler(&self, now: SchedulerStats) {
        let set = |count: &AtomicUsize, value| count.store(value, Ordering::Relaxed);
        set(&self.running, now.running);
        set(&self.waiting, now.waiting);
        set(&self.awaiting_prefix, now.awaiting_prefix);
        self.metrics.running.set(now.running as f64);
        self.metrics.waiting.set(now.waiting as f64);
        set(&self.paused, now.paused);
        self.metrics.paused.set(now.paused as f64);
    }

    /// Subscribes to events from now on. After the engine's shutdown there are none.
    pub(crate) fn events(&self) -> Events {
        let subscribed = self.sender().as_ref().map(broadcast::Sender::subscribe);
        Events::new(subscribed.unwrap_or_else(|| broadcast::channel(1).1))
    }

    /// Ends all subscriptions to events.
    pub(crate) fn end_events(&self) {
        let mut sender = self.events.write().unwrap_or_else(PoisonError::into_inner);
        *sender = None;
    }

    /// Whether events have a subscriber.
    pub(crate) fn is_watched(&self) -> bool {
        let sender = self.sender();
        sender
            .as_ref()
            .is_some_and(|sender| sender.receiver_count() > 0)
    }

    /// Sends an event to the subscribers, if any.
    pub(crate) fn emit(&self, event: impl FnOnce() -> EngineEvent) {
        let sender = self.sender();
        if let Some(sender) = sender.as_ref().filter(|sender| sender.receiver_count() > 0) {
            // The last subscriber may just have gone.
            sender.send(event()).ok();
        }
    }

    fn sender(&self) -> RwLockReadGuard<'_, Option<broadcast::Sender<EngineEvent>>> {
        // A panic of an event's closure leaves the sender as it was.
        self.events.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a sequence that was preempted.
    pub(crate) fn preempted(&self, sequence: SequenceId) {
        self.metrics.preemptions.increment(1);
        self.sums().stats.preempted += 1;
        self.emit(|| EngineEvent::Preempted { sequence });
    }

    /// Counts a sequence that was forked from another.
    pub(crate) fn forked(&self, sequence: SequenceId, source: SequenceId, at: usize) {
        self.metrics.forks.increment(1);
        self.sums().stats.forked += 1;
        self.emit(|| EngineEvent::Forked {
            sequence,
            source,
            at,
        });
    }

    /// Counts a context shift and the tokens that it dropped.
    pub(crate) fn shifted(&self, sequence: SequenceId, tokens: usize) {
        self.metrics.shifts.increment(1);
        self.metrics.shifted_tokens.increment(tokens as u64);
        self.sums().stats.shifted += 1;
        self.emit(|| EngineEvent::Shifted { sequence, tokens });
    }

    pub(crate) fn cache(&self, now: CacheStats) {
        let metrics = &self.metrics;
        metrics.sealed_bytes.set(now.sealed_bytes as f64);
        metrics.reserved_bytes.set(now.reserved_bytes as f64);
        metrics.protected_bytes.set(now.protected_bytes as f64);
        metrics.cache_queries.absolute(now.asked_tokens);
        metrics.cache_hits.absolute(now.hit_tokens);
        metrics.evicted_segments.absolute(now.evicted_segments);
        metrics.evicted_tokens.absolute(now.evicted_tokens);
        if let Some(restore) = &now.restore {
            self.restore.set(restore);
        }
        let before = std::mem::replace(&mut self.sums().stats.cache, now);
        let segments = now.evicted_segments.saturating_sub(before.evicted_segments);
        if segments > 0 {
            self.emit(|| EngineEvent::Evicted {
                segments,
                tokens: now.evicted_tokens - before.evicted_tokens,
            });
        }
    }

    /// Stores the pager's statistics.
    pub(crate) fn pager(&self, now: PagerStats) {
        let metrics = &self.metrics;
        metrics.host_bytes.set(now.host_bytes as f64);
        metrics.disk_bytes.set(now.disk_bytes as f64);
        metrics.host_copies.set(now.host_copies as f64);
        metrics.disk_copies.set(now.disk_copies as f64);
        metrics.host_hits.absolute(now.host_hits);
        metrics.disk_hits.absolute(now.disk_hits);
        metrics.prefetches.absolute(now.prefetches);
        metrics.offloads_rejected.absolute(now.rejected);
        metrics.computed_instead.absolute(now.computed_instead);
        metrics
            .disk_degraded
            .set(f64::from(u8::from(now.disk_degraded)));
        metrics.remote_asks.absolute(now.remote_asks);
        metrics
            .remote_degraded
            .set(f64::from(u8::from(now.remote_degraded)));
        let degraded = usize::from(now.disk_degraded);
        self.disk_degraded.store(degraded, Ordering::Relaxed);
        self.sums().stats.pager = now;
    }

    /// Whether the pager has stopped using its disk.
    pub(crate) fn disk_degraded(&self) -> bool {
        self.disk_degraded.load(Ordering::Relaxed) > 0
    }

    /// Counts a copy job that succeeded or failed.
    pub(crate) fn moved(&self, done: &Done) {
        self.metrics.moved(done);
    }

    /// Counts work that is sent to the device.
    pub(crate) fn work(&self, work: &Work) {
        let tokens = work.spans.iter().map(|span| span.token_source.tokens());
        let all: usize = tokens.sum();
        let drafts = work.spans.iter().map(|span| span.draft().len());
        let draft: usize = drafts.clone().sum();
        // A span of one token decodes or ends a prompt: the cost is the same.
        let undrafted = work.spans.iter().zip(drafts);
        let undrafted = undrafted.map(|(span, draft)| span.token_source.tokens() - draft);
        let prefill: usize = undrafted.filter(|tokens| *tokens > 1).sum();
        let mut sums = self.sums();
        sums.prefill.sent(prefill);
        if all == 0 {
            return;
        }
        let sequences = work.spans.len();
        let stats = &mut sums.stats;
        stats.steps += 1;
        stats.evaluated_tokens += (all - draft) as u64;
        if stats.steps_by_sequences.len() < sequences {
            stats.steps_by_sequences.resize(sequences, 0);
        }
        stats.steps_by_sequences[sequences - 1] += 1;
        drop(sums);
        let decode = all - prefill - draft;
        self.metrics.decode_tokens.record(decode as f64);
        self.metrics.prefill_tokens.record(prefill as f64);
        self.metrics.draft_tokens_of_step.record(draft as f64);
        self.metrics.prompt_tokens.increment(prefill as u64);
    }

    /// Counts tokens that were sampled.
    pub(crate) fn sampled(&self, tokens: usize) {
        if tokens > 0 {
            self.metrics.generation_tokens.increment(tokens as u64);
            self.output_tokens.fetch_add(tokens, Ordering::Relaxed);
        }
    }

    /// Counts an outcome from the device.
    pub(crate) fn outcome(&self, outcome: &Outcome) {
        self.metrics.step_seconds.record(outcome.busy);
        let mut sums = self.sums();
        let busy = &mut sums.stats.device_busy;
        *busy = busy.saturating_add(outcome.busy);
        sums.stats.device_memory = outcome.memory;
        sums.prefill.finished(outcome.busy);
        drop(sums);
        if let Err(Failure::Reset(reason)) = &outcome.result {
            tracing::error!(
                "the device's state is no longer trusted; the device restarts empty: {reason}"
            );
        }
        if !outcome.lost.is_empty() {
            self.metrics.edits_failed.increment(1);
            let (slots, segments) = (outcome.lost.slots.len(), outcome.lost.segments.len());
            let reason = &outcome.lost.reason;
            tracing::warn!(
                slots,
                segments,
                "an edit failed; the sequences that it touched restart: {reason}"
            );
        }
    }

    /// Counts time that the device was idle while there was work.
    pub(crate) fn device_idle(&self, gap: Duration) {
        self.metrics.device_idle_seconds.record(gap);
        let mut sums = self.sums();
        sums.stats.device_idle = sums.stats.device_idle.saturating_add(gap);
    }

    /// Counts drafts that were verified.
    pub(crate) fn drafted(&self, more: DraftCounts) {
        if more.drafts > 0 {
            let metrics = &self.metrics;
            metrics.drafts.increment(more.drafts);
            metrics.draft_tokens.increment(more.draft_tokens);
            metrics.accepted_tokens.increment(more.accepted_tokens);
            let mut sums = self.sums();
            sums.stats.drafts.add(more);
            sums.stats.evaluated_tokens += more.accepted_tokens;
        }
    }

    /// Records whether a device thread is alive. In either case no work is in flight.
    pub(crate) fn device_alive(&self, is_alive: bool) {
        self.metrics.device_alive.set(f64::from(u8::from(is_alive)));
        let mut sums = self.sums();
        sums.stats.device_alive = is_alive;
        sums.prefill.lost();
    }

    /// Counts a failed part that is rebuilt.
    pub(crate) fn rebuilt(&self, fault: Fault) {
        self.metrics.rebuilt(fault);
        self.sums().stats.rebuilds += 1;
    }

    /// Records that the engine has failed too often.
    pub(crate) fn broken(&self) {
        self.metrics.broken.set(1.0);
    }

    /// Records that the pager is gone; the engine continues without it.
    pub(crate) fn pager_lost(&self) {
        self.metrics.pager_lost.set(1.0);
        self.pager_lost.store(1, Ordering::Relaxed);
    }

    /// Whether the pager is gone.
    pub(crate) fn is_pager_lost(&self) -> bool {
        self.pager_lost.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn rejected(&self, error: &SubmitError) {
        self.metrics.rejected(error);
        self.sums().stats.rejected += 1;
    }

    /// Counts a sequence that got its first slot.
    pub(crate) fn started(
        &self,
        sequence: SequenceId,
        usage: &Usage,
        miss: Option<Miss>,
        waited: Duration,
    ) {
        self.metrics.queue_seconds.record(waited);
        let mut sums = self.sums();
        sums.stats.prompt_tokens += usage.prompt_tokens as u64;
        sums.stats.cached_tokens += usage.cached_tokens as u64;
        drop(sums);
        if let Some(miss) = miss {
            self.metrics.missed(miss);
        }
        self.emit(|| EngineEvent::Started {
            sequence,
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            miss,
            waited,
        });
    }

    pub(crate) fn first_token(
        &self,
        sequence: SequenceId,
        since_submit: Duration,
        since_start: Option<Duration>,
    ) {
        self.metrics.first_token_seconds.record(since_submit);
        self.emit(|| EngineEvent::FirstToken {
            sequence,
            since_submit,
        });
        if let Some(computed) = since_start {
            self.metrics.prefill_seconds.record(computed);
        }
    }

    pub(crate) fn next_token(&self, since_last: Duration) {
        self.metrics.inter_token_seconds.record(since_last);
    }

    /// Counts a sequence that has finished; `decoded` is the time from its first token to its
    /// last.
    pub(crate) fn finished(
        &self,
        sequence: SequenceId,
        reason: FinishReason,
        output_tokens: usize,
        since_submit: Duration,
        decoded: Option<Duration>,
    ) {
        self.emit(|| EngineEvent::Finished {
            sequence,
            reason,
            output_tokens,
            since_submit,
            decoded,
        });
        self.metrics.finished(reason);
        self.metrics.whole_seconds.record(since_submit);
        if let Some(decoded) = decoded {
            self.metrics.decode_seconds.record(decoded);
        }
        let now = Instant::now();
        let mut sums = self.sums();
        sums.stats.finished += 1;
        if let Some(before) = sums.last_finish.replace(now) {
            let interval = now.saturating_duration_since(before);
            let known = Some(sums.stats.finish_interval).filter(|known| !known.is_zero());
            sums.stats.finish_interval = mean(known, interval);
        }
    }

    pub(crate) fn failed(&self, sequence: SequenceId, error: &GenerateError) {
        self.emit(|| EngineEvent::Failed { sequence });
        self.metrics.failed(error);
        self.sums().stats.failed += 1;
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}
