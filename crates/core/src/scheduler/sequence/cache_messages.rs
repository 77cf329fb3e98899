//! The messages to the cache that say what a sequence has, and what is to become of it.

use std::ops::Range;
use std::time::Duration;

use super::{Sequence, Slot};
use crate::cache::{self, OpenSlot, ProbePrefix};
use crate::scheduler::Submission;
use motet_protocol::ContextLimit;
use motet_protocol::TokenId;

impl Sequence {
    /// Returns the request for a slot with a grant of this many tokens.
    pub(in crate::scheduler) fn open_message(
        &self,
        granted: usize,
        token_time: Option<Duration>,
    ) -> cache::Message {
        cache::Message::OpenSlot(OpenSlot {
            sequence: self.id(),
            key: self.submission.key.clone(),
            tokens: self.history.tokens().clone(),
            tokens_max: granted,
            keep: self.keep(),
            restore_points: self.submission.restore_points.clone(),
            turn_end: self.submission.turn_end,
            retention: self.submission.retention,
            token_time,
            ignore_cache: self.start.ignores_cache(),
            reuse_max: self.reuse_max(),
        })
    }

    /// Returns the request to probe its prompt.
    pub(in crate::scheduler) fn probe(&self) -> ProbePrefix {
        ProbePrefix {
            sequence: self.id(),
            key: self.submission.key.clone(),
            tokens: self.history.tokens().clone(),
        }
    }

    /// Returns the message that closes its slot, whose computed state may serve other sequences.
    pub(in crate::scheduler) fn close_message(&self) -> cache::Message {
        cache::Message::Close {
            sequence: self.id(),
            computed: self.computed(),
            generated: self.generated_for_cache(),
        }
    }

    /// Returns the message that discards its slot, or its request for one.
    pub(in crate::scheduler) fn discard_message(&self) -> cache::Message {
        cache::Message::Discard {
            sequence: self.id(),
        }
    }

    /// Returns the request to share its computed state up to this token.
    pub(in crate::scheduler) fn share_message(&self, at: usize) -> cache::Message {
        let computed = self.computed();
        cache::Message::Share {
            sequence: self.id(),
            computed,
            generated: self.generated_for_cache(),
            at: at.min(computed),
        }
    }

    /// Returns the request to drop these tokens from its slot.
    pub(in crate::scheduler) fn remove_message(&self, removed: Range<usize>) -> cache::Message {
        cache::Message::Remove {
            sequence: self.id(),
            computed: self.computed(),
            generated: self.generated_for_cache(),
            removed,
        }
    }

    /// Returns the request to continue another sequence in its slot, with this many of its
    /// tokens.
    pub(in crate::scheduler) fn rewind_message(
        &self,
        to: &Submission,
        retained_tokens: usize,
    ) -> cache::Message {
        let slot = self.slot().expect("the source has a slot");
        cache::Message::Rewind(cache::Rewind {
            from: self.id(),
            computed: slot.computed(),
            generated: self.generated_for_cache(),
            to: to.sequence,
            slot: slot.id(),
            retained_tokens,
            tokens: to.prompt.clone(),
            retention: to.retention,
        })
    }

    /// Returns the request to copy its computed state, if it has grown by `tokens_min` tokens
    /// or an eighth since the last copy. Records the copy.
    pub(in crate::scheduler) fn take_backup(
        &mut self,
        tokens_min: usize,
    ) -> Option<cache::Message> {
        if self.is_finished() || !self.is_whole() || !self.slot_mut()?.take_backup(tokens_min) {
            return None;
        }
        Some(cache::Message::BackUp {
            sequence: self.id(),
            computed: self.computed(),
            generated: self.generated_for_cache(),
        })
    }

    /// Returns the request for a larger grant if its slot is almost full, and records it.
    pub(in crate::scheduler) fn request_grant(&mut self) -> Option<cache::Message> {
        if self.is_finished() || self.is_paused() {
            return None;
        }
        let (sequence, most) = (self.id(), self.tokens_max());
        let tokens_max = self.slot_mut()?.request_grant(most)?;
        Some(cache::Message::ExtendGrant {
            sequence,
            tokens_max,
        })
    }

    /// Returns the report of the checkpoints that it has reached and is in no step beyond, if
    /// any. Forgets them.
    pub(in crate::scheduler) fn take_checkpoint_report(&mut self) -> Option<cache::Message> {
        let sequence = self.id();
        let slot = self.slot_mut()?;
        let is_reached = slot.take_reached_checkpoints();
        is_reached.then(|| cache::Message::Reached {
            sequence,
            computed: slot.computed(),
        })
    }

    /// Returns the report of its computed tokens, if the cache asked for it and they are as many.
    /// Forgets the request.
    pub(in crate::scheduler) fn take_computed_report(&mut self) -> Option<cache::Message> {
        let sequence = self.id();
        let computed = self.slot_mut()?.take_report()?;
        Some(cache::Message::Computed { sequence, computed })
    }

    fn computed(&self) -> usize {
        self.slot().map_or(0, Slot::computed)
    }

    /// Returns the tokens of its slot that the cache does not know: those after the prompt, or
    /// after the tokens that a shift has retained.
    fn generated_for_cache(&self) -> Vec<TokenId> {
        match (self.submission.at_context_limit, self.shifted_out()) {
            (ContextLimit::Shift { keep }, gone @ 1..) => {
                self.history.known_tokens().skip(keep + gone).collect()
            }
            _ => self.history.fresh().to_vec(),
        }
    }
}
