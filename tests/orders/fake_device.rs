//! A fake device: for every segment, the tokens whose state it holds.

use std::collections::BTreeMap;

use motet::cache::Salt;
use motet::model::{ModelSpec, SegmentSize};
use motet::{CopyId, SegmentId, SlotId, TokenId};
use motet_core::protocol::Edit;

/// A segment: its salt, all tokens to its end, and the number of tokens before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) salt: Salt,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) start: usize,
}

#[derive(Debug)]
pub(crate) struct FakeSlot {
    path: Vec<SegmentId>,
    tail: usize,
}

#[derive(Debug, Default)]
pub(crate) struct FakeDevice {
    segments: BTreeMap<SegmentId, Written>,
    slots: BTreeMap<SlotId, FakeSlot>,
    /// Exported states, and states that wait for import, one per transfer.
    pub(crate) exports: BTreeMap<CopyId, Written>,
    pub(crate) imports: BTreeMap<CopyId, Vec<Written>>,
}

impl FakeDevice {
    /// Tokens of a slot's path, and tokens in all. `whole` and `salt` belong to its sequence.
    pub(crate) fn read(&self, slot: SlotId, salt: &Salt, whole: &[TokenId]) -> (usize, usize) {
        let slot = &self.slots[&slot];
        let mut at = 0;
        for segment in &slot.path {
            let written = &self.segments[segment];
            assert_eq!(&written.salt, salt, "salts never mix");
            assert_eq!(
                written.start, at,
                "a segment follows the tokens that it was computed after"
            );
            at = written.tokens.len();
            assert!(
                whole.starts_with(&written.tokens),
                "a path spells its sequence"
            );
        }
        (at, at + slot.tail)
    }

    /// Adds so many computed tokens to a slot.
    pub(crate) fn compute(&mut self, slot: SlotId, tokens: usize) {
        let slot = self
            .slots
            .get_mut(&slot)
            .expect("a sequence that computes has a slot");
        slot.tail += tokens;
    }

    pub(crate) fn held(&self) -> (usize, usize) {
        (self.segments.len(), self.slots.len())
    }

    pub(crate) fn segment_bytes(&self, spec: &ModelSpec) -> usize {
        let tokens = |written: &Written| written.tokens.len() - written.start;
        let bytes = |written| spec.segment_bytes(SegmentSize::whole(tokens(written)));
        self.segments.values().map(bytes).sum()
    }

    /// Loses everything except the transfers in flight.
    pub(crate) fn reset(&mut self) {
        self.segments.clear();
        self.slots.clear();
    }

    fn name(&mut self, segment: SegmentId, written: Written) {
        let before = self.segments.insert(segment, written);
        assert_eq!(before, None, "a name is used once");
    }

    fn take(&mut self, segment: SegmentId) -> Written {
        let written = self.segments.remove(&segment);
        written.expect("a named segment exists")
    }

    /// Replaces consecutive segments by one in every path.
    fn replace(&mut self, old: &[SegmentId], new: &[SegmentId]) {
        for slot in self.slots.values_mut() {
            let at = slot.path.windows(old.len()).position(|part| part == old);
            if let Some(at) = at {
                slot.path.splice(at..at + old.len(), new.iter().copied());
            }
        }
    }

    /// Carries out an edit. `of` returns the tokens whose state the tail of a slot holds.
    pub(crate) fn edit(&mut self, edit: &Edit, of: impl Fn(SlotId) -> (Salt, Vec<TokenId>)) {
        match edit {
            Edit::Open { slot, path, .. } => {
                let there = path.iter().all(|one| self.segments.contains_key(one));
                assert!(there, "a path is on the device");
                let (path, tail) = (path.clone(), 0);
                let before = self.slots.insert(*slot, FakeSlot { path, tail });
                assert!(before.is_none(), "a slot is opened once");
            }
            Edit::Seal {
                slot,
                tokens,
                segment,
            } => {
                let (salt, whole) = of(*slot);
                let (start, end) = self.read(*slot, &salt, &whole);
                assert!(start + tokens <= end, "sealed tokens were computed");
                let written = Written {
                    salt,
                    tokens: whole[..start + tokens].to_vec(),
                    start,
                };
                self.name(*segment, written);
                let slot = self.slots.get_mut(slot).expect("it was read");
                slot.tail -= tokens;
                slot.path.push(*segment);
            }
            Edit::ShareExisting { slot, tokens, path } => {
                let slot = self
                    .slots
                    .get_mut(slot)
                    .expect("the slot that shares is open");
                slot.tail -= tokens;
                slot.path.extend(path);
            }
            Edit::Split {
                segment,
                at,
                upper,
                lower,
            } => {
                let whole = self.take(*segment);
                let first = Written {
                    tokens: whole.tokens[..whole.start + at].to_vec(),
                    ..whole.clone()
                };
                let start = first.tokens.len();
                self.name(*upper, first);
                self.name(*lower, Written { start, ..whole });
                self.replace(&[*segment], &[*upper, *lower]);
            }
            Edit::Merge {
                upper,
                lower,
                segment,
            } => {
                let (first, second) = (self.take(*upper), self.take(*lower));
                assert_eq!(second.start, first.tokens.len(), "they follow each other");
                let start = first.start;
                self.name(*segment, Written { start, ..second });
                self.replace(&[*upper, *lower], &[*segment]);
            }
            Edit::Replace { segment, by } => {
                assert!(self.segments.contains_key(by), "another is there");
                self.take(*segment);
                self.replace(&[*segment], &[*by]);
            }
            Edit::SealInPlace {
                slot,
                tokens,
                segment,
            } => {
                let (salt, whole) = of(*slot);
                let (path, end) = self.read(*slot, &salt, &whole);
                assert!(path + tokens.end <= end, "sealed tokens were computed");
                let written = Written {
                    salt,
                    tokens: whole[..path + tokens.end].to_vec(),
                    start: path + tokens.start,
                };
                self.name(*segment, written);
                self.slots.remove(slot);
            }
            Edit::Close { slot } => {
                let closed = self.slots.remove(slot);
                assert!(closed.is_some(), "a closed slot was open");
            }
            Edit::Drop { segment } => {
                self.take(*segment);
                let held = self.slots.values().any(|slot| slot.path.contains(segment));
                assert!(!held, "a leased segment is not evicted");
            }
            Edit::Export { segment, copy } => {
                let written = self.segments[segment].clone();
                self.exports.insert(*copy, written);
            }
            Edit::CopyOut { slot, tokens, copy } => {
                let (salt, whole) = of(*slot);
                let (path, end) = self.read(*slot, &salt, &whole);
                assert!(path + tokens.end <= end, "copied tokens were computed");
                let written = Written {
                    salt,
                    tokens: whole[..path + tokens.end].to_vec(),
                    start: path + tokens.start,
                };
                self.exports.insert(*copy, written);
            }
            Edit::Import {
                copy,
                range,
                segment,
            } => {
                let whole = self.take_detached(*copy).expect("a detached state waits");
                let written = Written {
                    salt: whole.salt,
                    tokens: whole.tokens[..whole.start + range.end].to_vec(),
                    start: whole.start + range.start,
                };
                self.name(*segment, written);
            }
            other => panic!("unexpected edit: {other:?}"),
        }
    }

    /// A detached state of this copy, if one waits.
    pub(crate) fn take_detached(&mut self, copy: CopyId) -> Option<Written> {
        let detached_states = self.imports.get_mut(&copy)?;
        let detached_state = detached_states.pop();
        if detached_states.is_empty() {
            self.imports.remove(&copy);
        }
        detached_state
    }
}
