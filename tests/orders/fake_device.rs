//! A device on paper: of every segment the tokens that it is the state of.

use std::collections::BTreeMap;

use motet::cache::Salt;
use motet::model::{ModelSpec, SegmentSize};
use motet::{CopyId, SegmentId, SlotId, TokenId};
use motet_core::protocol::Edit;

/// A segment: with whom it is shared, all tokens to its end, and how many are before it.
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
    /// What was handed over, and what waits to be taken in, one for each time.
    pub(crate) exports: BTreeMap<CopyId, Written>,
    pub(crate) imports: BTreeMap<CopyId, Vec<Written>>,
}

impl FakeDevice {
    /// Tokens of a slot's path, and in all. `whole` and `salt` are its sequence's.
    pub(crate) fn read(&self, slot: SlotId, salt: &Salt, whole: &[TokenId]) -> (usize, usize) {
        let slot = &self.slots[&slot];
        let mut at = 0;
        for segment in &slot.path {
            let written = &self.segments[segment];
            assert_eq!(&written.salt, salt, "salts never mix");
            assert_eq!(
                written.start, at,
                "a segment follows what it was computed after"
            );
            at = written.tokens.len();
            assert!(
                whole.starts_with(&written.tokens),
                "a path spells its sequence"
            );
        }
        (at, at + slot.tail)
    }

    /// A step has computed so many more tokens.
    pub(crate) fn compute(&mut self, slot: SlotId, tokens: usize) {
        let slot = self.slots.get_mut(&slot).expect("who computes has a slot");
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

    /// Everything is lost, but for what is on its way.
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
        written.expect("what is named is there")
    }

    /// In every path one takes the place of others that follow each other.
    fn replace(&mut self, old: &[SegmentId], new: &[SegmentId]) {
        for slot in self.slots.values_mut() {
            let at = slot.path.windows(old.len()).position(|part| part == old);
            if let Some(at) = at {
                slot.path.splice(at..at + old.len(), new.iter().copied());
            }
        }
    }

    /// Carries out an edit. `of` says what the tail of a slot is the state of.
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
                assert!(start + tokens <= end, "what is sealed was computed");
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
                let slot = self.slots.get_mut(slot).expect("an open slot adopts");
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
                assert!(path + tokens.end <= end, "what is sealed was computed");
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
                assert!(closed.is_some(), "what is closed was open");
            }
            Edit::Drop { segment } => {
                self.take(*segment);
                let held = self.slots.values().any(|slot| slot.path.contains(segment));
                assert!(!held, "what is held is not evicted");
            }
            Edit::Export { segment, copy } => {
                let written = self.segments[segment].clone();
                self.exports.insert(*copy, written);
            }
            Edit::CopyOut { slot, tokens, copy } => {
                let (salt, whole) = of(*slot);
                let (path, end) = self.read(*slot, &salt, &whole);
                assert!(path + tokens.end <= end, "what is copied was computed");
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
                let whole = self.take_detached(*copy).expect("a parcel waits");
                let written = Written {
                    salt: whole.salt,
                    tokens: whole.tokens[..whole.start + range.end].to_vec(),
                    start: whole.start + range.start,
                };
                self.name(*segment, written);
            }
            other => panic!("nobody here asks for {other:?}"),
        }
    }

    /// A parcel of this copy, if one waits.
    pub(crate) fn take_detached(&mut self, copy: CopyId) -> Option<Written> {
        let detached_states = self.imports.get_mut(&copy)?;
        let detached_state = detached_states.pop();
        if detached_states.is_empty() {
            self.imports.remove(&copy);
        }
        detached_state
    }
}
