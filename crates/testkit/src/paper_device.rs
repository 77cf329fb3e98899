//! A device on paper: instead of arrays, the tokens whose state each segment and slot holds.
//!
//! A real device cannot tell equal states apart. This one can, by key and history: attention
//! over a slot's path and tail would read exactly these tokens, and every edit is checked
//! against them.

mod edits;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use motet_protocol::{ModelSpec, PrefixKey, SegmentSize};
use motet_protocol::{SegmentId, SlotId, TokenId};

use crate::transfer_queue::PaperTransferQueue;

/// The state of one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaperSegment {
    /// The key of the sequence that computed it.
    pub key: PrefixKey,
    /// All tokens before its own.
    pub before: Vec<TokenId>,
    /// Its own tokens.
    pub tokens: Vec<TokenId>,
    /// Tokens between its end and its recurrent state.
    pub state_lag: usize,
}

/// A segment in a slot's path.
#[derive(Clone)]
struct PathPart {
    segment: SegmentId,
    state: Rc<PaperSegment>,
}

/// An open slot: a path of segments, and a tail.
pub struct PaperSlot {
    key: PrefixKey,
    path: Vec<PathPart>,
    tail: Vec<TokenId>,
    /// Tokens whose state is the same as without a shift.
    exact_tokens: usize,
}

/// A device that holds token lists instead of arrays.
pub struct PaperDevice {
    spec: ModelSpec,
    segments: BTreeMap<SegmentId, Rc<PaperSegment>>,
    slots: BTreeMap<SlotId, PaperSlot>,
    /// All ids that were ever used.
    segments_ever: BTreeSet<SegmentId>,
    slots_ever: BTreeSet<SlotId>,
    transfer_queue: PaperTransferQueue<PaperSegment>,
}

impl PaperSegment {
    /// Its size, as the model counts it.
    #[must_use]
    pub fn segment_size(&self) -> SegmentSize {
        SegmentSize {
            tokens: self.tokens.len(),
            state_lag: self.state_lag,
        }
    }

    /// All tokens up to its end.
    #[must_use]
    pub fn spelled(&self) -> Vec<TokenId> {
        [&self.before[..], &self.tokens].concat()
    }
}

impl PaperSlot {
    /// The key of its sequence.
    #[must_use]
    pub fn key(&self) -> &PrefixKey {
        &self.key
    }

    /// The tokens of its path.
    #[must_use]
    pub fn spelled(&self) -> Vec<TokenId> {
        let tokens = self.path.iter().flat_map(|part| part.state.tokens.iter());
        tokens.copied().collect()
    }

    /// The tokens of its tail.
    #[must_use]
    pub fn tail(&self) -> &[TokenId] {
        &self.tail
    }

    /// All tokens whose state it holds.
    #[must_use]
    pub fn held(&self) -> Vec<TokenId> {
        [&self.spelled()[..], &self.tail].concat()
    }

    /// The segments of its path.
    pub fn path(&self) -> impl Iterator<Item = &PaperSegment> {
        self.path.iter().map(|part| &*part.state)
    }

    fn extend(&mut self, part: PathPart) {
        let end = part.state.before.len() + part.state.tokens.len();
        assert_eq!(part.state.key, self.key.at(end), "keys never mix");
        assert_eq!(
            part.state.before,
            self.spelled(),
            "a segment follows the tokens that it was computed after"
        );
        self.path.push(part);
    }
}

impl PaperDevice {
    /// An empty device.
    #[must_use]
    pub fn new(spec: &ModelSpec) -> Self {
        Self {
            spec: spec.clone(),
            segments: BTreeMap::new(),
            slots: BTreeMap::new(),
            segments_ever: BTreeSet::new(),
            slots_ever: BTreeSet::new(),
            transfer_queue: PaperTransferQueue::default(),
        }
    }

    /// The device has lost everything but the states in the transfer queue.
    pub fn reset(&mut self) {
        self.segments.clear();
        self.slots.clear();
    }

    /// The slot has evaluated tokens.
    pub fn evaluate(&mut self, slot: SlotId, tokens: &[TokenId]) {
        let slot = self.slots.get_mut(&slot).expect("a running slot is open");
        slot.tail.extend(tokens);
    }

    /// The states on their way from the device, and to it.
    #[must_use]
    pub fn transfer_queue(&self) -> &PaperTransferQueue<PaperSegment> {
        &self.transfer_queue
    }

    /// The same, for the copy machine at its other end.
    pub fn transfer_queue_mut(&mut self) -> &mut PaperTransferQueue<PaperSegment> {
        &mut self.transfer_queue
    }

    /// The segments by name.
    #[must_use]
    pub fn segments(&self) -> &BTreeMap<SegmentId, Rc<PaperSegment>> {
        &self.segments
    }

    /// An open slot.
    #[must_use]
    pub fn slot(&self, slot: SlotId) -> Option<&PaperSlot> {
        self.slots.get(&slot)
    }

