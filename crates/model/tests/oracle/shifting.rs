//! Sequences that outgrow their slot, compared with their output without a cache.

use std::rc::Rc;

use motet_model::oracle::{
    Oracle, OracleConfig, OracleSegment, OracleTail, ReferenceRun, ShiftRule,
};
use motet_model::sampling::{Sampling, TokenSampling};
use motet_model::{LayerKind, Model, OutputKind, Segment, Span, SpanOutput, Tail, TokenSource};
use motet_protocol::TokenId;
use proptest::prelude::*;

use super::window;

const OUTPUT: usize = 20;

/// A sequence in a slot of limited length.
struct Runner {
    oracle: Oracle,
    rule: ShiftRule,
    /// Tokens of the slot.
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

    /// Evaluates `tokens` in chunks and samples the token after the last.
    fn evaluate(&mut self, tokens: &[TokenId], chunk: usize, position: u64) -> TokenId {
        let mut rest = tokens;
        let mut last_token = None;
        while !rest.is_empty() {
            if self.tokens.len() == self.rule.context_tokens {
                self.shift();
            }
            let headroom = self.rule.context_tokens - self.tokens.len();
            let (span, remaining) = rest.split_at(chunk.min(headroom).min(rest.len()));
            last_token = Some(self.step(span, position));
            rest = remaining;
        }
        last_token.expect("there is a token to evaluate")
    }

    fn step(&mut self, tokens: &[TokenId], position: u64) -> TokenId {
        self.tokens.extend(tokens);
        let sampling = Sampling::GREEDY;
        let span_outputs = self.oracle.step(&mut [Span {
            tokens: TokenSource::Known(tokens),
            path: &self.path,
            tail: &mut self.tail,
            output_kind: OutputKind::Token(TokenSampling { sampling, position }),
        }]);
        match span_outputs.expect("a step")[..] {
            [SpanOutput::Token(token)] => token,
            ref span_outputs => panic!("expected one token, got {span_outputs:?}"),
        }
    }

    fn shift(&mut self) {
        let ShiftRule { keep, .. } = self.rule;
        let removed = keep..keep + self.rule.discarded();
        self.tokens.drain(removed.clone());
        let spec = self.oracle.spec();
        if spec.resumes_anywhere() && spec.can_shift {
            let mut retained_tokens = 0;
            let retained = self.path.iter().take_while(|segment| {
                retained_tokens += segment.tokens();
                retained_tokens <= keep
            });
            let retained = retained.count();
            (self.oracle)
                .remove(&self.path, retained, &mut self.tail, removed)
                .expect("a valid removal");
            self.path.truncate(retained);
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
    fn shifting_sequence_matches_its_reference_run(
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
        let expected = config.reference_tokens_with_shifts(&prompt, OUTPUT, Sampling::GREEDY, rule);
        let mut runner = Runner::new(&config, rule);
        let mut output = vec![runner.evaluate(&prompt, chunk, 0)];
        for (index, seal) in (1..OUTPUT).zip(seals) {
            runner.seal(seal);
            let last = output[index - 1];
            output.push(runner.evaluate(&[last], 1, index as u64));
        }
        prop_assert_eq!(output, expected);
    }
}

#[test]
fn sequence_that_fits_does_not_shift() {
    let config = OracleConfig::default();
    let rule = ShiftRule {
        context_tokens: 9,
        keep: 2,
    };
    let reference_tokens =
        |prompt: &[TokenId]| config.reference_tokens(prompt, 8, Sampling::GREEDY);
    let with_shifts =
        |prompt: &[TokenId]| config.reference_tokens_with_shifts(prompt, 8, Sampling::GREEDY, rule);
    // The last sampled token is not evaluated any more.
    assert_eq!(reference_tokens(&[1, 2]), with_shifts(&[1, 2]));
    assert_ne!(
        reference_tokens(&[1, 2, 3, 4, 5]),
        with_shifts(&[1, 2, 3, 4, 5])
    );
}

#[test]
fn shift_discards_half_of_the_tokens_after_keep() {
    for (context_tokens, keep, discarded) in [(10, 0, 5), (10, 3, 3), (10, 9, 1), (1, 0, 1)] {
        let rule = ShiftRule {
            context_tokens,
            keep,
        };
        assert_eq!(rule.discarded(), discarded, "{rule:?}");
    }
}

/// Moved state is neither the old state nor the state of the shorter text.
#[test]
fn shifted_state_is_a_visible_approximation() {
    let config = OracleConfig::default();
    let logits = |reference_run: &mut ReferenceRun| {
        let mut logits = Vec::new();
        reference_run.evaluate(9);
        reference_run.push_logits(&mut logits);
        logits
    };
    let evaluated = |tokens: &[TokenId]| {
        let mut reference_run = ReferenceRun::new(&config);
        tokens
            .iter()
            .for_each(|token| reference_run.evaluate(*token));
        reference_run
    };
    let mut shifted = evaluated(&[1, 2, 3, 4, 5]);
    shifted.remove(1..3);
    let mut truncated = evaluated(&[1, 2, 3, 4, 5]);
    truncated.remove(3..5);
    let shifted = logits(&mut shifted);
    assert_ne!(shifted, logits(&mut evaluated(&[1, 4, 5])));
    assert_ne!(shifted, logits(&mut truncated));
}
