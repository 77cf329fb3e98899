//! The device in plain tokens: the tokens of each segment and slot, according to the edits. The
//! oracle cannot tell equal states apart; this can, by salt and history.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use motet::model::{ModelSpec, SegmentSize};
use motet::{SegmentId, SlotId, TokenId};
use motet_core::protocol::Edit;

/// A device that holds token lists instead of arrays.
#[derive(Debug)]
pub(crate) struct ReferenceDevice {
    spec: ModelSpec,
    pub(crate) segments: BTreeMap<SegmentId, Rc<ReferenceSegment>>,
    pub(crate) slots: BTreeMap<SlotId, ReferenceSlot>,
    /// All ids that were ever used.
    segments_ever: BTreeSet<SegmentId>,
    slots_ever: BTreeSet<SlotId>,
}

/// The tokens of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReferenceSegment {
    pub(crate) salt: usize,
    /// All tokens before its own.
    pub(crate) before: Vec<TokenId>,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) state_lag: usize,
}

#[derive(Debug)]
pub(crate) struct ReferenceSlot {
    pub(crate) salt: usize,
    pub(crate) path: Vec<Rc<ReferenceSegment>>,
    pub(crate) tail: Vec<TokenId>,
    /// Tokens whose state is the same as without a shift.
    exact_tokens: usize,
}

impl ReferenceSegment {
    pub(crate) fn segment_size(&self) -> SegmentSize {
        SegmentSize {
            tokens: self.tokens.len(),
            state_lag: self.state_lag,
        }
    }

    /// All tokens up to its end.
    pub(crate) fn spelled(&self) -> Vec<TokenId> {
        [&self.before[..], &self.tokens].concat()
    }
}

impl ReferenceSlot {
    /// The tokens of its path.
    pub(crate) fn spelled(&self) -> Vec<TokenId> {
        let tokens = self.path.iter().flat_map(|part| part.tokens.iter());
        tokens.copied().collect()
    }

    fn extend(&mut self, part: Rc<ReferenceSegment>) {
        assert_eq!(part.salt, self.salt, "salts never mix");
        assert_eq!(
            part.before,
            self.spelled(),
            "a segment follows the tokens that it was computed after"
        );
        self.path.push(part);
    }
}

impl ReferenceDevice {
    pub(crate) fn new(spec: &ModelSpec) -> Self {
        Self {
            spec: spec.clone(),
            segments: BTreeMap::new(),
            slots: BTreeMap::new(),
            segments_ever: BTreeSet::new(),
            slots_ever: BTreeSet::new(),
        }
    }

    /// The device has lost everything.
    pub(crate) fn reset(&mut self) {
        self.segments.clear();
        self.slots.clear();
    }

    /// The slot has evaluated tokens.
    pub(crate) fn evaluated(&mut self, slot: SlotId, tokens: &[TokenId]) {
        let slot = self.slots.get_mut(&slot).expect("a running slot is open");
        slot.tail.extend(tokens);
    }

    /// Carries out an edit. `salt` belongs to the sequence whose slot is opened.
    pub(crate) fn edit(&mut self, edit: &Edit, salt: Option<usize>) {
        match edit {
            Edit::Open { slot, path, .. } => {
                let mut opened = ReferenceSlot {
                    salt: salt.expect("a slot that is opened belongs to a sequence that starts"),
                    path: Vec::new(),
                    tail: Vec::new(),
                    exact_tokens: usize::MAX,
                };
                for segment in path {
                    opened.extend(self.held(*segment));
                }
                let segment_sizes: Vec<_> =
                    opened.path.iter().map(|part| part.segment_size()).collect();
                assert!(
                    self.spec.can_resume(&segment_sizes),
                    "a sequence can continue from the path: {segment_sizes:?}"
                );
                self.slots.insert(*slot, opened);
                assert!(self.slots_ever.insert(*slot), "{slot} is used once");
            }
            Edit::Seal {
                slot,
                tokens,
                segment,
            } => self.seal(*slot, *tokens, *segment),
            Edit::ShareExisting { slot, tokens, path } => self.share_existing(*slot, *tokens, path),
            Edit::Split {
                segment,
                at,
                upper,
                lower,
            } => self.split(*segment, *at, *upper, *lower),
            Edit::Merge {
                upper,
                lower,
                segment,
            } => self.merge(*upper, *lower, *segment),
            Edit::Replace { segment, by } => {
                let (old, new) = (self.take(*segment), self.held(*by));
                assert_eq!(old.spelled(), new.spelled(), "the same tokens");
                assert_eq!(old.salt, new.salt, "salts never mix");
                assert!(new.state_lag < old.state_lag, "the new one holds more");
                self.replace(&[old], &[new]);
            }
            Edit::Remove {
                slot,
                retained,
                removed,
            } => self.remove(*slot, *retained, removed),
            Edit::SealInPlace {
                slot,
                tokens,
                segment,
            } => self.seal_in_place(*slot, tokens, *segment),
            Edit::Close { slot } => {
                let closed = self.slots.remove(slot);
                assert!(closed.is_some(), "a slot is closed once");
            }
            Edit::Drop { segment } => drop(self.take(*segment)),
            Edit::Export { .. } | Edit::CopyOut { .. } | Edit::Import { .. } => {
                unreachable!("this cache has no pager")
            }
        }
    }

