//! The oracle's cached state: entries that every step reads back.
//!
//! A layer has one entry per token. The kinds differ only in how many entries they
//! keep and how far back they read them:
//!
//! | kind | keeps, for a range that ends where its state was taken | reads of the past |
//! |---|---|---|
//! | full | every entry | every entry |
//! | window W | the last W entries | the last W - 1 entries; itself makes W |
//! | recurrent | the last entry: the state | the last entry |
//!
//! Each part of a cut range keeps the entries that lie in it. If an entry that a layer must read
//! is missing, the past is garbled.
//!
//! Each part of a path also keeps a link for each token, a hash of all tokens up to it, and the
//! link of the token that preceded the part when it was computed. If two parts do not fit each
//! other there, the past is garbled too. A wrong segment therefore shows even out of a window's
//! reach, where a real model would not notice it.

use std::collections::VecDeque;
use std::iter;
use std::ops;
use std::rc::Rc;
use std::sync::Arc;

use smallvec::SmallVec;

use super::counters::{Charge, OracleCounters, StateKind};
use super::hash::{self, Fold};
use crate::{Segment, Tail};
use motet_protocol::TokenId;
use motet_protocol::{LayerKind, ModelSpec, SegmentSize};

/// The link before a sequence's first token.
const START: u64 = 0x7374_6172_7400;
/// A link that precedes no token: parts of an invalidated tail fit nowhere.
const INVALIDATED: u64 = 0x746f_726e;
/// Mixed into the past when an entry is missing.
const MISSING: u64 = 0x6d69_7373_696e_6700;

/// A sealed segment of the oracle's state: a handle.
#[derive(Debug)]
pub struct OracleSegment(Arc<Sealed>);

/// The state that a segment and its detached states are handles of.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) range: RangeState,
    charge: Charge,
}

/// A growing tail of the oracle's state.
#[derive(Debug)]
pub struct OracleTail {
    pub(super) range: RangeState,
    /// For each row of the last step, if that verified a draft, and each layer: the entry that went
    /// out of reach.
    pub(super) undo: Vec<Option<u64>>,
    charge: Charge,
}

/// The cached state of one contiguous token range, all layers.
#[derive(Clone, Debug)]
pub(super) struct RangeState {
    /// State lag, as in [`SegmentSize`]; 0 for a tail.
    pub(super) state_lag: usize,
    /// The link of the token before the range.
    pub(super) before: u64,
    /// The link of each token.
    pub(super) links: Vec<u64>,
    pub(super) layers: SmallVec<[LayerState; 1]>,
}

/// One layer's cached state of one token range.
#[derive(Clone, Debug)]
pub(super) struct LayerState {
    /// Fold of `entries`, updated as they are written.
    fold: Fold,
    /// The entries that the layer keeps of the range, oldest first: the last ones.
    pub(super) entries: VecDeque<u64>,
}

/// Number of entries that a layer keeps of a range.
pub(super) fn retained_entries(kind: LayerKind, range: SegmentSize) -> usize {
    match kind {
        LayerKind::Full => range.tokens,
        LayerKind::Window { tokens } => range.window_tokens(tokens),
        LayerKind::Recurrent => range.tokens.min(usize::from(range.has_recurrent_state())),
    }
}

/// Number of entries before a token's own that its layer reads.
pub(super) fn entries_read(kind: LayerKind) -> usize {
    match kind {
        LayerKind::Full => usize::MAX,
        LayerKind::Window { tokens } => tokens - 1,
        LayerKind::Recurrent => 1,
    }
}

/// Tokens that a path and a tail hold together.
pub(super) fn cached_tokens(path: &[Rc<OracleSegment>], tail: &OracleTail) -> usize {
    parts(path, tail).map(RangeState::tokens).sum()
}

/// Returns 0 if each part of the path and the tail follows the state it was computed after;
/// otherwise a number that garbles the past of every layer.
pub(super) fn mismatch(path: &[Rc<OracleSegment>], tail: &OracleTail) -> u64 {
    let mut end = START;
    parts(path, tail).fold(0, |mismatch, part| {
        let before = std::mem::replace(&mut end, part.after());
        mismatch | (before ^ part.before)
    })
}

/// The past that `layer` sees at the end of `tail`, as one number.
pub(super) fn read(
    path: &[Rc<OracleSegment>],
    tail: &OracleTail,
    layer: usize,
    entries_read: usize,
) -> u64 {
    let mut past = Fold::EMPTY;
    let mut missing = entries_read;
    let sealed = path.iter().rev().map(|segment| segment.range());
    for part in iter::once(&tail.range).chain(sealed) {
        if missing == 0 {
            break;
        }
        let state = &part.layers[layer];
        past = state.newest(missing).then(past);
        missing -= state.entries.len().min(missing);
        if missing > 0 && state.entries.len() < part.tokens() {
            return past.value() ^ MISSING;
        }
    }
    past.value()
}

