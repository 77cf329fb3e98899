//! Requests and answers, one JSON object a line.

use std::io::{BufRead, Write};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::report::Report;
use crate::{
    Result, cache_off, fair, host, idle, overload, preemption, priority, stall, stall_virtual,
};

/// What can be asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// What is measured.
    Hello,
    /// The house's own cost for each sequence and step.
    Host(host::Measure),
    /// A polite user beside a greedy one.
    Fair(fair::Measure),
    /// An urgent class above a full background.
    Priority(priority::Measure),
    /// Less memory than the load wants.
    Preemption(preemption::Measure),
    /// A cache that finds nothing.
    CacheOff(cache_off::Measure),
    /// Many times more than can be served.
    Overload(overload::Measure),
    /// Long prompts beside those who decode.
    Stall(stall::Measure),
    /// The same in the virtual house.
    StallVirtual(stall_virtual::Measure),
    /// How long the device waits.
    Idle(idle::Measure),
}

/// Answers requests until standard input ends.
pub(crate) fn serve(model: Option<&Path>) -> Result<()> {
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(request) => answer(request, model),
            Err(error) => Err(error.into()),
        };
        let answer = match answer {
            Ok(ok) => json!({ "ok": ok }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    Ok(())
}

fn answer(request: Request, model: Option<&Path>) -> Result<Value> {
    let report: Report = match request {
        Request::Hello => {
            return Ok(json!({ "name": format!("motet {}", env!("CARGO_PKG_VERSION")) }));
        }
        Request::Host(measure) => host::run(&measure)?,
        Request::Fair(measure) => fair::run(measure)?,
        Request::Priority(measure) => priority::run(measure)?,
        Request::Preemption(measure) => preemption::run(measure)?,
        Request::CacheOff(measure) => cache_off::run(measure, model)?,
        Request::Overload(measure) => overload::run(measure)?,
        Request::Stall(measure) => stall::run(measure, model)?,
        Request::StallVirtual(measure) => stall_virtual::run(measure)?,
        Request::Idle(measure) => idle::run(measure, model)?,
    };
    Ok(serde_json::to_value(report)?)
}
