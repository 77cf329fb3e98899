//! Sampling with a history, biases, a least length and grammars, against naive versions.

mod distribution;

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::*;
use motet_protocol::TokenId;
use motet_protocol::{GrammarError, TokenMask};
use motet_text::grammar::{Grammar, GrammarSource, GrammarVocabulary, MaskPool};

const VOCAB: usize = 24;

fn sampling() -> impl Strategy<Value = Sampling> {
    let temperature = prop_oneof![Just(0.0f32), 0.1f32..2.0];
    let top_k = prop_oneof![Just(0u32), 1u32..12];
    let top_p = prop_oneof![Just(1.0f32), 0.05f32..1.0];
    let repetition = prop_oneof![Just(1.0f32), 0.5f32..3.0];
    let others = prop_oneof![Just((0.0, 0.0)), (-2.0f32..2.0, -2.0f32..2.0)];
    let window = prop_oneof![Just(0), Just(64), Just(u32::MAX), 1u32..10];
    let history = (repetition, others, window, any::<bool>());
    (temperature, top_k, top_p, any::<u64>(), history).prop_map(
        |(temperature, top_k, top_p, seed, (repetition_penalty, others, window, prompt))| {
            Sampling {
                temperature,
                top_k,
                top_p,
                seed,
                repetition_penalty,
                presence_penalty: others.0,
                frequency_penalty: others.1,
                penalty_window: window,
                penalize_prompt: prompt,
                ..Sampling::GREEDY
            }
        },
    )
}

fn spec() -> impl Strategy<Value = SamplingSpec> {
    let bias = prop_oneof![Just(f32::NEG_INFINITY), -100.0f32..100.0];
    let bias = prop::collection::btree_map(0..VOCAB as TokenId - 4, bias, 0..5);
    let end_tokens = prop::collection::vec(0..VOCAB as TokenId - 4, 0..3);
    let logprobs = prop_oneof![Just(None), (0usize..21).prop_map(Some)];
    // Gaps, and a token at the end.
    let unknown = prop::collection::btree_set(0..VOCAB as TokenId - 4, 0..4);
    let known = unknown.prop_map(|unknown| {
        let known = (0..VOCAB as TokenId - 1).filter(|token| !unknown.contains(token));
        Arc::new(TokenMask::of(&known.collect::<Vec<_>>(), VOCAB - 1))
    });
    let known = prop::option::of(known);
    (bias, end_tokens, 0usize..6, logprobs, known).prop_map(
        |(bias, end_tokens, output_tokens_min, logprobs, known_tokens)| SamplingSpec {
            bias: bias.into_iter().collect(),
            output_tokens_min,
            end_tokens,
            logprobs,
            grammar: None,
            known_tokens,
        },
    )
}

fn tokens() -> impl Strategy<Value = Vec<TokenId>> {
    prop::collection::vec(0..VOCAB as TokenId, 0..20)
}

fn row() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(prop_oneof![Just(0.0f32), -8.0f32..8.0], VOCAB)
}

/// The row that is sampled from, by counting the whole history again.
fn naive(
    spec: &SamplingSpec,
    sampling: &Sampling,
    prompt: &[TokenId],
    output: &[TokenId],
    row: &[f32],
) -> Vec<f32> {
    let prompt = if sampling.penalize_prompt {
        prompt
    } else {
        &[]
    };
    let history = [prompt, output].concat();
    let window = history.len().min(sampling.penalty_window as usize);
    let history = &history[history.len() - window..];
    let mut row = row.to_vec();
    for (token, logit) in row.iter_mut().enumerate() {
        let token = token as TokenId;
        for (biased, bias) in &spec.bias {
            *logit += if *biased == token { *bias } else { 0.0 };
        }
        let count = history.iter().filter(|past| **past == token).count();
        if count > 0 {
            let repetition = sampling.repetition_penalty;
            *logit = if *logit > 0.0 {
                *logit / repetition
            } else {
                *logit * repetition
            };
            *logit -= sampling.presence_penalty + sampling.frequency_penalty * count as f32;
        }
        if output.len() < spec.output_tokens_min && spec.end_tokens.contains(&token)
            || !is_known(spec, token)
        {
            *logit = f32::NEG_INFINITY;
        }
    }
    row
}