    /// Whether a slot can return to its first `at` tokens, whatever its layers are: a segment
    /// ends there from which a sequence can continue, and all segments belong to the trie.
    pub(crate) fn rewinds(&self, slot: SlotId, at: usize) -> bool {
        let path = &self.slots[&slot].path;
        let is_shared =
            |part: &Rc<ReferenceSegment>| self.segments.values().any(|held| Rc::ptr_eq(held, part));
        let mut tokens = 0;
        let before = path.iter().take_while(|part| {
            tokens += part.tokens.len();
            tokens <= at
        });
        let segment_sizes: Vec<SegmentSize> = before.map(|part| part.segment_size()).collect();
        let ends: usize = segment_sizes
            .iter()
            .map(|segment_size| segment_size.tokens)
            .sum();
        ends == at && self.spec.can_resume(&segment_sizes) && path.iter().all(is_shared)
    }

    fn share_existing(&mut self, slot: SlotId, tokens: usize, path: &[SegmentId]) {
        let parts: Vec<_> = path.iter().map(|segment| self.held(*segment)).collect();
        let slot = self
            .slots
            .get_mut(&slot)
            .expect("the slot that shares is open");
        assert!(
            tokens <= slot.tail.len(),
            "a slot has the tokens that it replaces"
        );
        let given_up: Vec<_> = slot.tail.drain(..tokens).collect();
        let shared: Vec<_> = parts.iter().flat_map(|part| part.tokens.clone()).collect();
        assert_eq!(given_up, shared, "the shared tokens are the replaced ones");
        for part in parts {
            slot.extend(part);
        }
    }

    fn remove(&mut self, slot: SlotId, retained: usize, removed: &Range<usize>) {
        let slot = self.slots.get_mut(&slot).expect("an open slot is cut");
        let unsealed = slot.path.split_off(retained);
        let retained_tokens = slot.spelled().len();
        assert!(
            retained_tokens <= removed.start,
            "kept tokens are not removed"
        );
        let moved = unsealed.iter().flat_map(|part| part.tokens.iter());
        let mut tail: Vec<_> = moved.chain(&slot.tail).copied().collect();
        let tokens = retained_tokens + tail.len();
        tail.drain(removed.start - retained_tokens..removed.end - retained_tokens);
        slot.tail = tail;
        if removed.end < tokens {
            slot.exact_tokens = slot.exact_tokens.min(removed.start);
        } else if removed.start <= slot.exact_tokens {
            slot.exact_tokens = usize::MAX;
        }
    }

    fn seal(&mut self, slot: SlotId, tokens: usize, segment: SegmentId) {
        let slot = self.slots.get_mut(&slot).expect("an open slot is sealed");
        assert!(
            0 < tokens && tokens <= slot.tail.len(),
            "a slot has the tokens that it seals"
        );
        let before = slot.spelled();
        assert!(
            before.len() + tokens <= slot.exact_tokens,
            "only exact tokens are sealed"
        );
        let part = Rc::new(ReferenceSegment {
            salt: slot.salt,
            before,
            tokens: slot.tail.drain(..tokens).collect(),
            state_lag: slot.tail.len(),
        });
        slot.extend(Rc::clone(&part));
        self.name(segment, part);
    }

    fn seal_in_place(&mut self, slot: SlotId, tokens: &Range<usize>, segment: SegmentId) {
        let closed_slot = self
            .slots
            .remove(&slot)
            .expect("the slot that is sealed in place is open");
        assert!(
            tokens.start < tokens.end && tokens.end <= closed_slot.tail.len(),
            "a slot has the tokens that it seals"
        );
        let mut before = closed_slot.spelled();
        before.extend(&closed_slot.tail[..tokens.start]);
        assert!(
            before.len() + tokens.len() <= closed_slot.exact_tokens,
            "only exact tokens are sealed"
        );
        let part = ReferenceSegment {
            salt: closed_slot.salt,
            before,
            tokens: closed_slot.tail[tokens.clone()].to_vec(),
            state_lag: closed_slot.tail.len() - tokens.end,
        };
        self.name(segment, Rc::new(part));
    }

    fn split(&mut self, segment: SegmentId, at: usize, upper: SegmentId, lower: SegmentId) {
        let whole = self.take(segment);
        let (first, second) = whole.segment_size().cut(at);
        let part = |before: &[TokenId], tokens: &[TokenId], segment_size: SegmentSize| {
            Rc::new(ReferenceSegment {
                salt: whole.salt,
                before: before.to_vec(),
                tokens: tokens.to_vec(),
                state_lag: segment_size.state_lag,
            })
        };
        let (above, below) = whole.tokens.split_at(at);
        let first = part(&whole.before, above, first);
        let second = part(&first.spelled(), below, second);
        self.replace(
            &[Rc::clone(&whole)],
            &[Rc::clone(&first), Rc::clone(&second)],
        );
        self.name(upper, first);
        self.name(lower, second);
    }

