//! Log probabilities.

use std::sync::Arc;

use motet::TokenId;
use motet::model::sampling::{Draw, DrawSpec, Drawer, Drawing, Sampling, TokenLogprobs};

use crate::cases::Fact;
use crate::check::Check;
use crate::{Known, close, floats};

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "sample.logprobs",
        fields: &["rows", "expect", "logits", "k", "expect_order"],
        cases: &[("BatchedPerRow", of_each_row), ("TopKOrdering", orders)],
    },
    Known {
        suite: "logprobs.from_logits",
        fields: &[
            "logits",
            "selected",
            "top_k",
            "expect",
            "derived_logprobs",
            "results",
            "top",
            "derived_selected_logprob",
            "all_finite",
            "top_descending",
            "probability",
            "le_zero",
            "selected_in_top_with_equal_value",
            "sum_of_probabilities",
            "tolerance",
            "argmax_of_probability",
        ],
        cases: &[
            ("Empty logits", from_logits),
            ("Single token without top logprobs", from_logits),
            ("NumericalStability", from_logits),
            ("Uniform logits", from_logits),
            ("Negative logits", from_logits),
            ("Mixed logits", from_logits),
            ("softmax sums to 1: Large differences", from_logits),
            ("softmax sums to 1: All equal", from_logits),
            ("softmax sums to 1: Very small values", from_logits),
            ("SelectedTokenCorrectness", from_logits),
        ],
    },
];

/// A greedy draw that gives log probabilities.
fn drawing(top: usize) -> Drawing {
    let spec = DrawSpec {
        logprobs: Some(top),
        ..DrawSpec::default()
    };
    let sampling = Sampling::GREEDY;
    let mut drawer = Drawer::new(Arc::new(spec), sampling, &[], &[]);
    let drawing = drawer.drawing(Draw { sampling, index: 0 });
    drawing.expect("there is no grammar")
}

fn of_each_row(check: &mut Check, fact: &Fact<'_>) {
    check.prose(
        &fact.get("expect"),
        "each row equals its single-slot logprob (1e-5)",
    );
    let rows: Vec<Vec<f32>> = fact.get("rows").items().iter().map(floats).collect();
    let drawings: Vec<Drawing> = rows.iter().map(|_| drawing(0)).collect();
    for (drawing, row) in drawings.iter().zip(&rows) {
        let drawn = drawing.from_logits(row);
        let alone = TokenLogprobs::from_logits(row, drawn.token, 0);
        check.same("log probability", drawn.logprobs, alone);
    }
}

fn orders(check: &mut Check, fact: &Fact<'_>) {
    let drawn = drawing(fact.get("k").number()).from_logits(&floats(&fact.get("logits")));
    let top = drawn.logprobs.expect("wanted").top;
    let order: Vec<TokenId> = top.iter().map(|(token, _)| *token).collect();
    check.same("order", order, fact.get("expect_order").tokens());
}

fn from_logits(check: &mut Check, fact: &Fact<'_>) {
    let logits = floats(&fact.get("logits"));
    let (selected, top) = (fact.get("selected").number(), fact.get("top_k").number());
    let found = TokenLogprobs::from_logits(&logits, selected as TokenId, top);
    let expect = fact.get("expect");
    if let Some(results) = expect.maybe("results") {
        check.same("results", usize::from(found.is_some()), results.number());
    }
    let Some(found) = found else {
        assert!(logits.is_empty(), "every row has its log probabilities");
        return;
    };
    let all = (0..logits.len() as TokenId).map(|token| {
        TokenLogprobs::from_logits(&logits, token, 0)
            .expect("of the row")
            .logprob
    });
    let all: Vec<f32> = all.collect();
    let expected = fact.get("derived_logprobs").items();
    check.same("numbers", all.len(), expected.len());
    for (logprob, expected) in all.iter().zip(&expected) {
        close(
            check,
            "log probability",
            f64::from(*logprob),
            expected,
            2e-6,
        );
    }
    for (field, expected) in expect.fields() {
        compare(check, &logits, &found, &all, selected, field, &expected);
    }
}

fn compare(
    check: &Check,
    logits: &[f32],
    found: &TokenLogprobs,
    all: &[f32],
    selected: usize,
    field: &str,
    expected: &Fact<'_>,
) {
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
            flag(found.top.len() == logits.len() && found.top.is_sorted_by(|a, b| a.1 >= b.1))
        }
        "probability" => all
            .iter()
            .for_each(|logprob| close(check, field, probability(logprob), expected, 1e-6)),
        "le_zero" => flag(all.iter().all(|logprob| *logprob <= 0.0)),
        "selected_in_top_with_equal_value" => {
            flag(found.top.contains(&(selected as TokenId, found.logprob)));
        }
        "sum_of_probabilities" => {
            close(
                check,
                field,
                all.iter().map(probability).sum(),
                expected,
                1e-5,
            );
        }
        "argmax_of_probability" => {
            let most = (0..all.len()).max_by(|a, b| all[*a].total_cmp(&all[*b]));
            check.same(field, most, Some(expected.number()));
        }
        _ => panic!("{field}: is not known here"),
    }
}
