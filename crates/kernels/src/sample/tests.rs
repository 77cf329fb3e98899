//! The vectors' passes and tokens against the plain ones.

mod timings;

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use motet_model::sampling::Sampler;
use motet_model::sampling::rows::ScalarOperations;
use motet_protocol::{Sampling, SamplingSpec, TokenSampling};

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

/// Logits of a few levels and of many, some excluded, and some NaN.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        12 => -40.0_f32..40.0,
        4 => (-3_i8..4).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(f32::NAN),
    ];
    let part = prop::collection::vec(logit, 1..70);
    (part, 1_usize..60, 0_usize..40).prop_map(|(part, times, drop)| {
        let logits = (0..part.len() * times).map(|i| {
            let times = (i / part.len()) as f32;
            part[i % part.len()] + (0.7 * times).sin()
        });
        // Rows of any length.
        let logits: Vec<f32> = logits.collect();
        logits[drop.min(logits.len() - 1)..].to_vec()
    })
}

/// The passes against double precision, and to the last bit against the plain ones.
fn check_row_operations(logits: &[f32], temperature: f32) {
    let mut maxima = vec![0.0; logits.len().div_ceil(BLOCK)];
    ScalarOperations.maxima(logits, &mut maxima);
    for (block, found) in logits.chunks(BLOCK).zip(&maxima) {
        let numbers = block.iter().filter(|number| !number.is_nan());
        assert_eq!(numbers.copied().fold(f32::NEG_INFINITY, f32::max), *found);
    }
    let top = maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut weights = vec![0.0; logits.len()];
    ScalarOperations.weigh(logits, top, temperature, &mut weights);
    for (logit, weight) in logits.iter().zip(&weights) {
        let exponent = f64::from((logit - top) / temperature);
        let exact = if exponent > -87.0 {
            exponent.exp()
        } else {
            0.0
        };
        let error = (f64::from(*weight) - exact).abs();
        assert!(error <= 4e-7 * exact, "{weight} for {exact}");
    }
    let mut sums = vec![0.0; weights.len().div_ceil(RUN)];
    ScalarOperations.sums(&weights, &mut sums);
    for (run, sum) in weights.chunks(RUN).zip(&sums) {
        let exact: f64 = run.iter().map(|weight| f64::from(*weight)).sum();
        assert!(
            (f64::from(*sum) - exact).abs() <= 1e-5 * exact,
            "{sum} for {exact}"
        );
    }
    for &set in InstructionSet::available() {
        let vectors = Vectors(set);
        let mut found = vec![f32::NAN; maxima.len()];
        vectors.maxima(logits, &mut found);
        assert_eq!(found, maxima, "{set:?}");
        let mut found = vec![f32::NAN; weights.len()];
        vectors.weigh(logits, top, temperature, &mut found);
        assert_eq!(bits(&found), bits(&weights), "{set:?}");
        let mut found = vec![f32::NAN; sums.len()];
        vectors.sums(&weights, &mut found);
        assert_eq!(bits(&found), bits(&sums), "{set:?}");
    }
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let temperature = prop_oneof![Just(0.0_f32), Just(1.0), 0.1_f32..3.0];
    let top_k = prop_oneof![Just(0_u32), 1_u32..300];
    let top_p = prop_oneof![Just(1.0_f32), 0.05_f32..1.0];
    let min_p = prop_oneof![Just(0.0_f32), 0.0_f32..0.5];
    let repetition = prop_oneof![Just(1.0_f32), 0.8_f32..1.5];
    (temperature, top_k, top_p, min_p, repetition, any::<u64>()).prop_map(
        |(temperature, top_k, top_p, min_p, repetition_penalty, seed)| Sampling {
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
            seed,
            ..Sampling::GREEDY
        },
    )
}

