//! What every [`Model`] must do, as checks that run on any implementation.
//!
//! The truth is one prefill of each prompt, alone and without a cache; every
//! other way to the same rows must give the same logits. Run it in the tests of
//! each model with a comparison that is as strict as the model allows.
//!
//! ```
//! use motet::model::conformance;
//! use motet::model::oracle::{Oracle, OracleConfig};
//!
//! let mut oracle = Oracle::new(OracleConfig::default())?;
//! let prompts = [vec![3, 1, 4, 1, 5, 9], vec![2, 7, 1, 8, 2, 8, 1, 8]];
//! conformance::check(&mut oracle, &prompts, |a, b| a == b);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checker;

use std::rc::Rc;

use super::sampling::{Draw, Sampling};
use super::{Model, ModelError, Readout, Segment, Tail, Want};
use crate::TokenId;
use checker::{Checker, Slot};

/// Fewest tokens of a prompt that leave every check something to cut.
const PROMPT_TOKENS_MIN: usize = 6;

/// Checks that `model` keeps the contract of [`Model`], and that its logits
/// depend on a sequence's tokens only: not on the batch, the chunks, the cuts,
/// the forks, nor on a way through host memory.
///
/// `prompts` are at least two, of at least six tokens each, that differ early on;
/// some lengths should be beyond a window and off the multiples of the tail's
/// block. The model must hold all their state and that of as many again, each
/// longer by half of the first prompt. `same` compares one row of logits: what
/// was found, then the truth.
///
/// # Panics
///
/// When a check fails; the message names it.
pub fn check<M: Model>(
    model: &mut M,
    prompts: &[Vec<TokenId>],
    same: impl Fn(&[f32], &[f32]) -> bool,
) {
    assert!(
        prompts.len() >= 2 && prompts.iter().all(|p| p.len() >= PROMPT_TOKENS_MIN),
        "conformance: expected two prompts or more of {PROMPT_TOKENS_MIN} tokens or more"
    );
    let mut checker = Checker::new(model, prompts, &same);
    checker.run("batched = solo", Checker::batched);
    checker.run("any chunking gives the same", Checker::chunked);
    checker.run("warm = cold", Checker::warm);
    checker.run("seal at any legal offset", Checker::sealed);
    checker.run("split at any legal offset", Checker::split);
    checker.run("fork of a tail", Checker::forked);
    checker.run("export, then import", Checker::exported);
    checker.run("spans share segments, or have their own", Checker::shared);
    checker.run("illegal cuts change nothing", Checker::illegal);
    checker.run("wants", Checker::wants);
}

