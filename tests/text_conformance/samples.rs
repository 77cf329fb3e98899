//! Sampling one token from one row, alone and beside others.

use std::collections::BTreeMap;
use std::sync::Arc;

use motet::TokenId;
use motet::request::Sampling;
use motet_model::sampling::{Sampler, SamplingSpec, TokenSampling, probabilities, sample_row};

use crate::cases::Fact;
use crate::check::Check;
use crate::suites::Known;
use crate::{close, float, floats};

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "sample.single_slot",
        own_cases: 6,
        beside: &[],
        shapes: &[
            (&["opts", "priors", "logits"], sampled_token),
            (&["opts", "priors", "probs"], sampled_token),
        ],
    },
    Known {
        suite: "sample.batched_equals_single",
        own_cases: 3,
        beside: &[],
        shapes: &[(&["slots", "sample", "rows"], sampled_together)],
    },
    Known {
        suite: "sample.transforms",
        own_cases: 8,
        beside: &[],
        shapes: &[
            (&["in", "t"], divides),
            (&["in", "k"], keeps_the_likeliest),
            (&["in", "p"], keeps_the_likely),
            (&["in"], normalises),
            (&["p"], keeps_a_nucleus),
        ],
    },
];

/// Settings under ollama's names. A missing temperature is 0, as there.
pub(crate) fn sampling(opts: &Fact<'_>) -> Sampling {
    let mut sampling = Sampling::GREEDY;
    for (name, value) in opts.fields() {
        let number = float(&value) as f32;
        match name {
            "temperature" => sampling.temperature = number,
            "top_k" => sampling.top_k = value.number() as u32,
            "top_p" => sampling.top_p = number,
            "min_p" => sampling.min_p = number,
            "repeat" => sampling.repetition_penalty = number,
            "presence" => sampling.presence_penalty = number,
            "frequency" => sampling.frequency_penalty = number,
            "repeat_last_n" => sampling.penalty_window = value.number() as u32,
            _ => panic!("the field `opts.{name}` is not known here"),
        }
    }
    sampling.validate().expect("settings that make sense");
    sampling
}

pub(crate) fn sampler(sampling: Sampling, priors: &[TokenId]) -> Sampler {
    Sampler::new(Arc::new(SamplingSpec::default()), sampling, priors, &[])
}

/// The next token of a sequence.
pub(crate) fn next(sampler: &mut Sampler, sampling: Sampling, row: &[f32]) -> TokenId {
    let sample_inputs = sampler.sample_inputs(TokenSampling {
        sampling,
        position: 0,
    });
    sample_inputs
        .expect("there is no grammar")
        .from_logits(row)
        .token
}

/// Number of tokens that can be sampled.
pub(crate) fn possible(sampling: Sampling, row: &[f32]) -> usize {
    let probabilities = probabilities(
        &TokenSampling {
            sampling,
            position: 0,
        },
        row,
    );
    probabilities.iter().filter(|p| **p > 0.0).count()
}

fn sampled_token(check: &mut Check, fact: &Fact<'_>) {
    let row = match fact.maybe("logits") {
        Some(logits) => floats(&logits),
        None => floats(&fact.get("probs")).iter().map(|p| p.ln()).collect(),
    };
    let sampling = sampling(&fact.get("opts"));
    let mut sampler = sampler(sampling, &fact.get("priors").tokens());
    let token = next(&mut sampler, sampling, &row);
    check.same("token", token as usize, fact.get("expect").number());
}

