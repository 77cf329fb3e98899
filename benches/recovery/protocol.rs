//! The requests, and their dispatch.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::report::Report;
use crate::{Result, overhead, pause, tokens, wire};

/// The requests.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Asks for the kind of measurements.
    Hello,
    /// The longest gap of live streams.
    Pause(pause::Measure),
    /// Tokens of streams that are killed repeatedly.
    Tokens(tokens::Measure),
    /// Decoding with everything that a recovery needs, and without.
    Overhead(overhead::Measure),
}

/// Measures the request.
pub(crate) fn answer(request: Request, model: Option<&Path>) -> Result<Value> {
    let report: Report = match request {
        Request::Hello => return Ok(wire::hello()),
        Request::Pause(measure) => pause::run(measure, model)?,
        Request::Tokens(measure) => tokens::run(measure, model)?,
        Request::Overhead(measure) => overhead::run(measure, model)?,
    };
    Ok(serde_json::to_value(report)?)
}
