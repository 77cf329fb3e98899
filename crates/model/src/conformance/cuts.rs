//! Checks of seal, split, merge and strip.

use std::rc::Rc;

use super::checker::{Checker, Slot};
use crate::{Model, Segment, Tail};
use motet_protocol::{ModelError, SegmentSize};

impl<M: Model> Checker<'_, M> {
    pub(super) fn sealed(&mut self) {
        for prompt in 0..self.given {
            let cached = self.prompts[prompt].len() - 1;
            for at in cuts(cached).into_iter().chain([cached]) {
                let mut slot = self.cold_slot(prompt);
                self.advance(&mut slot, cached);
                self.seal(&mut slot, at);
                self.resume(prompt, &slot.path);
                self.finish_prompt(&mut slot);
            }
            self.sealed_while_growing(prompt);
            self.sealed_token_by_token(prompt);
        }
    }

    /// The tail grows on after each seal, which leaves it some tokens.
    fn sealed_while_growing(&mut self, prompt: usize) {
        let mut slot = self.cold_slot(prompt);
        while self.remaining(&slot) > 3 {
            self.advance(&mut slot, 3);
            self.seal(&mut slot, 2);
            self.resume(prompt, &slot.path);
        }
        self.finish_prompt(&mut slot);
    }

    fn sealed_token_by_token(&mut self, prompt: usize) {
        let mut slot = self.cold_slot(prompt);
        self.advance(&mut slot, self.prompts[prompt].len() - 1);
        while slot.tail.tokens() > 0 {
            self.seal(&mut slot, 1);
            self.resume(prompt, &slot.path);
        }
        self.finish_prompt(&mut slot);
    }

    /// A slot that ends leaves the same segments as one that goes on, whatever was sealed from
    /// its tail before.
    pub(super) fn sealed_in_place(&mut self) {
        for prompt in 0..self.given {
            let cached = self.prompts[prompt].len() - 1;
            for to in cuts(cached).into_iter().chain([cached]) {
                for from in [0, 1, to / 2, to - 1].into_iter().filter(|from| *from < to) {
                    self.sealed_in_place_between(prompt, from, to);
                }
            }
        }
    }

    fn sealed_in_place_between(&mut self, prompt: usize, from: usize, to: usize) {
        let cached = self.prompts[prompt].len() - 1;
        let mut before = self.cold_slot(prompt);
        self.advance(&mut before, cached);
        if from > 0 {
            self.seal(&mut before, from);
        }
        for expected_tokens in [0, cached, 3 * cached] {
            let mut slot = self.slot_for(prompt, Vec::new(), expected_tokens);
            self.advance(&mut slot, to);
            if to < cached {
                self.advance(&mut slot, cached - to);
            }
            let last = self.model.seal_in_place(slot.tail, from..to);
            let last = self.done(last);
            let segment_size = SegmentSize {
                tokens: to - from,
                state_lag: cached - to,
            };
            self.expect_segment_size(&last, segment_size);
            let path = [&before.path[..], &[Rc::new(last)]].concat();
            self.resume(prompt, &path);
        }
    }

    pub(super) fn split(&mut self) {
        for prompt in 0..self.given {
            let cached = self.prompts[prompt].len() - 1;
            let segment = self.segment(prompt, cached);
            for at in cuts(cached) {
                let [upper, lower] = self.halves(&segment, at);
                self.resume(prompt, &[Rc::clone(&upper)]);
                self.resume(prompt, &[Rc::clone(&upper), Rc::clone(&lower)]);
                if at > 1 {
                    let [first, second] = self.halves(&upper, at / 2);
                    self.resume(prompt, &[Rc::clone(&first), Rc::clone(&second)]);
                    self.resume(prompt, &[first, second, Rc::clone(&lower)]);
                }
                if cached - at > 1 {
                    let [second, third] = self.halves(&lower, (cached - at) / 2);
                    self.resume(prompt, &[Rc::clone(&upper), Rc::clone(&second)]);
                    self.resume(prompt, &[upper, second, third]);
                }
            }
            self.resume(prompt, &[segment]);
        }
    }

    pub(super) fn merged(&mut self) {
        for prompt in 0..self.given {
            let cached = self.prompts[prompt].len() - 1;
            let segment = self.segment(prompt, cached);
            for at in cuts(cached) {
                let [upper, lower] = self.halves(&segment, at);
                let whole = self.whole(&upper, &lower);
                self.resume(prompt, &[whole]);
                if at > 1 {
                    // Merge the lower two of three parts first.
                    let [first, second] = self.halves(&upper, at / 2);
                    let rest = self.whole(&second, &lower);
                    self.resume(prompt, &[Rc::clone(&first), Rc::clone(&rest)]);
                    let whole = self.whole(&first, &rest);
                    self.resume(prompt, &[whole]);
                }
                for more in [1, 2, cached - at] {
                    self.merged_with_another(prompt, &upper, more.min(cached - at));
                }
            }
            self.resume(prompt, &[segment]);
        }
    }

    /// Segments that were sealed one after another give up the state between them, the lowest
    /// first. Segments below can be continued, cut and merged as before.
    pub(super) fn stripped(&mut self) {
        for prompt in 0..self.given {
            let cached = self.prompts[prompt].len() - 1;
            for at in cuts(cached) {
                let mut slot = self.cold_slot(prompt);
                for tokens in [at.div_ceil(2), at / 2, cached - at] {
                    if tokens > 0 {
                        self.advance(&mut slot, tokens);
                        self.seal(&mut slot, tokens);
                    }
                }
                let mut path = slot.path;
                for upper in (0..path.len() - 1).rev() {
                    let below = Rc::clone(&path[upper + 1]);
                    path[upper] = self.stripped_above(&path[upper], &below);
                    self.resume(prompt, &path);
                    self.resume(prompt, &path[..=upper]);
                }
                let merged = self.whole(&path[0], &path[1]);
                path.splice(..2, [merged]);
                self.resume(prompt, &path);
            }
        }
    }

    fn stripped_above(&mut self, segment: &M::Segment, below: &M::Segment) -> Rc<M::Segment> {
        let stripped = self.model.strip(segment, below);
        let stripped = self.done(stripped);
        let segment_size = segment.segment_size().stripped(below.segment_size());
        self.expect_segment_size(&stripped, segment_size);
        Rc::new(stripped)
    }

    /// Merges the upper part of a cut with `more` tokens that another slot computed after it.
    /// Together they may hold too little of a window.
    fn merged_with_another(&mut self, prompt: usize, upper: &M::Segment, more: usize) {
        let mut slot = self.cold_slot(prompt);
        for tokens in [upper.tokens(), more] {
            self.advance(&mut slot, tokens);
            self.seal(&mut slot, tokens);
        }
        let lower = &slot.path[1];
        let segment_sizes = (upper.segment_size(), lower.segment_size());
        if self
            .model
            .spec()
            .can_merge(segment_sizes.0, segment_sizes.1)
        {
            let whole = self.whole(upper, lower);
            self.resume(prompt, &[whole]);
        } else {
            let rejected = self.model.merge(upper, lower);
            let rejected = matches!(rejected, Err(ModelError::Merge { .. }));
            self.expect(rejected, "too little of a window is rejected");
        }
    }

    pub(super) fn invalid_cuts(&mut self) {
        let cached = self.prompts[0].len() - 1;
        let segment = self.segment(0, cached);
        let mut slot = self.cold_slot(0);
        self.advance(&mut slot, cached);
        for at in [0, cached + 1] {
            let sealed = self.model.seal(&mut slot.tail, at);
            self.expect_cut(sealed, "seal", at);
        }
        let backwards = std::ops::Range { start: 2, end: 1 };
        for part in [0..0, 1..1, backwards, 0..4] {
            let mut short = self.cold_slot(0);
            self.advance(&mut short, 3);
            let sealed_in_place = self.model.seal_in_place(short.tail, part);
            let rejected = matches!(sealed_in_place, Err(ModelError::Cut { .. }));
            self.expect(rejected, "a range that a tail does not hold is rejected");
        }
        for at in [0, cached, cached + 1] {
            let parts = self.model.split(&segment, at);
            self.expect_cut(parts, "split", at);
        }
        self.expect(slot.tail.tokens() == cached, "the tail is as it was");
        let mut warm: Slot<M> = self.slot_on(0, vec![segment]);
        self.finish_prompt(&mut slot);
        self.finish_prompt(&mut warm);
    }

    fn halves(&mut self, segment: &M::Segment, at: usize) -> [Rc<M::Segment>; 2] {
        let parts = self.model.split(segment, at);
        let (upper, lower) = self.done(parts);
        let segment_sizes: (SegmentSize, SegmentSize) = segment.segment_size().cut(at);
        self.expect_segment_size(&upper, segment_sizes.0);
        self.expect_segment_size(&lower, segment_sizes.1);
        [Rc::new(upper), Rc::new(lower)]
    }

    fn whole(&mut self, upper: &M::Segment, lower: &M::Segment) -> Rc<M::Segment> {
        let merged = self.model.merge(upper, lower);
        let merged = self.done(merged);
        self.expect_segment_size(&merged, upper.segment_size().merged(lower.segment_size()));
        Rc::new(merged)
    }
}

/// Offsets at which cached state of `tokens` tokens is cut.
pub(super) fn cuts(tokens: usize) -> Vec<usize> {
    let mut cuts = vec![1, 2, tokens / 2, tokens - 2, tokens - 1];
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}