proptest! {
    #[test]
    fn sampled_tokens_match_a_naive_recount(
        (spec, sampling) in (spec(), sampling()),
        (prompt, rows) in (tokens(), prop::collection::vec(row(), 1..16)),
    ) {
        prop_assert_eq!(spec.validate(VOCAB), Ok(()));
        prop_assert_eq!(sampling.validate(), Ok(()));
        let spec = Arc::new(spec);
        let mut sampler = Sampler::new(spec.clone(), sampling, &prompt, &[]);
        let mut output = Vec::new();
        for (position, row) in (0..).zip(&rows) {
            let token_sampling = TokenSampling { sampling, position };
            let sample_inputs = sampler.sample_inputs(token_sampling).expect("no grammar");
            // A rebuilt sampler is in the same state.
            let mut rebuilt = Sampler::new(spec.clone(), sampling, &prompt, &output);
            prop_assert_eq!(&rebuilt.sample_inputs(token_sampling).expect("no grammar"), &sample_inputs);
            let expected = naive(&spec, &sampling, &prompt, &output, row);
            let sampled = sample_inputs.from_logits(row);
            prop_assert_eq!(sampled.token, sample_row(&token_sampling, &expected));
            // Devices apply vectors, and get the same numbers.
            match sample_inputs.adjustments(VOCAB) {
                Some(adjustments) => {
                    let mut adjusted = row.clone();
                    adjustments.apply(&mut adjusted);
                    prop_assert_eq!(adjusted, expected);
                }
                None => prop_assert_eq!(row, &expected),
            }
            prop_assert_eq!(sampled.logprobs.is_some(), spec.logprobs.is_some());
            let mut listed = sampled.logprobs.iter().flat_map(|logprobs| &logprobs.top);
            prop_assert!(listed.all(|(token, _)| is_known(&spec, *token)));
            let from_host = sample_inputs.logprobs_from(row, sampled.token);
            prop_assert_eq!(&from_host, &sampled.logprobs);
            prop_assert!(!is_excluded(&spec, output.len(), sampled.token));
            output.push(sampled.token);
            sampler.accept(sampled.token);
        }
    }

    /// Holds even if every other token has no probability under the model.
    #[test]
    fn excluded_token_is_never_sampled(spec in spec(), sampling in sampling(), position in 0u64..99) {
        let possible = |token: &TokenId| is_excluded(&spec, 0, *token);
        let row = (0..VOCAB as TokenId).map(|token| if possible(&token) {
            30.0
        } else {
            f32::NEG_INFINITY
        });
        let row: Vec<f32> = row.collect();
        let mut sampler = Sampler::new(Arc::new(spec.clone()), sampling, &[], &[]);
        let sample_inputs = sampler.sample_inputs(TokenSampling { sampling, position }).expect("no grammar");
        if sample_inputs.changes_logits() {
            let token = sample_inputs.from_logits(&row).token;
            prop_assert!(!is_excluded(&spec, 0, token), "{token}");
        }
    }

    #[test]
    fn logprobs_match_double_precision(
        row in prop::collection::vec(-60.0f32..60.0, 1..3000),
        top in 0usize..21,
    ) {
        let highest = row.iter().copied().fold(f32::MIN, f32::max);
        let total: f64 = row.iter().map(|logit| f64::from(logit - highest).exp()).sum();
        let exact = |logit: f32| f64::from(logit - highest) - total.ln();
        let mut sum = 0.0;
        for (token, logit) in row.iter().enumerate().take(50) {
            let found = logprobs_of(&row, token as TokenId, 0).expect("of the row");
            prop_assert!((f64::from(found.logprob) - exact(*logit)).abs() < 2e-5);
            sum += f64::from(found.logprob).exp();
        }
        prop_assert!(row.len() > 50 || (sum - 1.0).abs() < 1e-4, "{}", sum);
        let found = logprobs_of(&row, 0, top).expect("of the row").top;
        // They are kept, so that they take no more memory than they need.
        prop_assert_eq!(found.capacity(), found.len());
        let mut sorted: Vec<(usize, f32)> = row.iter().copied().enumerate().collect();
        sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        sorted.truncate(top);
        let ids = |id: usize| id as TokenId;
        prop_assert_eq!(
            found.iter().map(|(token, _)| *token).collect::<Vec<_>>(),
            sorted.iter().map(|(token, _)| ids(*token)).collect::<Vec<_>>()
        );
        for ((_, logprob), (_, logit)) in found.iter().zip(&sorted) {
            prop_assert!((f64::from(*logprob) - exact(*logit)).abs() < 2e-5);
        }
    }

    /// For any logits with penalties, the output matches, and a sampler that is rebuilt in the
    /// middle goes on in the same way.
    #[test]
    fn an_output_follows_its_grammar(
        sampling in sampling(),
        rows in prop::collection::vec(row(), 12),
    ) {
        static SHARED: LazyLock<(Grammar, [&str; 9])> = LazyLock::new(|| grammar("a(b|cd)*e?f"));
        let (grammar, spelling) = SHARED.clone();
        let spec = Arc::new(SamplingSpec { grammar: Some(Arc::new(grammar)), ..SamplingSpec::default() });
        let mut sampler = Sampler::new(spec.clone(), sampling, &[], &[]);
        let mut output = Vec::new();
        for (position, row) in (0..).zip(&rows) {
            let token_sampling = TokenSampling { sampling, position };
            let sample_inputs = sampler.sample_inputs(token_sampling).expect("goes on");
            let mut rebuilt = Sampler::new(spec.clone(), sampling, &[], &output);
            prop_assert_eq!(&rebuilt.sample_inputs(token_sampling).expect("goes on"), &sample_inputs);
            let token = sample_inputs.from_logits(row).token;
            if token == END {
                let text: String = output.iter().map(|token| spelling[*token as usize]).collect();
                prop_assert!(matches(&text), "{}", text);
                break;
            }
            output.push(token);
            sampler.accept(token);
        }
    }
}

