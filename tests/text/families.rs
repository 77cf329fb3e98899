//! Chat templates of model families against the result of `transformers`.
//!
//! The conversations and the expected texts are in `tests/data/templates/expected.json`, which
//! the script beside it writes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use motet::text::{Chat, ChatTemplate, Message, TextCodec, TextError};
use motet_text::PromptLimits;
use serde_json::Value;

use crate::vocabularies::tokenizer;

/// Families that must have a template here, so that none is lost.
const FAMILIES: usize = 19;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/templates")
}

fn expected() -> Value {
    let bytes = std::fs::read(folder().join("expected.json")).expect("it is part of the tests");
    serde_json::from_slice(&bytes).expect("the script writes JSON")
}

fn template(name: &str, special: &Value) -> ChatTemplate {
    let source = std::fs::read_to_string(folder().join(format!("{name}.jinja")));
    let special = ["bos_token", "eos_token"].map(|key| (key, special[key].as_str().expect("text")));
    ChatTemplate::new(&source.expect("it is part of the tests"), special).expect("it compiles")
}

/// A conversation of the expected file.
fn chat(case: &Value) -> Chat {
    let messages: Vec<Message> =
        serde_json::from_value(case["messages"].clone()).expect("messages");
    let mut chat = Chat::from(messages);
    chat.variables = serde_json::from_value(case["variables"].clone()).expect("variables");
    chat
}

/// The rendered text, or the words with which the template rejects the conversation. Dates are
/// left as they are.
fn rendered(
    template: &ChatTemplate,
    chat: &Chat,
    generation_prompt: bool,
) -> Result<String, String> {
    template
        .render(chat, generation_prompt)
        .map_err(|error| match error {
            TextError::Template { what } => what.reveal().to_owned(),
            other => panic!("{other}"),
        })
}

/// The expected text with its dates written for today.
fn dated(expected: &str) -> String {
    let mut parts = expected.split('⟨');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (format, rest) = part.split_once('⟩').expect("a format ends");
        let date = ChatTemplate::new("{{ strftime_now(format) }}", []).expect("it compiles");
        let chat = Chat::default().variable("format", format.into());
        text.push_str(&date.render(&chat, false).expect("a known format"));
        text.push_str(rest);
    }
    text
}

/// The expected outcomes with and without a generation prompt.
fn outcomes(entry: &Value) -> [Result<String, String>; 2] {
    let outcome = |value: &Value| match (value["text"].as_str(), value["error"].as_str()) {
        (Some(text), None) => Ok(dated(text)),
        (None, Some(error)) => Err(error.to_owned()),
        _ => panic!("a text or an error: {value}"),
    };
    let with = outcome(entry);
    let without = match entry["generation_prompt"].as_str() {
        Some(prompt) => with.clone().map(|text| {
            let shorter = text.strip_suffix(&dated(prompt));
            shorter.expect("it ends with its prompt").to_owned()
        }),
        None => outcome(&entry["without"]),
    };
    [with, without]
}

#[test]
fn templates_of_families_write_what_transformers_does() {
    let expected = expected();
    let mut names = Vec::new();
    let mut wrong = Vec::new();
    for entry in expected["rendered"].as_array().expect("a list") {
        let [name, case] = ["template", "case"].map(|key| entry[key].as_str().expect("a name"));
        if !names.contains(&name) {
            names.push(name);
        }
        let template = template(name, &expected["special"]);
        let chat = chat(&expected["cases"][case]);
        for (outcome, generation_prompt) in outcomes(entry).iter().zip([true, false]) {
            let found = rendered(&template, &chat, generation_prompt);
            let is_same = match (&found, outcome) {
                (Ok(found), Ok(text)) => found == text,
                // The engine adds the line.
                (Err(found), Err(error)) => found.starts_with(error.as_str()),
                _ => false,
            };
            if !is_same {
                wrong.push(format!(
                    "{name}, {case}, {generation_prompt}:\n  found    {found:?}\n  expected {outcome:?}"
                ));
            }
        }
    }
    assert_eq!(names.len(), FAMILIES, "{names:?}");
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}

