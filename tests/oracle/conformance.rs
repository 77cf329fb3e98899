//! The conformance checks: they pass on the oracle and can fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use motet::TokenId;
use motet::model::oracle::{Oracle, OracleConfig, OracleSegment, OracleTail};
use motet::model::sampling::{Draw, Sampling};
use motet::model::{
    DeviceMemory, Model, ModelError, ModelSpec, Readout, Segment, Span, Tail, Want, conformance,
};

use super::LAYERS;

fn prompts(vocab_size: u32) -> Vec<Vec<TokenId>> {
    let prompt = |seed: u32, tokens: u32| -> Vec<TokenId> {
        (0..tokens)
            .map(|i| (seed + i * i * 7 + i / 3) % vocab_size)
            .collect()
    };
    vec![prompt(1, 13), prompt(0, 6), prompt(4, 22)]
}

fn check<M: Model>(model: &mut M) {
    let vocab_size = model.spec().vocab_size as u32;
    conformance::check(model, &prompts(vocab_size), |found, truth| found == truth);
}

#[test]
fn the_oracle_conforms_with_all_layer_kinds() {
    for layers in LAYERS {
        for (vocab_size, verify) in [(2, true), (40, false)] {
            let config = OracleConfig {
                vocab_size,
                verify,
                end_one_in: 4,
                ..OracleConfig::with_layers(layers)
            };
            let counters = config.counters.clone();
            check(&mut Oracle::new(config).expect("a valid configuration"));
            let counts = counters.now();
            let alive = counts.segments_alive + counts.tails_alive + counts.bytes_alive;
            assert_eq!(alive, 0, "{layers:?}: {counts:?}");
        }
    }
}

/// What is wrong with a [`Broken`] model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    SwapsReadouts,
    MisreadsFives,
    MixesBatches,
    ForgetsOldestSegment,
    SealKeepsState,
    SealTakesAll,
    SwapsHalves,
    ForkForgets,
    ImportDropsState,
    TakesDamage,
    SplitsAnywhere,
    SealsNothing,
    ReadsFirstRow,
}

/// An oracle with one planted bug.
struct Broken {
    oracle: Oracle,
    bug: Bug,
}

impl Model for Broken {
    type Segment = OracleSegment;
    type Tail = OracleTail;

    fn spec(&self) -> &ModelSpec {
        self.oracle.spec()
    }

    fn tail(&mut self, path: &[Rc<OracleSegment>]) -> Result<OracleTail, ModelError> {
        self.oracle.tail(path)
    }

