//! The scheduler: which sequences run in the next step.
//!
//! [`SchedulerCore`] is a sans-I/O state machine. An event only changes its queues. Then
//! [`handle`](SchedulerCore::handle) starts queued sequences and, while the device can take
//! more work, asks [`plan`](policy::plan) for the next step. Two steps are in flight at once:
//! one is planned while the device computes another. A token that one step samples goes to the
//! next step on the device.
//!
//! ```text
//!  Submit → queued → starting → running ──────────────→ finished
//!              ↑        │ (no memory) │
//!              └────────┴─────────────┘ (preempted, or a step failed: the history is kept)
//! ```
//!
//! State has owners. Each component keeps its fields private, and checks its own invariants:
//!
//! | file | component |
//! |---|---|
//! | `sequences.rs` | the sequences, by key and by id |
//! | `sequence/` | one sequence: its history, its slot, its progress |
//! | `slots.rs` | slots that sequences have, or have asked for |
//! | `waiting_queue.rs` | the waiting queue: its order, class turns, and the sequence that waits for memory |
//! | `memory_grants.rs` | the headroom of grants, and slots that starve |
//! | `deadlines.rs` | deadlines |
//! | `forks.rs` | forks that wait for a step in flight |
//! | `cache_client.rs` | the exchange with the cache |
//! | `pipeline.rs` | work for the device, and steps in flight |
//!
//! The policies decide from plain values:
//!
//! | file | contents |
//! |---|---|
//! | [`policy::plan`] | the policy of a step, one pure function |
//! | [`policy::waiting`] | which sequence starts next and which is preempted, pure functions |
//! | [`policy::turns`] | what lower classes get while a higher one saturates |
//! | [`policy::fairness`] | the service that each user has received |
//! | [`policy::step_cost`] | what a step costs, learned |
//!
//! The core leads sequences from one component to the next:
//!
//! | file | contents |
//! |---|---|
//! | `messages.rs` | events and effects |
//! | `lifecycle.rs` | a sequence's start, pauses and end |
//! | `admission.rs` | from the queue to the cache |
//! | `cache_answers.rs` | what the cache has done |
//! | `steps.rs` | plans and submits steps |
//! | `drafting.rs`, `draft_model.rs` | drafts of the next tokens, and the draft model's part in them |
//! | `outcome.rs` | results and failures of steps |
//! | `tokens.rs` | tokens join an output, sampled or appended |
//! | `preemption.rs` | sequences lose their slots to others, or for want of memory |
//! | `fork_starts.rs` | a fork starts, in a slot of its own or in its source's |
//! | `context_shift.rs` | contexts that are full |
//! | `mask_gate.rs`, `masks.rs` | sequences that wait for token masks |
//! | `recovery.rs` | loss of the device, the cache or the scheduler |
//! | `snapshot.rs` | snapshots of the scheduler's sequences |

mod admission;
mod cache_answers;
mod cache_client;
mod context_shift;
mod deadlines;
mod draft_model;
mod drafting;
mod fork_starts;
mod forks;
mod lifecycle;
mod mask_gate;
mod masks;
mod memory_grants;
mod messages;
mod outcome;
mod pipeline;
pub mod policy;
mod preemption;
mod recovery;
mod sequence;
mod sequences;
mod slots;
mod snapshot;
mod steps;
mod tokens;
mod waiting_queue;

use std::time::Duration;

use crate::cache;
use crate::config::SchedulerConfig;
use cache_client::{CacheClient, Frees};
use deadlines::Deadlines;
use draft_model::DraftModel;
use drafting::Drafting;
use forks::Forks;
pub use mask_gate::MaskGate;
use memory_grants::MemoryGrants;
pub use messages::{
    DraftCounts, Effect, Event, Fork, History, Predecessor, SchedulerStats, Submission,
};
use motet_protocol::{DraftModelSpec, GenerateError, ModelSpec};
use pipeline::Pipeline;
use policy::fairness::Service;
use policy::step_cost::CostModel;
use sequences::Sequences;
use slots::Slots;
use waiting_queue::WaitingQueue;

