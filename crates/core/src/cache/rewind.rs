//! A sequence continues in the slot of a finished one, from one of its tokens.

use super::open_slot::WaitPolicy;
use super::{CacheCore, Effect, Rewind};
use motet_protocol::{SequenceId, SlotId};

impl CacheCore {
    /// Passes a slot on to another sequence, cut to the tokens that the new sequence retains.
    /// Requests that wait for more of the old sequence than that start over.
    pub(super) fn rewind(&mut self, rewind: Rewind, effects: &mut Vec<Effect>) {
        let Rewind {
            from,
            computed,
            generated,
            to,
            slot: id,
            retained_tokens,
            tokens,
            retention,
        } = rewind;
        if retained_tokens < computed
            && let Err(_out_of_memory) = self.remove(
                from,
                computed,
                &generated,
                retained_tokens..computed,
                effects,
            )
        {
            self.seal_in_place(from, computed, &generated, effects);
            self.close(from, effects);
            return self.no_successor(to, id, effects);
        }
        self.slots.forget_lost(from);
        let asked = tokens.len();
        let slot = self
            .slots
            .pass_on(from, to, tokens, retained_tokens, retention);
        let Some(slot) = slot else {
            return self.no_successor(to, id, effects);
        };
        self.prefix_hits
            .add(&slot.key().salt, asked, retained_tokens);
        if let Some(paging) = &mut self.paging {
            paging.rename_backups(from, to);
        }
        self.waiting.rename_leader(from, to);
        for request in self.waiting.take_past(to, retained_tokens) {
            self.open_slot(request, WaitPolicy::ALL, effects);
        }
    }

    /// Reports that there is no slot to continue in: the sequence must open one like any
    /// other.
    fn no_successor(&mut self, sequence: SequenceId, slot: SlotId, effects: &mut Vec<Effect>) {
        self.slots.lose(sequence);
        effects.push(Effect::Lost { sequence, slot });
    }
}
