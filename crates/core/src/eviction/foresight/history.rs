//! Recognizes the conversation that a prompt continues, by hashes of prefixes.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::super::{Asked, Class, SequenceMark};
use crate::eviction::NodeKey;
use motet_protocol::TokenId;

/// Number of entries kept even if there are few nodes. The history must reach back much
/// further than the cache.
const ENTRIES_MIN: usize = 1 << 14;
/// Maximum number of entries. An entry takes about 150 bytes.
const ENTRIES_MAX: usize = 1 << 18;

/// Base-2 logarithm of the marks per octave of prefix lengths. A mark is at most a 32nd of the
/// prompt away from the wanted length.
const MARKS_LOG2: u32 = 5;
/// Base-2 logarithm of the links per octave. The hash of a mark continues from the link before
/// it.
const LINKS_LOG2: u32 = 1;
/// Number of tokens before a mark or a link that are hashed into it. Two prompts that agree in
/// all of these tokens and differ in between are mistaken for one. The only consequence is a
/// wrong guess.
const MARK_TOKENS: usize = 4;

/// Divisor of the prompt length: this part at its end may differ in the next turn.
const SLACK: usize = 16;

/// Number of kinds, which distinguish how often a conversation has continued.
pub(super) const TURNS: usize = 8;
/// The kind of prompts that branch off late from prompts of others.
const BRANCHED: usize = 6;
/// The kind of superseded turns.
const SUPERSEDED: usize = 7;
/// Number of size classes: new tokens in powers of two.
pub(super) const SIZES: usize = 18;
/// Total number of classes.
pub(super) const CLASSES: usize = TURNS * SIZES;

/// A remembered sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Hash of the whole prompt.
    pub(super) end_mark: u64,
    /// The end of its path, once the sequence has ended.
    pub(super) node: Option<NodeKey>,
    tick: u64,
    /// Prompt tokens.
    tokens: u32,
    /// Prompt tokens shared with other conversations; earlier turns of its own do not count.
    base_tokens: u32,
    /// Prompt tokens that are new.
    new_tokens: u32,
    /// Distinguishes an entry from an earlier one with the same mark. It wraps.
    serial: u32,
    turns: u16,
    pub(super) class: Class,
}

/// Prefix lengths and hashes, ascending.
pub(super) type Links = Vec<(usize, u64)>;

/// The marks of a prompt: hashes of its prefixes, each from a few of its tokens.
#[derive(Debug)]
pub(super) struct Prefix<'a> {
    key: u64,
    tokens: &'a [TokenId],
    links: Links,
}

/// Recent sequences by mark.
#[derive(Debug, Default)]
pub(super) struct History {
    entries: FxHashMap<u64, Entry>,
    /// Marks and serials in the order of their entry.
    queue: VecDeque<(u64, u32)>,
    serials: u32,
}

/// The class of the tokens that a superseded turn leaves behind.
pub(super) fn superseded_class(tokens: usize) -> Class {
    class(SUPERSEDED, tokens)
}

fn class(turns: usize, tokens: usize) -> Class {
    let size = (usize::BITS - tokens.leading_zeros()) as usize;
    (turns * SIZES + size.min(SIZES - 1)) as Class
}

impl Entry {
    /// An entry for a sequence that continues no known conversation.
    pub(super) fn first(asked: &Asked<'_>) -> Self {
        Self {
            end_mark: 0,
            node: None,
            tick: asked.tick,
            tokens: asked.tokens.len() as u32,
            base_tokens: asked.cached_tokens as u32,
            new_tokens: (asked.tokens.len() - asked.cached_tokens) as u32,
            serial: 0,
            turns: 1,
            class: 0,
        }
    }

    /// Makes the entry a continuation of `earlier`.
    pub(super) fn continues(&mut self, earlier: &Self) {
        self.turns = earlier.turns.saturating_add(1);
        self.base_tokens = earlier.base_tokens;
        let cached_tokens = self.tokens - self.new_tokens;
        let repeated = earlier.tokens() - slack(earlier.tokens());
        let known = cached_tokens.max(repeated as u32);
        self.new_tokens = self.tokens.saturating_sub(known);
    }

    /// Prompt tokens.
    pub(super) fn tokens(&self) -> usize {
        self.tokens as usize
    }

    /// Prompt tokens shared with other conversations; earlier turns of its own do not count.
    pub(super) fn base_tokens(&self) -> usize {
        self.base_tokens as usize
    }

    pub(super) fn classify(&mut self) {
        let turns = match self.turns {
            0 | 1 if self.base_tokens > self.new_tokens => BRANCHED,
            0 | 1 => 0,
            2 => 1,
            3..=4 => 2,
            5..=8 => 3,
            9..=24 => 4,
            _ => 5,
        };
        self.class = class(turns, self.new_tokens as usize);
    }

    pub(super) fn age(&self, tick: u64) -> u64 {
        tick - self.tick
    }
}

impl<'a> Prefix<'a> {
    /// Hashes the links of a prompt; `links` is a buffer to reuse.
    pub(super) fn new(key: u64, tokens: &'a [TokenId], mut links: Links) -> Self {
        links.clear();
        let (mut at, mut hash) = (1, key);
        while at < tokens.len() {
            hash = marked(hash, tokens, at);
            links.push((at, hash));
            at += step(at, LINKS_LOG2);
        }
        Self { key, tokens, links }
    }

    /// Returns the buffer.
    pub(super) fn into_links(self) -> Links {
        self.links
    }