/// The scheduler's state machine. See the module's documentation.
#[derive(Debug)]
pub struct SchedulerCore {
    config: SchedulerConfig,
    spec: ModelSpec,
    now: Duration,
    sequences: Sequences,
    waiting: WaitingQueue,
    slots: Slots,
    grants: MemoryGrants,
    deadlines: Deadlines,
    forks: Forks,
    cache: CacheClient,
    pipeline: Pipeline,
    service: Service,
    cost: CostModel,
    drafting: Drafting,
    /// Tokens after which a live sequence is copied; 0 copies none.
    backup_tokens: usize,
    /// Whether all sequences end when the steps in flight have finished.
    hands_over: bool,
}

impl SchedulerCore {
    /// Creates a scheduler without sequences.
    #[must_use]
    pub fn new(spec: ModelSpec, config: SchedulerConfig) -> Self {
        Self {
            now: Duration::ZERO,
            sequences: Sequences::default(),
            waiting: WaitingQueue::new(config.sequences_max),
            slots: Slots::new(config.sequences_max),
            grants: MemoryGrants::default(),
            deadlines: Deadlines::new(config.unread_timeout),
            forks: Forks::default(),
            cache: CacheClient::default(),
            pipeline: Pipeline::default(),
            service: Service::new(config.fairness.credit_service),
            cost: CostModel::default(),
            drafting: Drafting::new(&config.speculation, &spec),
            backup_tokens: 0,
            hands_over: false,
            config,
            spec,
        }
    }

    /// Sets the growth after which a live sequence is copied again: `tokens` tokens, or an
    /// eighth of its copied tokens if that is more. 0 copies no live sequence.
    ///
    /// The state that a lost device held then need not be computed again. The scheduler decides
    /// when a sequence is copied, the cache decides what is copied, and no sequence waits for it.
    #[must_use]
    pub fn with_backups(mut self, tokens: usize) -> Self {
        // No other model can continue from a copy that ends within a sequence.
        if self.spec.resumes_anywhere() {
            self.backup_tokens = tokens;
        }
        self
    }

    /// Sets the draft model that the device has beside its model.
    #[must_use]
    pub fn with_draft_model(mut self, spec: DraftModelSpec) -> Self {
        self.drafting.model = Some(DraftModel::new(spec));
        self
    }

    /// Handles one event and returns its effects in order. `now` is the time since a moment
    /// that never changes, and never decreases.
    pub fn handle(&mut self, now: Duration, event: Event) -> Vec<Effect> {
        self.now = self.now.max(now);
        let mut effects = Vec::new();
        match event {
            Event::Submit(submission) => self.submit(submission, &mut effects),
            Event::Fork(fork) => self.fork(fork, &mut effects),
            Event::CacheCommand {
                command_id,
                message,
            } => self.send_command(command_id, message, &mut effects),
            Event::Stop(sequence) => self.stop(sequence, &mut effects),
            Event::Pause(sequence) => self.pause(sequence),
            Event::Resume(sequence) => self.resume(sequence),
            Event::Mask(sequence, gate) => self.set_mask_gate(sequence, gate),
            Event::Cache(answer) => self.on_answer(answer, &mut effects),
            Event::CacheEffects(cache_effects) => {
                self.on_cache_effects(cache_effects, &mut effects);
            }
            Event::Outcome(outcome) => self.outcome(outcome, &mut effects),
            Event::TimePassed => {}
            Event::DeviceLost(reason) => self.lose_device(&reason, &mut effects),
            Event::DeviceFound => self.find_device(&mut effects),
            Event::CacheLost(culprit) => self.lose_cache(culprit, &mut effects),
            Event::Rebuilt(predecessor) => self.rebuild(predecessor, &mut effects),
            Event::Restore(history) => self.restore(history, &mut effects),
            Event::Abort => {
                self.hands_over = false;
                self.fail_all(|_| GenerateError::Shutdown, &mut effects);
            }
            Event::HandOver => self.hands_over = true,
        }
        if self.hands_over && self.pipeline.is_empty() {
            self.hands_over = false;
            self.hand_all_over(&mut effects);
        }
        let sent = self
            .cache
            .send_drained_flushes(&mut self.sequences, &mut effects);
        self.note_sent(sent);
        self.expire(&mut effects);
        self.preempt_for_starved(&mut effects);
        if !self.hands_over {
            self.start_queued(&mut effects);
            self.plan_steps(&mut effects);
            // A prompt whose last chunk was submitted lets the next one start.
            self.start_queued(&mut effects);
        }
        effects
    }