    fn step(&mut self, spans: &mut [Span<'_, Broken>]) -> Result<Vec<Readout>, ModelError> {
        let batched = spans.len() > 1;
        let first_path = spans[0].path;
        let mut inner: Vec<Span<'_, Oracle>> = Vec::new();
        for span in spans.iter_mut() {
            let path = match self.bug {
                Bug::ForgetsOldestSegment if span.path.len() > 2 => &span.path[1..],
                Bug::MixesBatches if first_path.len() == span.path.len() => first_path,
                _ => span.path,
            };
            let want = match (self.bug, &span.want) {
                (Bug::ReadsFirstRow, Want::Token(_)) => Want::Logits,
                (_, want) => want.clone(),
            };
            let tokens = match self.bug {
                Bug::MisreadsFives if span.tokens.len() == 5 => &[0; 5],
                _ => span.tokens,
            };
            inner.push(Span {
                tokens,
                path,
                tail: &mut *span.tail,
                want,
            });
        }
        let mut readouts = self.oracle.step(&mut inner)?;
        if self.bug == Bug::SwapsReadouts && batched {
            readouts.swap(0, 1);
        }
        for (readout, span) in readouts.iter_mut().zip(spans) {
            if let (Want::Token(draw), Readout::Logits(logits)) = (&span.want, &*readout) {
                let first = draw.from_logits(&logits[..self.oracle.spec().vocab_size]);
                *readout = Readout::Token(first);
            }
        }
        Ok(readouts)
    }

    fn seal(&mut self, tail: &mut OracleTail, tokens: usize) -> Result<OracleSegment, ModelError> {
        match self.bug {
            Bug::SealKeepsState => {
                let mut copy = self.oracle.fork(tail, tail.tokens())?;
                self.oracle.seal(&mut copy, tokens)
            }
            Bug::SealTakesAll => self.oracle.seal(tail, tail.tokens()),
            Bug::SealsNothing => self.oracle.seal(tail, tokens.max(1)),
            _ => self.oracle.seal(tail, tokens),
        }
    }

    fn split(
        &mut self,
        segment: &OracleSegment,
        at: usize,
    ) -> Result<(OracleSegment, OracleSegment), ModelError> {
        match self.bug {
            Bug::SwapsHalves => {
                let (left, right) = self.oracle.split(segment, at)?;
                Ok((right, left))
            }
            Bug::SplitsAnywhere => self.oracle.split(segment, at.max(1)),
            _ => self.oracle.split(segment, at),
        }
    }

    fn fork(&mut self, tail: &OracleTail, tokens: usize) -> Result<OracleTail, ModelError> {
        match self.bug {
            Bug::ForkForgets => self.oracle.tail(&[]),
            _ => self.oracle.fork(tail, tokens),
        }
    }

    fn export(&mut self, segment: &OracleSegment) -> Result<Vec<u8>, ModelError> {
        self.oracle.export(segment)
    }

    fn import(&mut self, bytes: &[u8]) -> Result<OracleSegment, ModelError> {
        match (self.bug, self.oracle.import(bytes)) {
            (Bug::TakesDamage, Err(_)) => other_segment(&mut self.oracle, 1),
            (Bug::ImportDropsState, Ok(segment)) => {
                let tokens = segment.tokens();
                other_segment(&mut self.oracle, tokens)
            }
            (_, result) => result,
        }
    }

    fn memory(&self) -> DeviceMemory {
        self.oracle.memory()
    }
}

/// A segment of `tokens` zeroes.
fn other_segment(oracle: &mut Oracle, tokens: usize) -> Result<OracleSegment, ModelError> {
    let mut tail = oracle.tail(&[])?;
    oracle.step(&mut [Span {
        tokens: &vec![0; tokens],
        path: &[],
        tail: &mut tail,
        want: Want::Nothing,
    }])?;
    oracle.seal(&mut tail, tokens)
}

#[test]
fn each_planted_bug_fails_the_check_that_looks_for_it() {
    let cases = [
        (Bug::SwapsReadouts, "batched = solo"),
        (Bug::MisreadsFives, "any chunking gives the same"),
        (Bug::ForgetsOldestSegment, "warm = cold"),
        (Bug::SealKeepsState, "warm = cold"),
        (Bug::SealTakesAll, "seal at any legal offset"),
        (Bug::SwapsHalves, "split at any legal offset"),
        (Bug::ForkForgets, "fork of a tail"),
        (Bug::ImportDropsState, "export, then import"),
        (Bug::TakesDamage, "export, then import"),
        (Bug::MixesBatches, "spans share segments, or have their own"),
        (Bug::SealsNothing, "illegal cuts change nothing"),
        (Bug::SplitsAnywhere, "illegal cuts change nothing"),
        (Bug::ReadsFirstRow, "wants"),
    ];
    for (bug, name) in cases {
        let oracle = Oracle::new(OracleConfig::default()).expect("a valid configuration");
        let mut broken = Broken { oracle, bug };
        let caught = catch_unwind(AssertUnwindSafe(|| check(&mut broken)));
        let payload = caught.expect_err("the checks find the bug");
        let message = payload.downcast_ref::<String>().expect("a message");
        let expected = format!("conformance, {name}: ");
        assert!(message.starts_with(&expected), "{bug:?} gave: {message}");
    }
}

#[test]
fn sampled_tokens_are_those_of_the_logits() {
    let config = OracleConfig::default();
    let mut oracle = Oracle::new(config.clone()).expect("a valid configuration");
    let sampling = Sampling {
        temperature: 0.8,
        top_p: 0.9,
        seed: 5,
        ..Sampling::GREEDY
    };
    let mut tail = oracle.tail(&[]).expect("memory");
    let mut token = 7;
    let truth = config.solo(&[token], 20, sampling);
    for (index, expected) in (0..).zip(truth) {
        let mut spans = [Span {
            tokens: &[token],
            path: &[],
            tail: &mut tail,
            want: Want::Token(Draw { sampling, index }),
        }];
        let readouts = oracle.step(&mut spans).expect("a step");
        assert_eq!(readouts, [Readout::Token(expected)]);
        token = expected;
    }
}
