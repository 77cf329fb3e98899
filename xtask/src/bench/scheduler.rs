//! Figures of the scheduler.

use anyhow::Result;
use serde_json::{Value, json};

use super::statistics::Measured;
use super::workbench::Workbench;

/// Longest gap of decoding sequences when prompts come ÷ their median step before; or the cost of
/// the bound on a step for the prompts.
pub(super) fn stall(workbench: &mut Workbench, figure: &str) -> Result<Measured> {
    let request = json!({
        "do": "stall",
        "rounds": workbench.pick(5, 1),
        "prompt_tokens": workbench.pick(2_048, 64),
        "prompts": workbench.pick(8, 2),
    });
    ask(workbench, &request, figure)
}

/// The same in the virtual engine.
pub(super) fn stall_virtual(workbench: &mut Workbench) -> Result<Measured> {
    let request = json!({
        "do": "stall_virtual",
        "seeds": workbench.pick(5, 1),
        "prompt_tokens": workbench.pick(2_048, 64),
        "prompts": workbench.pick(8, 2),
    });
    ask(workbench, &request, "stall")
}

/// Cost of the engine for each sequence and step.
pub(super) fn host(workbench: &mut Workbench, figure: &str) -> Result<Measured> {
    let sequences = match workbench.pick(4_096, 512) {
        most @ 4_096 => vec![64, 256, 1_024, most],
        most => vec![64, 256, most],
    };
    let request = json!({
        "do": "host",
        "rounds": workbench.rounds(),
        "sequences": sequences,
        "tokens": workbench.pick(200, 16),
    });
    ask(workbench, &request, figure)
}

/// Time that the device is idle ÷ time while there is work.
pub(super) fn device_idle(workbench: &mut Workbench) -> Result<Measured> {
    let request = json!({
        "do": "idle",
        "rounds": workbench.rounds(),
        "sequences": 16,
        "prompt_tokens": workbench.pick(128, 16),
        "tokens": workbench.pick(64, 8),
    });
    ask(workbench, &request, "share")
}

/// A polite user beside a greedy one.
pub(super) fn fair(workbench: &mut Workbench, figure: &str) -> Result<Measured> {
    let request = json!({
        "do": "fair",
        "seeds": workbench.pick(5, 1),
        "requests": workbench.pick(400, 20),
    });
    ask(workbench, &request, figure)
}

/// An urgent class above a full background.
pub(super) fn priority(workbench: &mut Workbench) -> Result<Measured> {
    let request = json!({
        "do": "priority",
        "seeds": workbench.pick(5, 1),
        "requests": workbench.pick(400, 4),
    });
    ask(workbench, &request, "ttft")
}

/// Ten times as many requests as can be served, for a minute.
pub(super) fn overload(workbench: &mut Workbench, figure: &str) -> Result<Measured> {
    let request = json!({
        "do": "overload",
        "seconds": workbench.pick(60, 2),
        "times": 10,
    });
    ask(workbench, &request, figure)
}

/// Throughput with a cache that finds nothing ÷ without one.
pub(super) fn cache_off_cost(workbench: &mut Workbench) -> Result<Measured> {
    let request = json!({
        "do": "cache_off",
        "rounds": workbench.rounds(),
        "requests": workbench.pick(20, 4),
        "prompt_tokens": workbench.pick(96, 16),
        "output_tokens": workbench.pick(24, 4),
    });
    ask(workbench, &request, "throughput")
}

/// Throughput with less memory than the load needs ÷ with all of it.
pub(super) fn preemption(workbench: &mut Workbench) -> Result<Measured> {
    let request = json!({
        "do": "preemption",
        "seeds": workbench.pick(5, 1),
        "sequences": workbench.pick(32, 4),
        "rounds": workbench.pick(4, 2),
    });
    ask(workbench, &request, "throughput")
}

pub(super) fn ask(workbench: &mut Workbench, request: &Value, figure: &str) -> Result<Measured> {
    let answer = workbench.scheduler(request)?.part(figure)?;
    let remarks = answer.texts("remarks")?;
    let measured = Measured::new(answer.numbers("samples")?);
    Ok(remarks.into_iter().fold(measured, Measured::remark))
}
