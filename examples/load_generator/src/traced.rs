//! Users' questions and their times, read from a trace.
//!
//! Texts are sent unchanged. For blocks and lengths, made-up words stand for the tokens:
//! equal blocks have equal words, and a part that is not shared begins with a unique word.

use std::time::Duration;

use motet_traces::{Answer, BLOCK_TOKENS, Prompt, Request, TraceError};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::arguments::{Load, TraceSettings};
use crate::mix::Kind;
use crate::script::{Cue, Script, seed_of};
use crate::texts;

/// Words per token in English, about.
const WORDS_PER_TOKEN: f64 = 0.75;

/// Returns a script for each request of the trace, or `None` if no trace is given.
pub(crate) fn read(load: &Load) -> Result<Option<Vec<Script>>, TraceError> {
    let Some(path) = &load.trace.trace else {
        return Ok(None);
    };
    let trace = motet_traces::read(path)?;
    let requests = trace.requests.iter().enumerate();
    let requests = requests.take(load.trace.trace_requests.unwrap_or(usize::MAX));
    let scripts = requests.map(|(number, request)| script(load, number, request));
    Ok(Some(scripts.collect()))
}

fn script(load: &Load, number: usize, request: &Request) -> Script {
    let settings = &load.trace;
    let seconds = request.at.as_secs_f64() / settings.trace_speed;
    Script {
        kind: Kind::Trace,
        system_prompt: String::new(),
        turns: vec![Cue {
            question: question(settings, load.seed, number, &request.prompt),
            due: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            seed: seed_of(load.seed, number),
        }],
        remembers: false,
        think: Duration::ZERO,
        reply_tokens_max: reply_tokens(settings, &request.answer, load.reply_tokens),
        temperature: load.temperature,
        ignore_end: load.ignore_end,
        banned: load.ban_tokens.clone(),
    }
}

fn question(settings: &TraceSettings, seed: u64, number: usize, prompt: &Prompt) -> String {
    let words = |tokens: usize| {
        let words = tokens as f64 * settings.trace_scale * WORDS_PER_TOKEN;
        (words.round() as usize).max(1)
    };
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Length(tokens) => babble(seed, number as u64, words(*tokens)),
        Prompt::Blocks { ids, tokens } => {
            let ends = (1..=ids.len()).map(|blocks| (blocks * BLOCK_TOKENS).min(*tokens));
            let mut begins = 0;
            let blocks = ids.iter().zip(ends).map(|(id, end)| {
                let length = end.saturating_sub(std::mem::replace(&mut begins, end));
                babble(seed, *id, words(length))
            });
            blocks.collect::<Vec<_>>().join("\n")
        }
    }
}

/// Returns `words` words that depend only on the seed and the number.
fn babble(seed: u64, number: u64, words: usize) -> String {
    let mut random = ChaCha8Rng::seed_from_u64(seed_of(seed, number as usize));
    texts::babble(&format!("{number}."), words, &mut random)
}

fn reply_tokens(settings: &TraceSettings, answer: &Answer, otherwise: usize) -> usize {
    let tokens = match answer {
        Answer::Unknown => return otherwise,
        Answer::Length(tokens) => *tokens as f64,
        Answer::Text(text) => text.split_whitespace().count() as f64 / WORDS_PER_TOKEN,
    };
    ((tokens * settings.trace_scale).round() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::Arguments;

    fn load(words: &str) -> Load {
        let words = std::iter::once("load_generator").chain(words.split_whitespace());
        Arguments::parse_from(words).load
    }

    fn scripted(words: &str, prompt: Prompt, answer: Answer) -> Script {
        let at = Duration::from_secs(60);
        script(&load(words), 7, &Request { at, prompt, answer })
    }

    #[test]
    fn lengths_become_as_many_words() {
        let script = scripted("", Prompt::Length(400), Answer::Length(20));
        let question = &script.turns[0].question;
        assert_eq!(question.split_whitespace().count(), 300);
        assert_eq!(script.reply_tokens_max, 20);
        assert_eq!(script.turns[0].due, Duration::from_secs(60));
        let words = "--trace x --trace-scale 0.1 --trace-speed 4";
        let script = scripted(words, Prompt::Length(400), Answer::Text("a b c".into()));
        assert_eq!(script.turns[0].question.split_whitespace().count(), 30);
        assert_eq!(script.reply_tokens_max, 1);
        assert_eq!(script.turns[0].due, Duration::from_secs(15));
    }

    #[test]
    fn equal_blocks_are_equal_words() {
        let blocks = |ids: &[u64], tokens| Prompt::Blocks {
            ids: ids.to_vec(),
            tokens,
        };
        let first_question = |prompt| {
            scripted("", prompt, Answer::Unknown).turns[0]
                .question
                .clone()
        };
        let (one, other) = (
            first_question(blocks(&[3, 4], 600)),
            first_question(blocks(&[3, 5], 1_024)),
        );
        let (first, rest) = one.split_once('\n').expect("two blocks");
        assert!(other.starts_with(first) && !other.ends_with(rest));
        assert_eq!(first.split_whitespace().count(), 384);
        assert_eq!(rest.split_whitespace().count(), 66);
    }

    #[test]
    fn trace_texts_are_sent_unchanged() {
        let script = scripted("", Prompt::Text("Where am I?".into()), Answer::Unknown);
        assert_eq!(script.turns[0].question, "Where am I?");
        assert_eq!(script.reply_tokens_max, 48);
        assert_eq!(read(&load("")).expect("no trace is no error"), None);
        assert!(read(&load("--trace /no/such/file")).is_err());
    }
}
