//! One side of a comparison: a program that measures on request.

use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::measured::Records;
use crate::protocol::Request;

/// A program that waits for requests. Stopped when dropped.
pub(crate) struct Side {
    name: String,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// File for the program's messages.
    log: PathBuf,
    hello: Answer,
}

/// Answer of a side.
#[derive(Clone, Debug)]
pub(crate) struct Answer(pub(crate) Value);

impl Side {
    /// Starts the program. Messages call it `name`.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(super) fn start(name: String, command: &mut Command, log: &Path) -> Result<Self> {
        let log_file = std::fs::File::create(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{name} was started without pipes");
        };
        Ok(Self {
            name,
            child,
            requests,
            answers: BufReader::new(answers),
            log: log.to_path_buf(),
            hello: Answer(Value::Null),
        })
    }

    /// Waits until the program has loaded its model.
    ///
    /// # Errors
    ///
    /// When it ends. The error holds the last lines of its log.
    pub(super) fn load(&mut self) -> Result<()> {
        self.hello = self.ask(&Request::Hello)?;
        Ok(())
    }

    /// The constants of the program's model.
    pub(super) fn hello(&self) -> &Answer {
        &self.hello
    }

    /// Asks for a measurement and waits for it.
    ///
    /// # Errors
    ///
    /// The side's own error, or that it has ended.
    pub(super) fn ask(&mut self, request: &Request) -> Result<Answer> {
        match self.exchange(request) {
            Ok(line) if !line.is_empty() => {
                Answer::parse(&line).with_context(|| format!("{} cannot measure", self.name))
            }
            Ok(_) => bail!(
                "{} has ended; the end of its log:\n{}",
                self.name,
                self.last_words()
            ),
            Err(error) => {
                bail!(
                    "{} does not answer: {error}; the end of its log:\n{}",
                    self.name,
                    self.last_words()
                )
            }
        }
    }

    /// The line that answers the request; an empty one when the program has ended.
    fn exchange(&mut self, request: &Request) -> io::Result<String> {
        writeln!(self.requests, "{}", serde_json::to_string(request)?)?;
        self.requests.flush()?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line)
    }

    fn last_words(&self) -> String {
        const LINES_MAX: usize = 12;
        let log_file = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log_file.lines().collect();
        lines[lines.len().saturating_sub(LINES_MAX)..].join("\n")
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Answer {
    fn parse(line: &str) -> Result<Self> {
        let answer: Value =
            serde_json::from_str(line).with_context(|| format!("not an answer: {line}"))?;
        match (answer.get("ok"), answer.get("error")) {
            (Some(ok), None) => Ok(Self(ok.clone())),
            (None, Some(error)) => bail!("{}", error.as_str().unwrap_or("an error without a text")),
            _ => bail!("not an answer: {line}"),
        }
    }

    pub(super) fn number(&self, field: &str) -> Result<f64> {
        self.0[field]
            .as_f64()
            .with_context(|| format!("an answer without a number `{field}`: {}", self.0))
    }

    /// The measurements of a run.
    pub(super) fn records(self) -> Result<Records> {
        let text = self.0.to_string();
        serde_json::from_value(self.0).with_context(|| format!("not the records of a run: {text}"))
    }

    /// The tokens of each step, one for each sequence.
    pub(super) fn tokens(&self) -> Result<Vec<Vec<u64>>> {
        let step = |step: &Value| -> Option<Vec<u64>> {
            step.as_array()?.iter().map(Value::as_u64).collect()
        };
        self.0["tokens"]
            .as_array()
            .and_then(|steps| steps.iter().map(step).collect())
            .with_context(|| format!("an answer without tokens: {}", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart() {
        let answer = Answer::parse(r#"{"ok": {"seconds": 0.5, "tokens": [[1, 2], [3, 4]]}}"#);
        let answer = answer.unwrap();
        assert_eq!(answer.number("seconds").unwrap(), 0.5);
        assert_eq!(answer.tokens().unwrap(), [[1, 2], [3, 4]]);
        assert!(answer.number("minutes").is_err());
        assert!(answer.records().is_err());
        let run = Answer::parse(r#"{"ok": {"gap": {"samples": [2, 0.5], "remarks": ["fine"]}}}"#);
        let records = run.unwrap().records().unwrap();
        assert_eq!(records.get("gap").unwrap().samples, [2.0, 0.5]);

        let error = Answer::parse(r#"{"error": "no such batch"}"#).unwrap_err();
        assert_eq!(error.to_string(), "no such batch");
        assert!(Answer::parse("Loading …").is_err());
        assert!(Answer::parse("{}").is_err());
    }
}
