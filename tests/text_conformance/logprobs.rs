//! Log probabilities.

use std::sync::Arc;

use motet::TokenId;
use motet::request::{Sampling, TokenLogprobs};
use motet_model::sampling::{SampleInputs, Sampler, SamplingSpec, TokenSampling, logprobs_of};

use crate::cases::Fact;
use crate::check::Check;
use crate::suites::Known;
use crate::{close, float, floats};

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "sample.logprobs",
        own_cases: 2,
        beside: &[],
        shapes: &[
            (&["rows"], logprobs_by_row),
            (&["logits", "k"], top_tokens_are_ordered),
        ],
    },
    Known {
        suite: "logprobs.from_logits",
        own_cases: 10,
        beside: &[],
        shapes: &[(&["logits", "selected", "top_k"], from_logits)],
    },
];

/// Greedy inputs that give log probabilities.
fn sample_inputs(top: usize) -> SampleInputs {
    let spec = SamplingSpec {
        logprobs: Some(top),
        ..SamplingSpec::default()
    };
    let sampling = Sampling::GREEDY;
    let mut sampler = Sampler::new(Arc::new(spec), sampling, &[], &[]);
    let sample_inputs = sampler.sample_inputs(TokenSampling {
        sampling,
        position: 0,
    });
    sample_inputs.expect("there is no grammar")
}

fn logprobs_by_row(check: &mut Check, fact: &Fact<'_>) {
    check.prose(
        &fact.get("expect"),
        "each row equals its single-slot logprob (1e-5)",
    );
    let rows: Vec<Vec<f32>> = fact.get("rows").items().iter().map(floats).collect();
    let inputs: Vec<SampleInputs> = rows.iter().map(|_| sample_inputs(0)).collect();
    for (sample_inputs, row) in inputs.iter().zip(&rows) {
        let sampled = sample_inputs.from_logits(row);
        let single = logprobs_of(row, sampled.token, 0);
        check.same("log probability", sampled.logprobs, single);
    }
}

fn top_tokens_are_ordered(check: &mut Check, fact: &Fact<'_>) {
    let sampled = sample_inputs(fact.get("k").number()).from_logits(&floats(&fact.get("logits")));
    let top = sampled.logprobs.expect("wanted").top;
    let order: Vec<TokenId> = top.iter().map(|(token, _)| *token).collect();
    check.same("order", order, fact.get("expect_order").tokens());
}

fn from_logits(check: &mut Check, fact: &Fact<'_>) {
    let logits = floats(&fact.get("logits"));
    let (selected, top) = (fact.get("selected").number(), fact.get("top_k").number());
    let found = logprobs_of(&logits, selected as TokenId, top);
    let expect = fact.get("expect");
    if let Some(results) = expect.maybe("results") {
        check.same("results", usize::from(found.is_some()), results.number());
    }
    let derived = fact
        .maybe("derived_logprobs")
        .map(|derived| derived.items());
    let Some(found) = found else {
        assert!(logits.is_empty(), "every row has its log probabilities");
        return;
    };
    let all = (0..logits.len() as TokenId)
        .map(|token| logprobs_of(&logits, token, 0).expect("of the row").logprob);
    let all: Vec<f32> = all.collect();
    if let Some(derived) = derived {
        check.same("numbers", all.len(), derived.len());
        for (logprob, expected) in all.iter().zip(&derived) {
            let logprob = f64::from(*logprob);
            close(check, "log probability", logprob, expected, 2e-6);
        }
    }
    let sorted = top.min(logits.len());
    let tolerance = expect.maybe("tolerance");
    let tolerance = tolerance.map_or(1e-5, |near| float(&near));
    let found = RowLogprobs {
        logprobs: found,
        all,
        selected: selected as TokenId,
        sorted,
        tolerance,
    };
    for (field, expected) in expect.fields() {
        found.compare(check, field, &expected);
    }
}

/// The results for a row.
struct RowLogprobs {
    logprobs: TokenLogprobs,
    /// The log probability of each token.
    all: Vec<f32>,
    selected: TokenId,
    /// Number of likeliest tokens expected.
    sorted: usize,
    tolerance: f64,
}

impl RowLogprobs {
    fn compare(&self, check: &Check, field: &str, expected: &Fact<'_>) {
        let (found, all) = (&self.logprobs, &self.all);
        let probability = |logprob: &f32| f64::from(*logprob).exp();
        let flag = |motet: bool| check.same(field, motet, expected.flag());
        match field {
            "results" | "tolerance" => {}
            "top" => check.same(field, found.top.len(), expected.number()),
            "derived_selected_logprob" => {
                close(check, field, f64::from(found.logprob), expected, 2e-6);
            }
            "all_finite" => flag(all.iter().all(|logprob| logprob.is_finite())),
            "top_descending" => {
                let descends = found.top.is_sorted_by(|a, b| a.1 >= b.1);
                flag(found.top.len() == self.sorted && descends);
            }
            "probability" => all
                .iter()
                .for_each(|logprob| close(check, field, probability(logprob), expected, 1e-6)),
            "le_zero" => flag(all.iter().all(|logprob| *logprob <= 0.0)),
            "selected_in_top_with_equal_value" => {
                flag(found.top.contains(&(self.selected, found.logprob)));
            }
            "sum_of_probabilities" => {
                let sum = all.iter().map(probability).sum();
                close(check, field, sum, expected, self.tolerance);
            }
            "argmax_of_probability" => {
                let most = (0..all.len()).max_by(|a, b| all[*a].total_cmp(&all[*b]));
                check.same(field, most, Some(expected.number()));
            }
            _ => panic!("the field `expect.{field}` is not known here"),
        }
    }
}