fn sample_inputs(sampling: Sampling, logprobs: Option<usize>, position: u64) -> SampleInputs {
    let spec = SamplingSpec {
        logprobs,
        ..SamplingSpec::default()
    };
    let mut sampler = Sampler::new(Arc::new(spec), sampling, &[0, 3, 3], &[]);
    let sample_inputs = sampler.sample_inputs(TokenSampling { sampling, position });
    sample_inputs.expect("sampling without a grammar succeeds")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn row_operations_equal_the_references(
        logits in logits(),
        temperature in prop_oneof![Just(1.0_f32), 0.05_f32..3.0],
    ) {
        check_row_operations(&logits, temperature);
    }

    /// Tokens do not depend on the instruction set, the number of threads or the other
    /// rows.
    #[test]
    fn sampled_tokens_match_the_definition(
        logits in logits(),
        rows_to_sample in prop::collection::vec(
            (sampling(), prop::option::of(0_usize..21), any::<u64>(), 0_u32..3),
            1..6,
        ),
    ) {
        let vocab = logits.len();
        let turned = |by: usize| [&logits[by % vocab..], &logits[..by % vocab]].concat();
        let rows: Vec<Vec<f32>> = [0, 7, 100].map(turned).to_vec();
        let rows_to_sample: Vec<(u32, SampleInputs)> = rows_to_sample
            .iter()
            .map(|(sampling, logprobs, position, row)| (*row, sample_inputs(*sampling, *logprobs, *position)))
            .collect();
        let from = |(row, sample_inputs): &(u32, SampleInputs)| sample_inputs.from_logits(&rows[*row as usize]);
        // Compared as text, because log probabilities may be NaN.
        let seen = |sampled: &[Sampled]| format!("{sampled:?}");
        let expected: Vec<Sampled> = rows_to_sample.iter().map(from).collect();
        for threads in [1, 3] {
            let found = sample_rows_on(&Pool::new(threads), &rows.concat(), vocab, &rows_to_sample);
            prop_assert_eq!(seen(&found), seen(&expected));
        }
        for &set in InstructionSet::available() {
            let mut reader = RowReader::new(Vectors(set));
            let rows_to_sample = rows_to_sample.iter();
            let found = rows_to_sample.map(|(row, sample_inputs)| sample_inputs.sample_with(&mut reader, &rows[*row as usize]));
            prop_assert_eq!(seen(&found.collect::<Vec<_>>()), seen(&expected), "{:?}", set);
        }
    }
}

#[test]
fn scored_rows_match_the_definition() {
    let vocab = 301;
    let logits: Vec<f32> = (0..7 * vocab)
        .map(|i| (0.37 * i as f32).sin() * 9.0)
        .collect();
    let targets: Vec<(u32, usize)> = (0..7).map(|row| (43 * row, row as usize % 4)).collect();
    let found = score_rows(&logits, vocab, &targets);
    let rows = logits.chunks(vocab).zip(&targets);
    let expected = rows.map(|(row, (token, top))| {
        motet_model::sampling::logprobs_of(row, *token, *top).expect("in the vocabulary")
    });
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[test]
fn extreme_rows_match_the_definition() {
    let (none, all) = (f32::NEG_INFINITY, f32::INFINITY);
    let rows = [
        vec![0.0],
        vec![none; 70],
        vec![f32::NAN; 70],
        vec![all, 0.0, all, none],
        vec![f32::MAX, f32::MIN, 0.0, -0.0],
    ];
    let warm = Sampling {
        temperature: 1e-30,
        ..Sampling::GREEDY
    };
    let top_k = Sampling { top_k: 2, ..warm };
    let top_p = Sampling { top_p: 0.5, ..warm };
    for row in &rows {
        for sampling in [Sampling::GREEDY, warm, top_k, top_p] {
            let sample_inputs = sample_inputs(sampling, Some(3), 1);
            let expected = format!("{:?}", sample_inputs.from_logits(row));
            for &set in InstructionSet::available() {
                let found = sample_inputs.sample_with(&mut RowReader::new(Vectors(set)), row);
                assert_eq!(format!("{found:?}"), expected, "{set:?}: {row:?}");
            }
        }
    }
}

/// Neither low ids nor any other part of a large vocabulary are sampled more often than the rest,
/// and neither are some of a block's tokens.
#[test]
fn equal_weights_in_a_large_vocabulary() {
    const VOCABULARY: usize = 151_936;
    const BUCKETS: usize = 64;
    const SAMPLES: u64 = 20_480;
    let logits = vec![0.0; VOCABULARY];
    let pool = Pool::new(1);
    let (mut parts, mut members) = ([0_u64; BUCKETS], [0_u64; BUCKETS]);
    for draw in 0..SAMPLES {
        let sampling = Sampling {
            temperature: 1.0,
            seed: draw % 8,
            ..Sampling::GREEDY
        };
        let inputs = sample_inputs(sampling, None, draw / 8);
        let sampled = sample_rows_on(&pool, &logits, VOCABULARY, &[(0, inputs)]);
        let token = sampled[0].token as usize;
        parts[token * BUCKETS / VOCABULARY] += 1;
        members[token % BUCKETS] += 1;
    }
    for counts in [parts, members] {
        let expected = SAMPLES as f64 / BUCKETS as f64;
        let squares = counts.map(|count| (count as f64 - expected).powi(2));
        let chi_square = squares.iter().sum::<f64>() / expected;
        // One in ten thousand is larger, with 63 degrees of freedom.
        assert!(chi_square < 113.0, "{chi_square}: {counts:?}");
    }
}
