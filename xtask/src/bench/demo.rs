//! Figures of the whole engine, on the oracle.

use anyhow::{Context, Result};
use serde_json::json;

use super::statistics::{Measured, median};
use super::workbench::Workbench;

const USERS: usize = 16;

/// Evaluated tokens of a system prompt that all users share ÷ its length.
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

/// Bytes of cached state on the device after the demo's load ÷ bytes that the distinct tokens
/// need.
pub(super) fn held_vs_needed(workbench: &mut Workbench) -> Result<Measured> {
    let turns = workbench.pick(3, 1).to_string();
    let (mut samples, mut most) = (Vec::new(), Vec::new());
    // The seed decides the users' questions and their order.
    for seed in 1..=workbench.rounds() {
        let arguments = ["--turns", &turns, "--seed", &seed.to_string()];
        let report = workbench.load_generator(&arguments)?;
        let number = |field: &str| {
            let value = report["memory"][field].as_f64();
            value.with_context(|| format!("the load generator's report has no `memory.{field}`"))
        };
        samples.push(number("held_by_needed")?);
        most.push(number("held_max_by_needed")?);
    }
    let remark = format!("highest ratio at any time: {:.3}", median(&most));
    Ok(Measured::new(samples).remark(remark))
}
