//! The requests, and their dispatch.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::report::Report;
use crate::{Result, copy, decode, first_token, oversubscribed, wire};

/// The requests.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Request {
    /// Asks for the kind of measurements.
    Hello,
    /// A segment's export and import.
    Copy(copy::Measure),
    /// Decoding beside paging.
    Decode(decode::Measure),
    /// A prompt whose beginning only the host has.
    FromHost(first_token::Measure),
    /// The same, and only the disk has it.
    FromDisk(first_token::Measure),
    /// More conversations than fit on the device.
    Oversubscribed(oversubscribed::Measure),
}

/// Measures the request.
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
