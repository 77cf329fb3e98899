//! Sequences that outgrow their slot, against what each gives without a cache.

use std::rc::Rc;

use motet::TokenId;
use motet::model::oracle::{Oracle, OracleConfig, OracleSegment, OracleTail, ShiftRule, Soloist};
use motet::model::sampling::{Draw, Sampling};
use motet::model::{Feed, LayerKind, Model, Readout, Segment, Span, Tail, Want};
use proptest::prelude::*;

use super::window;

const OUTPUT: usize = 20;

/// A sequence in a slot of limited length.
struct Runner {
    oracle: Oracle,
    rule: ShiftRule,
    /// What the slot holds.
    tokens: Vec<TokenId>,
    path: Vec<Rc<OracleSegment>>,
    tail: OracleTail,
}

impl Runner {
    fn new(config: &OracleConfig, rule: ShiftRule) -> Runner {
        let mut oracle = Oracle::new(config.clone()).expect("a valid configuration");
        Runner {
            tail: oracle.tail(&[], 0).expect("memory"),
            oracle,
            rule,
            tokens: Vec::new(),
            path: Vec::new(),
        }
    }

    /// Evaluates `tokens` in chunks and draws what follows the last.
    fn feed(&mut self, tokens: &[TokenId], chunk: usize, index: u64) -> TokenId {
        let mut rest = tokens;
        let mut drawn = None;
        while !rest.is_empty() {
            if self.tokens.len() == self.rule.context_tokens {
                self.shift();
            }
            let room = self.rule.context_tokens - self.tokens.len();
            let (span, later) = rest.split_at(chunk.min(room).min(rest.len()));
            drawn = Some(self.step(span, index));
            rest = later;
        }
        drawn.expect("something was fed")
    }

    fn step(&mut self, tokens: &[TokenId], index: u64) -> TokenId {
        self.tokens.extend(tokens);
        let sampling = Sampling::GREEDY;
        let readouts = self.oracle.step(&mut [Span {
            tokens: Feed::Known(tokens),
            path: &self.path,
            tail: &mut self.tail,
            want: Want::Token(Draw { sampling, index }),
        }]);
        match readouts.expect("a step")[..] {
            [Readout::Token(token)] => token,
            ref readouts => panic!("no token but {readouts:?}"),
        }
    }

    fn shift(&mut self) {
        let ShiftRule { keep, .. } = self.rule;
        let removed = keep..keep + self.rule.discarded();
        self.tokens.drain(removed.clone());
        let spec = self.oracle.spec();
        if spec.resumes_anywhere() && spec.can_shift {
            let mut kept_tokens = 0;
            let kept = self.path.iter().take_while(|segment| {
                kept_tokens += segment.tokens();
                kept_tokens <= keep
            });
            let kept = kept.count();
            (self.oracle)
                .remove(&self.path, kept, &mut self.tail, removed)
                .expect("a legal removal");
            self.path.truncate(kept);
            return;
        }
        self.path.clear();
        self.tail = self.oracle.tail(&[], 0).expect("memory");
        let tokens = std::mem::take(&mut self.tokens);
        for span in tokens.chunks(3) {
            self.step(span, 0);
        }
    }

    fn seal(&mut self, tokens: usize) {
        let tokens = tokens.min(self.tail.tokens());
        if tokens > 0 {
            let segment = self.oracle.seal(&mut self.tail, tokens).expect("inside");
            self.path.push(Rc::new(segment));
        }
    }
}

fn kinds() -> impl Strategy<Value = Vec<LayerKind>> {
    prop_oneof![
        Just(vec![LayerKind::Full]),
        Just(vec![LayerKind::Full; 3]),
        Just(vec![LayerKind::Full, window(3)]),
        Just(vec![LayerKind::Recurrent, LayerKind::Full]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn a_shifting_sequence_gives_what_it_gives_alone(
        layers in kinds(),
        can_shift in any::<bool>(),
        context_tokens in 1..30usize,
        keep in 0..30usize,
        prompt in prop::collection::vec(0..40u32, 1..60),
        chunk in 1..20usize,
        seals in prop::collection::vec(0..6usize, OUTPUT),
    ) {
        let rule = ShiftRule { context_tokens, keep: keep % context_tokens };
        let config = OracleConfig { can_shift, vocab_size: 40, ..OracleConfig::with_layers(&layers) };
        let truth = config.solo_shifting(&prompt, OUTPUT, Sampling::GREEDY, rule);
        let mut runner = Runner::new(&config, rule);
        let mut output = vec![runner.feed(&prompt, chunk, 0)];
        for (index, seal) in (1..OUTPUT).zip(seals) {
            runner.seal(seal);
            let last = output[index - 1];
            output.push(runner.feed(&[last], 1, index as u64));
        }
        prop_assert_eq!(output, truth);
    }
}

#[test]
fn without_need_nothing_shifts() {
    let config = OracleConfig::default();
    let rule = ShiftRule {
        context_tokens: 9,
        keep: 2,
    };
    let solo = |prompt: &[TokenId]| config.solo(prompt, 8, Sampling::GREEDY);
    let shifting = |prompt: &[TokenId]| config.solo_shifting(prompt, 8, Sampling::GREEDY, rule);
    // The last token that is drawn is not evaluated any more.
    assert_eq!(solo(&[1, 2]), shifting(&[1, 2]));
    assert_ne!(solo(&[1, 2, 3, 4, 5]), shifting(&[1, 2, 3, 4, 5]));
}

#[test]
fn a_shift_discards_half_of_what_is_not_kept() {
    for (context_tokens, keep, discarded) in [(10, 0, 5), (10, 3, 3), (10, 9, 1), (1, 0, 1)] {
        let rule = ShiftRule {
            context_tokens,
            keep,
        };
        assert_eq!(rule.discarded(), discarded, "{rule:?}");
    }
}

/// What was moved is neither what it was nor what the shorter text would give.
#[test]
fn shifted_state_is_an_approximation_that_shows() {
    let config = OracleConfig::default();
    let logits = |soloist: &mut Soloist| {
        let mut logits = Vec::new();
        soloist.evaluate(9);
        soloist.push_logits(&mut logits);
        logits
    };
    let evaluated = |tokens: &[TokenId]| {
        let mut soloist = Soloist::new(&config);
        tokens.iter().for_each(|token| soloist.evaluate(*token));
        soloist
    };
    let mut shifted = evaluated(&[1, 2, 3, 4, 5]);
    shifted.remove(1..3);
    let mut truncated = evaluated(&[1, 2, 3, 4, 5]);
    truncated.remove(3..5);
    let shifted = logits(&mut shifted);
    assert_ne!(shifted, logits(&mut evaluated(&[1, 4, 5])));
    assert_ne!(shifted, logits(&mut truncated));
}