    fn merge(&mut self, upper: SegmentId, lower: SegmentId, segment: SegmentId) {
        let (upper, lower) = (self.take(upper), self.take(lower));
        assert!(
            self.spec.resumes_anywhere() || !self.resumes_after(&upper),
            "a resumable end is not merged away"
        );
        assert_eq!(upper.salt, lower.salt, "salts never mix");
        assert_eq!(upper.spelled(), lower.before, "the lower follows the upper");
        assert!(
            self.spec
                .can_merge(upper.segment_size(), lower.segment_size()),
            "the merged segments hold the state of the whole"
        );
        let whole = Rc::new(ReferenceSegment {
            salt: upper.salt,
            before: upper.before.clone(),
            tokens: [&upper.tokens[..], &lower.tokens].concat(),
            state_lag: lower.state_lag,
        });
        self.replace(&[upper, lower], &[Rc::clone(&whole)]);
        self.name(segment, whole);
    }

    fn held(&self, segment: SegmentId) -> Rc<ReferenceSegment> {
        let held = self.segments.get(&segment);
        Rc::clone(held.unwrap_or_else(|| panic!("{segment} is named while it exists")))
    }

    fn take(&mut self, segment: SegmentId) -> Rc<ReferenceSegment> {
        let held = self.segments.remove(&segment);
        held.unwrap_or_else(|| panic!("{segment} is named while it exists"))
    }

    fn name(&mut self, segment: SegmentId, part: Rc<ReferenceSegment>) {
        self.segments.insert(segment, part);
        assert!(self.segments_ever.insert(segment), "{segment} is used once");
    }

    fn replace(&mut self, old: &[Rc<ReferenceSegment>], new: &[Rc<ReferenceSegment>]) {
        for slot in self.slots.values_mut() {
            let same =
                |held: &[Rc<ReferenceSegment>]| held.iter().zip(old).all(|(a, b)| Rc::ptr_eq(a, b));
            if let Some(at) = slot.path.windows(old.len()).position(same) {
                slot.path.splice(at..at + old.len(), new.iter().cloned());
            }
        }
    }

    /// How many segments exist, named or part of a path, and their bytes.
    pub(crate) fn sealed(&self) -> (usize, usize) {
        self.weigh(self.segments.values())
    }

    /// Bytes of the segments that cannot be evicted: those that are part of a path, and the
    /// `retained` ones.
    pub(crate) fn lasting_bytes(&self, retained: impl Fn(&ReferenceSegment) -> bool) -> usize {
        self.weigh(self.segments.values().filter(|part| retained(part)))
            .1
    }

    /// The number of distinct segments among these and in all paths, and their bytes.
    fn weigh<'a>(
        &'a self,
        named: impl Iterator<Item = &'a Rc<ReferenceSegment>>,
    ) -> (usize, usize) {
        let in_paths = self.slots.values().flat_map(|slot| &slot.path);
        let mut distinct: Vec<&Rc<ReferenceSegment>> = named.chain(in_paths).collect();
        distinct.sort_by_key(|part| Rc::as_ptr(part));
        distinct.dedup_by_key(|part| Rc::as_ptr(part));
        let bytes = distinct
            .iter()
            .map(|part| self.spec.segment_bytes(part.segment_size()));
        (distinct.len(), bytes.sum())
    }

    /// The bytes of all tails.
    pub(crate) fn tail_bytes(&self) -> usize {
        let tails = self.slots.values().map(|slot| slot.tail.len());
        tails.map(|tokens| self.spec.tail_bytes(tokens)).sum()
    }

    /// Whether a sequence could continue from the end of a part, according to the model's own
    /// rule.
    pub(crate) fn resumes_after(&self, end: &ReferenceSegment) -> bool {
        let spelled = end.spelled();
        let mut above: Vec<&ReferenceSegment> =
            self.segments.values().map(|part| &**part).collect();
        above.retain(|part| part.salt == end.salt && end.before.starts_with(&part.spelled()));
        above.sort_by_key(|part| part.before.len());
        let segment_sizes: Vec<_> = above
            .iter()
            .chain([&end])
            .map(|part| part.segment_size())
            .collect();
        let tokens: usize = segment_sizes
            .iter()
            .map(|segment_size| segment_size.tokens)
            .sum();
        assert_eq!(tokens, spelled.len(), "nothing is missing above a part");
        self.spec.can_resume(&segment_sizes)
    }

    /// The paths of all open slots of a salt.
    pub(crate) fn paths(&self, salt: usize) -> impl Iterator<Item = Vec<TokenId>> {
        let slots = self.slots.values().filter(move |slot| slot.salt == salt);
        slots.map(ReferenceSlot::spelled)
    }
}
