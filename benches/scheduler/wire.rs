//! The protocol of a measuring program: one JSON request a line, one answer a line.

use std::io::{BufRead, Write};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Result;

/// Answers requests, about the model that the command line names, if any. Without `--serve`,
/// prints the usage.
pub(crate) fn run<R: DeserializeOwned>(
    usage: &str,
    answer: impl Fn(R, Option<&Path>) -> Result<Value>,
) -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let model = match words[..] {
        ["--serve"] => None,
        ["--serve", model] => Some(Path::new(model)),
        // `cargo bench` and `cargo test --benches` pass arguments of their own.
        _ => {
            println!("{usage}");
            return Ok(());
        }
    };
    serve(|request| answer(request, model))
}

/// The answer to `Hello`.
pub(crate) fn hello() -> Value {
    json!({ "name": format!("motet {}", env!("CARGO_PKG_VERSION")) })
}

/// Answers requests until standard input ends.
fn serve<R: DeserializeOwned>(answer: impl Fn(R) -> Result<Value>) -> Result<()> {
    let mut answers = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(request) => answer(request),
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
