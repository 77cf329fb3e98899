//! Tokens that differ with drafts, in the deterministic mode.

use std::path::Path;

use motet::config::EngineConfig;
use motet::{Engine, Request, Shutdown, TokenId};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::texts::{self, Tokens};
use crate::measured::Records;
use crate::programs::Result;
use crate::programs::engine::{on_model_in_mode, request, runtime};
use crate::protocol::Size;

const FIGURE: &str = "speculation.tokens_changed";
/// Sequences that run at once.
const SEQUENCES: usize = 4;

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let tokens = Tokens::of(model)?;
    let output_tokens = size.pick(48, 8);
    let prompts = texts::prose(&tokens, SEQUENCES, output_tokens);
    runtime(2)?.block_on(async {
        let engine = on_model_in_mode(model, EngineConfig::default(), true).await?;
        let (mut changed, mut compared) = (0, 0);
        for (number, script) in prompts.iter().enumerate() {
            let plain = request(script.prompt.clone(), output_tokens)
                .cache_salt(format!("sequence {number}"));
            let plain = match number % 2 {
                0 => plain,
                _ => plain.temperature(0.8).seed(number as u64),
            };
            let expected = tokens_of(&engine, plain.clone().speculation(false)).await?;
            for prediction in predictions(&expected, number as u64) {
                let output =
                    tokens_of(&engine, plain.clone().prediction_tokens(prediction)).await?;
                let pairs = output.iter().zip(&expected);
                changed += pairs
                    .filter(|(output, expected)| output != expected)
                    .count();
                compared += expected.len();
            }
        }
        let drafts = engine.stats().drafts;
        engine.shutdown(Shutdown::Abort).await;
        let mut records = Records::default();
        records.sample(FIGURE, changed as f64);
        let remark = format!(
            "of {compared}, with {} draft tokens, {} of them accepted",
            drafts.draft_tokens, drafts.accepted_tokens
        );
        records.remark(FIGURE, remark);
        Ok(records)
    })
}

async fn tokens_of(engine: &Engine, request: Request) -> Result<Vec<TokenId>> {
    Ok(engine.submit(request).await?.collect().await?.tokens)
}

/// The output itself, the output with wrong tokens, other tokens, and nothing.
fn predictions(output: &[TokenId], seed: u64) -> [Vec<TokenId>; 4] {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let wrong = output
        .iter()
        .enumerate()
        .map(|(index, token)| match index % 5 {
            4 => token ^ 1,
            _ => *token,
        });
    let wrong = wrong.collect();
    let other = output.iter().map(|_| random.random_range(0..1_000));
    [output.to_vec(), wrong, other.collect(), Vec::new()]
}