fn is_excluded(spec: &SamplingSpec, output_tokens: usize, token: TokenId) -> bool {
    spec.bias.contains(&(token, f32::NEG_INFINITY))
        || output_tokens < spec.output_tokens_min && spec.end_tokens.contains(&token)
        || !is_known(spec, token)
}

fn is_known(spec: &SamplingSpec, token: TokenId) -> bool {
    let known = spec.known_tokens.as_ref();
    known.is_none_or(|known| known.allows(token))
}

const END: TokenId = 0;

/// A grammar over a small vocabulary, and the texts of its tokens.
fn grammar(expression: &str) -> (Grammar, [&'static str; 9]) {
    let spelling = ["", "a", "b", "c", "d", "e", "f", "bc", "ef"];
    let bytes = spelling.map(|text| text.as_bytes().to_vec()).to_vec();
    let vocabulary = GrammarVocabulary::from_bytes(bytes, &[END]).expect("a vocabulary");
    let pool = MaskPool::start(1).expect("a thread");
    let source = GrammarSource::Regex(expression.into());
    let grammar = Grammar::compile(&source, &vocabulary, &pool).expect("compiles");
    (grammar, spelling)
}

/// Whether all of the text matches `a(b|cd)*e?f`.
fn matches(text: &str) -> bool {
    let inner = text
        .strip_prefix('a')
        .and_then(|text| text.strip_suffix('f'));
    inner.is_some_and(|inner| {
        let inner = inner.strip_suffix('e').unwrap_or(inner);
        inner.replace("cd", "").bytes().all(|byte| byte == b'b')
    })
}

fn sampler_after(spec: SamplingSpec, output: &[TokenId]) -> Sampler {
    Sampler::new(Arc::new(spec), Sampling::GREEDY, &[], output)
}

fn token_sampling() -> TokenSampling {
    TokenSampling {
        sampling: Sampling::GREEDY,
        position: 0,
    }
}

#[test]
fn request_without_options_is_plain() {
    let sample_inputs = sampler_after(SamplingSpec::default(), &[]).sample_inputs(token_sampling());
    assert_eq!(sample_inputs, Ok(SampleInputs::plain(token_sampling())));
    assert!(
        SampleInputs::plain(token_sampling())
            .adjustments(4)
            .is_none()
    );
}

#[test]
fn end_token_is_sampled_where_the_grammar_allows_nothing_else() {
    let (grammar, _) = grammar("a");
    let spec = SamplingSpec {
        output_tokens_min: 5,
        end_tokens: vec![END],
        grammar: Some(Arc::new(grammar)),
        ..SamplingSpec::default()
    };
    let sample_inputs = sampler_after(spec.clone(), &[1])
        .sample_inputs(token_sampling())
        .expect("the end");
    assert_eq!(sample_inputs.from_logits(&[0.0; 9]).token, END);
    let mut sampler = sampler_after(spec, &[1]);
    assert!(!sampler.is_finished());
    sampler.accept(END);
    assert!(sampler.is_finished());
    assert_eq!(
        sampler.sample_inputs(token_sampling()),
        Err(GrammarError::Finished)
    );
}

/// The grammar ends a draft where it forbids its next token, where the biases leave none, and where
/// the output ends.
#[test]
fn rows_of_a_draft_have_the_inputs_of_accepting_it() {
    let (grammar, _) = grammar("a(b|cd)*e?f");
    let sampling = Sampling {
        frequency_penalty: 0.5,
        ..Sampling::GREEDY
    };
    let first = TokenSampling {
        sampling,
        position: 1,
    };
    let spec = Arc::new(SamplingSpec {
        output_tokens_min: 4,
        end_tokens: vec![END],
        bias: vec![(4, f32::NEG_INFINITY)],
        grammar: Some(Arc::new(grammar)),
        ..SamplingSpec::default()
    });
    for (draft, rows) in [
        (&[2, 2, 5, 6][..], 5),
        (&[5, 6, END], 3),
        (&[2, 3, 4, 2], 2),
        (&[2, 1], 2),
        (&[1], 1),
    ] {
        let mut sampler = Sampler::new(Arc::clone(&spec), sampling, &[], &[1]);
        let inputs = sampler.verify_inputs(first, draft).expect("goes on");
        assert_eq!(inputs.len(), rows, "{draft:?}");
        for (row, row_inputs) in inputs.iter().enumerate() {
            let output = [&[1], &draft[..row]].concat();
            let mut accepting = Sampler::new(Arc::clone(&spec), sampling, &[], &output);
            let expected = accepting.sample_inputs(first.later(row));
            assert_eq!(Ok(row_inputs), expected.as_ref(), "{draft:?}");
        }
        // The sampler is where it was.
        let expected = sampler.sample_inputs(first);
        assert_eq!(Ok(&inputs[0]), expected.as_ref());
    }
    let mut ended = Sampler::new(spec, sampling, &[], &[1, 6, END]);
    let inputs = ended.verify_inputs(first, &[1]);
    assert_eq!(inputs, Err(GrammarError::Finished));
}

#[test]
fn bias_against_all_allowed_tokens_is_an_error() {
    let (grammar, _) = grammar("a|b");
    let spec = SamplingSpec {
        bias: vec![(1, f32::NEG_INFINITY), (2, f32::NEG_INFINITY)],
        grammar: Some(Arc::new(grammar)),
        ..SamplingSpec::default()
    };
    let sample_inputs = sampler_after(spec, &[]).sample_inputs(token_sampling());
    assert_eq!(sample_inputs, Err(GrammarError::NothingLeft));
}

#[test]
fn invalid_fields_are_named() {
    let check = |sampling: Sampling, field: &str| {
        let error = sampling.validate().expect_err("bad");
        assert_eq!(error.field, format!("sampling.{field}"));
    };
    let greedy = Sampling::GREEDY;
    for repetition_penalty in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let bad = Sampling {
            repetition_penalty,
            ..greedy
        };
        check(bad, "repetition_penalty");
    }
    let presence_penalty = f32::NAN;
    check(
        Sampling {
            presence_penalty,
            ..greedy
        },
        "presence_penalty",
    );
    let frequency_penalty = f32::INFINITY;
    check(
        Sampling {
            frequency_penalty,
            ..greedy
        },
        "frequency_penalty",
    );
    check(
        Sampling {
            temperature: -1.0,
            ..greedy
        },
        "temperature",
    );
    check(
        Sampling {
            top_p: 0.0,
            ..greedy
        },
        "top_p",
    );
    check(
        Sampling {
            min_p: 1.5,
            ..greedy
        },
        "min_p",
    );

    let check = |spec: SamplingSpec, field: &str, words: &str| {
        let error = spec.validate(4).expect_err("bad");
        assert_eq!(error.field, field);
        assert!(error.to_string().contains(words), "{error}");
    };
    let bias = |bias: &[(TokenId, f32)]| SamplingSpec {
        bias: bias.to_vec(),
        ..SamplingSpec::default()
    };
    let never = f32::NEG_INFINITY;
    check(bias(&[(4, 1.0)]), "bias", "ids below 4");
    check(bias(&[(1, f32::NAN)]), "bias", "finite");
    check(bias(&[(1, f32::INFINITY)]), "bias", "finite");
    check(bias(&[(1, 1.0), (1, 1.0)]), "bias", "two biases of token 1");
    check(
        bias(&[(0, never), (1, never), (2, never), (3, never)]),
        "bias",
        "can be sampled",
    );
    let logprobs = Some(21);
    check(
        SamplingSpec {
            logprobs,
            ..SamplingSpec::default()
        },
        "logprobs",
        "at most 20",
    );
    let end_tokens = vec![7];
    check(
        SamplingSpec {
            end_tokens,
            ..SamplingSpec::default()
        },
        "end_tokens",
        "7",
    );
    assert_eq!(
        bias(&[(0, never), (1, never), (2, never)]).validate(4),
        Ok(())
    );
}
