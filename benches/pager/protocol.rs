//! Requests and answers, one JSON object a line.

use std::io::{BufRead, Write};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::report::Report;
use crate::{Result, copy, crowd, decode, first_token};

/// What can be asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
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
    Crowd(crowd::Measure),
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
        Request::Copy(measure) => copy::run(measure, model)?,
        Request::Decode(measure) => decode::run(measure, model)?,
        Request::FromHost(measure) => first_token::from_host(measure, model)?,
        Request::FromDisk(measure) => first_token::from_disk(measure, model)?,
        Request::Crowd(measure) => crowd::run(measure, model)?,
    };
    Ok(serde_json::to_value(report)?)
}
