//! What has the smallest chance of reuse for the room and time it takes.
//!
//! Least recently used first is right when the chance of reuse falls with age. In
//! front of a language model it does not: a conversation comes back after its user
//! has read and typed, most batch jobs never do, and the third turn of a conversation
//! promises a fourth more than a first promises a second. This policy learns all that
//! from what it is asked for.
//!
//! 1. **History.** For each sequence, one entry remembers a hash of a prefix just
//!    short of its prompt, for longer than the cache keeps the tokens. A sequence
//!    whose prompt runs through an entry continues that conversation. So times of
//!    reuse are known for what was evicted, too, and what the policy learns does not
//!    depend on what it did. (`history.rs`)
//! 2. **Classes.** A sequence is classed by how often its conversation has come back
//!    and by how many tokens are new in it. What an earlier turn has left behind and
//!    the next turn goes past is a class of its own, and so is what branches off late
//!    from prompts of others.
//! 3. **Hazards.** For each class and age, the chance of reuse at that age if it has
//!    not been before: events over numbers at risk, as in Kaplan and Meier, since most
//!    entries are still waiting. Classes borrow from each other until they have events
//!    of their own. (`hazards.rs`)
//! 4. **Worth.** The best ratio, over all times one could go on waiting, of the chance
//!    of reuse in that time to the room-time spent: Gittins' index, which is what *hit
//!    density* is in LHD (Beckmann, Chen and Cidon, NSDI 2018) if one may stop at any
//!    time. A class whose chances rise first, then fall, is so kept whole or not at
//!    all, which is what resists scans and loops. (`worth.rs`)
//!
//! Worth is rounded to quarter octaves, and of equals the least recently used goes:
//! classes that differ by chance only are evicted as by [`Lru`](super::Lru).
//!
//! Everything is deterministic and has no clock: ages are in ticks.

mod hazards;
mod history;
#[cfg(test)]
mod tests;
mod worth;

use std::fmt;

use super::super::trie::NodeKey;
use super::{Answer, Asked, Class, Eviction, Facts, Ticket};
use hazards::{Event, Hazards};
use history::{Entry, History, Links, Prefix};
use worth::WorthTable;

/// Sequences between two lessons at first; later a 64th of all so far, since the
/// first lessons change most.
const LESSON_SEQUENCES_MIN: u64 = 16;
/// And at most, so that a change of load is noticed.
const LESSON_SEQUENCES_MAX: u64 = 4096;

/// Tokens before a token that make its attention as dear as everything else about it,
/// roughly, in models of today: what comes late in a long prompt is dearer to compute.
const ATTENTION_TOKENS: usize = 32_768;

/// The policy. See the module's documentation.
#[derive(Default)]
pub struct Foresight {
    history: History,
    hazards: Hazards,
    worth: WorthTable,
    sequences: u64,
    lesson_at: u64,
    /// A buffer that is used again for each sequence.
    links: Links,
}

impl fmt::Debug for Foresight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its tables are long.
        let entries = self.history.entries().count();
        write!(
            f,
            "Foresight({} sequences, {entries} entries)",
            self.sequences
        )
    }
}

impl Eviction for Foresight {
    fn name(&self) -> &'static str {
        "foresight"
    }

    fn asked(&mut self, asked: &Asked<'_>) -> Answer {
        self.sequences += 1;
        let links = std::mem::take(&mut self.links);
        let prefix = Prefix::new(asked.salt, asked.tokens, links);
        let earlier = self.history.take_continued(&prefix, asked.cached_tokens);
        let mut entry = Entry::first(asked);
        let mut superseded = None;
        if let Some(earlier) = earlier {
            self.hazards
                .note(earlier.class, Event::Reused, earlier.age(asked.tick));
            entry.continues(&earlier);
            superseded = self.supersede(earlier, &prefix, asked);
        }
        entry.end_mark = prefix.end_mark();
        entry.classify();
        let class = entry.class;
        let ticket = self.enter(prefix.mark_for(entry.base_tokens()), entry, &prefix, asked);
        self.links = prefix.into_links();
        self.history.forget_oldest(asked.nodes, |entry| {
            self.hazards
                .note(entry.class, Event::Lost, entry.age(asked.tick));
        });
        if self.sequences >= self.lesson_at {
            self.learn(asked.tick);
        }
        Answer {
            class,
            ticket,
            superseded,
        }
    }

    fn left(&mut self, ticket: Ticket, end: NodeKey, tick: u64) {
        self.history.left(ticket, end, tick);
    }

    fn worth(&self, facts: &Facts, tick: u64) -> u64 {
        if facts.last_use == 0 {
            return 0;
        }
        let attention = (facts.tokens_before + facts.tokens / 2) as f32 / ATTENTION_TOKENS as f32;
        let cost = facts.tokens as f32 * (1.0 + attention) / facts.bytes.max(1) as f32;
        self.worth.of(facts.class, tick - facts.last_use, cost)
    }
}

impl Foresight {
    /// An earlier turn is gone past. What it had beyond the newcomer may be asked for
    /// again only if somebody goes back to it.
    fn supersede(
        &mut self,
        earlier: Entry,
        prefix: &Prefix<'_>,
        asked: &Asked<'_>,
    ) -> Option<(NodeKey, Class)> {
        let left_tokens = earlier.tokens().saturating_sub(asked.cached_tokens);
        let class = history::superseded_class(left_tokens);
        let node = earlier.node;
        if !prefix.covers(earlier.tokens(), earlier.end_mark)
            && self.history.enter_end(&earlier, class, asked.tick)
        {
            self.hazards.note(class, Event::Born, 0);
        }
        node.map(|node| (node, class))
    }

    /// Remembers a sequence. One that was remembered by the same mark ends in the
    /// same words, but for the last few: the newcomer has gone past it.
    fn enter(&mut self, mark: u64, entry: Entry, prefix: &Prefix<'_>, asked: &Asked<'_>) -> Ticket {
        self.hazards.note(entry.class, Event::Born, 0);
        let (ticket, before) = self.history.enter(mark, entry);
        if let Some(before) = before {
            self.hazards
                .note(before.class, Event::Lost, before.age(asked.tick));
            if before.end_mark != mark && before.end_mark != prefix.end_mark() {
                let class = history::superseded_class(1);
                if self.history.enter_end(&before, class, asked.tick) {
                    self.hazards.note(class, Event::Born, 0);
                }
            }
        }
        ticket
    }

    fn learn(&mut self, tick: u64) {
        let interval = (self.sequences / 64).clamp(LESSON_SEQUENCES_MIN, LESSON_SEQUENCES_MAX);
        self.lesson_at = self.sequences + interval;
        let waiting = self.history.entries();
        let estimate = self
            .hazards
            .estimate(waiting.map(|entry| (entry.class, entry.age(tick))));
        self.worth = WorthTable::new(&estimate, tick);
        self.hazards.fade();
    }
}