/// Reads every entry of `path` and `tail` again.
///
/// # Panics
///
/// When there are more or fewer entries than belong there, or the stored folds do not match them:
/// a bug of the oracle's own.
pub(super) fn verify(path: &[Rc<OracleSegment>], tail: &OracleTail, kinds: &[LayerKind]) {
    for range in parts(path, tail) {
        for (state, kind) in range.layers.iter().zip(kinds) {
            let held = state.entries.len() == retained_entries(*kind, range.segment_size());
            assert!(held, "a layer keeps what its kind and the range ask for");
            let holds = Fold::of(&state.entries) == state.fold;
            assert!(holds, "the fold is that of the entries");
        }
    }
}

fn parts<'a>(
    path: &'a [Rc<OracleSegment>],
    tail: &'a OracleTail,
) -> impl Iterator<Item = &'a RangeState> {
    let sealed = path.iter().map(|segment| segment.range());
    sealed.chain(iter::once(&tail.range))
}

impl OracleSegment {
    pub(super) fn new(
        range: RangeState,
        spec: &ModelSpec,
        counters: &OracleCounters,
    ) -> OracleSegment {
        OracleSegment(Arc::new(Sealed::new(range, spec, counters)))
    }

    /// A segment that is a handle of `sealed`.
    pub(super) fn of(sealed: Arc<Sealed>) -> OracleSegment {
        OracleSegment(sealed)
    }

    pub(super) fn sealed(&self) -> &Arc<Sealed> {
        &self.0
    }

    pub(super) fn range(&self) -> &RangeState {
        &self.0.range
    }
}

impl Sealed {
    pub(super) fn new(range: RangeState, spec: &ModelSpec, counters: &OracleCounters) -> Sealed {
        let bytes = spec.segment_bytes(range.segment_size());
        Sealed {
            range,
            charge: counters.charge(StateKind::Segment, bytes),
        }
    }

    /// Moves the segment's charge to these counters.
    pub(super) fn count_in(&self, counters: &OracleCounters) {
        self.charge.move_to(counters);
    }
}

impl OracleTail {
    pub(super) fn new(
        range: RangeState,
        spec: &ModelSpec,
        counters: &OracleCounters,
    ) -> OracleTail {
        let bytes = spec.tail_bytes(range.tokens());
        OracleTail {
            range,
            undo: Vec::new(),
            charge: counters.charge(StateKind::Tail, bytes),
        }
    }

    /// Reports the bytes of the tokens that the tail holds by now.
    pub(super) fn resize(&mut self, spec: &ModelSpec) {
        self.charge.resize(spec.tail_bytes(self.range.tokens()));
    }

    /// Drops the last token, whose row verified a draft.
    pub(super) fn drop_last(&mut self) {
        self.range.links.pop().expect("a token to drop");
        for state in self.range.layers.iter_mut().rev() {
            let dropped = self.undo.pop();
            state.unwrite(dropped.expect("the last step verified the token"));
        }
    }

    /// Makes sure that the tail of a failed step never gives right tokens.
    pub(super) fn invalidate(&mut self) {
        self.range.before = INVALIDATED;
    }
}

impl RangeState {
    /// An empty range after the end of `path`.
    pub(super) fn following(path: &[Rc<OracleSegment>], layers: usize) -> RangeState {
        let before = path.last().map_or(START, |segment| segment.range().after());
        RangeState {
            state_lag: 0,
            before,
            links: Vec::new(),
            layers: iter::repeat_with(LayerState::default)
                .take(layers)
                .collect(),
        }
    }

    pub(super) fn tokens(&self) -> usize {
        self.links.len()
    }

    pub(super) fn segment_size(&self) -> SegmentSize {
        SegmentSize {
            tokens: self.tokens(),
            state_lag: self.state_lag,
        }
    }

    /// The link of the range's last token; `before` if the range is empty.
    fn after(&self) -> u64 {
        self.links.last().copied().unwrap_or(self.before)
    }

    /// Appends the link of the next token, whose entries were written.
    #[inline]
    pub(super) fn push(&mut self, token: TokenId) {
        self.links.push(hash::link(self.after(), token));
    }

