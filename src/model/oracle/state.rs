//! The oracle's cached state: entries that every step reads back.
//!
//! A layer keeps one entry per token. The kinds differ only in how many entries
//! they keep and how far back they read them:
//!
//! | kind | keeps of a range | reads of the past |
//! |---|---|---|
//! | full | every entry | every entry |
//! | window W | the last W entries | the last W - 1 entries; itself makes W |
//! | recurrent | the last entry: the state | the last entry |
//!
//! Each part of a path also remembers the entry that preceded it when it was
//! computed. Where the parts do not fit each other there, the past is garbled, so
//! that a wrong segment shows even out of a window's reach, where a real model
//! would not notice it.

use std::collections::VecDeque;
use std::iter;
use std::rc::Rc;

use smallvec::SmallVec;

use super::counters::{Charge, Holder, OracleCounters};
use super::hash::Fold;
use crate::model::{Extent, LayerKind, ModelSpec, Segment, Tail};

/// What precedes a sequence's first token.
const START: u64 = 0x7374_6172_7400;
/// What precedes nothing: parts of a torn tail fit nowhere.
const TORN: u64 = 0x746f_726e;

/// A sealed segment of the oracle's state.
#[derive(Debug)]
pub struct OracleSegment {
    pub(super) range: Range,
    charge: Charge,
}

/// A growing tail of the oracle's state.
#[derive(Debug)]
pub struct OracleTail {
    pub(super) range: Range,
    charge: Charge,
}

/// The cached state of one contiguous token range, all layers.
#[derive(Clone, Debug)]
pub(super) struct Range {
    pub(super) tokens: usize,
    pub(super) layers: SmallVec<[LayerState; 1]>,
}

/// One layer's cached state of one token range.
#[derive(Clone, Debug)]
pub(super) struct LayerState {
    /// The entry of the token before the range.
    pub(super) before: u64,
    /// The entry of the range's last token; `before` where it has none.
    after: u64,
    /// Fold of `entries`, kept as they are written.
    fold: Fold,
    /// What the layer keeps of the range, oldest first.
    pub(super) entries: VecDeque<u64>,
}

/// How many entries of a range a layer keeps.
pub(super) fn entries_kept(kind: LayerKind) -> usize {
    match kind {
        LayerKind::Full => usize::MAX,
        LayerKind::Window { tokens } => tokens,
        LayerKind::Recurrent => 1,
    }
}

/// How many entries before a token's own its layer reads.
pub(super) fn entries_read(kind: LayerKind) -> usize {
    match kind {
        LayerKind::Full => usize::MAX,
        LayerKind::Window { tokens } => tokens - 1,
        LayerKind::Recurrent => 1,
    }
}

/// Tokens that a path and a tail hold together.
pub(super) fn cached_tokens(path: &[Rc<OracleSegment>], tail: &OracleTail) -> usize {
    let sealed: usize = path.iter().map(|segment| segment.range.tokens).sum();
    sealed + tail.range.tokens
}

/// All that `layer` sees of the past at the end of `tail`, as one number.
pub(super) fn read(
    path: &[Rc<OracleSegment>],
    tail: &OracleTail,
    layer: usize,
    entries_read: usize,
) -> u64 {
    let tail = &tail.range.layers[layer];
    let mut past = tail.newest(entries_read);
    let mut missing = entries_read - tail.entries.len().min(entries_read);
    let mut wanted = tail.before;
    let mut misfit = 0;
    for segment in path.iter().rev() {
        let older = &segment.range.layers[layer];
        misfit |= older.after ^ wanted;
        wanted = older.before;
        if missing > 0 {
            past = older.newest(missing).then(past);
            missing -= older.entries.len().min(missing);
        }
    }
    misfit |= START ^ wanted;
    past.value() ^ misfit
}

