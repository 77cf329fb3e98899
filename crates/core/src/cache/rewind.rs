//! A sequence continues in the slot of a finished one, from one of its tokens.

use super::offload::WaitPolicy;
use super::{CacheCore, Effect, Rewind};
use crate::{SequenceId, SlotId};

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
            priority,
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
        self.lost.remove(&from);
        let Some(mut slot) = self.slots.remove(&from) else {
            return self.no_successor(to, id, effects);
        };
        self.in_progress.remove(&slot.salt, from);
        if !slot.salt.is_private() {
            self.asked_tokens += tokens.len() as u64;
            self.hit_tokens += retained_tokens as u64;
        }
        slot.tokens = tokens;
        slot.computed = retained_tokens;
        slot.priority = priority;
        slot.restore_points.clear();
        self.in_progress.insert(&slot.salt, &slot.tokens, to);
        self.slots.insert(to, slot);
        self.rename_backups(from, to);
        for waiting in self.waiting.iter_mut().filter(|w| w.leader == from) {
            waiting.leader = to;
        }
        for waiting in self.take_waiting(|w| w.leader == to && w.at > retained_tokens) {
            self.open_slot(waiting.request, WaitPolicy::ALL, effects);
        }
    }

    /// Reports that there is no slot to continue in: the sequence must open one like any
    /// other.
    fn no_successor(&mut self, sequence: SequenceId, slot: SlotId, effects: &mut Vec<Effect>) {
        self.lost.insert(sequence);
        effects.push(Effect::Lost { sequence, slot });
    }
}
