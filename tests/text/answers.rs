//! The formats of calls and reasoning in the templates of real families.

use motet::text::{ChatTemplate, Tokenizer, Tool};
use motet_text::{AnswerFormat, AnswerPart, GgufVocabulary, ReasoningStart, Tools};
use serde_json::json;

use crate::sentence_piece::sentence_piece;

/// A vocabulary with these special tokens.
fn tokenizer(special: &[&str]) -> Tokenizer {
    let mut vocabulary: GgufVocabulary = sentence_piece();
    for token in special {
        vocabulary.tokens.push((*token).into());
        vocabulary.token_types.push(3);
        vocabulary.scores.push(0.0);
    }
    Tokenizer::from_gguf(&vocabulary).expect("a vocabulary")
}

fn template(name: &str) -> ChatTemplate {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/templates");
    let source = std::fs::read_to_string(format!("{folder}/{name}.jinja"));
    ChatTemplate::new(&source.expect("it is there"), []).expect("it compiles")
}

fn tools() -> Tools {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let forecast = Tool {
        name: "weather".into(),
        description: None,
        parameters,
        is_strict: false,
    };
    Tools::new(vec![forecast]).expect("they are valid")
}

/// Calls as the templates of the families write them are read.
#[test]
fn calls_are_read_by_the_format_of_the_template() {
    let hermes =
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>";
    let bare = "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\"}}";
    let harmony = [
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|call|>",
    ];
    let lfm2 = ["<|tool_call_start|>", "<|tool_call_end|>"];
    for (name, special, text) in [
        ("qwen2.5", &[][..], hermes),
        ("qwen3", &[], hermes),
        ("granite-4.0", &[], hermes),
        (
            "qwen3.5",
            &[],
            "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>",
        ),
        ("llama3", &["<|python_tag|>"], bare),
        ("gemma3", &[], bare),
        ("smollm2", &[], bare),
        (
            "mistral-nemo",
            &["[TOOL_CALLS]"],
            "[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}, \"id\": \"abcdefghi\"}]",
        ),
        (
            "ministral-3",
            &["[TOOL_CALLS]", "[ARGS]"],
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Bern\"}",
        ),
        (
            "granite-3.3",
            &["<|tool_call|>"],
            "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}]",
        ),
        (
            "lfm2",
            &lfm2,
            "<|tool_call_start|>[weather(city='Bern')]<|tool_call_end|>",
        ),
        (
            "gpt-oss",
            &harmony,
            " to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Bern\"}",
        ),
    ] {
        let format = AnswerFormat::new(Some(&template(name)), &tokenizer(special));
        assert_eq!(format.shows_special_tokens(), !special.is_empty(), "{name}");
        let knows = !["gemma3", "smollm2"].contains(&name);
        assert_eq!(format.template_knows_tools(), knows, "{name}");
        let mut parser = format.parser("", Some(&tools()));
        let mut parts = parser.push(text);
        parts.extend(parser.finish());
        let expected = [
            AnswerPart::CallStart {
                index: 0,
                name: "weather".into(),
            },
            AnswerPart::CallArguments {
                index: 0,
                json: "{\"city\": \"Bern\"}".into(),
            },
            AnswerPart::CallEnd {
                index: 0,
                is_complete: true,
            },
        ];
        assert_eq!(parts, expected, "{name}");
    }
}

#[test]
fn reasoning_begins_as_the_template_has_it() {
    let start = |name: &str, special: &[&str], prompt_end: &str| {
        let format = AnswerFormat::new(Some(&template(name)), &tokenizer(special));
        format.reasoning_start(prompt_end)
    };
    let assistant = "<|im_start|>assistant\n";
    for (name, prompt_end, expected) in [
        ("qwen2.5", assistant, ReasoningStart::Absent),
        ("qwen3", assistant, ReasoningStart::Possible),
        (
            "qwen3",
            "assistant\n<think>\n\n</think>\n\n",
            ReasoningStart::Absent,
        ),
        ("qwen3.5", "assistant\n<think>\n", ReasoningStart::Open),
        ("smollm3", assistant, ReasoningStart::Possible),
        ("ministral-3", "[/INST]", ReasoningStart::Possible),
        ("smollm2", assistant, ReasoningStart::Absent),
        ("llama3", assistant, ReasoningStart::Absent),
    ] {
        assert_eq!(start(name, &[], prompt_end), expected, "{name}");
    }
    let harmony = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"];
    let begun = "<|start|>assistant<|channel|>analysis<|message|>";
    for (prompt_end, expected) in [
        ("<|start|>assistant", ReasoningStart::Possible),
        (begun, ReasoningStart::Open),
    ] {
        assert_eq!(start("gpt-oss", &harmony, prompt_end), expected);
    }
}
