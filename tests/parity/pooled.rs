//! Log likelihoods of given tokens and hidden states, against those of transformers.
//!
//! The logits of every fixture give the log likelihood of some tokens, and its residual stream
//! the last hidden state of some prefixes.

use std::path::Path;
use std::sync::Arc;

use motet::model::mlx::{Arithmetic, MlxDevice, MlxModel, MlxOptions};
use motet::model::sampling::logprobs_of;
use motet::model::weights::{ModelFiles, Role};
use motet::model::{LogprobRows, OutputKind, Pooling, SpanOutput};
use motet::request::Embedding;
use motet::{Engine, Request, Shutdown, TokenId};

use crate::fixture::{Fixture, families};
use crate::folder::open_family;
use crate::harness::{Slot, one_at_a_time};
use crate::ways::in_runtime;

/// Chunks in which a sequence is evaluated; those of the second list lie beside block borders.
const CUTS: [&[usize]; 2] = [&[80], &[1, 2, 13, 16, 1, 47]];
/// Largest difference of a log likelihood.
const SCORE_TOLERANCE: f64 = 1e-3;
/// Largest difference of a number of a hidden state.
const STATE_TOLERANCE: f64 = 1e-4;

fn options(kernels: bool) -> MlxOptions {
    MlxOptions {
        device: Some(MlxDevice::Cpu),
        kernels,
        arithmetic: Some(Arithmetic::Exact),
        ..MlxOptions::default()
    }
}

/// Evaluates the sequence in chunks, and returns what each gives of all its rows.
fn evaluated(
    model: &mut MlxModel,
    tokens: &[TokenId],
    chunks: &[usize],
    output_kind: impl Fn(std::ops::Range<usize>) -> OutputKind,
) -> Vec<SpanOutput> {
    let mut slot = Slot::new(model, &[]);
    let mut start = 0;
    let mut outputs = Vec::new();
    for size in chunks {
        let chunk = start..start + size;
        let kind = output_kind(chunk.clone());
        outputs.push(slot.step(model, &tokens[chunk], kind));
        start += size;
    }
    outputs
}

/// The log likelihood of each token but the first.
fn loglikelihoods(model: &mut MlxModel, tokens: &[TokenId], chunks: &[usize]) -> Vec<f64> {
    let outputs = evaluated(model, tokens, chunks, |chunk| {
        let targets = tokens[chunk.start + 1..].iter().take(chunk.len());
        OutputKind::PromptLogprobs(LogprobRows {
            first: 0,
            targets: targets.copied().collect(),
            top: 2,
            token: None,
        })
    });
    let logprobs = outputs.into_iter().flat_map(|output| match output {
        SpanOutput::PromptLogprobs(logprobs, None) => logprobs,
        other => panic!("expected log probabilities, got {other:?}"),
    });
    logprobs.map(|token| f64::from(token.logprob)).collect()
}

/// The sum of the hidden states of these rows.
fn hidden_sum(
    model: &mut MlxModel,
    tokens: &[TokenId],
    chunks: &[usize],
    rows: std::ops::Range<usize>,
) -> Vec<f64> {
    let outputs = evaluated(model, tokens, chunks, |chunk| {
        let start = rows.start.max(chunk.start);
        let end = rows.end.min(chunk.end);
        if start < end {
            OutputKind::HiddenSum(start - chunk.start..end - chunk.start)
        } else {
            OutputKind::Nothing
        }
    });
    let mut sum = vec![0.0; model_width(model)];
    for output in outputs {
        if let SpanOutput::HiddenSum(numbers) = output {
            for (sum, number) in sum.iter_mut().zip(numbers) {
                *sum += number;
            }
        }
    }
    sum
}

fn model_width(model: &MlxModel) -> usize {
    use motet::model::Model;
    model.spec().hidden_size
}

#[track_caller]
fn assert_near(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs();
        assert!(
            difference <= tolerance,
            "{what}, number {at}: {found} for {expected}"
        );
    }
}

/// The hidden state that the final norm makes of a row of the residual stream.
fn normed(files: &ModelFiles, row: &[f32]) -> Vec<f64> {
    let weight = files
        .tensor(None, Role::FinalNorm)
        .expect("every model has it");
    let eps = f64::from(files.blueprint().stem.norm_eps);
    let squares = row.iter().map(|number| f64::from(*number).powi(2));
    let scale = (squares.sum::<f64>() / row.len() as f64 + eps).sqrt();
    let weighted = row.iter().zip(weight.to_f32());
    weighted
        .map(|(number, weight)| f64::from(*number) / scale * f64::from(weight))
        .collect()
}

