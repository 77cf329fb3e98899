//! What can be asked for, and who measures it.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::report::Report;
use crate::{Result, copy, decode, first_token, oversubscribed, wire};

/// What can be asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// What is measured.
    Hello,
    /// A segment's way out and in.
    Copy(copy::Measure),
    /// Decoding beside paging.
    Decode(decode::Measure),
    /// A prompt that begins with what only the host has.
    FromHost(first_token::Measure),
    /// The same, and only the disk has it.
    FromDisk(first_token::Measure),
    /// More conversations than the device has room for.
    Oversubscribed(oversubscribed::Measure),
}

/// Measures what is asked for.
pub(crate) fn answer(request: Request, model: Option<&Path>) -> Result<Value> {
    let report: Report = match request {
        Request::Hello => return Ok(wire::hello()),
        Request::Copy(measure) => copy::run(measure, model)?,
        Request::Decode(measure) => decode::run(measure, model)?,
        Request::FromHost(measure) => first_token::from_host(measure, model)?,
        Request::FromDisk(measure) => first_token::from_disk(measure, model)?,
        Request::Oversubscribed(measure) => oversubscribed::run(measure, model)?,
    };
    Ok(serde_json::to_value(report)?)
}
