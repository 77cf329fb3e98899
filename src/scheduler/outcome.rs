//! What a step has brought, or cost.
//!
//! Histories live here, with the sequences, so work that the device lost is done
//! again: each sequence of a failed step goes back to its place in the queue and
//! must prove itself alone, so that whoever cannot be run fails by itself.

use super::entry::Phase;
use super::{Effect, SchedulerCore};
use crate::cache;
use crate::device::{Failure, Outcome};
use crate::error::GenerateError;
use crate::model::Readout;
use crate::request::FinishReason;
use crate::{SequenceId, TokenId};

impl SchedulerCore {
    pub(super) fn outcome(&mut self, outcome: Outcome, effects: &mut Vec<Effect>) {
        let stepped = self
            .in_flight
            .take()
            .expect("an outcome answers work under way");
        match outcome.result {
            Ok(readouts) => {
                for ((sequence, tokens), readout) in stepped.into_iter().zip(readouts) {
                    self.stepped(sequence, tokens, readout, effects);
                    self.shift_if_full(sequence, effects);
                }
            }
            Err(Failure::Step(error)) => {
                let lost: Vec<_> = stepped.into_iter().map(|(sequence, _)| sequence).collect();
                for sequence in &lost {
                    let sequence = *sequence;
                    self.ask(cache::Message::Discard { sequence }, effects);
                }
                self.restart(&lost, &lost, &error.to_string(), effects);
            }
            Err(Failure::Reset(reason)) => {
                let blamed: Vec<_> = stepped.into_iter().map(|(sequence, _)| sequence).collect();
                let lost: Vec<_> = self
                    .entries
                    .iter()
                    .filter(|(_, entry)| !matches!(entry.phase, Phase::Queued))
                    .map(|(sequence, _)| *sequence)
                    .collect();
                // Without a step, nobody in particular is to blame.
                let blamed = if blamed.is_empty() {
                    lost.clone()
                } else {
                    blamed
                };
                self.edits.clear();
                self.stale_answers = self.unanswered;
                self.answers_before_step = 0;
                self.ask(cache::Message::Reset, effects);
                self.restart(&lost, &blamed, &reason, effects);
            }
        }
        self.start_due_forks(effects);
    }

    /// The device has state for `tokens` more tokens of the sequence.
    fn stepped(
        &mut self,
        sequence: SequenceId,
        tokens: usize,
        readout: Readout,
        effects: &mut Vec<Effect>,
    ) {
        let Some(entry) = self.entries.get_mut(&sequence) else {
            // Ended with all others while the step was under way.
            return;
        };
        if let Phase::Running(running) = &mut entry.phase {
            running.computed += tokens;
        }
        if entry.stopped {
            self.finish(sequence, FinishReason::Cancelled, effects);
            return;
        }
        self.report_checkpoints(sequence, effects);
        if let Readout::Token(token) = readout {
            self.drawn(sequence, token, effects);
        }
    }

    /// The sequence has drawn a token.
    fn drawn(&mut self, sequence: SequenceId, token: TokenId, effects: &mut Vec<Effect>) {
        let entry = self
            .entries
            .get_mut(&sequence)
            .expect("a drawing sequence is alive");
        entry.suspect = false;
        entry.failures = 0;
        if entry.end_tokens.contains(&token) {
            let reason = match self.spec.end_tokens.contains(&token) {
                true => FinishReason::EndToken,
                false => FinishReason::StopToken,
            };
            self.finish(sequence, reason, effects);
            return;
        }
        entry.generated.push(token);
        let full = entry.generated.len() == entry.output_tokens_max;
        effects.push(Effect::Token(sequence, token));
        if full {
            self.finish(sequence, FinishReason::Length, effects);
        }
    }

    /// Sends sequences whose state is lost back to their places in the queue; those to
    /// blame only as often as the configuration allows.
    fn restart(
        &mut self,
        lost: &[SequenceId],
        blamed: &[SequenceId],
        reason: &str,
        effects: &mut Vec<Effect>,
    ) {
        for sequence in lost {
            let Some(mut entry) = self.remove(*sequence) else {
                continue;
            };
            if blamed.contains(sequence) {
                entry.failures += 1;
                entry.suspect = true;
            }
            if entry.stopped {
                effects.push(Effect::Finished(*sequence, FinishReason::Cancelled));
            } else if entry.failures > self.config.step_retries_max {
                let error = GenerateError::Device {
                    attempts: entry.failures,
                    reason: reason.to_string(),
                };
                effects.push(Effect::Failed(*sequence, error));
            } else {
                entry.restart();
                self.entries.insert(*sequence, entry);
                self.enqueue(*sequence);
            }
        }
    }
}
