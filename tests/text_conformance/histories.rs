//! The history that penalties look at.

use std::collections::BTreeSet;
use std::sync::Arc;

use motet::TokenId;
use motet::request::Sampling;
use motet_model::sampling::{Sampler, SamplingSpec, TokenSampling, probabilities, sample_row};

use crate::cases::{Fact, NUMBER_MAX};
use crate::check::Check;
use crate::samples::{next, possible, sampler, sampling};
use crate::suites::Known;
use crate::{close, floats};

pub(crate) const SUITES: &[Known] = &[Known {
    suite: "sample.history",
    own_cases: 6,
    beside: &[],
    shapes: &[
        (&["opts", "priors", "steps"], slides),
        (&["opts", "priors", "commits"], counts),
        (&["opts", "priors", "draft", "rows"], scores_a_draft),
        (
            &["opts", "priors", "prefix", "row"],
            continues_from_a_prefix,
        ),
        (&["opts", "probs", "expect.support"], filters_in_order),
        // A case without input is about seeds.
        (&["expect"], repeats),
    ],
}];

fn slides(check: &mut Check, fact: &Fact<'_>) {
    let sampling = sampling(&fact.get("opts"));
    let mut sampler = sampler(sampling, &fact.get("priors").tokens());
    for step in fact.get("steps").items() {
        let token = next(&mut sampler, sampling, &floats(&step.get("logits")));
        check.same("token", token as usize, step.get("expect").number());
        sampler.accept(token);
    }
}

fn counts(check: &mut Check, fact: &Fact<'_>) {
    let priors = fact.get("priors").tokens();
    let commits: Vec<TokenId> = fact
        .get("commits")
        .items()
        .iter()
        .flat_map(Fact::tokens)
        .collect();
    let all: Vec<usize> = priors
        .iter()
        .chain(&commits)
        .map(|token| *token as usize)
        .collect();
    let vocabulary = all.iter().max().map_or(1, |most| most + 1);
    let shift_after = |sampling: Sampling| {
        let mut sampler = sampler(sampling, &priors);
        commits.iter().for_each(|token| sampler.accept(*token));
        let sample_inputs = sampler
            .sample_inputs(TokenSampling {
                sampling,
                position: 0,
            })
            .expect("no grammar");
        sample_inputs.adjustments(vocabulary).expect("penalties")
    };
    let sampling = sampling(&fact.get("opts"));
    let penalised = shift_after(sampling).repetition;
    let penalised = (0..vocabulary).filter(|token| penalised[*token] != 1.0);
    let penalised: Vec<usize> = penalised.collect();

    let expect = fact.get("expect");
    let expected = expect.get("ring").numbers();
    let window = sampling.penalty_window as usize;
    assert!(window > 0, "a ring has places");
    let mut ring = vec![0; window];
    for (at, token) in all.iter().enumerate() {
        ring[at % window] = *token;
    }
    check.theirs("the ring", &ring, &expected);
    let last = &all[all.len().saturating_sub(window)..];
    let last: BTreeSet<usize> = last.iter().copied().collect();
    let own_rule: Vec<usize> = last.into_iter().collect();
    check.same_or_instead("penalised tokens", penalised, own_rule, expected);

    // Each counted token costs 1, if the window is everything.
    let everything = Sampling {
        frequency_penalty: 1.0,
        penalty_window: u32::MAX,
        ..Sampling::GREEDY
    };
    let counted = -shift_after(everything).shift.iter().sum::<f32>();
    check.same(
        "tokens counted",
        counted as usize,
        expect.get("history_len").number(),
    );
}

