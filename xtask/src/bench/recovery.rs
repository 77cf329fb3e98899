//! Figures of recovery.

use anyhow::Result;
use serde_json::{Value, json};

use super::statistics::Measured;
use super::workbench::Workbench;

/// The longest gap of live streams whose device is killed, as one of several ratios.
pub(super) fn pause(workbench: &mut Workbench, figure: &str) -> Result<Measured> {
    let request = json!({
        "do": "pause",
        "rounds": workbench.pick(7, 1),
        "streams": workbench.pick(16, 4),
        "prompt_tokens": workbench.pick(256, 96),
    });
    ask(workbench, &request, figure)
}

/// Number of streams whose tokens differ from undisturbed ones after several kills.
pub(super) fn tokens(workbench: &mut Workbench) -> Result<Measured> {
    let request = json!({
        "do": "tokens",
        "kills": workbench.pick(20, 2),
        "streams": workbench.pick(16, 4),
        "prompt_tokens": workbench.pick(96, 80),
        "output_tokens": workbench.pick(96, 24),
    });
    ask(workbench, &request, "wrong")
}

/// Throughput with everything that recovery needs ÷ without.
pub(super) fn overhead(workbench: &mut Workbench, figure: &str) -> Result<Measured> {
    let request = json!({
        "do": "overhead",
        "rounds": workbench.rounds(),
        "streams": workbench.pick(16, 4),
        "prompt_tokens": workbench.pick(128, 80),
        "tokens": workbench.pick(160, 24),
    });
    ask(workbench, &request, figure)
}

fn ask(workbench: &mut Workbench, request: &Value, figure: &str) -> Result<Measured> {
    let answer = workbench.recovery(request)?.part(figure)?;
    let remarks = answer.texts("remarks")?;
    let measured = Measured::new(answer.numbers("samples")?);
    Ok(remarks.into_iter().fold(measured, Measured::remark))
}
