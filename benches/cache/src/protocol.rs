//! Requests and answers, one JSON object a line.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Result, eviction, host_bytes, matching, session};

/// The requests.
#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
enum Request {
    /// Asks for the kind of measurements.
    Hello,
    /// GB/s at which the tokens of a long path are matched.
    Match(matching::Load),
    /// Match, open and close ÷ kvbm-logical's match.
    Session(session::Load),
    /// Time per insertion and eviction in a large trie ÷ in a small one.
    EvictGrowth(eviction::Load),
    /// Host bytes per cached token.
    HostBytes(host_bytes::Load),
}

/// The measurements of a figure.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Measured {
    /// One for each round.
    pub(crate) samples: Vec<f64>,
    /// The absolute numbers behind it, for readers.
    pub(crate) remarks: Vec<String>,
}

/// Answers requests until standard input ends.
pub(crate) fn serve() -> Result<()> {
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?)
            .map_err(Into::into)
            .and_then(answer)
        {
            Ok(ok) => json!({ "ok": ok }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    Ok(())
}

fn answer(request: Request) -> Result<Value> {
    let measured = match request {
        Request::Hello => return Ok(json!({ "name": "motet's cache, kvbm-logical 1.6.1" })),
        Request::Match(load) => matching::measure(&load),
        Request::Session(load) => session::measure(&load)?,
        Request::EvictGrowth(load) => eviction::measure(&load)?,
        Request::HostBytes(load) => host_bytes::measure(&load),
    };
    Ok(serde_json::to_value(measured)?)
}
