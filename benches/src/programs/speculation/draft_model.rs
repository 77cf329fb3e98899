//! The gain of a draft model beside the other drafters: two engines on the same model, one with a
//! draft model.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Instant;

use motet::config::EngineConfig;
use motet::model::ModelError;
use motet::model::oracle::{Oracle, OracleConfig, StepCost};
use motet::text::{Chat, Message};
use motet::{Engine, Shutdown, TokenId};

use super::load::{Run, record};
use super::texts::Tokens;
use crate::measured::Records;
use crate::programs::Result;
use crate::programs::engine::{load, request, runtime, slow_oracle};
use crate::protocol::{DRAFT_MODEL_VARIABLE, Size};

/// Questions whose answers are code and prose.
const QUESTIONS: [&str; 8] = [
    "Write a Rust function that merges two sorted vectors, with a unit test.",
    "Explain how TCP detects a lost packet, in three paragraphs.",
    "Write a Python class for a least recently used cache, with comments.",
    "What happens between typing an address into a browser and seeing the page?",
    "Write a SQL query for each customer's largest order, and explain it.",
    "Describe the water cycle for a child of ten years.",
    "Write a C function that reverses a linked list, and say why it is correct.",
    "Compare merge sort and quicksort in a short essay.",
];
/// Sequences that run at once.
const BATCHES: [usize; 2] = [1, 8];
/// Pairs of turns.
const ROUNDS_MAX: usize = 5;

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let prompts = prompts(model)?;
    let output_tokens = size.pick(128, 8);
    runtime(2)?.block_on(async {
        let with = engine(model, true).await?;
        let without = engine(model, false).await?;
        let mut records = Records::default();
        for batch in BATCHES {
            let figure = format!("speculation.draft_model_b{batch}");
            let (mut runs_with, mut runs_without) = (Vec::new(), Vec::new());
            for round in 0..size.rounds().min(ROUNDS_MAX) {
                let mut turns = [(&with, &mut runs_with), (&without, &mut runs_without)];
                if round % 2 == 1 {
                    turns.reverse();
                }
                for (engine, runs) in turns {
                    let salt = format!("{batch} {round}");
                    runs.push(run_once(engine, &prompts, batch, output_tokens, &salt).await?);
                }
            }
            record(&mut records, &figure, &runs_with, &runs_without);
        }
        with.shutdown(Shutdown::Abort).await;
        without.shutdown(Shutdown::Abort).await;
        Ok(records)
    })
}

/// Runs all prompts, at most `batch` at once. The outputs go on to their full length.
async fn run_once(
    engine: &Engine,
    prompts: &[Vec<TokenId>],
    batch: usize,
    output_tokens: usize,
    salt: &str,
) -> Result<Run> {
    let before = engine.stats();
    let started = Instant::now();
    let mut tokens = 0;
    for together in prompts.chunks(batch) {
        let mut streams = Vec::with_capacity(together.len());
        for prompt in together {
            let request = request(prompt.clone(), output_tokens).cache_salt(salt);
            streams.push(engine.submit(request).await?);
        }
        for stream in streams {
            tokens += stream.collect().await?.tokens.len();
        }
    }
    let after = engine.stats();
    Ok(Run {
        tokens_a_second: tokens as f64 / started.elapsed().as_secs_f64(),
        drafts: after.drafts.since(before.drafts),
        steps: after.steps - before.steps,
        tokens,
    })
}

/// An engine on this model, or on an oracle of similar speed, with a draft model if `drafts`.
async fn engine(model: Option<&Path>, drafts: bool) -> Result<Engine> {
    let config = EngineConfig::default();
    let Some(path) = model.map(Path::to_path_buf) else {
        let oracle = |cost| {
            let config = OracleConfig {
                cost,
                ..slow_oracle()
            };
            move || {
                let oracle = Oracle::new(config.clone());
                oracle.map_err(|error| ModelError::Device(error.to_string()))
            }
        };
        let builder = Engine::builder(oracle(slow_oracle().cost));
        let builder = if drafts {
            builder.draft_model(oracle(StepCost::default()))
        } else {
            builder
        };
        return Ok(builder.config(config).start().await?);
    };
    let loads = |path: PathBuf| {
        move || load(&path, false).map_err(|error| ModelError::Device(error.to_string()))
    };
    let mut builder = Engine::builder(loads(path));
    if drafts {
        let draft = env::var_os(DRAFT_MODEL_VARIABLE);
        let draft = draft.ok_or_else(|| format!("{DRAFT_MODEL_VARIABLE} names no model"))?;
        builder = builder.draft_model(loads(draft.into()));
    }
    Ok(builder.config(config).start().await?)
}

/// The questions as the model's prompts.
fn prompts(model: Option<&Path>) -> Result<Vec<Vec<TokenId>>> {
    let tokens = Tokens::of(model)?;
    let prompts = QUESTIONS.iter().map(|question| match &tokens {
        Tokens::Model(codec) => {
            let chat = Chat::from([Message::user(*question)]);
            Ok(codec.encode_chat(&chat)?)
        }
        Tokens::Words => tokens.of_text(question),
    });
    prompts.collect()
}
