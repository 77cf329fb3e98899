//! The edits of the cache, on paper.

use std::ops::Range;

use motet_protocol::{CopyId, SegmentId, SlotId, TokenId};
use motet_protocol::{Edit, PrefixKey};

use super::{PaperDevice, PaperSegment, PaperSlot, PathPart};

impl PaperDevice {
    /// Carries out an edit. `key` belongs to the sequence whose slot is opened.
    pub fn edit(&mut self, edit: &Edit, key: Option<&PrefixKey>) {
        match edit {
            Edit::Open { slot, path, .. } => {
                let key = key.expect("a slot that is opened belongs to a sequence that starts");
                self.open(*slot, key, path);
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
                let (old, new) = (self.take(*segment), self.part(*by));
                assert_eq!(old.spelled(), new.state.spelled(), "the same tokens");
                assert_eq!(old.key, new.state.key, "keys never mix");
                assert!(
                    new.state.state_lag < old.state_lag,
                    "the new one holds more"
                );
                self.replace(&[*segment], &[new]);
            }
            Edit::Strip {
                segment,
                below,
                stripped,
            } => self.strip(*segment, *below, *stripped),
            Edit::Remove {
                slot,
                retained,
                removed,
            } => self.remove(*slot, *retained, removed),
            Edit::SealInPlace {
                slot,
                tokens,
                segment,
            } => {
                let state = self.cut_from_tail(*slot, tokens);
                self.slots.remove(slot);
                self.name(*segment, state);
            }
            Edit::Close { slot } => {
                let closed = self.slots.remove(slot);
                assert!(closed.is_some(), "a slot is closed once");
            }
            Edit::Drop { segment } => drop(self.take(*segment)),
            Edit::Export { segment, copy } => {
                let state = PaperSegment::clone(&self.part(*segment).state);
                self.transfer_queue.export(*copy, state);
            }
            Edit::CopyOut { slot, tokens, copy } => {
                let state = self.cut_from_tail(*slot, tokens);
                self.transfer_queue.export(*copy, state);
            }
            Edit::Import {
                copy,
                range,
                segment,
            } => self.import(*copy, range, *segment),
        }
    }

    fn open(&mut self, slot: SlotId, key: &PrefixKey, path: &[SegmentId]) {
        let mut opened = PaperSlot {
            key: key.clone(),
            path: Vec::new(),
            tail: Vec::new(),
            exact_tokens: usize::MAX,
        };
        for segment in path {
            opened.extend(self.part(*segment));
        }
        let segment_sizes: Vec<_> = opened.path().map(PaperSegment::segment_size).collect();
        assert!(
            self.spec.can_resume(&segment_sizes),
            "a sequence can continue from the path: {segment_sizes:?}"
        );
        self.slots.insert(slot, opened);
        assert!(self.slots_ever.insert(slot), "{slot} is used once");
    }

    fn seal(&mut self, slot: SlotId, tokens: usize, segment: SegmentId) {
        let state = self.cut_from_tail(slot, &(0..tokens));
        let part = self.name(segment, state);
        let slot = self.open_slot(slot);
        slot.tail.drain(..tokens);
        slot.extend(part);
    }

    /// The state of a range of a slot's tail, which stays.
    fn cut_from_tail(&self, slot: SlotId, tokens: &Range<usize>) -> PaperSegment {
        let slot = self
            .slots
            .get(&slot)
            .expect("a slot that is sealed is open");
        assert!(
            tokens.start < tokens.end && tokens.end <= slot.tail.len(),
            "a slot has the tokens that it seals"
        );
        let before = [&slot.spelled()[..], &slot.tail[..tokens.start]].concat();
        assert!(
            before.len() + tokens.len() <= slot.exact_tokens,
            "only exact tokens are sealed"
        );
        assert!(
            tokens.len() <= slot.key.tokens_alike(before.len()),
            "a segment ends where an adapter begins"
        );
        PaperSegment {
            key: slot.key.at(before.len() + tokens.len()),
            before,
            tokens: slot.tail[tokens.clone()].to_vec(),
            state_lag: slot.tail.len() - tokens.end,
        }
    }

    fn share_existing(&mut self, slot: SlotId, tokens: usize, path: &[SegmentId]) {
        let parts: Vec<PathPart> = path.iter().map(|segment| self.part(*segment)).collect();
        let slot = self.open_slot(slot);
        assert!(
            tokens <= slot.tail.len(),
            "a slot has the tokens that it replaces"
        );
        let given_up: Vec<TokenId> = slot.tail.drain(..tokens).collect();
        let shared = parts.iter().flat_map(|part| part.state.tokens.clone());
        let shared: Vec<TokenId> = shared.collect();
        assert_eq!(given_up, shared, "the shared tokens are the replaced ones");
        for part in parts {
            slot.extend(part);
        }
    }