    /// Number of segments, and of open slots.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.segments.len(), self.slots.len())
    }

    /// Whether a segment is part of a slot's path, named or not.
    #[must_use]
    pub fn is_in_path(&self, segment: SegmentId) -> bool {
        let mut parts = self.slots.values().flat_map(|slot| &slot.path);
        parts.any(|part| part.segment == segment)
    }

    /// Number of existing segments, named or part of a path, and their bytes.
    #[must_use]
    pub fn sealed(&self) -> (usize, usize) {
        self.weigh(self.segments.iter())
    }

    /// Bytes of the segments that cannot be evicted: those that are part of a path, and the
    /// `retained` ones.
    pub fn lasting_bytes(&self, retained: impl Fn(&PaperSegment) -> bool) -> usize {
        self.weigh(self.segments.iter().filter(|(_, state)| retained(state)))
            .1
    }

    /// The bytes of all tails.
    #[must_use]
    pub fn tail_bytes(&self) -> usize {
        let tails = self.slots.values().map(|slot| slot.tail.len());
        tails.map(|tokens| self.spec.tail_bytes(tokens)).sum()
    }

    /// The paths of all open slots of a key.
    pub fn paths<'a>(&'a self, key: &'a PrefixKey) -> impl Iterator<Item = Vec<TokenId>> + 'a {
        let slots = self.slots.values().filter(move |slot| slot.key == *key);
        slots.map(PaperSlot::spelled)
    }

    /// Whether a slot can return to its first `at` tokens, whatever its layers are: a segment
    /// ends there from which a sequence can continue, and all segments belong to the trie.
    #[must_use]
    pub fn rewinds(&self, slot: SlotId, at: usize) -> bool {
        let path = &self.slots[&slot].path;
        let mut tokens = 0;
        let before = path.iter().take_while(|part| {
            tokens += part.state.tokens.len();
            tokens <= at
        });
        let segment_sizes: Vec<SegmentSize> =
            before.map(|part| part.state.segment_size()).collect();
        let ends: usize = segment_sizes.iter().map(|size| size.tokens).sum();
        let is_named = |part: &PathPart| self.segments.contains_key(&part.segment);
        ends == at && self.spec.can_resume(&segment_sizes) && path.iter().all(is_named)
    }

    /// Whether a sequence could continue from the end of a segment, by the model's own rule.
    #[must_use]
    pub fn resumes_after(&self, end: &PaperSegment) -> bool {
        let spelled = end.spelled();
        let mut above: Vec<&PaperSegment> = self.segments.values().map(|state| &**state).collect();
        above.retain(|state| {
            let above = state.spelled();
            state.key == end.key.at(above.len()) && end.before.starts_with(&above)
        });
        above.sort_by_key(|state| state.before.len());
        let path = above.iter().chain([&end]);
        let segment_sizes: Vec<SegmentSize> = path.map(|state| state.segment_size()).collect();
        let tokens: usize = segment_sizes.iter().map(|size| size.tokens).sum();
        assert_eq!(tokens, spelled.len(), "nothing is missing above a segment");
        self.spec.can_resume(&segment_sizes)
    }

    /// The number of distinct segments among these and in all paths, and their bytes.
    fn weigh<'a>(
        &'a self,
        named: impl Iterator<Item = (&'a SegmentId, &'a Rc<PaperSegment>)>,
    ) -> (usize, usize) {
        let in_paths = self.slots.values().flat_map(|slot| &slot.path);
        let in_paths = in_paths.map(|part| (&part.segment, &part.state));
        let distinct: BTreeMap<_, _> = named.chain(in_paths).collect();
        let sizes = distinct.values().map(|state| state.segment_size());
        let bytes = sizes.map(|size| self.spec.segment_bytes(size)).sum();
        (distinct.len(), bytes)
    }

    fn part(&self, segment: SegmentId) -> PathPart {
        let state = self.segments.get(&segment).cloned();
        PathPart {
            segment,
            state: state.unwrap_or_else(|| panic!("{segment} is named while it exists")),
        }
    }

    fn take(&mut self, segment: SegmentId) -> Rc<PaperSegment> {
        let state = self.segments.remove(&segment);
        state.unwrap_or_else(|| panic!("{segment} is named while it exists"))
    }

    fn name(&mut self, segment: SegmentId, state: PaperSegment) -> PathPart {
        assert!(self.segments_ever.insert(segment), "{segment} is used once");
        let state = Rc::new(state);
        self.segments.insert(segment, Rc::clone(&state));
        PathPart { segment, state }
    }
}

/// The text holds all that makes a difference for later edits; ids that were used once do not.
impl fmt::Debug for PaperDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = f.debug_struct("PaperDevice");
        text.field("segments", &self.segments)
            .field("slots", &self.slots)
            .field("transfer_queue", &self.transfer_queue)
            .finish()
    }
}

impl fmt::Debug for PaperSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path: Vec<SegmentId> = self.path.iter().map(|part| part.segment).collect();
        let mut text = f.debug_struct("PaperSlot");
        text.field("path", &path).field("tail", &self.tail).finish()
    }
}
