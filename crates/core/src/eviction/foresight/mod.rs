//! Evicts the node with the smallest chance of reuse for its bytes and its time.
//!
//! Least recently used first is right if the chance of reuse falls with age. For a language
//! model it does not. A conversation continues after its user has read and typed; most batch
//! jobs never return. After a third turn a further one is more likely than after the first.
//! This policy learns such patterns from the requests.
//!
//! 1. **History.** One entry per sequence remembers a hash of a prefix just short of its
//!    prompt, for longer than the cache keeps the tokens. A sequence whose prompt contains the
//!    prefix of an entry continues that conversation. Times of reuse are therefore known for
//!    evicted nodes as well, and the lessons do not depend on earlier evictions.
//!    (`history.rs`)
//! 2. **Classes.** The class of a sequence depends on how many turns its conversation has had
//!    and on how many of its tokens are new. Two kinds have classes of their own: nodes of an
//!    earlier turn that the next turn superseded, and prompts that branch off late from
//!    prompts of others.
//! 3. **Hazards.** For each class and age, the chance of reuse at that age if there was none
//!    before. It is the number of events divided by the number at risk, as in Kaplan and
//!    Meier, since most entries are still waiting. Classes borrow from each other until they
//!    have events of their own. (`hazards.rs`)
//! 4. **Score.** The best ratio, over all possible waiting times, of the chance of reuse in
//!    that time to the byte-time spent. This is Gittins' index. It equals *hit density* in LHD
//!    (Beckmann, Chen and Cidon, NSDI 2018) if one may stop at any time. A class whose chances
//!    first rise and then fall is kept as a whole or not at all, which resists scans and
//!    loops. (`score.rs`)
//!
//! Scores are rounded to quarter octaves, and among equals the least recently used node is
//! evicted. Classes that differ only by chance are thus evicted as by [`Lru`](super::Lru).
//!
//! The policy is deterministic and has no clock; ages are in ticks.

mod hazards;
mod history;
mod score;
#[cfg(test)]
mod tests;

use std::fmt;

use super::{Answer, Asked, Class, Eviction, Facts, SequenceMark};
use crate::eviction::NodeKey;
use hazards::{Event, Hazards};
use history::{Entry, History, Links, Prefix};
use score::ScoreTable;

/// Minimum number of sequences between two lessons. Later the interval is a 64th of all
/// sequences so far, since the first lessons change most.
const LESSON_SEQUENCES_MIN: u64 = 16;
/// Maximum number of sequences between two lessons, so that a change of load is noticed.
const LESSON_SEQUENCES_MAX: u64 = 4096;

/// Number of preceding tokens at which the attention of a token costs about as much as the
/// rest of its evaluation, in present models. Tokens late in a long prompt are thus more
/// expensive to compute.
const ATTENTION_TOKENS: usize = 32_768;

/// The foresight policy. See the module's documentation.
#[derive(Default)]
pub struct Foresight {
    history: History,
    hazards: Hazards,
    score: ScoreTable,
    sequences: u64,
    lesson_at: u64,
    /// A buffer that is reused for each sequence.
    links: Links,
}

impl fmt::Debug for Foresight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The tables are too long to print.
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
        let prefix = Prefix::new(asked.key, asked.tokens, links);
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
        let sequence_mark = self.enter(prefix.mark_for(entry.base_tokens()), entry, &prefix, asked);
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
            sequence_mark,
            superseded,
        }
    }

    fn finished(&mut self, sequence_mark: SequenceMark, end: NodeKey, tick: u64) {
        self.history.finished(sequence_mark, end, tick);
    }

    fn score(&self, facts: &Facts, tick: u64) -> u64 {
        if facts.last_use == 0 {
            return 0;
        }
        let attention = (facts.tokens_before + facts.tokens / 2) as f32 / ATTENTION_TOKENS as f32;
        let cost = facts.tokens as f32 * (1.0 + attention) / facts.bytes.max(1) as f32;
        self.score.of(facts.class, tick - facts.last_use, cost)
    }
}

impl Foresight {
    /// Handles that a new turn supersedes an earlier one. The tokens that only the earlier
    /// turn has are reused only if the conversation branches from there.
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
            self.hazards.note(class, Event::Entered, 0);
        }
        node.map(|node| (node, class))
    }

    /// Adds a sequence to the history. An entry with the same mark agrees in all but the last
    /// few tokens; the new sequence supersedes it.
    fn enter(
        &mut self,
        mark: u64,
        entry: Entry,
        prefix: &Prefix<'_>,
        asked: &Asked<'_>,
    ) -> SequenceMark {
        self.hazards.note(entry.class, Event::Entered, 0);
        let (sequence_mark, before) = self.history.enter(mark, entry);
        if let Some(before) = before {
            self.hazards
                .note(before.class, Event::Lost, before.age(asked.tick));
            if before.end_mark != mark && before.end_mark != prefix.end_mark() {
                let class = history::superseded_class(1);
                if self.history.enter_end(&before, class, asked.tick) {
                    self.hazards.note(class, Event::Entered, 0);
                }
            }
        }
        sequence_mark
    }

    fn learn(&mut self, tick: u64) {
        let interval = (self.sequences / 64).clamp(LESSON_SEQUENCES_MIN, LESSON_SEQUENCES_MAX);
        self.lesson_at = self.sequences + interval;
        let waiting = self.history.entries();
        let estimate = self
            .hazards
            .estimate(waiting.map(|entry| (entry.class, entry.age(tick))));
        self.score = ScoreTable::new(&estimate, tick);
        self.hazards.fade();
    }
}