    fn remove(&mut self, slot: SlotId, retained: usize, removed: &Range<usize>) {
        let slot = self.open_slot(slot);
        let unsealed = slot.path.split_off(retained);
        let retained_tokens = slot.spelled().len();
        assert!(
            retained_tokens <= removed.start,
            "kept tokens are not removed"
        );
        let moved = unsealed.iter().flat_map(|part| part.state.tokens.iter());
        let mut tail: Vec<TokenId> = moved.chain(&slot.tail).copied().collect();
        let tokens = retained_tokens + tail.len();
        tail.drain(removed.start - retained_tokens..removed.end - retained_tokens);
        slot.tail = tail;
        if removed.end < tokens {
            slot.exact_tokens = slot.exact_tokens.min(removed.start);
        } else if removed.start <= slot.exact_tokens {
            slot.exact_tokens = usize::MAX;
        }
    }

    fn split(&mut self, segment: SegmentId, at: usize, upper: SegmentId, lower: SegmentId) {
        let whole = self.take(segment);
        let (first, second) = whole.segment_size().cut(at);
        let (above, below) = whole.tokens.split_at(at);
        let first = PaperSegment {
            tokens: above.to_vec(),
            state_lag: first.state_lag,
            ..PaperSegment::clone(&whole)
        };
        let second = PaperSegment {
            key: whole.key.clone(),
            before: first.spelled(),
            tokens: below.to_vec(),
            state_lag: second.state_lag,
        };
        let parts = [self.name(upper, first), self.name(lower, second)];
        self.replace(&[segment], &parts);
    }

    fn merge(&mut self, upper: SegmentId, lower: SegmentId, segment: SegmentId) {
        let (first, second) = (self.take(upper), self.take(lower));
        assert!(
            self.spec.resumes_anywhere() || !self.resumes_after(&first),
            "a resumable end is not merged away"
        );
        assert_eq!(first.key, second.key, "keys never mix");
        assert_eq!(
            first.spelled(),
            second.before,
            "the lower follows the upper"
        );
        assert!(
            self.spec
                .can_merge(first.segment_size(), second.segment_size()),
            "the merged segments hold the state of the whole"
        );
        let whole = PaperSegment {
            tokens: [&first.tokens[..], &second.tokens].concat(),
            state_lag: second.state_lag,
            ..PaperSegment::clone(&first)
        };
        let part = self.name(segment, whole);
        self.replace(&[upper, lower], &[part]);
    }

    fn strip(&mut self, segment: SegmentId, below: SegmentId, stripped: SegmentId) {
        let whole = self.take(segment);
        let below = self.part(below).state;
        let end = below.before.len();
        assert_eq!(whole.key, below.key.at(end), "keys never mix");
        assert_eq!(whole.spelled(), below.before, "the lower follows the upper");
        let size = whole.segment_size().stripped(below.segment_size());
        assert!(size.state_lag > whole.state_lag, "it holds less");
        let state = PaperSegment {
            state_lag: size.state_lag,
            ..PaperSegment::clone(&whole)
        };
        let part = self.name(stripped, state);
        self.replace(&[segment], &[part]);
    }

    fn import(&mut self, copy: CopyId, range: &Range<usize>, segment: SegmentId) {
        let whole = self.transfer_queue.take_import(copy);
        let whole = whole.expect("a detached state waits");
        let (before, tokens) = whole.tokens.split_at(range.start);
        let state_lag = whole.state_lag + whole.tokens.len() - range.end;
        let state = PaperSegment {
            before: [&whole.before[..], before].concat(),
            tokens: tokens[..range.len()].to_vec(),
            state_lag,
            key: whole.key,
        };
        self.name(segment, state);
    }

    fn open_slot(&mut self, slot: SlotId) -> &mut PaperSlot {
        let slot = self.slots.get_mut(&slot);
        slot.expect("a slot that is edited is open")
    }

    /// Replaces consecutive segments in every path.
    fn replace(&mut self, old: &[SegmentId], new: &[PathPart]) {
        let is_old = |held: &[PathPart]| held.iter().map(|part| &part.segment).eq(old);
        for slot in self.slots.values_mut() {
            if let Some(at) = slot.path.windows(old.len()).position(is_old) {
                slot.path.splice(at..at + old.len(), new.iter().cloned());
            }
        }
    }
}
