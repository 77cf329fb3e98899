//! Answers of models, with reasoning and calls of tools.

use std::sync::LazyLock;

use motet::text::{ChatTemplate, Tokenizer, Tool};
use motet_text::{AnswerFormat, AnswerPart, Tools};

use super::input::FuzzInput;
use super::sentence_piece::sentence_piece;

/// Templates by which formats are recognised.
const TEMPLATES: [&str; 8] = [
    "{{ messages }}",
    "<tool_call> <think> </think> {{ tools }}",
    "{{ tools }} ipython \"parameters\": ",
    "{{ tools }} [TOOL_CALLS] [ARGS] [THINK] [/THINK]",
    "{{ tools }} <|tool_call|>",
    "{{ tools }} <|tool_call_start|> <|tool_call_end|> </think>",
    "{{ tools }} <|tool_call> <|channel>thought <channel|>",
    "{{ tools }} <|start|> <|channel|> <|message|>",
];

/// Formats by template. The last has its marks as special tokens, which channels need.
static FORMATS: LazyLock<Vec<AnswerFormat>> = LazyLock::new(|| {
    let mut vocabulary = sentence_piece();
    for mark in ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"] {
        vocabulary.tokens.push(mark.into());
        vocabulary.token_types.push(3);
        vocabulary.scores.push(0.0);
    }
    let tokenizer = Tokenizer::from_gguf(&vocabulary).expect("a whole vocabulary");
    let format = |template: &&str| {
        let template = ChatTemplate::new(template, []).expect("it is a template");
        AnswerFormat::new(Some(&template), &tokenizer)
    };
    TEMPLATES.iter().map(format).collect()
});

static TOOLS: LazyLock<Tools> = LazyLock::new(|| {
    let tool = |name: &str, parameters: &str| Tool {
        name: name.into(),
        description: None,
        parameters: parameters.parse().expect("it is JSON"),
        is_strict: false,
    };
    let schema = r#"{"type": "object", "properties": {"a": {"type": "string"}}}"#;
    Tools::new(vec![tool("f", schema), tool("now", "null")]).expect("they are valid")
});

/// The first byte chooses a format, the next ones the pieces in which the rest, an answer, is
/// read. It has the same parts as a whole.
pub fn answer(input: &[u8]) {
    let mut pieces = FuzzInput(input);
    let format = &FORMATS[pieces.below(FORMATS.len())];
    let prompt_end = if pieces.bit() { "<think>\n" } else { "" };
    let text = String::from_utf8_lossy(pieces.0);
    let whole = read(format, prompt_end, [&*text]);
    let mut rest = &*text;
    let cut = std::iter::from_fn(|| {
        let end = rest.floor_char_boundary(1 + pieces.below(9)).max(1);
        let end = rest.ceil_char_boundary(end.min(rest.len()));
        let (piece, after) = rest.split_at(end);
        rest = after;
        (!piece.is_empty()).then_some(piece)
    });
    assert_eq!(whole, read(format, prompt_end, cut));
}

/// The parts of an answer, one beside the other. Complete arguments are one JSON object.
fn read<'a>(
    format: &AnswerFormat,
    prompt_end: &str,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Vec<(&'static str, String)> {
    let mut parser = format.parser(prompt_end, Some(&TOOLS));
    let mut parts = Vec::new();
    for piece in pieces {
        parts.extend(parser.push(piece));
    }
    parts.extend(parser.finish());
    let mut joined: Vec<(&'static str, String)> = Vec::new();
    for part in parts {
        let (kind, text) = match part {
            AnswerPart::Reasoning(text) => ("reasoning", text),
            AnswerPart::Text(text) => ("text", text),
            AnswerPart::CallStart { name, .. } => ("start", name),
            AnswerPart::CallArguments { json, .. } => ("arguments", json),
            AnswerPart::CallEnd { is_complete, .. } => {
                let (_, json) = joined.last().expect("it has arguments");
                // JSON may have numbers and nesting that no type holds.
                let ends = json.starts_with('{') && json.ends_with('}');
                assert!(ends || !is_complete, "{json}");
                ("end", is_complete.to_string())
            }
            other => unreachable!("{other:?} is no known part"),
        };
        match joined.last_mut() {
            Some((last, joined)) if *last == kind && kind != "start" => joined.push_str(&text),
            _ => joined.push((kind, text)),
        }
    }
    joined
}
