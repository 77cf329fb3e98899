//! Templates against Jinja2 itself, in the settings of `transformers`.
//!
//! The templates and what Jinja2 makes of them are in `tests/data/jinja/cases.json`, which the
//! script beside it writes: some by hand, most expressions put together by chance.

use std::path::Path;

use motet::text::{Chat, ChatTemplate};
use serde_json::Value;

/// Cases that must be there, so that none is lost.
const CASES: usize = 600;

fn cases() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/jinja/cases.json");
    let bytes = std::fs::read(path).expect("it is part of the tests");
    serde_json::from_slice(&bytes).expect("the script writes JSON")
}

#[test]
fn templates_write_what_jinja2_does() {
    let document = cases();
    let variables = document["variables"].as_object().expect("variables");
    let mut chat = Chat::default();
    for (name, value) in variables {
        chat = chat.variable(name, value.clone());
    }
    let cases = document["cases"].as_array().expect("cases");
    let mut wrong = Vec::new();
    for case in cases {
        let source = case["template"].as_str().expect("a template");
        let template = ChatTemplate::new(source, []);
        let found = template.and_then(|template| template.render(&chat, false));
        let is_same = match (&found, case["text"].as_str()) {
            (Ok(found), Some(text)) => found == text,
            (Err(_), None) => true,
            _ => false,
        };
        if !is_same {
            wrong.push(format!("{source:?}: {found:?}, expected {case}"));
        }
    }
    assert!(cases.len() >= CASES, "{}", cases.len());
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}
