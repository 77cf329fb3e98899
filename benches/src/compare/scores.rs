//! The reuse of a prompt while many continuations of it are scored.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use xtask::ui;

use super::exchange::post_json;
use super::servers::ServerName;
use super::workbench::Workbench;
use crate::measured::Measured;

/// Tokens of the prompt.
const PROMPT_TOKENS: usize = 256;
/// Prompts of one request: fewer than a completion may have.
const PROMPTS_AT_ONCE: usize = 100;
/// Tokens of a prompt and of continuations are below this, and so in every vocabulary.
const VOCAB: usize = 200;

/// Prompt tokens from the cache ÷ all prompt tokens of 1,000 requests that score a continuation
/// of the same prompt.
pub(crate) fn reuse(workbench: &mut Workbench) -> Result<Measured> {
    let continuations = workbench.pick(1_000, 100);
    let port = workbench.server(ServerName::Ours)?.port();
    let (mut cached, mut sent) = (0, 0);
    for first in (0..continuations).step_by(PROMPTS_AT_ONCE) {
        let count = PROMPTS_AT_ONCE.min(continuations - first);
        let answer = scored(port, first..first + count)?;
        let of_usage = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        cached += of_usage
            .as_u64()
            .context("an answer without cached tokens")?;
        sent += count * PROMPT_TOKENS;
        ui::note(&format!("{} continuations are scored", first + count));
    }
    let remark = format!(
        "{} prompt tokens were computed for {continuations} continuations of {PROMPT_TOKENS}",
        sent as u64 - cached
    );
    let share = cached as f64 / sent as f64;
    Ok(Measured::new(vec![share]).remark(remark))
}

/// Scores these continuations in one request.
fn scored(port: u16, continuations: std::ops::Range<usize>) -> Result<Value> {
    let prompts: Vec<Vec<usize>> = continuations.map(prompt).collect();
    let count = prompts.len();
    let body = json!({
        "prompt": prompts, "max_tokens": 0, "prompt_logprobs": 0,
        "logprob_start_len": PROMPT_TOKENS,
    });
    let answer = post_json(port, "/v1/completions", &body)?;
    let choices = answer["choices"].as_array().map_or(0, Vec::len);
    if choices != count {
        bail!("{choices} of {count} continuations were scored: {answer}");
    }
    Ok(answer)
}

/// The prompt, and continuation number `number` of one to four tokens.
fn prompt(number: usize) -> Vec<usize> {
    let shared = (0..PROMPT_TOKENS).map(|at| 1 + (at * at * 7 + at) % (VOCAB - 1));
    let own = (0..1 + number % 4).map(|at| 1 + (number / VOCAB.pow(at as u32)) % (VOCAB - 1));
    shared.chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuations_follow_one_prompt() {
        let all: Vec<Vec<usize>> = (0..8).map(prompt).collect();
        for tokens in &all {
            assert_eq!(tokens[..PROMPT_TOKENS], all[0][..PROMPT_TOKENS]);
            assert!(tokens.len() > PROMPT_TOKENS && tokens.iter().all(|token| *token < VOCAB));
        }
        assert_ne!(all[0], all[4]);
    }
}