impl<M: Model> Checker<'_, M> {
    fn batched(&mut self) {
        let mut slots: Vec<Slot<M>> = (0..self.prompts.len()).map(|p| self.cold(p)).collect();
        self.advance_raggedly(&mut slots);
        let mut slots: Vec<Slot<M>> = (0..self.prompts.len())
            .rev()
            .map(|p| self.cold(p))
            .collect();
        self.advance_raggedly(&mut slots);
    }

    fn chunked(&mut self) {
        for prompt in 0..self.given {
            for chunk in [1, 2, 3, 5, self.prompts[prompt].len() - 1] {
                let mut slot = self.cold(prompt);
                while self.left(&slot) > 0 {
                    self.advance(&mut slot, chunk);
                }
            }
        }
    }

    fn warm(&mut self) {
        for prompt in 0..self.given {
            for piece in [1, 4, self.prompts[prompt].len() - 1] {
                let mut slot = self.cold(prompt);
                while self.left(&slot) > piece {
                    self.advance(&mut slot, piece);
                    self.seal(&mut slot, piece);
                }
                for segments in [1, slot.path.len() / 2, slot.path.len()] {
                    let mut warm = self.on(prompt, slot.path[..segments].to_vec());
                    self.finish(&mut warm);
                }
                self.finish(&mut slot);
            }
        }
    }

    fn sealed(&mut self) {
        for prompt in 0..self.given {
            let cached = self.prompts[prompt].len() - 1;
            for at in self.cuts(cached).into_iter().chain([cached]) {
                let mut slot = self.cold(prompt);
                self.advance(&mut slot, cached);
                self.seal(&mut slot, at);
                self.expect(slot.tail.tokens() == cached - at, "the tail keeps the rest");
                let mut warm = self.on(prompt, slot.path.clone());
                self.finish(&mut slot);
                self.finish(&mut warm);
            }
        }
    }

    fn split(&mut self) {
        for prompt in 0..self.given {
            let cached = self.prompts[prompt].len() - 1;
            let segment = self.segment(prompt, cached);
            for at in self.cuts(cached) {
                let parts = self.model.split(&segment, at);
                let (left, right) = self.done(parts);
                self.expect_tokens(&left, at);
                self.expect_tokens(&right, cached - at);
                let mut halves = self.on(prompt, vec![Rc::new(left), Rc::new(right)]);
                self.finish(&mut halves);
            }
            let mut whole = self.on(prompt, vec![segment]);
            self.finish(&mut whole);
        }
    }

    fn forked(&mut self) {
        for prompt in 0..self.given {
            let cached = self.prompts[prompt].len() - 2;
            for at in self.cuts(cached).into_iter().chain([cached]) {
                let first = self.segment(prompt, 1);
                let mut slot = self.on(prompt, vec![first]);
                self.advance(&mut slot, cached);
                let mut forks: Vec<Slot<M>> = (0..2).map(|_| self.fork(&slot, at)).collect();
                self.expect(forks[0].tail.tokens() == at, "a fork holds what was asked");
                // One fork goes another way, which must not show in the others.
                let prompts = Rc::clone(&self.prompts);
                let stray = &prompts[(prompt + 1) % self.given];
                self.step(&mut [(&mut forks[0], stray)]);
                self.finish(&mut forks[1]);
                self.finish(&mut slot);
            }
        }
    }

    fn exported(&mut self) {
        for prompt in 0..self.given {
            let segment = self.segment(prompt, self.prompts[prompt].len() - 1);
            let bytes = self.model.export(&segment);
            let bytes = self.done(bytes);
            let copy = self.model.import(&bytes);
            let copy = Rc::new(self.done(copy));
            self.expect_tokens(&copy, segment.tokens());
            let again = self.model.export(&copy);
            self.expect(self.done(again) == bytes, "the copy exports the same bytes");
            for path in [copy, segment] {
                let mut warm = self.on(prompt, vec![path]);
                self.finish(&mut warm);
            }
            let mut damaged = bytes.clone();
            damaged[bytes.len() / 2] ^= 1;
            for bad in [&damaged[..], &bytes[..bytes.len() - 1], &bytes[..9], &[]] {
                let refused = matches!(self.model.import(bad), Err(ModelError::Import(_)));
                self.expect(refused, "damaged bytes are refused as ModelError::Import");
            }
        }
    }

    /// Given prompts have segments of their own, the family shares one, and two
    /// slots share a deeper path: all in the same steps.
    fn shared(&mut self) {
        let half = self.prompts[0].len() / 2;
        let first = self.segment(0, half);
        let mut slots = Vec::new();
        for prompt in 0..self.prompts.len() {
            let path = if prompt < self.given {
                let own = half.min(self.prompts[prompt].len() - 1);
                self.segment(prompt, own)
            } else {
                Rc::clone(&first)
            };
            slots.push(self.on(prompt, vec![path]));
        }
        let mut deeper = self.on(0, vec![first]);
        self.advance(&mut deeper, 2);
        self.seal(&mut deeper, 2);
        let twin = self.on(0, deeper.path.clone());
        slots.extend([deeper, twin]);
        self.advance_raggedly(&mut slots);
    }

    fn illegal(&mut self) {
        let cached = self.prompts[0].len() - 1;
        let segment = self.segment(0, cached);
        let mut slot = self.cold(0);
        self.advance(&mut slot, cached);
        let mut within = Vec::new();
        if !self.model.spec().resumes_anywhere() {
            within.extend([1, cached / 2, cached - 1]);
        }
        for &at in within.iter().chain([&0, &(cached + 1)]) {
            let sealed = self.model.seal(&mut slot.tail, at);
            self.expect_cut(sealed, "seal", at);
        }
        for &at in within.iter().chain([&(cached + 1)]) {
            let forked = self.model.fork(&slot.tail, at);
            self.expect_cut(forked, "fork", at);
        }
        for &at in within.iter().chain([&0, &cached, &(cached + 1)]) {
            let parts = self.model.split(&segment, at);
            self.expect_cut(parts, "split", at);
        }
        self.expect(slot.tail.tokens() == cached, "the tail is as it was");
        let mut warm = self.on(0, vec![segment]);
        self.finish(&mut slot);
        self.finish(&mut warm);
    }

    fn wants(&mut self) {
        let greedy = Draw {
            sampling: Sampling::GREEDY,
            index: 0,
        };
        for prompt in 0..self.given {
            let mut slot = self.cold(prompt);
            let prompts = Rc::clone(&self.prompts);
            let (start, rest) = prompts[prompt].split_at(2);
            let readouts = self.step_wanting(&mut [(&mut slot, start)], &Want::Nothing);
            self.expect(readouts == [Readout::Nothing], "nothing comes of nothing");
            let readouts = self.step_wanting(&mut [(&mut slot, rest)], &Want::Token(greedy));
            let last = &self.truths[prompt][(prompts[prompt].len() - 1) * self.row_len()..];
            let expected = [Readout::Token(greedy.from_logits(last))];
            self.expect(readouts == expected, "a greedy token is the likeliest");
        }
    }
}
