//! Edits of a file over HTTP, beside llama-server with drafts of its own.

use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use xtask::model::Model;

use super::exchange::post_json;
use super::servers::ServerName;
use super::turns::take_turns;
use super::workbench::Workbench;
use crate::measured::Measured;

/// The file that is edited, of about 200 lines.
const FILE: &str = include_str!("../../../crates/core/src/scheduler/policy/fairness.rs");
/// Names that the file has, and what they become: one for each user.
const RENAMED: [[&str; 2]; 8] = [
    ["Service", "ServiceTotals"],
    ["credit", "allowance"],
    ["AWAY_MAX", "ABSENT_MAX"],
    ["floors", "minima"],
    ["users", "accounts"],
    ["priority", "class"],
    ["weight", "share"],
    ["charge", "bill"],
];
/// Pairs of turns: an edit takes half a minute.
const ROUNDS_MAX: usize = 5;

/// Our wall time of so many edits at once ÷ llama-server's. Prompts are computed before, on both
/// sides.
pub(crate) fn against_llama(workbench: &mut Workbench, users: usize) -> Result<Measured> {
    let rounds = workbench.rounds().min(ROUNDS_MAX);
    let tokens = workbench.pick(400, 4);
    let (peer, ours) = (
        ServerName::LlamaDrafts(Model::Qwen25Coder),
        ServerName::OursOn(Model::Qwen25Coder),
    );
    let ports = [
        workbench.server(peer)?.port(),
        workbench.server(ours)?.port(),
    ];
    let mut turns = 0;
    let mut last = [0.0; 2];
    let pairs = take_turns(rounds, |turn| {
        // No pair of turns finds the prompts or the answers of another in a cache.
        let pair = turns / 2;
        turns += 1;
        let side = turn.pick(0, 1);
        edit_all(ports[side], users, pair, 1)?;
        let started = Instant::now();
        let edited = edit_all(ports[side], users, pair, tokens)?;
        let seconds = started.elapsed().as_secs_f64();
        last[side] = edited / seconds;
        Ok(seconds / edited)
    })?;
    let remark = format!(
        "{:.1} tok/s against {:.1} in the last turns; compared per token",
        last[1], last[0]
    );
    Ok(Measured::new(pairs.second_by_first()).remark(remark))
}

/// Lets so many users edit the file at once. Returns the number of tokens.
fn edit_all(port: u16, users: usize, pair: usize, tokens: usize) -> Result<f64> {
    thread::scope(|scope| {
        let edits: Vec<_> = RENAMED[..users]
            .iter()
            .map(|renamed| scope.spawn(move || edit(port, &request(renamed, pair, tokens))))
            .collect();
        edits
            .into_iter()
            .map(|edit| edit.join().expect("a client does not panic"))
            .sum()
    })
}

fn request([from, to]: &[&str; 2], pair: usize, tokens: usize) -> Value {
    let prompt = format!(
        "Copy of round {pair}. Rename `{from}` to `{to}` in this file, and write the whole file, \
         nothing else.\n\n```rust\n{FILE}```"
    );
    json!({
        "messages": [{ "role": "user", "content": prompt }],
        "max_tokens": tokens,
        "temperature": 0,
    })
}

fn edit(port: u16, body: &Value) -> Result<f64> {
    let answer = post_json(port, "/v1/chat/completions", body)?;
    let tokens = answer["usage"]["completion_tokens"].as_f64();
    tokens.with_context(|| format!("not an answer: {answer}"))
}
