//! Which conversation a prompt continues, known by hashes of prefixes.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::super::super::trie::NodeKey;
use super::super::{Asked, Class, Ticket};
use crate::TokenId;

/// Entries that are kept however few nodes there are: the history is to reach back
/// much further than the cache does.
const ENTRIES_MIN: usize = 1 << 14;
/// And however many: it takes about 150 bytes an entry.
const ENTRIES_MAX: usize = 1 << 18;

/// Marks in an octave of prefix lengths: a mark is never further than a 32nd of the
/// prompt from where one wants it.
const MARKS_LOG2: u32 = 5;
/// Links in an octave: marks hash on from the link before them.
const LINKS_LOG2: u32 = 1;
/// Tokens before a mark or a link that are hashed into it. Two prompts that agree in
/// all of these and differ in between are mistaken for one, which costs a wrong guess
/// and nothing else.
const MARK_TOKENS: usize = 4;

/// Of a prompt, the part of this share at its end may differ in the next turn.
const SLACK: usize = 16;

/// How often a conversation has come back, in kinds.
pub(super) const TURNS: usize = 8;
/// The kind of what branches off, late, from what others have asked for.
const BRANCHED: usize = 6;
/// The kind of what was superseded.
const SUPERSEDED: usize = 7;
/// New tokens, in powers of two.
pub(super) const SIZES: usize = 18;
/// Classes in all.
pub(super) const CLASSES: usize = TURNS * SIZES;

/// What is remembered of a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// Hash of the whole prompt.
    pub(super) end_mark: u64,
    /// Where its path ended, once it is over.
    pub(super) node: Option<NodeKey>,
    tick: u64,
    /// Prompt tokens.
    tokens: u32,
    /// Of these, how many are shared with others than its own earlier turns.
    base_tokens: u32,
    /// Of these, how many are new.
    new_tokens: u32,
    /// Wraps: it only tells an entry from that which had its mark before.
    serial: u32,
    turns: u16,
    pub(super) class: Class,
}

/// Prefix lengths and hashes, ascending.
pub(super) type Links = Vec<(usize, u64)>;

/// The marks of a prompt: hashes of its prefixes, from a few tokens of each.
#[derive(Debug)]
pub(super) struct Prefix<'a> {
    salt: u64,
    tokens: &'a [TokenId],
    links: Links,
}

/// Recent sequences, by mark.
#[derive(Debug, Default)]
pub(super) struct History {
    entries: FxHashMap<u64, Entry>,
    /// Marks and serials in the order in which they were entered.
    queue: VecDeque<(u64, u32)>,
    serials: u32,
}

/// The class of what is left behind by a turn that is gone past.
pub(super) fn superseded_class(tokens: usize) -> Class {
    class(SUPERSEDED, tokens)
}

fn class(turns: usize, tokens: usize) -> Class {
    let size = (usize::BITS - tokens.leading_zeros()) as usize;
    (turns * SIZES + size.min(SIZES - 1)) as Class
}

impl Entry {
    /// A sequence that continues none, as far as is known.
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

    /// It continues `earlier`.
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

    /// Of these, how many are shared with others than its own earlier turns.
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
    /// `links` is a buffer to use again.
    pub(super) fn new(salt: u64, tokens: &'a [TokenId], mut links: Links) -> Self {
        links.clear();
        let (mut at, mut hash) = (1, salt);
        while at < tokens.len() {
            hash = marked(hash, tokens, at);
            links.push((at, hash));
            at += step(at, LINKS_LOG2);
        }
        Self {
            salt,
            tokens,
            links,
        }
    }

    /// Gives the buffer back.
    pub(super) fn into_links(self) -> Links {
        self.links
    }

    /// The mark of the whole prompt.
    pub(super) fn end_mark(&self) -> u64 {
        self.mark(self.tokens.len())
    }

    /// The mark by which the prompt is to be known again: near its end, and in the
    /// part of it that is its own.
    pub(super) fn mark_for(&self, base_tokens: usize) -> u64 {
        let most = self.tokens.len() - slack(self.tokens.len());
        let at = marked_before(most + 1);
        match at > base_tokens {
            true => self.mark(at),
            false => self.end_mark(),
        }
    }

    /// Whether it begins with a prompt of so many tokens that had this end mark.
    pub(super) fn covers(&self, tokens: usize, end_mark: u64) -> bool {
        self.tokens.len() >= tokens && self.mark(tokens) == end_mark
    }

    /// Its marks from the last one down to that of `least` tokens.
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
            let before = links.checked_sub(1).map_or(self.salt, |i| self.links[i].1);
            Some(marked(before, self.tokens, at))
        })
    }

    /// The mark of its first `at` tokens, which are some.
    fn mark(&self, at: usize) -> u64 {
        let links = self.links.partition_point(|(link, _)| *link < at);
        let before = links.checked_sub(1).map_or(self.salt, |i| self.links[i].1);
        marked(before, self.tokens, at)
    }
}

impl History {
    /// Takes out the entry of the conversation that a prompt continues. Entries that
    /// end well within what is cached would be shared by many.
    pub(super) fn take_continued(
        &mut self,
        prefix: &Prefix<'_>,
        cached_tokens: usize,
    ) -> Option<Entry> {
        let least = cached_tokens - cached_tokens / 4;
        let mut marks = prefix.marks_down_to(least);
        marks.find_map(|mark| self.entries.remove(&mark))
    }

    /// Remembers a sequence by a mark. Also returns the one that was remembered by it.
    pub(super) fn enter(&mut self, mark: u64, entry: Entry) -> (Ticket, Option<Entry>) {
        self.serials = self.serials.wrapping_add(1);
        let serial = self.serials;
        self.queue.push_back((mark, serial));
        let before = self.entries.insert(mark, Entry { serial, ..entry });
        (Ticket { mark, serial }, before)
    }

    /// Remembers a sequence that was gone past by its end. False if there is one.
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

    /// A sequence is over: what it holds ages from now.
    pub(super) fn left(&mut self, ticket: Ticket, end: NodeKey, tick: u64) {
        if let Some(entry) = self.entries.get_mut(&ticket.mark)
            && entry.serial == ticket.serial
        {
            entry.node = Some(end);
            entry.tick = tick;
        }
    }

    /// Keeps to its bound, which follows the number of nodes.
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

/// Tokens at a prompt's end that its next turn may not repeat: a generation prompt,
/// or a block that was not full.
fn slack(tokens: usize) -> usize {
    match tokens {
        0..3 => 0,
        _ => (tokens / SLACK).max(1),
    }
}

/// From one mark or link to the next.
fn step(at: usize, in_octave_log2: u32) -> usize {
    1 << at.max(1).ilog2().saturating_sub(in_octave_log2)
}

/// The last prefix length below `at` that has a mark.
fn marked_before(at: usize) -> usize {
    let before = at.saturating_sub(1);
    before & !(step(before, MARKS_LOG2) - 1)
}

/// Hashes the tokens just before `at` into what stands before them. They are mixed
/// with each other first, so that links wait for each other as little as possible.
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
