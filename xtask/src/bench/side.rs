//! A program that measures on request: one JSON object a line, there and back.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// One side of a comparison, loaded and waiting. Stopped when dropped.
pub(super) struct Side {
    name: &'static str,
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// File for the program's messages.
    log: PathBuf,
    hello: Answer,
    /// The program's answers, by request.
    answered: BTreeMap<String, Answer>,
}

/// Answer of a side.
#[derive(Clone, Debug)]
pub(super) struct Answer(Value);

impl Side {
    /// Starts the program and waits until it has loaded everything that it needs. Messages call
    /// it `name`.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or ends. The error holds the last lines of its log.
    pub(super) fn start(name: &'static str, command: &mut Command, log: &Path) -> Result<Self> {
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
        let mut side = Self {
            name,
            child,
            requests,
            answers: BufReader::new(answers),
            log: log.to_path_buf(),
            hello: Answer(Value::Null),
            answered: BTreeMap::new(),
        };
        side.hello = side.ask(&json!({ "do": "hello" }))?;
        Ok(side)
    }

    /// The program's description of itself when it was ready.
    pub(super) fn hello(&self) -> &Answer {
        &self.hello
    }

    /// Asks for a measurement and waits for it.
    ///
    /// # Errors
    ///
    /// The side's own error, or that it has ended.
    pub(super) fn ask(&mut self, request: &Value) -> Result<Answer> {
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

    /// Asks for a measurement, or returns the earlier answer to the same request: one run has
    /// several figures.
    ///
    /// # Errors
    ///
    /// As for [`ask`](Self::ask).
    pub(super) fn ask_once(&mut self, request: &Value) -> Result<Answer> {
        let name = request.to_string();
        if let Some(answer) = self.answered.get(&name) {
            return Ok(answer.clone());
        }
        let answer = self.ask(request)?;
        self.answered.insert(name, answer.clone());
        Ok(answer)
    }

    /// The line that answers the request; an empty one when the program has ended.
    fn exchange(&mut self, request: &Value) -> io::Result<String> {
        writeln!(self.requests, "{request}")?;
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

    /// Value of a field.
    pub(super) fn part(&self, field: &str) -> Result<Self> {
        match &self.0[field] {
            Value::Null => bail!("an answer without `{field}`: {}", self.0),
            part => Ok(Self(part.clone())),
        }
    }

    pub(super) fn number(&self, field: &str) -> Result<f64> {
        self.0[field]
            .as_f64()
            .with_context(|| format!("an answer without a number `{field}`: {}", self.0))
    }

    pub(super) fn text(&self, field: &str) -> Result<&str> {
        self.0[field]
            .as_str()
            .with_context(|| format!("an answer without a text `{field}`: {}", self.0))
    }

    /// Numbers under a field.
    pub(super) fn numbers(&self, field: &str) -> Result<Vec<f64>> {
        self.0[field]
            .as_array()
            .and_then(|values| values.iter().map(Value::as_f64).collect())
            .with_context(|| format!("an answer without numbers `{field}`: {}", self.0))
    }

    /// Texts under a field.
    pub(super) fn texts(&self, field: &str) -> Result<Vec<String>> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        self.0[field]
            .as_array()
            .and_then(|values| values.iter().map(text).collect())
            .with_context(|| format!("an answer without texts `{field}`: {}", self.0))
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
        let measured = Answer::parse(r#"{"ok": {"samples": [2, 0.5], "remarks": ["fine"]}}"#);
        let measured = measured.unwrap();
        assert_eq!(measured.numbers("samples").unwrap(), [2.0, 0.5]);
        assert_eq!(measured.texts("remarks").unwrap(), ["fine"]);
        assert!(measured.numbers("remarks").is_err());
        assert!(measured.texts("samples").is_err());
        assert!(answer.text("seconds").is_err());
        let nested = Answer::parse(r#"{"ok": {"gap": {"samples": [1]}}}"#).unwrap();
        let part = nested.part("gap").unwrap();
        assert_eq!(part.numbers("samples").unwrap(), [1.0]);
        assert!(nested.part("throughput").is_err());

        let error = Answer::parse(r#"{"error": "no such batch"}"#).unwrap_err();
        assert_eq!(error.to_string(), "no such batch");
        assert!(Answer::parse("Loading …").is_err());
        assert!(Answer::parse("{}").is_err());
    }
}