    /// Splits the range after `at` tokens: returns the upper part and keeps the lower one.
    pub(super) fn take_front(&mut self, at: usize, kinds: &[LayerKind]) -> RangeState {
        let rest = SegmentSize {
            tokens: self.tokens() - at,
            state_lag: self.state_lag,
        };
        let mut front = RangeState {
            state_lag: rest.tokens + rest.state_lag,
            before: self.before,
            links: self.links.drain(..at).collect(),
            layers: SmallVec::new(),
        };
        for (state, kind) in self.layers.iter_mut().zip(kinds) {
            let taken = state.entries.len() - retained_entries(*kind, rest);
            front.layers.push(state.take_front(taken));
        }
        self.before = front.after();
        // A copy, so that no oversized buffer stays.
        self.links = self.links.as_slice().to_vec();
        front
    }

    /// This range and `lower`, which follows it, as one.
    pub(super) fn merged(&self, lower: &RangeState, kinds: &[LayerKind]) -> RangeState {
        let segment_size = self.segment_size().merged(lower.segment_size());
        let layer = |(index, kind): (usize, &LayerKind)| {
            let (upper, lower) = (&self.layers[index].entries, &lower.layers[index].entries);
            let surplus = upper.len() + lower.len() - retained_entries(*kind, segment_size);
            LayerState::new(upper.iter().chain(lower).skip(surplus).copied().collect())
        };
        RangeState {
            state_lag: segment_size.state_lag,
            before: if self.after() == lower.before {
                self.before
            } else {
                INVALIDATED
            },
            links: [&self.links[..], &lower.links].concat(),
            layers: kinds.iter().enumerate().map(layer).collect(),
        }
    }

    /// This range with the state of `segment_size`, which lags further behind.
    pub(super) fn stripped(&self, segment_size: SegmentSize, kinds: &[LayerKind]) -> RangeState {
        let layer = |(state, kind): (&LayerState, &LayerKind)| {
            let surplus = state.entries.len() - retained_entries(*kind, segment_size);
            LayerState::new(state.entries.iter().skip(surplus).copied().collect())
        };
        RangeState {
            state_lag: segment_size.state_lag,
            before: self.before,
            links: self.links.clone(),
            layers: self.layers.iter().zip(kinds).map(layer).collect(),
        }
    }

    /// The range without the tokens `removed`; those after them move up. Every layer must keep
    /// every entry.
    pub(super) fn without(mut self, removed: ops::Range<usize>) -> RangeState {
        for state in &mut self.layers {
            let mut entries = std::mem::take(&mut state.entries);
            for entry in entries.range_mut(removed.end..) {
                *entry = hash::turned_back(*entry, removed.len());
            }
            entries.drain(removed.clone());
            *state = LayerState::new(entries);
        }
        let moved = self.links.split_off(removed.end);
        self.links.truncate(removed.start);
        for link in moved {
            let link = if removed.is_empty() {
                link
            } else {
                hash::moved_link(self.after(), link, removed.len())
            };
            self.links.push(link);
        }
        self
    }
}

impl LayerState {
    pub(super) fn new(entries: VecDeque<u64>) -> LayerState {
        LayerState {
            fold: Fold::of(&entries),
            entries,
        }
    }

    /// Appends the entry of the next token. Returns the one that it drops since it is out of reach.
    #[inline]
    pub(super) fn write(&mut self, entry: u64, retained_entries: usize) -> Option<u64> {
        self.entries.push_back(entry);
        self.fold = self.fold.push(entry);
        if self.entries.len() <= retained_entries {
            return None;
        }
        let oldest = self.entries.pop_front()?;
        self.fold = self.fold.without_oldest(oldest);
        Some(oldest)
    }

    /// Takes back the last write, which dropped this entry.
    fn unwrite(&mut self, dropped: Option<u64>) {
        self.entries.pop_back();
        if let Some(dropped) = dropped {
            self.entries.push_front(dropped);
        }
        self.fold = Fold::of(&self.entries);
    }

    /// The fold of the newest `count` entries, or of all if there are fewer.
    #[inline]
    fn newest(&self, count: usize) -> Fold {
        let surplus = self.entries.len().saturating_sub(count);
        let older = self.entries.iter().take(surplus);
        older.fold(self.fold, |fold, entry| fold.without_oldest(*entry))
    }

    fn take_front(&mut self, entries: usize) -> LayerState {
        let front = LayerState::new(self.entries.drain(..entries).collect());
        // A copy, so that no oversized buffer stays.
        *self = LayerState::new(self.entries.iter().copied().collect());
        front
    }
}

impl Default for LayerState {
    fn default() -> Self {
        LayerState::new(VecDeque::new())
    }
}

impl Segment for OracleSegment {
    fn segment_size(&self) -> SegmentSize {
        self.range().segment_size()
    }

    fn bytes(&self) -> usize {
        self.0.charge.bytes()
    }
}

impl Tail for OracleTail {
    fn tokens(&self) -> usize {
        self.range.tokens()
    }

    fn bytes(&self) -> usize {
        self.charge.bytes()
    }
}
