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
/// Tokens before a mark that are hashed into it, beside those of the marks before:
/// two prompts that agree in all of these and differ in between are mistaken for one,
/// which costs a wrong guess and nothing else.
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
    pub(super) class: Class,
    /// Prompt tokens.
    pub(super) tokens: usize,
    /// Of these, how many are shared with others than its own earlier turns.
    pub(super) base_tokens: usize,
    /// Hash of the whole prompt.
    pub(super) end_mark: u64,
    /// Where its path ended, once it is over.
    pub(super) node: Option<NodeKey>,
    turns: u32,
    new_tokens: usize,
    tick: u64,
    serial: u64,
}

/// Prefix lengths and hashes, ascending.
pub(super) type Marks = Vec<(usize, u64)>;

/// The marks of a prompt.
#[derive(Debug)]
pub(super) struct Prefix<'a> {
    salt: u64,
    tokens: &'a [TokenId],
    /// The last is the whole prompt.
    marks: Marks,
}

/// Recent sequences, by mark.
#[derive(Debug, Default)]
pub(super) struct History {
    entries: FxHashMap<u64, Entry>,
    /// Marks and serials in the order in which they were entered.
    queue: VecDeque<(u64, u64)>,
    serials: u64,
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
            class: 0,
            tokens: asked.tokens.len(),
            base_tokens: asked.cached_tokens,
            end_mark: 0,
            node: None,
            turns: 1,
            new_tokens: asked.tokens.len() - asked.cached_tokens,
            tick: asked.tick,
            serial: 0,
        }
    }

    /// It continues `earlier`.
    pub(super) fn continues(&mut self, earlier: &Self) {
        self.turns = earlier.turns.saturating_add(1);
        self.base_tokens = earlier.base_tokens;
        let cached_tokens = self.tokens - self.new_tokens;
        let known = cached_tokens.max(earlier.tokens - earlier.tokens.min(slack(earlier.tokens)));
        self.new_tokens = self.tokens.saturating_sub(known);
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
        self.class = class(turns, self.new_tokens);
    }

    pub(super) fn age(&self, tick: u64) -> u64 {
        tick - self.tick
    }
}

impl<'a> Prefix<'a> {
    /// Reads a few tokens before each mark. `marks` is a buffer to use again.
    pub(super) fn new(salt: u64, tokens: &'a [TokenId], mut marks: Marks) -> Self {
        marks.clear();
        let (mut at, mut hash) = (0, salt);
        while at < tokens.len() {
            let before = at;
            at = (at + step_after(at)).min(tokens.len());
            hash = marked(hash, tokens, before, at);
            marks.push((at, hash));
        }
        Self {
            salt,
            tokens,
            marks,
        }
    }

    /// Gives the buffer back.
    pub(super) fn into_marks(self) -> Marks {
        self.marks
    }

    /// The mark of the whole prompt.
    pub(super) fn end_mark(&self) -> u64 {
        self.marks.last().map_or(self.salt, |(_, mark)| *mark)
    }

    /// The mark by which the prompt is to be known again: near its end, and in the
    /// part of it that is its own.
    pub(super) fn mark_for(&self, base_tokens: usize) -> u64 {
        let most = self.tokens.len() - slack(self.tokens.len());
        let end = self.marks.partition_point(|(at, _)| *at <= most);
        match self.marks[..end].last() {
            Some((at, mark)) if *at > base_tokens => *mark,
            _ => self.end_mark(),
        }
    }

    /// Whether it begins with a prompt of so many tokens that had this end mark.
    pub(super) fn covers(&self, tokens: usize, end_mark: u64) -> bool {
        if self.tokens.len() < tokens {
            return false;
        }
        // Its marks are mine, but for the last where its end is between two of mine.
        let mine = self.marks.partition_point(|(at, _)| *at <= tokens);
        let (at, mark) = match mine.checked_sub(1) {
            Some(last) => self.marks[last],
            None => (0, self.salt),
        };
        let end = match at == tokens {
            true => mark,
            false => marked(mark, self.tokens, at, tokens),
        };
        end == end_mark
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
        let marks = prefix.marks.iter().rev();
        let near = marks.take_while(|(at, _)| *at >= least);
        near.filter_map(|(_, mark)| self.entries.remove(mark))
            .next()
    }

    /// Remembers a sequence by a mark. Also returns the one that was remembered by it.
    pub(super) fn enter(&mut self, mark: u64, entry: Entry) -> (Ticket, Option<Entry>) {
        self.serials += 1;
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

/// From one mark to the next.
fn step_after(at: usize) -> usize {
    1 << at.max(1).ilog2().saturating_sub(MARKS_LOG2)
}

/// The mark at `at`, after the one at `before`. The tokens are mixed with each other
/// first, so that marks wait for each other as little as possible.
fn marked(mark: u64, tokens: &[TokenId], before: usize, at: usize) -> u64 {
    const ODD: [u64; MARK_TOKENS] = [
        0x9e37_79b9_7f4a_7c15,
        0xbf58_476d_1ce4_e5b9,
        0x94d0_49bb_1331_11eb,
        0xd6e8_feb8_6659_fd93,
    ];
    let from = at - (at - before).min(MARK_TOKENS);
    let words = tokens[from..at].iter().zip(ODD);
    let word = words.fold(at as u64, |word, (token, odd)| {
        word.wrapping_add((u64::from(*token) + 1).wrapping_mul(odd))
    });
    let mixed = (mark ^ word).wrapping_mul(ODD[0]);
    mixed ^ (mixed >> 29)
}
