//! Tests of the parser and of the grammar.
//!
//! | file | content |
//! |---|---|
//! | `models.rs` | templates of all families, in their own words, and their special tokens |
//! | `formats.rs` | answers as each family writes them |
//! | `splits.rs` | answers cut anywhere, and answers that are damaged |
//! | `schemas.rs` | random tools |
//! | `constrained.rs` | answers by a grammar |

#[cfg(feature = "grammar")]
mod constrained;
mod formats;
mod models;
#[cfg(feature = "grammar")]
mod schemas;
mod splits;

use serde_json::{Value, json};

use super::{AnswerFormat, AnswerPart, Tool, Tools};

/// Tools that the answers of these tests call.
fn tools() -> Tools {
    let tool = |name: &str, parameters: Value| Tool {
        name: name.into(),
        description: Some(format!("Does {name}.")),
        parameters,
        is_strict: false,
    };
    let forecast = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"},
        "note": {"type": ["string", "null"]}, "list": {"type": "array"},
    }, "required": ["city"]});
    Tools::new(vec![
        tool("weather", forecast),
        tool("now", json!({"type": "object", "properties": {}})),
    ])
    .expect("they are valid")
}

/// The parts of a text that is pushed in pieces.
fn parts<'a>(
    format: &AnswerFormat,
    prompt_end: &str,
    tools: Option<&Tools>,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Vec<AnswerPart> {
    let mut parser = format.parser(prompt_end, tools);
    let mut all = Vec::new();
    for piece in pieces {
        all.extend(parser.push(piece));
    }
    all.extend(parser.finish());
    all
}

/// The parts on one line each, neighbours joined: `reasoning: …`, `text: …`, `name(arguments)`,
/// with `name(arguments…` for a call that is not complete.
fn shown(parts: &[AnswerPart]) -> String {
    let mut shown = String::new();
    let mut kind = "";
    let mut open = None;
    for part in parts {
        let (new, text) = match part {
            AnswerPart::Reasoning(text) => ("reasoning: ", text.as_str()),
            AnswerPart::Text(text) => ("text: ", text.as_str()),
            AnswerPart::CallStart { index, name } => {
                assert!(open.replace(*index).is_none(), "calls do not overlap");
                shown.push_str(&format!("\n{index} {name}("));
                kind = "";
                continue;
            }
            AnswerPart::CallArguments { index, json } => {
                assert_eq!(open, Some(*index));
                shown.push_str(json);
                continue;
            }
            AnswerPart::CallEnd { index, is_complete } => {
                assert_eq!(open.take(), Some(*index));
                shown.push_str(if *is_complete { ")" } else { "…" });
                continue;
            }
        };
        assert!(open.is_none() && !text.is_empty());
        if kind != new {
            shown.push('\n');
            shown.push_str(new);
            kind = new;
        }
        shown.push_str(text);
    }
    assert!(open.is_none(), "every call ends");
    shown.trim_start_matches('\n').to_owned()
}

/// The whole answer, with the tools of these tests.
fn read(format: &AnswerFormat, prompt_end: &str, text: &str) -> String {
    shown(&parts(format, prompt_end, Some(&tools()), [text]))
}
