//! Prose, an edited file, an answer with quotes.

use std::path::Path;

use motet::TokenId;
use motet::config::EngineConfig;
use motet::model::weights::ModelFiles;
use motet::text::TextCodec;

use super::Script;
use super::load::{self, Run, ScriptedEngine};
use crate::measured::Records;
use crate::programs::Result;
use crate::programs::engine::runtime;
use crate::protocol::Size;

/// Prose that repeats little.
const PROSE: &str = include_str!("../../../../docs/semantics.md");
/// A file of about 200 lines.
const FILE: &str = include_str!("../../../../crates/core/src/scheduler/policy/fairness.rs");
/// Passages to quote from.
const PASSAGES: &str = include_str!("../../../../docs/adr/0009-two-steps-in-flight.md");
/// Words between quotes.
const BETWEEN: [&str; 4] = [
    "To answer that, one has to look at what the second paragraph promises, which is this: ",
    "\n\nNot everything can overlap, though; there are exceptions, and the text names them: ",
    "\n\nAs for who arrives late, good news follows from planning at the last possible moment: ",
    "\n\nLastly, one question is left, about a step that fails while another one waits: ",
];

/// Pairs of turns: an edit takes most of a minute.
const ROUNDS_MAX: usize = 5;
/// Sequences that run at once, of each load of prose.
const BATCHES: [usize; 3] = [1, 8, 16];

pub(crate) fn run(size: Size, model: Option<&Path>) -> Result<Records> {
    let tokens = Tokens::of(model)?;
    runtime(2)?.block_on(async {
        let mut engine = ScriptedEngine::start(model, EngineConfig::default()).await?;
        let mut records = Records::default();
        for batch in BATCHES {
            let scripts = prose(&tokens, batch, size.pick(64, 8));
            let figure = format!("speculation.prose_b{batch}");
            compare(&mut engine, &scripts, batch, size, &figure, &mut records).await?;
        }
        for (figure, script) in [
            ("speculation.edits_b1", edit(&tokens, size.pick(512, 16))),
            ("speculation.quotes_b1", quotes(&tokens)),
        ] {
            compare(&mut engine, &[script], 1, size, figure, &mut records).await?;
        }
        engine.end().await;
        Ok(records)
    })
}

/// Takes turns with drafts and without, and records tokens/s with ÷ without.
pub(super) async fn compare(
    engine: &mut ScriptedEngine,
    scripts: &[Script],
    batch: usize,
    size: Size,
    figure: &str,
    records: &mut Records,
) -> Result<()> {
    let (mut with, mut without): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
    for round in 0..size.rounds().min(ROUNDS_MAX) {
        let first = round % 2 == 0;
        for speculation in [first, !first] {
            let run = engine.run(scripts, batch, speculation).await?;
            if speculation { &mut with } else { &mut without }.push(run);
        }
    }
    load::record(records, figure, &with, &without);
    Ok(())
}

/// How texts become tokens.
pub(super) enum Tokens {
    /// By the model's tokenizer.
    Model(Box<TextCodec>),
    /// A token for each word, for the oracle.
    Words,
}

impl Tokens {
    pub(super) fn of(model: Option<&Path>) -> Result<Self> {
        match model {
            Some(path) => {
                let files = ModelFiles::open(path)?;
                Ok(Self::Model(Box::new(motet::Engine::text_of(&files)?)))
            }
            None => Ok(Self::Words),
        }
    }

    pub(super) fn of_text(&self, text: &str) -> Result<Vec<TokenId>> {
        match self {
            Self::Model(codec) => Ok(codec.encode_prompt(text)?),
            Self::Words => Ok(text.split_whitespace().map(of_word).collect()),
        }
    }
}

/// A token of the oracle's vocabulary for a word.
fn of_word(word: &str) -> TokenId {
    let hash = word.bytes().fold(7_u32, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte.into())
    });
    1_000 + hash % 40_000
}

/// This number of sequences, which continue different parts of a text.
pub(super) fn prose(tokens: &Tokens, sequences: usize, output_tokens: usize) -> Vec<Script> {
    let all = tokens.of_text(PROSE).unwrap_or_default();
    let prompt_tokens = output_tokens;
    let parts = all.chunks_exact(prompt_tokens + output_tokens);
    let script = |part: &[TokenId]| Script {
        prompt: part[..prompt_tokens].to_vec(),
        output: part[prompt_tokens..].to_vec(),
    };
    parts.take(sequences).map(script).collect()
}

/// A file, and the beginning of the same file with another name for a type and a field.
fn edit(tokens: &Tokens, output_tokens: usize) -> Script {
    let edited = FILE
        .replace("Service", "ServiceTotals")
        .replace("credit", "allowance")
        .replace(
            "use std::collections::BTreeMap;\n",
            "use std::collections::BTreeMap;\nuse std::time::Duration;\n",
        );
    let prompt = format!(
        "Rename `Service` to `ServiceTotals` and `credit` to `allowance`:\n\n{FILE}\n\nThe file:\n\n"
    );
    let mut output = tokens.of_text(&edited).unwrap_or_default();
    output.truncate(output_tokens);
    Script {
        prompt: tokens.of_text(&prompt).unwrap_or_default(),
        output,
    }
}

/// A text and a question, and an answer whose sentences are mostly the text's.
fn quotes(tokens: &Tokens) -> Script {
    let sentences: Vec<&str> = PASSAGES.split_inclusive(". ").collect();
    let quoted = [2, 5, 8, 11].map(|sentence| sentences[sentence].trim());
    let answer: String = BETWEEN
        .iter()
        .zip(quoted)
        .map(|(between, quoted)| format!("{between}\"{quoted}\""))
        .collect();
    let prompt = format!("{PASSAGES}\n\nHow do two steps overlap? Quote the text.\n\n");
    Script {
        prompt: tokens.of_text(&prompt).unwrap_or_default(),
        output: tokens.of_text(&answer).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_what_the_figures_say() {
        let tokens = Tokens::Words;
        let prose = prose(&tokens, 16, 64);
        assert_eq!(prose.len(), 16);
        assert!(FILE.lines().count() > 180);
        let edit = edit(&tokens, 512);
        assert!(edit.prompt.len() > edit.output.len());
        let quotes = quotes(&tokens);
        assert!(quotes.output.len() > 60, "{}", quotes.output.len());
    }
}