/// Re-reads every entry of `path` and `tail`.
///
/// # Panics
///
/// When what was kept as the entries were written is not theirs: a bug of the
/// oracle's own.
pub(super) fn verify(path: &[Rc<OracleSegment>], tail: &OracleTail) {
    let parts = path.iter().map(|segment| &segment.range);
    for range in parts.chain(iter::once(&tail.range)) {
        for state in &range.layers {
            let last = state.entries.back().unwrap_or(&state.before);
            let holds = Fold::of(&state.entries) == state.fold && *last == state.after;
            assert!(
                holds,
                "the fold and the last entry are those of the entries"
            );
        }
    }
}

impl OracleSegment {
    pub(super) fn new(range: Range, spec: &ModelSpec, counters: &OracleCounters) -> OracleSegment {
        let bytes = spec.segment_bytes(Extent::whole(range.tokens));
        OracleSegment {
            range,
            charge: counters.charge(Holder::Segment, bytes),
        }
    }
}

impl OracleTail {
    pub(super) fn new(range: Range, spec: &ModelSpec, counters: &OracleCounters) -> OracleTail {
        let bytes = spec.tail_bytes(range.tokens);
        OracleTail {
            range,
            charge: counters.charge(Holder::Tail, bytes),
        }
    }

    /// Reports the bytes of as many tokens as it holds by now.
    pub(super) fn resize(&mut self, spec: &ModelSpec) {
        self.charge.resize(spec.tail_bytes(self.range.tokens));
    }

    /// Makes sure that nobody gets right tokens from what a failed step left.
    pub(super) fn tear(&mut self) {
        for layer in &mut self.range.layers {
            layer.before = TORN;
        }
    }
}

impl Range {
    /// No tokens, after the end of `path`.
    pub(super) fn after(path: &[Rc<OracleSegment>], layers: usize) -> Range {
        let state = |layer: usize| {
            let before = match path.last() {
                Some(segment) => segment.range.layers[layer].after,
                None => START,
            };
            LayerState::new(before, VecDeque::new())
        };
        Range {
            tokens: 0,
            layers: (0..layers).map(state).collect(),
        }
    }

    /// Parts the range after `at` tokens: keeps the rest and returns the front.
    /// Unless `at` is the whole range, every layer must keep every entry.
    pub(super) fn take_front(&mut self, at: usize) -> Range {
        let whole = at == self.tokens;
        self.tokens -= at;
        let front =
            |state: &mut LayerState| state.take_front(if whole { state.entries.len() } else { at });
        Range {
            tokens: at,
            layers: self.layers.iter_mut().map(front).collect(),
        }
    }
}

impl LayerState {
    pub(super) fn new(before: u64, entries: VecDeque<u64>) -> LayerState {
        LayerState {
            before,
            after: entries.back().copied().unwrap_or(before),
            fold: Fold::of(&entries),
            entries,
        }
    }

    /// Appends the entry of the next token and lets go of what is out of reach.
    #[inline]
    pub(super) fn write(&mut self, entry: u64, entries_kept: usize) {
        self.after = entry;
        self.entries.push_back(entry);
        self.fold = self.fold.push(entry);
        if self.entries.len() > entries_kept
            && let Some(oldest) = self.entries.pop_front()
        {
            self.fold = self.fold.without_oldest(oldest);
        }
    }

    /// The fold of the newest `count` entries, or of all where there are fewer.
    #[inline]
    fn newest(&self, count: usize) -> Fold {
        let surplus = self.entries.len().saturating_sub(count);
        let older = self.entries.iter().take(surplus);
        older.fold(self.fold, |fold, entry| fold.without_oldest(*entry))
    }

    fn take_front(&mut self, entries: usize) -> LayerState {
        let front = LayerState::new(self.before, self.entries.drain(..entries).collect());
        // A copy, so that no buffer outlives what made it grow.
        *self = LayerState::new(front.after, self.entries.iter().copied().collect());
        front
    }
}

impl Segment for OracleSegment {
    fn tokens(&self) -> usize {
        self.range.tokens
    }

    fn bytes(&self) -> usize {
        self.charge.bytes()
    }
}

impl Tail for OracleTail {
    fn tokens(&self) -> usize {
        self.range.tokens
    }

    fn bytes(&self) -> usize {
        self.charge.bytes()
    }
}
