//! A model's speed as one record: a prompt, and decode steps of batches.
//!
//! `xtask/gpu_check/speed_torch.py` measures the same in torch.

use std::path::Path;

use motet::TokenId;
use motet::model::Model;
use serde_json::{Map, Value, json};

use crate::programs::Result;
use crate::programs::engine::load;
use crate::programs::model::decoder::{Batch, prefill};
use crate::protocol::Size;

const PROMPT_TOKENS: usize = 512;
/// Tokens of each sequence before it is decoded.
const CONTEXT_TOKENS: usize = 64;
const BATCHES: [usize; 3] = [1, 8, 16];
/// Tokens that the record shows: both sides must have the same weights.
const SHOWN_TOKENS: usize = 8;

/// Measures this model on the device that MLX was built for, and prints the record.
pub(crate) fn run(path: &Path, size: Size) -> Result<()> {
    println!("{}", record(&mut load(path, false)?, size)?);
    Ok(())
}

/// Tokens a second.
fn record<M: Model>(model: &mut M, size: Size) -> Result<Value> {
    // The best time of so many counts, after one that compiles kernels.
    let (steps, rounds) = (size.pick(32, SHOWN_TOKENS), size.pick(3, 1));
    let long = prompt(0, PROMPT_TOKENS);
    let (first_seconds, _) = prefill(model, &long)?;
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        best = best.min(prefill(model, &long)?.0);
    }
    let (mut decode, mut shown) = (Map::new(), Vec::new());
    for sequences in BATCHES {
        let prompts = (0..sequences).map(|sequence| prompt(sequence, CONTEXT_TOKENS));
        let mut batch = Batch::open(model, None, &prompts.collect::<Vec<_>>())?;
        let mut tokens = vec![batch.last_tokens()];
        tokens.append(&mut batch.run(model, steps)?.1);
        if shown.is_empty() {
            shown = tokens[..SHOWN_TOKENS].iter().map(|step| step[0]).collect();
        }
        let mut best = f64::INFINITY;
        for _ in 0..rounds {
            best = best.min(batch.run(model, steps)?.0);
        }
        let per_second = (sequences * steps) as f64 / best;
        decode.insert(sequences.to_string(), per_second.into());
    }
    Ok(json!({
        "side": format!("motet, {}", model.spec().name),
        "first_prefill_seconds": first_seconds,
        "prefill": PROMPT_TOKENS as f64 / best,
        "decode": decode,
        "tokens": shown,
    }))
}

/// A sequence's prompt.
fn prompt(sequence: usize, tokens: usize) -> Vec<TokenId> {
    let token = |at: usize| 300 + (at * 7_919 + sequence * 104_729) % 19_000;
    (0..tokens).map(|at| token(at) as TokenId).collect()
}

#[cfg(test)]
mod tests {
    use motet::model::oracle::{Oracle, OracleConfig};

    use super::*;

    #[test]
    fn a_record_has_each_batch() {
        let config = OracleConfig {
            vocab_size: 32_000,
            context_tokens_max: 4_096,
            ..OracleConfig::default()
        };
        let mut oracle = Oracle::new(config).expect("an oracle");
        let record = record(&mut oracle, Size::Quick).expect("a record");
        for sequences in BATCHES {
            assert!(record["decode"][sequences.to_string()].as_f64() > Some(0.0));
        }
        assert!(record["prefill"].as_f64() > Some(0.0));
        assert_eq!(
            record["tokens"].as_array().map(Vec::len),
            Some(SHOWN_TOKENS)
        );
    }
}