/// A prompt that goes on with the last message is the conversation up to the end of that message's
/// text, in every family.
#[test]
fn templates_of_families_go_on_with_the_last_text() {
    let expected = expected();
    let rendered = expected["rendered"].as_array().expect("a list");
    let names: BTreeSet<&str> = rendered
        .iter()
        .map(|entry| entry["template"].as_str().expect("a name"))
        .collect();
    assert_eq!(names.len(), FAMILIES);
    for name in names {
        let template = template(name, &expected["special"]);
        // Words that occur before, private-use characters, and white space at the end.
        for text in [
            "It is noon.",
            "What time",
            "\u{e000}\u{f0000}",
            "It is  ",
            "Line\n",
            "a<|im_",
        ] {
            let chat = Chat::from([Message::user("What time is it?"), Message::assistant(text)]);
            let whole = template.render(&chat, false).expect(name);
            let begun = template
                .render(&chat.clone().continue_last(), true)
                .expect(name);
            assert!(whole.starts_with(&begun), "{name}: {begun:?} in {whole:?}");
            let ends = begun.ends_with(text) || begun.ends_with(text.trim_end());
            assert!(ends, "{name}: {begun:?} for {text:?}");
            let rest = &whole[begun.len()..];
            assert!(!rest.contains(text.trim_end()), "{name}: {rest:?}");
        }
        let empty = Chat::from([Message::user("What time is it?"), Message::assistant("")]);
        let begun = template.render(&empty.continue_last(), true).expect(name);
        assert!(begun.contains("What time is it?"), "{name}: {begun:?}");
    }
}

/// The trial at a model's opening knows all that the templates of families name, and their calls.
#[test]
fn templates_of_families_pass_their_trial() {
    for file in std::fs::read_dir(folder()).expect("it is part of the tests") {
        let path = file.expect("a file").path();
        if path.extension().is_some_and(|kind| kind == "jinja") {
            let name = path.file_stem().expect("a name").to_string_lossy();
            let template = template(&name, &expected()["special"]);
            template
                .check()
                .unwrap_or_else(|error| panic!("{name}: {error:?}"));
        }
    }
}

/// Offsets as texts: the parts of a prompt between its restore points.
fn parts(name: &str, case: &str) -> Vec<String> {
    let expected = expected();
    let template = template(name, &expected["special"]);
    let codec = TextCodec::new(tokenizer(), Some(template));
    let limits = PromptLimits {
        bytes_max: 1 << 20,
        tokens_max: 1 << 20,
    };
    let chat = chat(&expected["cases"][case]);
    let encoded = codec.encode_chat_prompt(&chat, limits).expect("spelled");
    assert_eq!(encoded.tokens, codec.encode_chat(&chat).expect("spelled"));
    let ends = encoded.restore_points.iter().copied();
    let mut start = 0;
    let mut parts = Vec::new();
    for end in ends.chain([encoded.tokens.len()]) {
        let text = codec.tokenizer().decode(&encoded.tokens[start..end]);
        parts.push(text.expect("known"));
        start = end;
    }
    parts
}

#[test]
fn restore_points_lie_where_next_prompts_differ() {
    let check = |name: &str, case: &str, starts: &[&str]| {
        let parts = parts(name, case);
        let is_so = parts.len() == starts.len() + 1
            && parts
                .iter()
                .skip(1)
                .zip(starts)
                .all(|(part, start)| part.starts_with(start));
        assert!(is_so, "{name}, {case}: {parts:?}");
    };
    // The history stays as it is; only the generation prompt is in question.
    check("qwen2.5", "turns", &["<|im_start|>assistant"]);
    check("gemma3", "turns", &["<start_of_turn>model"]);
    check("qwen3", "thought", &["<|im_start|>assistant"]);
    check("qwen3", "not_thinking", &["<|im_start|>assistant\n<think>"]);
    check("granite-4.0", "turns", &["<|start_of_role|>assistant"]);
    // A thought that the next question removes.
    check(
        "lfm2",
        "last_thought",
        &["<think>", "<|im_start|>assistant"],
    );
    // Tools before the last question, the system prompt in it.
    // The tokenizer has no token for the first bracket's word, which both histories begin with.
    check("mistral-nemo", "tools", &["AVAILABLE_TOOLS]", ""]);
    check("mixtral", "turns", &["You are brief", ""]);
}
