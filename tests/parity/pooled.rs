//! Log likelihoods of given tokens and pooled hidden states, against those of transformers.
//!
//! The logits of every fixture give the log likelihood of some tokens. Its `pooled.json` has the
//! pooled states of some prefixes: `pooled.py` says how they are made.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use motet::model::mlx::{Arithmetic, MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet::request::Embedding;
use motet::request::Pooling;
use motet::{Engine, Request, Shutdown, TokenId};
use motet_model::sampling::logprobs_of;
use motet_model::{LogprobRows, OutputKind, SpanOutput};

use crate::fixture::{Fixture, families, floats, in_rows, text_of};
use crate::folder::open_family;
use crate::harness::{Slot, one_at_a_time};
use crate::ways::in_runtime;

/// Chunks in which a sequence is evaluated; those of the second list lie beside block borders.
const CUTS: [&[usize]; 2] = [&[80], &[1, 2, 13, 16, 1, 47]];
const POOLINGS: [Pooling; 2] = [Pooling::Mean, Pooling::Last];
/// Largest difference of a log likelihood.
const SCORE_TOLERANCE: f64 = 1e-3;
/// Largest difference of a number of a pooled state.
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

/// Asserts that the numbers are near, and returns their largest difference.
#[track_caller]
fn assert_near(found: &[f64], expected: &[f64], tolerance: f64, what: &str) -> f64 {
    assert_eq!(found.len(), expected.len(), "{what}");
    let mut largest = 0.0_f64;
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs();
        assert!(
            difference <= tolerance,
            "{what}, number {at}: {found} for {expected}"
        );
        largest = largest.max(difference);
    }
    largest
}

/// transformers' pooled states of some prefixes of the sequence.
#[derive(serde::Deserialize)]
struct Pooled {
    /// The prefixes' tokens.
    prompt_tokens: Vec<usize>,
    /// For each pooling the states, scaled to length 1.
    numbers: BTreeMap<String, String>,
    /// Their lengths before that.
    norms: BTreeMap<String, Vec<f64>>,
    /// Largest difference between f32 and f64.
    noise: f64,
    /// Differences that known mistakes make.
    mistakes: BTreeMap<String, f64>,
}

/// A prefix of the sequence, pooled.
struct Expected {
    tokens: usize,
    /// Scaled to length 1.
    scaled: Vec<f64>,
    /// As it is.
    state: Vec<f64>,
}

impl Pooled {
    fn of(family: &str) -> Self {
        let text = text_of(family, "pooled.json").expect("each family has its pooled states");
        serde_json::from_str(&text).expect("the fixture is complete")
    }

    fn expected(&self, pooling: Pooling) -> Vec<Expected> {
        let name = match pooling {
            Pooling::Mean => "mean",
            Pooling::Last => "last",
        };
        let rows = in_rows(&floats(&self.numbers[name]), self.prompt_tokens.len());
        let rows = rows.iter().zip(&self.norms[name]).zip(&self.prompt_tokens);
        rows.map(|((row, norm), tokens)| Expected {
            tokens: *tokens,
            scaled: row.iter().map(|number| f64::from(*number)).collect(),
            state: row.iter().map(|number| f64::from(*number) * norm).collect(),
        })
        .collect()
    }
}

/// Each known mistake changes a number by a hundred tolerances, and noise by a tenth of one.
#[test]
fn pooled_fixtures_would_notice_each_known_mistake() {
    for family in families() {
        let pooled = Pooled::of(&family);
        assert!(
            pooled.noise < STATE_TOLERANCE / 2.0,
            "{family}: {}",
            pooled.noise
        );
        assert_eq!(pooled.mistakes.len(), 8, "{family}");
        for (mistake, difference) in &pooled.mistakes {
            let least = 100.0 * STATE_TOLERANCE;
            assert!(*difference >= least, "{family}: {mistake}: {difference}");
        }
    }
}

fn check(path: &Path, fixture: &Fixture, kernels: bool) {
    let files = ModelFiles::open(path).expect("the family opens");
    let mut model = MlxModel::load(&files, options(kernels)).expect("a model");
    let (family, tokens) = (&fixture.family, &fixture.tokens);
    let pooled = Pooled::of(family);
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
        for pooling in POOLINGS {
            for expected in pooled.expected(pooling) {
                let rows = match pooling {
                    Pooling::Mean => 0..expected.tokens,
                    Pooling::Last => expected.tokens - 1..expected.tokens,
                };
                let count = rows.len() as f64;
                let sum = hidden_sum(&mut model, tokens, chunks, rows);
                let found: Vec<f64> = sum.iter().map(|number| number / count).collect();
                let what = format!("{what}, {pooling:?} of {} tokens", expected.tokens);
                assert_near(&found, &expected.state, STATE_TOLERANCE, &what);
            }
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
    for family in ["llama", "qwen2", "gemma2", "gemma3", "granite", "lfm2"] {
        let fixture = Fixture::of(family);
        let folder = open_family(family);
        in_runtime(async {
            let engine = without_text(folder.path()).await;
            check_engine(&engine, &fixture).await;
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

async fn check_engine(engine: &Engine, fixture: &Fixture) {
    let (family, tokens) = (&fixture.family, &fixture.tokens);
    let (prompt, continuation) = tokens.split_at(16);
    let logits = fixture.logits();
    let pooled = Pooled::of(family);
    let mut largest = 0.0_f64;
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
        for pooling in POOLINGS {
            for expected in pooled.expected(pooling) {
                for (is_normalized, numbers) in [(true, &expected.scaled), (false, &expected.state)]
                {
                    let embedding = Embedding {
                        pooling: Some(pooling),
                        is_normalized,
                        ..Embedding::default()
                    };
                    let prompt = &tokens[..expected.tokens];
                    let request = Request::tokens(prompt).embedding(embedding);
                    let found = engine.embed(request).await.expect("it is embedded");
                    let found: Vec<f64> = found.numbers.into_iter().map(f64::from).collect();
                    let what = format!("{family}, {way}, {pooling:?} of {} tokens", prompt.len());
                    let difference = assert_near(&found, numbers, STATE_TOLERANCE, &what);
                    largest = largest.max(difference);
                }
            }
        }
    }
    println!("{family}: pooled states differ by {largest:.1e} at most");
}
