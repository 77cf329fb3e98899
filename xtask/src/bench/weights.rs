//! Figures of weights as their files store them, against llama.cpp on the same file.

use anyhow::Result;
use serde_json::json;

use super::model::{close, compared, run, vocab_size};
use super::prompts::{prompt, prompts};
use super::statistics::Measured;
use super::turns::{Turn, take_turns};
use super::workbench::Workbench;
use crate::model::Model;

/// Tokens of each sequence in one turn.
const STEPS: usize = 32;

/// Decode tokens/s of `sequences` contexts of 128 tokens ÷ llama.cpp's.
pub(super) fn decode(
    workbench: &mut Workbench,
    model: Model,
    sequences: usize,
) -> Result<Measured> {
    let (steps, rounds) = (workbench.pick(STEPS, 2), workbench.rounds());
    let (ours, theirs) = workbench.against_llama(model)?;
    let prompts = prompts(sequences, 128, vocab_size(ours)?);
    let open = json!({ "do": "decode_open", "batch": "decode", "prompts": prompts });
    let generate = json!({ "do": "generate", "prompts": prompts, "tokens": steps });
    let pairs = take_turns(rounds, |turn| match turn {
        Turn::First => {
            ours.ask(&open)?;
            let seconds = run(ours, "decode", steps)?.number("seconds");
            close(ours, "decode")?;
            seconds
        }
        Turn::Second => theirs.ask(&generate)?.number("seconds"),
    })?;
    Ok(compared(&pairs, (sequences * steps) as f64, "tok/s"))
}

/// Prefill tokens/s of a prompt of 512 tokens ÷ llama.cpp's.
pub(super) fn prefill(workbench: &mut Workbench, model: Model) -> Result<Measured> {
    let (tokens, rounds) = (workbench.pick(512, 32), workbench.rounds());
    let (ours, theirs) = workbench.against_llama(model)?;
    let prompt = prompt(1, tokens, vocab_size(ours)?);
    let request = json!({ "do": "prefill", "prompt": prompt });
    let pairs = take_turns(rounds, |turn| {
        let side = match turn {
            Turn::First => &mut *ours,
            Turn::Second => &mut *theirs,
        };
        side.ask(&request)?.number("seconds")
    })?;
    Ok(compared(&pairs, tokens as f64, "tok/s"))
}
