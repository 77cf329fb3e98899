//! JSON lines: blocks, or texts.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::error::Place;
use crate::{Answer, BLOCK_TOKENS, Dated, Prompt, TraceError};

struct Line<'a> {
    place: Place<'a>,
    value: Value,
}

/// Adds the requests of a file.
pub(crate) fn read(path: &Path, text: &str, dated: &mut Vec<Dated>) -> Result<(), TraceError> {
    let lines = text.lines().enumerate();
    for (index, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
        let place = Place {
            path,
            line: index + 1,
        };
        let value = serde_json::from_str(text).map_err(|source| TraceError::NotJson {
            path: path.to_owned(),
            line: place.line,
            source,
        })?;
        let line = Line { place, value };
        dated.push(match line.value.get("input") {
            None => line.blocks()?,
            Some(_) => line.texts()?,
        });
    }
    Ok(())
}

impl Line<'_> {
    fn blocks(&self) -> Result<Dated, TraceError> {
        const EXPECTED: &str = "an array of whole numbers that is not empty";
        let found = self.field("hash_ids")?;
        let ids = found.as_array().filter(|ids| !ids.is_empty());
        let ids = ids.ok_or_else(|| self.unexpected("hash_ids", found, EXPECTED))?;
        let ids = ids.iter().map(|id| {
            let number = id.as_u64();
            number.ok_or_else(|| self.unexpected("hash_ids", id, EXPECTED))
        });
        let ids = ids.collect::<Result<Vec<u64>, _>>()?;
        let tokens = self.length("input_length")?;
        let tokens = tokens.unwrap_or(ids.len() * BLOCK_TOKENS);
        let answer = self.length("output_length")?;
        Ok((
            self.time(1e-3)?,
            Prompt::Blocks { ids, tokens },
            answer.map_or(Answer::Unknown, Answer::Length),
        ))
    }

    fn texts(&self) -> Result<Dated, TraceError> {
        let (input, output) = (self.text("input")?, self.text("output")?);
        if input.is_empty() {
            let found = &self.value["input"];
            return Err(self.unexpected("input", found, "a text that is not empty"));
        }
        Ok((self.time(1e-6)?, Prompt::Text(input), Answer::Text(output)))
    }

    fn field(&self, field: &'static str) -> Result<&Value, TraceError> {
        let found = self.value.get(field);
        found.ok_or_else(|| self.place.missing(field))
    }

    fn text(&self, field: &'static str) -> Result<String, TraceError> {
        let found = self.field(field)?;
        let text = found.as_str().map(str::to_owned);
        text.ok_or_else(|| self.unexpected(field, found, "a text"))
    }

    fn length(&self, field: &'static str) -> Result<Option<usize>, TraceError> {
        let Some(found) = self.value.get(field) else {
            return Ok(None);
        };
        let length = found
            .as_u64()
            .and_then(|length| usize::try_from(length).ok());
        match length {
            Some(length) => Ok(Some(length)),
            None => Err(self.unexpected(field, found, "a number of tokens")),
        }
    }

    /// The time; `unit_seconds` is the unit of `timestamp` in seconds.
    fn time(&self, unit_seconds: f64) -> Result<Duration, TraceError> {
        let Some(found) = self.value.get("timestamp") else {
            return Ok(Duration::ZERO);
        };
        let seconds = found.as_f64().map(|number| number * unit_seconds);
        seconds
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
            .ok_or_else(|| self.unexpected("timestamp", found, "a number"))
    }

    fn unexpected(&self, field: &'static str, found: &Value, expected: &'static str) -> TraceError {
        self.place.unexpected(field, found.to_string(), expected)
    }
}