fn repeats(check: &mut Check, fact: &Fact<'_>) {
    let expect = fact.get("expect");
    let count = expect
        .text()
        .split(' ')
        .find_map(|word| word.parse::<u64>().ok());
    let count = count.filter(|count| *count <= NUMBER_MAX as u64);
    let count = count.expect("it says how many tokens, and not too many");
    let words = format!("same seed -> same {count} tokens; other seed -> differs");
    check.prose(&expect, &words);
    let row: Vec<f32> = (0..50).map(|token| (token % 7) as f32 / 4.0).collect();
    let tokens = |seed| {
        let sampling = Sampling {
            temperature: 1.0,
            seed,
            ..Sampling::GREEDY
        };
        let tokens =
            (0..count).map(|position| sample_row(&TokenSampling { sampling, position }, &row));
        tokens.collect::<Vec<TokenId>>()
    };
    assert_eq!(tokens(5), tokens(5));
    assert_ne!(tokens(5), tokens(6));
}

fn filters_in_order(check: &mut Check, fact: &Fact<'_>) {
    let sampling = sampling(&fact.get("opts"));
    let row: Vec<f32> = floats(&fact.get("probs")).iter().map(|p| p.ln()).collect();
    assert!(!row.is_empty(), "`probs` has a number");
    let probabilities = probabilities(
        &TokenSampling {
            sampling,
            position: 0,
        },
        &row,
    );
    let expect = fact.get("expect");
    let first = f64::from(probabilities[0]);
    close(
        check,
        "the likeliest",
        first,
        &expect.get("token0_prob"),
        1e-6,
    );
    let others = f64::from(probabilities[1..].iter().sum::<f32>());
    close(check, "all others", others, &expect.get("other_prob"), 1e-6);
    let support = expect.get("support").within(1..=row.len());
    let by_top_k = Sampling {
        top_p: 1.0,
        ..sampling
    };
    let k = sampling.top_k as usize;
    check.theirs("tokens that pass top-k", k.min(row.len()), support);
    // Tokens as likely as the last of them pass, too.
    let mut sorted = row.clone();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let least = sorted[support - 1];
    let as_likely = row.iter().filter(|logit| **logit >= least).count();
    let through = possible(by_top_k, &row);
    check.same_or_instead("tokens that pass top-k", through, as_likely, support);
}

/// The rows of a draft are sampled as if it had been accepted, by samplers that were made for it.
/// The sequence's own sampler is not touched.
fn scores_a_draft(check: &mut Check, fact: &Fact<'_>) {
    let sampling = sampling(&fact.get("opts"));
    let (priors, draft) = (fact.get("priors").tokens(), fact.get("draft").tokens());
    let mut own = sampler(sampling, &priors);
    let token_sampling = TokenSampling {
        sampling,
        position: 0,
    };
    let before = own.sample_inputs(token_sampling).expect("no grammar");
    let rows: Vec<Vec<f32>> = fact.get("rows").items().iter().map(floats).collect();
    assert!(
        rows.len() <= draft.len() + 1,
        "a row for each token of the draft, and one"
    );
    let tokens: Vec<usize> = (0..rows.len())
        .map(|accepted| {
            let spec = Arc::new(SamplingSpec::default());
            let mut sampler = Sampler::new(spec, sampling, &priors, &draft[..accepted]);
            next(&mut sampler, sampling, &rows[accepted]) as usize
        })
        .collect();
    check.same("tokens", tokens, fact.get("expect_argmax").numbers());
    let unchanged = own.sample_inputs(token_sampling).expect("no grammar") == before;
    check.same(
        "history is as it was",
        unchanged,
        fact.get("history_unchanged").flag(),
    );
}

fn continues_from_a_prefix(check: &mut Check, fact: &Fact<'_>) {
    for window in fact.get("repeat_last_n").numbers() {
        let sampling = Sampling {
            penalty_window: window as u32,
            ..sampling(&fact.get("opts"))
        };
        let mut sampler = sampler(sampling, &fact.get("priors").tokens());
        let prefix = fact.get("prefix").tokens();
        prefix.into_iter().for_each(|token| sampler.accept(token));
        let token = next(&mut sampler, sampling, &floats(&fact.get("row")));
        check.same("token", token as usize, fact.get("expect").number());
    }
}
