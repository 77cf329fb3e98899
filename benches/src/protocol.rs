//! The protocol of programs that measure: one JSON request a line on standard input, one JSON
//! answer a line on standard output.
//!
//! The report asks. `measure`, `recovery`, `benches/cache` and the programs in `benches/peers`
//! answer `{"ok": …}` or `{"error": "…"}`, each the requests that it knows. A program computes
//! nothing between two answers, so that the other side of a comparison has the machine to itself.

use std::fmt::Display;
use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Environment variable that names a program's draft model.
pub const DRAFT_MODEL_VARIABLE: &str = "MOTET_BENCH_DRAFT_MODEL";
/// Names the folder of a redis-server and its client, for runs that need them.
pub const REDIS_VARIABLE: &str = "MOTET_BENCH_REDIS";

/// The requests. Times in answers are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Asks for the constants of a model that is measured, once it is loaded.
    Hello,
    /// Takes all figures of a run of that name. The answer is `measured::Records`.
    Run {
        /// Name of the run.
        name: String,
        /// Amount of work.
        size: Size,
    },
    /// A load of the load generator. The answer is its report.
    Load {
        /// Arguments of the load generator's command line.
        arguments: Vec<String>,
    },
    /// The time of an f32 product of `[rows, inner]` and `[inner, columns]`.
    Matmul {
        /// Rows of the first matrix.
        rows: usize,
        /// Columns of the first matrix.
        inner: usize,
        /// Columns of the second matrix.
        columns: usize,
    },
    /// The time of integer products of so many rows of f32 with stored rows of weights, on all
    /// threads.
    Products(Products),
    /// The time in which so many bytes of memory are read so many times, by as many threads as
    /// a step has.
    ReadMemory {
        /// Bytes that are read.
        bytes: usize,
        /// Number of times.
        times: usize,
    },
    /// The time from a prompt to its first token.
    Prefill {
        /// The prompt's tokens.
        prompt: Vec<u32>,
    },
    /// Prefills a batch of that name; its decoding is timed by `DecodeRun`.
    DecodeOpen {
        /// Name of the batch.
        batch: String,
        /// Tokens that each sequence has before its own prompt.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prefix: Option<Prefix>,
        /// The prompts' tokens.
        prompts: Vec<Vec<u32>>,
    },
    /// The time of so many steps of all the batch's sequences.
    DecodeRun {
        /// Name of the batch.
        batch: String,
        /// Number of steps.
        steps: usize,
    },
    /// Frees a batch.
    DecodeClose {
        /// Name of the batch.
        batch: String,
    },
    /// The time from the first to the last token of so many after each prompt, computed before.
    Generate {
        /// The prompts' tokens.
        prompts: Vec<Vec<u32>>,
        /// Tokens of each answer.
        tokens: usize,
    },
    /// The mean negative log-likelihood of the first tokens of a text.
    Loss {
        /// The text.
        text: String,
        /// Number of tokens.
        tokens: usize,
    },
}

/// Integer products with weights of one format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Products {
    /// The usual name of the weights' format.
    pub format: String,
    /// Rows of the input.
    pub rows: usize,
    /// Numbers of a row.
    pub inner: usize,
    /// Rows of the weights.
    pub columns: usize,
    /// Least bytes of the weights: so many copies are multiplied one after the other that none stays
    /// in a cache.
    pub bytes: usize,
    /// Number of products.
    pub times: usize,
}

impl Products {
    /// Products of two numbers in all.
    #[must_use]
    pub fn count(&self) -> f64 {
        (self.rows * self.inner * self.columns * self.times) as f64
    }
}

/// Tokens of a batch's sequences before their own prompts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prefix {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Whether all have them in one sealed segment, or each a copy in its own tail.
    pub shared: bool,
}

/// The amount of work of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// As much as the figure needs.
    Full,
    /// As little as shows that measuring works.
    Quick,
}

impl Size {
    /// The amount for this size.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        match self {
            Size::Full => full,
            Size::Quick => quick,
        }
    }

    /// Pairs of turns, or samples, of most figures.
    #[must_use]
    pub fn rounds(self) -> usize {
        self.pick(9, 1)
    }
}

/// Answers requests until standard input ends.
///
/// # Errors
///
/// When standard input or output breaks.
pub fn serve<E: Display>(mut answer: impl FnMut(Request) -> Result<Value, E>) -> io::Result<()> {
    let mut answers = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(request) => answer(request).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let answer = match answer {
            Ok(ok) => json!({ "ok": ok }),
            Err(error) => json!({ "error": error }),
        };
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    Ok(())
}