    /// The mark of the whole prompt.
    pub(super) fn end_mark(&self) -> u64 {
        self.mark(self.tokens.len())
    }

    /// The mark under which the prompt is remembered: near its end, in the part that it shares
    /// with no other conversation.
    pub(super) fn mark_for(&self, base_tokens: usize) -> u64 {
        let most = self.tokens.len() - slack(self.tokens.len());
        let at = marked_before(most + 1);
        if at > base_tokens {
            self.mark(at)
        } else {
            self.end_mark()
        }
    }

    /// Whether the prompt starts with a prompt of `tokens` tokens with this end mark.
    pub(super) fn covers(&self, tokens: usize, end_mark: u64) -> bool {
        self.tokens.len() >= tokens && self.mark(tokens) == end_mark
    }

    /// The marks of the prompt, from the last one down to that of `least` tokens.
    fn marks_down_to(&self, least: usize) -> impl Iterator<Item = u64> + '_ {
        let mut next = self.tokens.len();
        let mut links = self.links.len();
        std::iter::from_fn(move || {
            let at = next;
            if at < least.max(1) {
                return None;
            }
            next = marked_before(at);
            while links > 0 && self.links[links - 1].0 >= at {
                links -= 1;
            }
            let before = links.checked_sub(1).map_or(self.key, |i| self.links[i].1);
            Some(marked(before, self.tokens, at))
        })
    }

    /// The mark of the first `at` tokens; `at` is not 0.
    fn mark(&self, at: usize) -> u64 {
        let links = self.links.partition_point(|(link, _)| *link < at);
        let before = links.checked_sub(1).map_or(self.key, |i| self.links[i].1);
        marked(before, self.tokens, at)
    }
}

impl History {
    /// Removes and returns the entry of the conversation that a prompt continues. Entries that
    /// end well within the cached tokens are skipped, since many prompts would share them.
    pub(super) fn take_continued(
        &mut self,
        prefix: &Prefix<'_>,
        cached_tokens: usize,
    ) -> Option<Entry> {
        let least = cached_tokens - cached_tokens / 4;
        let mut marks = prefix.marks_down_to(least);
        marks.find_map(|mark| self.entries.remove(&mark))
    }

    /// Remembers a sequence under a mark. Also returns the entry that had this mark before.
    pub(super) fn enter(&mut self, mark: u64, entry: Entry) -> (SequenceMark, Option<Entry>) {
        self.serials = self.serials.wrapping_add(1);
        let serial = self.serials;
        self.queue.push_back((mark, serial));
        let before = self.entries.insert(mark, Entry { serial, ..entry });
        (SequenceMark { mark, serial }, before)
    }

    /// Remembers a superseded sequence under its end mark. False if that mark is taken.
    pub(super) fn enter_end(&mut self, earlier: &Entry, class: Class, tick: u64) -> bool {
        if self.entries.contains_key(&earlier.end_mark) {
            return false;
        }
        let entry = Entry {
            class,
            tick,
            node: None,
            ..*earlier
        };
        self.enter(earlier.end_mark, entry);
        true
    }

    /// Records the end of a sequence: the age of its nodes counts from now.
    pub(super) fn finished(&mut self, sequence_mark: SequenceMark, end: NodeKey, tick: u64) {
        if let Some(entry) = self.entries.get_mut(&sequence_mark.mark)
            && entry.serial == sequence_mark.serial
        {
            entry.node = Some(end);
            entry.tick = tick;
        }
    }

    /// Forgets the oldest entries over the bound, which follows the number of nodes.
    pub(super) fn forget_oldest(&mut self, nodes: usize, mut forgotten: impl FnMut(Entry)) {
        let most = nodes.clamp(ENTRIES_MIN, ENTRIES_MAX);
        while self.queue.len() > most {
            let (mark, serial) = self.queue.pop_front().expect("the queue is not empty");
            if self
                .entries
                .get(&mark)
                .is_some_and(|entry| entry.serial == serial)
            {
                self.entries.remove(&mark).map(&mut forgotten);
            }
        }
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }
}

/// Number of tokens at a prompt's end that its next turn may not repeat: a generation prompt,
/// or a block that was not full.
fn slack(tokens: usize) -> usize {
    match tokens {
        0..3 => 0,
        _ => (tokens / SLACK).max(1),
    }
}

/// The distance from one mark or link to the next.
fn step(at: usize, in_octave_log2: u32) -> usize {
    1 << at.max(1).ilog2().saturating_sub(in_octave_log2)
}

/// The last prefix length below `at` that has a mark.
fn marked_before(at: usize) -> usize {
    let before = at.saturating_sub(1);
    before & !(step(before, MARKS_LOG2) - 1)
}

/// Hashes the tokens just before `at` onto the hash `before`. The tokens are mixed with each
/// other first, so that links depend on each other as little as possible.
fn marked(before: u64, tokens: &[TokenId], at: usize) -> u64 {
    const ODD: [u64; MARK_TOKENS] = [
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
        0xd6e8_feb8_6659_fd93,
    ];
    let words = tokens[at.saturating_sub(MARK_TOKENS)..at].iter().zip(ODD);
    let word = words.fold(at as u64, |word, (token, odd)| {
        word.wrapping_add((u64::from(*token) + 1).wrapping_mul(odd))
    });
    let mixed = (before ^ word).wrapping_mul(ODD[0]);
    mixed ^ (mixed >> 29)
}
