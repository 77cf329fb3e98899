//! A sequence goes on in the slot of one that is over, from one of its tokens.

use super::page::Patience;
use super::{CacheCore, Effect, Rewind};
use crate::{SequenceId, SlotId};

impl CacheCore {
    /// Gives a slot to another sequence, cut where that goes on. Those who wait for more of the
    /// one before than the slot then holds begin anew.
    pub(super) fn rewind(&mut self, rewind: Rewind, effects: &mut Vec<Effect>) {
        let Rewind {
            from,
            computed,
            generated,
            to,
            slot: id,
            kept,
            tokens,
            priority,
        } = rewind;
        if kept < computed
            && let Err(_no_room) = self.remove(from, computed, &generated, kept..computed, effects)
        {
            self.retire(from, computed, &generated, effects);
            self.close(from, effects);
            return self.no_successor(to, id, effects);
        }
        self.lost.remove(&from);
        let Some(mut slot) = self.slots.remove(&from) else {
            return self.no_successor(to, id, effects);
        };
        self.live.remove(&slot.salt, from);
        if !slot.salt.is_private() {
            self.asked_tokens += tokens.len() as u64;
            self.hit_tokens += kept as u64;
        }
        slot.tokens = tokens;
        slot.computed = kept;
        slot.priority = priority;
        slot.restore_points.clear();
        self.live.insert(&slot.salt, &slot.tokens, to);
        self.slots.insert(to, slot);
        self.rename_backups(from, to);
        for waiting in self.waiting.iter_mut().filter(|w| w.leader == from) {
            waiting.leader = to;
        }
        for waiting in self.take_waiting(|w| w.leader == to && w.at > kept) {
            self.begin(waiting.newcomer, Patience::ALL, effects);
        }
    }

    /// There is no slot to go on in: the sequence begins as any other does.
    fn no_successor(&mut self, sequence: SequenceId, slot: SlotId, effects: &mut Vec<Effect>) {
        self.lost.insert(sequence);
        effects.push(Effect::Lost { sequence, slot });
    }
}
