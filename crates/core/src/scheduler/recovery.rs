//! Recovery from losses beside a step: the device thread, the cache, or the scheduler itself.
//!
//! Each time all sequences with a slot return to the queue with their histories, and the cache
//! starts empty. The device drops its remaining state when it receives the epoch of the next
//! work.

use super::outcome::Loss;
use super::sequence::{Finished, Phase, Sequence, SequenceKey};
use super::{Effect, History, Predecessor, SchedulerCore};
use motet_protocol::SequenceId;
use motet_protocol::{FinishReason, GenerateError};

impl SchedulerCore {
    /// Takes over from a scheduler that has failed, before any other event.
    pub(super) fn rebuild(&mut self, predecessor: Predecessor, effects: &mut Vec<Effect>) {
        self.cache.succeed(predecessor.pending_answers);
        self.pipeline.succeed(predecessor, self.now);
        self.reset(&[], "", u32::MAX, effects);
    }

    /// Continues a sequence from its history.
    pub(super) fn restore(&mut self, history: History, effects: &mut Vec<Effect>) {
        let History {
            submission,
            generated,
            started,
            paused,
        } = history;
        let id = submission.sequence;
        let is_full = generated.len() >= submission.output_tokens_max;
        if is_full && submission.output_tokens_max > 0 {
            effects.push(Effect::Finished(id, FinishReason::Length));
            return;
        }
        let context_tokens_max = self.spec.context_tokens_max;
        let sequence =
            Sequence::restored(submission, generated, started, context_tokens_max, self.now);
        let key = self.enter(sequence);
        if paused {
            // Pauses it before it can start and before other sequences wait for its prefix.
            self.pause(id);
        }
        self.enqueue(key);
    }

    /// Handles the loss of the device thread. Sequences in a step in flight may be to blame,
    /// but so may the device. They are tried again with others once, then alone.
    pub(super) fn lose_device(&mut self, reason: &str, effects: &mut Vec<Effect>) {
        let members = self.pipeline.lose_device();
        let mut blamed = self.still_in_slot(&members);
        // A sequence may be in both steps.
        blamed.sort_unstable();
        blamed.dedup();
        self.reset(&blamed, reason, 2, effects);
    }

    /// Continues on another device, which is empty.
    pub(super) fn find_device(&mut self, effects: &mut Vec<Effect>) {
        self.pipeline.find_device();
        self.drafting.on_new_device();
        let keys: Vec<SequenceKey> = self.sequences.keys().collect();
        for key in keys {
            self.sequences[key].on_new_draft_model();
        }
        self.waiting.request_scan();
        self.probe_prefixes(effects);
    }

    /// Handles the failure of the cache, which is now empty. The culprit, if known, fails and
    /// is not sent to the cache again.
    pub(super) fn lose_cache(
        &mut self,
        culprit: Option<(SequenceId, GenerateError)>,
        effects: &mut Vec<Effect>,
    ) {
        self.reset(&[], "", u32::MAX, effects);
        if let Some((sequence, error)) = culprit
            && let Some(key) = self.sequences.find(sequence)
        {
            self.fail(key, error, Finished::Discard, effects);
        }
    }

    /// Restarts all sequences with state, on an empty device and an empty cache. A blamed
    /// sequence runs alone from now on if it has been in `alone_after` failed steps in a row.
    pub(super) fn reset(
        &mut self,
        blamed: &[SequenceKey],
        reason: &str,
        alone_after: u32,
        effects: &mut Vec<Effect>,
    ) {
        let has_state = |key: &SequenceKey| !matches!(self.sequences[*key].phase(), Phase::Queued);
        let mut lost: Vec<SequenceKey> = self.sequences.keys().filter(has_state).collect();
        lost.sort_by_key(|key| self.sequences[*key].id());
        self.pipeline.begin_epoch();
        let sent = self.cache.reset(&mut self.sequences, effects);
        self.note_sent(sent);
        let loss = Loss {
            lost: &lost,
            blamed,
            reason,
            alone_after,
            discards: false,
        };
        self.lose(&loss, effects);
    }
}
