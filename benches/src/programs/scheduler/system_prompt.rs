//! An engine whose users all send the same system prompt.
//!
//! It runs on the oracle, which counts each token that it evaluates. The figure measures the
//! scheduler and the cache, and both are the same on every model.

use std::time::Duration;

use motet::model::ModelError;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::{Engine, Request, Shutdown, TokenId};
use motet_model::oracle::{OracleCounters, StepCost};
use tokio::task::JoinSet;

use crate::measured::{Measured, Records};
use crate::programs::Result;
use crate::protocol::Size;

const VOCAB_SIZE: usize = 50_000;

/// Long enough that requests arrive during a prefill, as they do on a real device.
const COST: StepCost = StepCost {
    base: Duration::from_millis(2),
    per_token: Duration::from_micros(20),
    per_cached_token: Duration::ZERO,
};

/// The load: users, and the tokens of their requests.
#[derive(Clone, Copy, Debug)]
struct Load {
    users: usize,
    /// Length of the prompt that all share.
    system_tokens: usize,
    /// Length of each user's tokens after it.
    question_tokens: usize,
    output_tokens: usize,
}

/// Evaluated tokens of a system prompt that all users share ÷ its length.
pub(crate) fn run(size: Size) -> Result<Records> {
    let load = Load {
        users: 16,
        system_tokens: size.pick(400, 40),
        question_tokens: 32,
        output_tokens: 16,
    };
    let samples = (0..size.rounds())
        .map(|_| Ok(evaluated(load)? as f64 / load.system_tokens as f64))
        .collect::<Result<Vec<f64>>>()?;
    let remark = format!(
        "{} users, system prompt of {} tokens",
        load.users, load.system_tokens
    );
    let measured = Measured::new(samples).remark(remark);
    Ok(Records::of("demo.system_prompt_computed", measured))
}

/// Tokens of the system prompt that the device evaluated, for all users together.
fn evaluated(load: Load) -> Result<u64> {
    let counters = OracleCounters::default();
    let config = OracleConfig {
        vocab_size: VOCAB_SIZE,
        cost: COST,
        counters: counters.clone(),
        ..OracleConfig::default()
    };
    tokio::runtime::Builder::new_multi_thread()
        .enable_time()
        .build()?
        .block_on(serve_users(load, config))?;
    // A user's last sampled token is not evaluated any more.
    let own = load.users * (load.question_tokens + load.output_tokens - 1);
    Ok(counters.now().tokens_evaluated - own as u64)
}

async fn serve_users(load: Load, config: OracleConfig) -> Result<()> {
    let build =
        move || Oracle::new(config.clone()).map_err(|error| ModelError::Device(error.to_string()));
    let engine = Engine::builder(build).start().await?;
    let mut answers = JoinSet::new();
    for user in 0..load.users {
        let request = Request::tokens(prompt(load, user))
            .output_tokens_max(load.output_tokens)
            .ignore_end_tokens();
        answers.spawn(engine.submit(request).await?.collect());
    }
    while let Some(answer) = answers.join_next().await {
        answer??;
    }
    engine.shutdown(Shutdown::Abort).await;
    Ok(())
}

/// The system prompt and one user's question, which differs from its first token on.
fn prompt(load: Load, user: usize) -> Vec<TokenId> {
    let system = (0..load.system_tokens).map(|at| 1 + at % 997);
    let question = (0..load.question_tokens).map(|at| 1_000 + user * 31 + at);
    system
        .chain(question)
        .map(|token| token as TokenId)
        .collect()
}
