//! Figures of the whole engine, on the oracle.

use anyhow::Result;
use serde_json::json;

use super::statistics::Measured;
use super::workbench::Workbench;

const USERS: usize = 16;

/// Tokens evaluated of a system prompt that all users share ÷ its length.
pub(super) fn system_prompt_computed(workbench: &mut Workbench) -> Result<Measured> {
    let system_tokens = workbench.pick(400, 40);
    let rounds = workbench.rounds();
    let ours = workbench.ours()?;
    let samples = (0..rounds)
        .map(|_| {
            let answer = ours.ask(&json!({
                "do": "system_prompt",
                "users": USERS,
                "system_tokens": system_tokens,
                "question_tokens": 32,
                "output_tokens": 16,
            }))?;
            Ok(answer.number("evaluated")? / system_tokens as f64)
        })
        .collect::<Result<Vec<f64>>>()?;
    let remark = format!("{USERS} users, system prompt of {system_tokens} tokens");
    Ok(Measured::new(samples).remark(remark))
}
