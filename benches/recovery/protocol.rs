//! What can be asked for, and who measures it.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::report::Report;
use crate::{Result, overhead, pause, tokens, wire};

/// What can be asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// What is measured.
    Hello,
    /// The longest gap of live streams.
    Pause(pause::Measure),
    /// What streams get that are killed again and again.
    Tokens(tokens::Measure),
    /// Decoding with everything that a recovery needs, and without.
    Overhead(overhead::Measure),
}

/// Measures what is asked for.
pub(crate) fn answer(request: Request, model: Option<&Path>) -> Result<Value> {
    let report: Report = match request {
        Request::Hello => return Ok(wire::hello()),
        Request::Pause(measure) => pause::run(measure, model)?,
        Request::Tokens(measure) => tokens::run(measure, model)?,
        Request::Overhead(measure) => overhead::run(measure, model)?,
    };
    Ok(serde_json::to_value(report)?)
}