/// All inputs are made before any token is sampled, in the batch's order; each token is then
/// sampled from its row. The token is the same as alone, since it is a function of the request,
/// its tokens, and the row.
fn sampled_together(check: &mut Check, fact: &Fact<'_>) {
    let slots = fact.get("slots").items();
    let slots: BTreeMap<usize, (Sampling, Vec<TokenId>)> = slots
        .iter()
        .map(|slot| {
            let fields = slot.items();
            let [id, options, priors] = &fields[..] else {
                slot.is_no("list of an id, options and prior tokens");
            };
            (id.number(), (sampling(options), priors.tokens()))
        })
        .collect();
    let order = fact.get("sample").numbers();
    let rows: Vec<Vec<f32>> = fact.get("rows").items().iter().map(floats).collect();
    assert_eq!(order.len(), rows.len(), "a row for each");
    let sample_inputs = |id: usize| {
        let slot = slots.get(&id);
        let (sampling, priors) = slot.unwrap_or_else(|| panic!("there is no slot {id}"));
        let mut sampler = sampler(*sampling, priors);
        let token_sampling = TokenSampling {
            sampling: *sampling,
            position: 0,
        };
        sampler
            .sample_inputs(token_sampling)
            .expect("there is no grammar")
    };
    let single: Vec<TokenId> = order
        .iter()
        .zip(&rows)
        .map(|(id, row)| sample_inputs(*id).from_logits(row).token)
        .collect();
    let inputs: Vec<_> = order.iter().map(|id| sample_inputs(*id)).collect();
    // Once on the host's own path, once by the vectors that devices apply.
    let together: Vec<TokenId> = inputs
        .iter()
        .zip(&rows)
        .map(|(sample_inputs, row)| sample_inputs.from_logits(row).token)
        .collect();
    check.same("tokens", &together, &single);
    let adjusted = inputs.iter().zip(&rows).map(|(sample_inputs, row)| {
        let mut row = row.clone();
        if let Some(adjustments) = sample_inputs.adjustments(row.len()) {
            adjustments.apply(&mut row);
        }
        sample_row(sample_inputs.token_sampling(), &row)
    });
    check.same("tokens of a device", &adjusted.collect(), &single);
}

fn warm() -> Sampling {
    Sampling {
        temperature: 1.0,
        ..Sampling::GREEDY
    }
}

/// Logits divided by the temperature are, up to a constant, the logarithms of the resulting
/// probabilities.
fn divides(check: &mut Check, fact: &Fact<'_>) {
    let sampling = Sampling {
        temperature: float(&fact.get("t")) as f32,
        ..warm()
    };
    let row = floats(&fact.get("in"));
    let p = probabilities(
        &TokenSampling {
            sampling,
            position: 0,
        },
        &row,
    );
    let expected = fact.get("expect").items();
    check.same("numbers", p.len(), expected.len());
    // The constant, from the likeliest.
    let most = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    let most = most.expect("a row");
    let constant = f64::from(row[most] / sampling.temperature) - f64::from(p[most]).ln();
    for (p, expected) in p.iter().zip(&expected) {
        close(
            check,
            "scaled",
            f64::from(*p).ln() + constant,
            expected,
            1e-4,
        );
    }
}

fn normalises(check: &mut Check, fact: &Fact<'_>) {
    let token_sampling = TokenSampling {
        sampling: warm(),
        position: 0,
    };
    let probabilities = probabilities(&token_sampling, &floats(&fact.get("in")));
    let expected = fact.get("expect").items();
    check.same("numbers", probabilities.len(), expected.len());
    for (p, expected) in probabilities.iter().zip(&expected) {
        close(check, "probability", f64::from(*p), expected, 1e-5);
    }
}

fn keeps_the_likeliest(check: &mut Check, fact: &Fact<'_>) {
    let sampling = Sampling {
        top_k: fact.get("k").number() as u32,
        ..warm()
    };
    let row = floats(&fact.get("in"));
    let p = probabilities(
        &TokenSampling {
            sampling,
            position: 0,
        },
        &row,
    );
    let mut retained: Vec<f32> = row
        .iter()
        .zip(&p)
        .filter(|(_, p)| **p > 0.0)
        .map(|(l, _)| *l)
        .collect();
    retained.sort_by(|a, b| b.total_cmp(a));
    check.same("kept", retained, floats(&fact.get("expect")));
}

/// ollama's test has one row, which no case repeats.
fn keeps_a_nucleus(check: &mut Check, fact: &Fact<'_>) {
    let top_p = float(&fact.get("p")) as f32;
    let row = [-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0];
    compare_support(check, fact, possible(Sampling { top_p, ..warm() }, &row));
}

fn keeps_the_likely(check: &mut Check, fact: &Fact<'_>) {
    let min_p = float(&fact.get("p")) as f32;
    let row = floats(&fact.get("in"));
    compare_support(check, fact, possible(Sampling { min_p, ..warm() }, &row));
}

fn compare_support(check: &Check, fact: &Fact<'_>, retained: usize) {
    match fact.maybe("expect_len") {
        Some(expected) => check.same("kept", retained, expected.number()),
        None => check.same(
            "few kept",
            retained <= fact.get("expect_len_le").number(),
            true,
        ),
    }
}