    /// Whether sequences wait for the steps in flight before they end and go on elsewhere.
    #[must_use]
    pub fn is_handing_over(&self) -> bool {
        self.hands_over
    }

    /// Returns when [`handle`](Self::handle) must be called again if nothing else happens.
    #[must_use]
    pub fn wakes_at(&self) -> Option<Duration> {
        let deadline = self.deadlines.next();
        let submit = self.pipeline.next_submit_at(self.now);
        deadline.into_iter().chain(submit).min()
    }

    /// Returns the gauges and counters.
    #[must_use]
    pub fn stats(&self) -> SchedulerStats {
        SchedulerStats {
            running: self.slots.running().len(),
            waiting: self.waiting.queued().len() + self.slots.starting().len(),
            awaiting_prefix: self.slots.awaiting_prefix(),
            paused: self.sequences.paused(),
            preempted: self.slots.preempted(),
            device_idle: self.pipeline.device_idle(),
            drafts: self.drafting.counts(),
        }
    }

    /// Returns the service that each user has received.
    #[must_use]
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Whether no sequence is left and no work is in flight.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.forks.is_empty() && self.pipeline.is_idle()
    }

    /// Checks that each component agrees with itself, and with the sequences.
    ///
    /// # Panics
    ///
    /// Panics if one does not.
    pub fn check_integrity(&self) {
        self.sequences.check_integrity();
        self.waiting.check_integrity(&self.sequences);
        self.slots.check_integrity(&self.sequences);
        self.grants.check_integrity(&self.sequences);
        self.deadlines.check_integrity(&self.sequences);
        self.forks.check_integrity(&self.sequences);
        self.cache.check_integrity(&self.sequences);
        self.pipeline.check_integrity(&self.sequences);
        self.drafting.check_integrity();
    }

    /// Sends a message to the cache, which will answer it.
    fn ask(&mut self, message: cache::Message, effects: &mut Vec<Effect>) {
        let sent = self.cache.send(message, &mut self.sequences, effects);
        self.note_sent(sent);
    }

    /// Sends a caller's command to the cache. [`Effect::CommandDone`] brings the result.
    fn send_command(
        &mut self,
        command_id: u64,
        message: cache::Message,
        effects: &mut Vec<Effect>,
    ) {
        assert!(message.is_command(), "a caller sends cache commands only");
        if let cache::Message::Clear { salt } = &message {
            self.drafting.clear(salt.as_ref());
        }
        let sent = self
            .cache
            .send_command(command_id, message, &mut self.sequences, effects);
        self.note_sent(sent);
    }

    /// Lets sequences start that waited for memory, if the message may free some.
    fn note_sent(&mut self, frees: Frees) {
        match frees {
            Frees::Memory => self.waiting.on_memory_freed(),
            Frees::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Submission;
    use motet_protocol::SequenceId;

    /// Returns a short sequence without deadlines, for tests of components.
    pub(super) fn submission(number: u64) -> Submission {
        Submission::new(SequenceId(number), [1, 2, 3], 10)
    }
}
