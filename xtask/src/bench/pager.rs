//! Figures of the pager.

use anyhow::Result;
use serde_json::{Value, json};

use super::statistics::Measured;
use super::workbench::Workbench;

/// Copy bandwidth in the worse direction ÷ that of a plain copy.
pub(super) fn copy(workbench: &mut Workbench) -> Result<Measured> {
    let request = json!({
        "do": "copy",
        "rounds": workbench.rounds(),
        "tokens": workbench.pick(2_048, 64),
    });
    ask(workbench, &request, "bandwidth")
}

/// The 99th percentile of gaps between tokens beside paging, or beside a thread that only copies,
/// ÷ the same without.
pub(super) fn decode(workbench: &mut Workbench, figure: &str) -> Result<Measured> {
    let request = json!({
        "do": "decode",
        "rounds": workbench.pick(5, 1),
        "tokens": workbench.pick(300, 12),
        "prefixes": workbench.pick(8, 4),
        "prefix_tokens": workbench.pick(1_024, 64),
        "visit_every_tokens": 6,
    });
    ask(workbench, &request, figure)
}

/// Time to the first token of a prompt that is loaded from this tier ÷ that of a computed prompt.
pub(super) fn first_token(workbench: &mut Workbench, from: &str) -> Result<Measured> {
    let request = json!({
        "do": from,
        "rounds": workbench.pick(7, 1),
        "prompt_tokens": workbench.pick(2_048, 128),
    });
    ask(workbench, &request, "ttft")
}

/// Requests/s with host memory beside the device ÷ without.
pub(super) fn oversubscribed(workbench: &mut Workbench, figure: &str) -> Result<Measured> {
    let request = json!({
        "do": "oversubscribed",
        "rounds": workbench.pick(5, 1),
        "users": 16,
        "turns": workbench.pick(5, 2),
        "opening_tokens": workbench.pick(384, 64),
        "question_tokens": 16,
        "output_tokens": workbench.pick(16, 4),
        "sequences_max": 4,
    });
    ask(workbench, &request, figure)
}

fn ask(workbench: &mut Workbench, request: &Value, figure: &str) -> Result<Measured> {
    let answer = workbench.pager(request)?.part(figure)?;
    let remarks = answer.texts("remarks")?;
    let measured = Measured::new(answer.numbers("samples")?);
    Ok(remarks.into_iter().fold(measured, Measured::remark))
}