fn check(path: &Path, fixture: &Fixture, kernels: bool) {
    let files = ModelFiles::open(path).expect("the family opens");
    let mut model = MlxModel::load(&files, options(kernels)).expect("a model");
    let (family, tokens) = (&fixture.family, &fixture.tokens);
    let stream = fixture.residual_stream();
    let last_layer = stream.last().expect("a model has layers");
    for chunks in CUTS {
        let what = format!("{family}, kernels {kernels}, chunks {chunks:?}");
        let found = loglikelihoods(&mut model, tokens, chunks);
        let logits = fixture.logits();
        for (row, logits) in fixture.rows.iter().zip(&logits) {
            let Some(target) = tokens.get(row + 1) else {
                continue;
            };
            let expected = logprobs_of(logits, *target, 0).expect("a token").logprob;
            let found = &found[*row..=*row];
            assert_near(found, &[expected.into()], SCORE_TOLERANCE, &what);
        }
        for (row, residual) in fixture.residual_rows.iter().zip(last_layer) {
            let found = hidden_sum(&mut model, tokens, chunks, *row..row + 1);
            let what = format!("{what}, hidden state of token {row}");
            assert_near(&found, &normed(&files, residual), STATE_TOLERANCE, &what);
        }
    }
}

#[test]
fn log_likelihoods_and_last_states_are_those_of_the_reference() {
    let _serial = one_at_a_time();
    for family in families() {
        let fixture = Fixture::of(&family);
        let folder = open_family(&family);
        for kernels in [true, false] {
            check(folder.path(), &fixture, kernels);
        }
    }
}

/// Through an engine whose steps cut each prompt, computed and from the cache.
#[test]
fn engines_score_and_embed_as_the_reference() {
    let _serial = one_at_a_time();
    for family in ["llama", "gemma2", "granite", "lfm2"] {
        let fixture = Fixture::of(family);
        let folder = open_family(family);
        in_runtime(async {
            let engine = without_text(folder.path()).await;
            let files = ModelFiles::open(folder.path()).expect("the family opens");
            check_engine(&engine, &files, &fixture).await;
            engine.shutdown(Shutdown::Abort).await;
        });
    }
}

async fn without_text(path: &Path) -> Engine {
    let files = Arc::new(ModelFiles::open(path).expect("the family opens"));
    let load = move || MlxModel::load(&files, options(true));
    let mut config = motet::config::EngineConfig {
        context_tokens_max: Some(128),
        ..Default::default()
    };
    config.scheduler.sequences_max = 16;
    config.scheduler.chunking.step_tokens_max = 23;
    config.cache.device_bytes_max = 64 << 20;
    let engine = Engine::builder(load).config(config).start().await;
    engine.expect("the engine starts")
}

async fn check_engine(engine: &Engine, files: &ModelFiles, fixture: &Fixture) {
    let (family, tokens) = (&fixture.family, &fixture.tokens);
    let (prompt, continuation) = tokens.split_at(16);
    let logits = fixture.logits();
    let stream = fixture.residual_stream();
    let last_layer = stream.last().expect("a model has layers");
    for way in ["computed", "from the cache"] {
        let score = engine.score(Request::score(prompt, continuation)).await;
        let score = score.expect("it is scored");
        for (row, logits) in fixture.rows.iter().zip(&logits) {
            let (Some(at), Some(target)) = (row.checked_sub(15), tokens.get(row + 1)) else {
                continue;
            };
            let expected = logprobs_of(logits, *target, 0).expect("a token").logprob;
            let found = f64::from(score.logprobs[at].logprob);
            let what = format!("{family}, {way}, token {}", row + 1);
            assert_near(&[found], &[expected.into()], SCORE_TOLERANCE, &what);
        }
        for (row, residual) in fixture.residual_rows.iter().zip(last_layer) {
            let expected = normed(files, residual);
            // The mean of one token is its state.
            for pooling in [Pooling::Last, Pooling::Mean] {
                if pooling == Pooling::Mean && *row > 0 {
                    continue;
                }
                let embedding = Embedding {
                    pooling: Some(pooling),
                    is_normalized: false,
                    ..Embedding::default()
                };
                let request = Request::tokens(&tokens[..=*row]).embedding(embedding);
                let found = engine.embed(request).await.expect("it is embedded");
                let found: Vec<f64> = found.numbers.into_iter().map(f64::from).collect();
                let what = format!("{family}, {way}, {pooling:?} of {} tokens", row + 1);
                assert_near(&found, &expected, STATE_TOLERANCE, &what);
            }
        }
    }
}
