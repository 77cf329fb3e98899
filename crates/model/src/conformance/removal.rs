//! Checks of removal: truncation and shifting.

use std::ops::Range;
use std::rc::Rc;

use super::checker::{Checker, Slot};
use super::cuts::cuts;
use crate::{Model, Segment, Tail};
use motet_protocol::ModelError;
use motet_protocol::TokenId;

impl<M: Model> Checker<'_, M> {
    /// After its end is removed, a slot is as if the removed tokens had never been.
    pub(super) fn truncated(&mut self) {
        if !self.model.spec().resumes_anywhere() {
            return;
        }
        for prompt in 0..self.given {
            let cached = self.prompts[prompt].len() - 1;
            for from in cuts(cached).into_iter().chain([0, cached]) {
                for layout in layouts(cached) {
                    for retained in retained_counts(&layout, from) {
                        let mut slot = self.slot_with_layout(prompt, cached, &layout);
                        let before = slot.path.clone();
                        self.remove(&mut slot, retained, from..cached);
                        self.finish_prompt(&mut slot);
                        self.resume(prompt, &before);
                    }
                }
            }
        }
    }

    /// The same removal gives the same state whatever the slot's layout, in one step or in two,
    /// and sealed afterwards or not.
    pub(super) fn shifted(&mut self) {
        let spec = self.model.spec();
        if !spec.resumes_anywhere() || !spec.can_shift {
            return;
        }
        for prompt in 0..self.given {
            let cached = self.prompts[prompt].len() - 1;
            for removed in [0..1, 1..3, cached / 3..cached / 2 + 1, 0..cached - 1] {
                let mut slot = self.slot_with_layout(prompt, cached, &[]);
                self.remove(&mut slot, 0, removed.clone());
                let expected = self.continued_logits(&mut slot);
                self.same_in_two_steps(prompt, cached, &removed, &expected);
                for layout in layouts(cached) {
                    for retained in retained_counts(&layout, removed.start) {
                        let mut slot = self.slot_with_layout(prompt, cached, &layout);
                        let before = slot.path.clone();
                        self.remove(&mut slot, retained, removed.clone());
                        self.same_when_sealed(&mut slot, &expected);
                        self.resume(prompt, &before);
                    }
                }
            }
        }
    }

    fn same_in_two_steps(
        &mut self,
        prompt: usize,
        cached: usize,
        removed: &Range<usize>,
        expected: &[f32],
    ) {
        let mut slot = self.slot_with_layout(prompt, cached, &[cached / 2]);
        let first = removed.len() / 2;
        for tokens in [first, removed.len() - first] {
            self.remove(&mut slot, 0, removed.start..removed.start + tokens);
        }
        let found = self.continued_logits(&mut slot);
        self.expect_same(&found, expected, "two removals equal one");
    }

    fn same_when_sealed(&mut self, slot: &mut Slot<M>, expected: &[f32]) {
        let tokens = slot.tail.tokens();
        if tokens > 1 {
            self.seal(slot, tokens / 2);
        }
        let found = self.continued_logits(slot);
        let what = format!("prompt {}: a shift depends on the layout", slot.prompt);
        self.expect_same(&found, expected, &what);
    }

    pub(super) fn invalid_removals(&mut self) {
        let cached = self.prompts[0].len() - 1;
        let middle = cached / 2;
        let mut slot = self.slot_with_layout(0, cached, &[middle]);
        let mut invalid = vec![
            (0, 0..cached + 1),
            (2, cached..cached),
            (1, middle - 1..cached),
            (
                0,
                Range {
                    start: cached,
                    end: middle,
                },
            ),
        ];
        let spec = self.model.spec();
        if !spec.resumes_anywhere() {
            invalid.push((1, cached - 1..cached));
        }
        if !spec.can_shift {
            invalid.push((0, 0..1));
        }
        for (retained, removed) in invalid {
            let what = format!("{removed:?} is rejected as ModelError::Remove");
            let result = (self.model).remove(&slot.path, retained, &mut slot.tail, removed);
            let rejected = matches!(result, Err(ModelError::Remove { .. }));
            self.expect(rejected, &what);
        }
        let is_unchanged = slot.tail.tokens() == cached - middle;
        self.expect(is_unchanged, "the tail is as it was");
        self.finish_prompt(&mut slot);
    }

    /// A slot of the prompt's first `tokens` tokens, sealed at the offsets `layout`.
    fn slot_with_layout(&mut self, prompt: usize, tokens: usize, layout: &[usize]) -> Slot<M> {
        let mut slot = self.cold_slot(prompt);
        self.advance(&mut slot, tokens);
        let mut sealed = 0;
        for end in layout {
            self.seal(&mut slot, end - sealed);
            sealed = *end;
        }
        slot
    }

    fn remove(&mut self, slot: &mut Slot<M>, retained: usize, removed: Range<usize>) {
        let held = |slot: &Slot<M>| -> usize {
            let sealed: usize = slot.path.iter().map(|segment| segment.tokens()).sum();
            sealed + slot.tail.tokens()
        };
        let before = held(slot);
        let result = (self.model).remove(&slot.path, retained, &mut slot.tail, removed.clone());
        self.done(result);
        slot.path.truncate(retained);
        let is_shorter = held(slot) == before - removed.len();
        self.expect(is_shorter, "the tail holds the remaining tokens");
    }

    /// Logits of the following tokens, in two steps.
    fn continued_logits(&mut self, slot: &mut Slot<M>) -> Vec<f32> {
        let prompts = Rc::clone(&self.prompts);
        let next: &[TokenId] = &prompts[(slot.prompt + 1) % self.given][..4];
        let (first, rest) = next.split_at(1);
        let mut logits = self.step(&mut [(slot, first)]).remove(0);
        logits.append(&mut self.step(&mut [(slot, rest)]).remove(0));
        logits
    }
}

/// Offsets at which a slot of `tokens` tokens may be sealed: none (all of it in the tail), some,
/// and all of it.
fn layouts(tokens: usize) -> [Vec<usize>; 3] {
    [
        vec![],
        vec![1, tokens / 2],
        vec![tokens / 3, tokens * 2 / 3, tokens],
    ]
}

/// Possible numbers of segments that stay when tokens from offset `from` on are removed: none,
/// and as many as can.
fn retained_counts(layout: &[usize], from: usize) -> Vec<usize> {
    let most = layout.iter().filter(|end| **end <= from).count();
    let mut retained = vec![0, most];
    retained.dedup();
    retained
}
