//! The recorded answers of agents: calls of a trace, in their order.

use std::fs;
use std::path::Path;

use motet::config::EngineConfig;
use serde::Deserialize;

use super::Script;
use super::load::ScriptedEngine;
use super::texts::{Tokens, compare};
use crate::figures::trace;
use crate::measured::Records;
use crate::programs::Result;
use crate::programs::engine::runtime;
use crate::protocol::Size;

/// Calls of a run: the first ones of the trace that have an answer.
const CALLS: usize = 32;
/// Calls that run at once.
const BATCHES: [usize; 3] = [1, 8, 16];

/// A call of the trace.
#[derive(Debug, Deserialize)]
struct Call {
    timestamp: u64,
    input: String,
    output: String,
}

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let tokens = Tokens::of(model)?;
    let scripts = scripts(&trace::agents_path(), size.pick(CALLS, 4), &tokens)?;
    runtime(2)?.block_on(async {
        let mut engine = ScriptedEngine::start(model, EngineConfig::default()).await?;
        let mut records = Records::default();
        for batch in BATCHES {
            let figure = format!("speculation.agents_b{batch}");
            compare(&mut engine, &scripts, batch, size, &figure, &mut records).await?;
        }
        engine.end().await;
        Ok(records)
    })
}

/// The first calls of all sessions with an answer, by their times.
fn scripts(folder: &Path, calls: usize, tokens: &Tokens) -> Result<Vec<Script>> {
    let mut all: Vec<Call> = Vec::new();
    for file in fs::read_dir(folder)? {
        for line in fs::read_to_string(file?.path())?.lines() {
            all.push(serde_json::from_str(line)?);
        }
    }
    all.sort_by_key(|call| call.timestamp);
    let answered = all.iter().filter(|call| !call.output.is_empty());
    let scripts = answered.take(calls).map(|call| {
        Ok(Script {
            prompt: tokens.of_text(&call.input)?,
            output: tokens.of_text(&call.output)?,
        })
    });
    let scripts: Vec<Script> = scripts.collect::<Result<_>>()?;
    Ok(scripts
        .into_iter()
        .filter(|script| !script.prompt.is_empty() && !script.output.is_empty())
        .collect())
}
