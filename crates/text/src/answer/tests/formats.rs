//! Answers as each family writes them.

use super::models::{FAMILIES, family};
use super::{parts, read, shown, tools};
use crate::answer::{AnswerFormat, ReasoningStart};

/// Checks an answer, whole and character by character.
fn check(name: &str, prompt_end: &str, text: &str, expected: &str) {
    let format = family(name);
    assert_eq!(read(&format, prompt_end, text), expected, "{name}: {text}");
    let ends = text
        .char_indices()
        .map(|(at, c)| &text[at..at + c.len_utf8()]);
    let single = parts(&format, prompt_end, Some(&tools()), ends);
    assert_eq!(shown(&single), expected, "{name}, by characters: {text}");
}

/// Answers of one call and of two, by family.
pub(super) const CALLS: [(&str, &str); 14] = [
    (
        "plain",
        r#"{"name": "weather", "arguments": {"city": "Bern"}}"#,
    ),
    (
        "qwen2.5",
        "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>",
    ),
    (
        "qwen3-coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "llama3",
        r#"{"name": "weather", "parameters": {"city": "Bern"}}"#,
    ),
    (
        "llama3",
        r#"<|python_tag|>{"name": "weather", "parameters": {"city": "Bern"}}"#,
    ),
    (
        "mistral-nemo",
        r#"[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Bern"}, "id": "abcdefghi"}]"#,
    ),
    (
        "ministral-3",
        r#"[TOOL_CALLS]weather[ARGS]{"city": "Bern"}"#,
    ),
    (
        "granite-3.3",
        r#"<|tool_call|>[{"name": "weather", "arguments": {"city": "Bern"}}]"#,
    ),
    (
        "phi-4-mini",
        r#"<|tool_call|>[{"type": "function", "name": "weather", "arguments": {"city": "Bern"}}]<|/tool_call|>"#,
    ),
    (
        "lfm2",
        r#"<|tool_call_start|>[weather(city="Bern")]<|tool_call_end|>"#,
    ),
    (
        "lfm2",
        r#"<|tool_call_start|>[weather(city='Bern')]<|tool_call_end|>"#,
    ),
    (
        "functiongemma",
        "<start_function_call>call:weather{city:<escape>Bern<escape>}<end_function_call>",
    ),
    (
        "gemma4",
        "<|tool_call>call:weather{city:<|\"|>Bern<|\"|>}<tool_call|>",
    ),
    (
        "gpt-oss",
        r#"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Bern"}"#,
    ),
];

#[test]
fn single_calls_are_read_in_every_format() {
    for (name, text) in CALLS {
        let shown = read(&family(name), "", text);
        let json = shown.strip_prefix("0 weather(").expect("it is a call");
        let json = json.strip_suffix(')').expect("it is complete");
        let value: serde_json::Value = serde_json::from_str(json).expect("it is JSON");
        assert_eq!(value, serde_json::json!({"city": "Bern"}), "{name}");
    }
}

#[test]
fn arguments_come_while_they_are_written() {
    for (name, text) in CALLS {
        let at = text.find("ern").expect("it has the city");
        let mut parser = family(name).parser("", Some(&tools()));
        let early = shown_open(&parser.push(&text[..at]));
        assert!(early.starts_with("0 weather("), "{name}: {early}");
        assert!(early.contains("\"city\""), "{name}: {early}");
        assert!(early.ends_with('B'), "{name}: {early}");
    }
}

/// Parts whose last call is still open.
fn shown_open(parts: &[crate::AnswerPart]) -> String {
    let mut all = parts.to_vec();
    all.push(crate::AnswerPart::CallEnd {
        index: 0,
        is_complete: false,
    });
    shown(&all).trim_end_matches('…').to_owned()
}

#[test]
fn several_calls_and_text_before_them() {
    let two = "0 weather({\"city\": \"Bern\"})\n1 now({})";
    for (name, text) in [
        (
            "qwen2.5",
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        ),
        (
            "qwen3-coder",
            "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n",
        ),
        (
            "llama3",
            "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\"}}; {\"name\": \"now\", \"parameters\": {}}",
        ),
        (
            "plain",
            "{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n{\"name\": \"now\"}\n",
        ),
        (
            "plain",
            "[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}, {\"arguments\": {}, \"name\": \"now\"}]",
        ),
        (
            "mistral-nemo",
            "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}, {\"name\": \"now\", \"arguments\": {}}]",
        ),
        (
            "ministral-3",
            "[TOOL_CALLS]weather[ARGS]{\"city\": \"Bern\"}[TOOL_CALLS]now[CALL_ID]x1[ARGS]{}",
        ),
        (
            "lfm2",
            "<|tool_call_start|>[weather(city=\"Bern\"), now()]<|tool_call_end|>",
        ),
        (
            "gemma4",
            "<|tool_call>call:weather{city:<|\"|>Bern<|\"|>}<tool_call|><|tool_call>call:now{}<tool_call|>",
        ),
        (
            "gpt-oss",
            " to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Bern\"}<|call|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}",
        ),
    ] {
        check(name, "", text, two);
        if name != "gpt-oss" {
            let text = format!("Let me look. \n{text}");
            check(name, "", &text, &format!("text: Let me look. \n\n{two}"));
        }
    }
}

#[test]
fn plain_calls_are_read_in_fenced_blocks() {
    let call = "{\"name\": \"now\", \"parameters\": {}}";
    check("plain", "", &format!("```json\n{call}\n```"), "0 now({})");
    let text = format!("Here:\n\n```tool_call\n[{call}]\n```\nDone.");
    check(
        "plain",
        "",
        &text,
        "text: Here:\n\n\n0 now({})\ntext: \nDone.",
    );
    check(
        "plain",
        "",
        "[weather(city='Bern')]",
        "0 weather({\"city\": \"Bern\"})",
    );
    // A block of another language, or of other JSON, is text.
    for text in [
        "```json\n{\"a\": 1}\n```",
        "```rust\nfn main() {}\n```",
        "{\"a\": 1}",
        "[1, 2]",
    ] {
        check("plain", "", text, &format!("text: {text}"));
    }
    check("qwen2.5", "", call, "0 now({})");
}

#[test]
fn calls_that_cannot_be_answered_are_text() {
    for (name, text) in CALLS {
        let text = text.replace("weather", "unknown");
        let shown = read(&family(name), "", &text);
        assert!(!shown.contains("0 "), "{name}: {shown}");
        if name != "gpt-oss" {
            assert_eq!(shown, format!("text: {text}"), "{name}");
        } else {
            assert_eq!(shown, "text: {\"city\": \"Bern\"}");
        }
    }
}

#[test]
fn malformed_calls_are_text() {
    for (name, text) in [
        ("qwen2.5", "<tool_call>\nnow\n</tool_call> and more"),
        ("qwen2.5", "<tool_call>{\"name\": 7}</tool_call>"),
        (
            "qwen2.5",
            "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call>",
        ),
        ("qwen2.5", "<tool_call></tool_call>"),
        ("qwen2.5", "a <tool_cal> b <"),
        ("qwen3-coder", "<tool_call>\n<parameter=a>\n</tool_call>"),
        ("mistral-nemo", "[TOOL_CALLS][]"),
        ("mistral-nemo", "[TOOL_CALLS][1, 2]"),
        (
            "lfm2",
            "<|tool_call_start|>[weather(\"Bern\")]<|tool_call_end|>",
        ),
        (
            "functiongemma",
            "<start_function_call>weather<end_function_call>",
        ),
    ] {
        check(name, "", text, &format!("text: {text}"));
    }
}

#[test]
fn cut_calls_end_as_incomplete_ones() {
    for (name, text, expected) in [
        (
            "qwen2.5",
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Be",
            "0 weather({\"city\": \"Be…",
        ),
        (
            "qwen2.5",
            "<tool_call>\n{\"name\": \"weather\", \"argu",
            "text: <tool_call>\n{\"name\": \"weather\", \"argu",
        ),
        // Only the marks are missing.
        (
            "qwen2.5",
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}",
            "0 now({})",
        ),
        (
            "qwen2.5",
            "<tool_call>\n{\"name\": \"now\", \"arguments\": {}",
            "0 now({})",
        ),
        // No JSON any more: the rest is text.
        (
            "qwen2.5",
            "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": Bern}}\n</tool_call>",
            "0 weather({\"city\": …\ntext: Bern}}\n</tool_call>",
        ),
        (
            "lfm2",
            "<|tool_call_start|>[now(), weather(city=\"B",
            "0 now({})\n1 weather({\"city\": \"B…",
        ),
        (
            "lfm2",
            "<|tool_call_start|>[now(), wea",
            "0 now({})\ntext: , wea",
        ),
        (
            "qwen3-coder",
            "<tool_call>\n<function=weather>\n<parameter=city>\nBe\n</para",
            "0 weather({\"city\": \"Be…",
        ),
        // Text of a string that might have become a tag.
        (
            "qwen3-coder",
            "<tool_call>\n<function=weather>\n<parameter=city>\na <",
            "0 weather({\"city\": \"a <…",
        ),
        (
            "qwen3-coder",
            "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<",
            "0 weather({\"city\": \"Bern…",
        ),
        (
            "gpt-oss",
            "<|channel|>commentary to=functions.weather <|message|>{\"city\": ",
            "0 weather({\"city\": …",
        ),
    ] {
        check(name, "", text, expected);
    }
}

#[test]
fn values_of_xml_have_the_types_of_the_schema() {
    let call =
        |inner: &str| format!("<tool_call>\n<function=weather>\n{inner}</function>\n</tool_call>");
    for (inner, expected) in [
        ("<parameter=city>\n12\n</parameter>\n", r#"{"city": "12"}"#),
        ("<parameter=days>\n12\n</parameter>\n", r#"{"days": 12}"#),
        (
            "<parameter=days>\nfew\n</parameter>\n",
            r#"{"days": "few"}"#,
        ),
        (
            "<parameter=note>\nnull\n</parameter>\n",
            r#"{"note": null}"#,
        ),
        ("<parameter=note>\n3\n</parameter>\n", r#"{"note": "3"}"#),
        (
            "<parameter=list>\n[1, \"a\"]\n</parameter>\n",
            r#"{"list": [1, "a"]}"#,
        ),
        ("<parameter=other>True</parameter>\n", r#"{"other": true}"#),
        (
            "<parameter=city>\nA \"b\"\n\\</p>\n\n</parameter>\n<parameter=days>1</parameter>",
            "{\"city\": \"A \\\"b\\\"\\n\\\\</p>\\n\", \"days\": 1}",
        ),
        ("<parameter=city>\n</parameter>\n", r#"{"city": ""}"#),
        ("", "{}"),
    ] {
        check(
            "qwen3-coder",
            "",
            &call(inner),
            &format!("0 weather({expected})"),
        );
    }
    // The grammar's form is read in the same marks.
    let text = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    check("qwen3-coder", "", text, "0 now({})");
}

#[test]
fn values_of_python_and_gemma_become_json() {
    let python = |inner: &str| format!("<|tool_call_start|>[weather({inner})]<|tool_call_end|>");
    for (inner, expected) in [
        ("days=3, note=None", r#"{"days": 3, "note": null}"#),
        (
            "list=[True, false, 1.5, -2]",
            r#"{"list": [true, false, 1.5, -2]}"#,
        ),
        ("list=[]", r#"{"list": []}"#),
        (r#"city="a\"b\n\x41\u00e9\q""#, r#"{"city": "a\"b\nAé\\q"}"#),
        ("city='it\\'s \"so\"'", r#"{"city": "it's \"so\""}"#),
        (
            "a={'b': [{}], \"c\": .5}",
            r#"{"a": {"b": [{}], "c": 0.5}}"#,
        ),
        ("days = 1 , city = ''", r#"{"days": 1, "city": ""}"#),
        ("days=1_000", r#"{"days": 1000.0}"#),
    ] {
        check(
            "lfm2",
            "",
            &python(inner),
            &format!("0 weather({expected})"),
        );
    }
    let gemma = |inner: &str| format!("<|tool_call>call:weather{{{inner}}}<tool_call|>");
    for (inner, expected) in [
        (
            "days:3,city:<|\"|>a \"b\" {c}<|\"|>",
            r#"{"days": 3, "city": "a \"b\" {c}"}"#,
        ),
        (
            "list:[<|\"|>x<|\"|>,{k:true}]",
            r#"{"list": ["x", {"k": true}]}"#,
        ),
        ("city:<|\"|>a<|\"b<|\"|>", r#"{"city": "a<|\"b"}"#),
    ] {
        check(
            "gemma4",
            "",
            &gemma(inner),
            &format!("0 weather({expected})"),
        );
    }
}

/// Hermes' own parser falls back to Python, and Qwen's reads JSON5.
#[test]
fn objects_are_read_as_models_write_them() {
    let marked = |call: &str| format!("<tool_call>\n{call}\n</tool_call>");
    for (call, expected) in [
        (
            r#"{"name": "weather", "arguments": "{\"city\": \"B\\u00e9\\\"\\ud83d\\ude00\"}"}"#,
            r#"weather({"city": "B\u00e9\"\ud83d\ude00"})"#,
        ),
        // Halves of pairs without the other.
        (
            r#"{"name": "weather", "arguments": "{\"city\": \"\ud83dB\ude00 \ud83d\ud83d\ude00 \ud83d\n\ud83d\"}"}"#,
            "weather({\"city\": \"\u{fffd}B\u{fffd} \u{fffd}😀 \u{fffd}\\n\u{fffd}\"})",
        ),
        // Calls without arguments.
        (r#"{"name": "now", "arguments": ""}"#, "now({})"),
        (r#"{"name": "now", "parameters": " "}"#, "now({})"),
        (r#"{"name": "now", "arguments": null}"#, "now({})"),
        (r#"{"arguments": null, "name": "now"}"#, "now({})"),
        ("{'name': 'now', 'arguments': None}", "now({})"),
        // A string before the name.
        (r#"{"arguments": "", "name": "now"}"#, "now({})"),
        (
            r#"{"arguments": " {\"city\": \"\ud83d\ude00\", \"days\": 1,} ", "name": "weather"}"#,
            "weather({\"city\": \"😀\", \"days\": 1})",
        ),
        (
            r#"{"name": "weather", "arguments": " {\"days\": 1} "}"#,
            r#"weather({"days": 1})"#,
        ),
        (
            r#"{"type": "function", "function": {"name": "weather", "arguments": {"days": 1}}}"#,
            r#"weather({"days": 1})"#,
        ),
        (
            r#"{"function": {"arguments": {"days": 1}, "name": "weather"}, "id": "x"}"#,
            r#"weather({"days": 1})"#,
        ),
        (r#"{"function": {"name": "now"}}"#, "now({})"),
        (
            "{'name': 'weather', 'arguments': {'city': 'It\\'s \"so\"', 'days': None}}",
            r#"weather({"city": "It's \"so\"", "days": null})"#,
        ),
        (
            "{'arguments': {'city': 'Bern', 'list': [True]}, 'name': 'weather'}",
            r#"weather({"city": "Bern", "list": [true]})"#,
        ),
        (
            r#"{"name": "weather", "arguments": {"list": [1, 2,], "days": 1,},}"#,
            r#"weather({"list": [1, 2], "days": 1})"#,
        ),
    ] {
        for name in ["qwen2.5", "qwen3"] {
            check(name, "", &marked(call), &format!("0 {expected}"));
            check(name, "", call, &format!("0 {expected}"));
            check(
                name,
                "",
                &format!("```json\n{call}\n```"),
                &format!("0 {expected}"),
            );
        }
    }
    for call in [
        r#"{"name": "weather", "arguments": "sunny"}"#,
        r#"{"name": "weather", "arguments": "null"}"#,
        r#"{"name": "weather", "arguments": nul}"#,
        r#"{"arguments": "{} and", "name": "weather"}"#,
        r#"{"arguments": "[]", "name": "weather"}"#,
        r#"{"arguments": "{}", "name": "unknown"}"#,
        r#"{"arguments": "", "arguments": "", "name": "now"}"#,
        r#"{"function": {"name": "unknown"}}"#,
        r#"{"function": {"function": {"name": "now"}}}"#,
        r#"{"function": "now"}"#,
        "{name: now}",
    ] {
        let text = marked(call);
        check("qwen2.5", "", &text, &format!("text: {text}"));
    }
    let text = r#"{"name": "weather", "arguments": "{\"days\": 1} and"}"#;
    check(
        "qwen2.5",
        "",
        text,
        "0 weather({\"days\": 1})\ntext:  and\"}",
    );
}

/// A strict tool is called by its grammar, which writes no fences.
#[test]
fn fences_are_text_beside_strict_tools() {
    let tools = crate::Tools::new(vec![crate::Tool {
        name: "now".into(),
        description: None,
        parameters: serde_json::json!({"type": "object", "properties": {}}),
        is_strict: true,
    }]);
    let tools = tools.expect("valid");
    let text = "```json\n{\"name\": \"now\"}\n```";
    let parts = parts(&family("qwen2.5"), "", Some(&tools), [text]);
    assert_eq!(shown(&parts), format!("text: {text}"));
}

#[test]
fn xml_is_read_as_models_write_it() {
    let call =
        |inner: &str| format!("<tool_call>\n<function=weather>\n{inner}</function>\n</tool_call>");
    for (inner, expected) in [
        // A closing tag that was forgotten.
        (
            "<parameter=city>\nBern\n<parameter=days>\n1\n</parameter>\n",
            r#"{"city": "Bern", "days": 1}"#,
        ),
        ("<parameter=city>\nBern\n", r#"{"city": "Bern"}"#),
        ("<parameter=days>1", r#"{"days": 1}"#),
        // One within a value.
        (
            "<parameter=city>\na</parameter>\n</b></parameter>c\n</parameter>\n",
            r#"{"city": "a</parameter>\n</b></parameter>c"}"#,
        ),
        (
            "<parameter=city>\na </parameter> b</parameter>\n\n<parameter=days>2</parameter>",
            r#"{"city": "a </parameter> b", "days": 2}"#,
        ),
        // A value that is no number stays as it is written, as in vLLM.
        ("<parameter=days>\n</parameter>\n", r#"{"days": ""}"#),
    ] {
        check(
            "qwen3-coder",
            "",
            &call(inner),
            &format!("0 weather({expected})"),
        );
    }
}

/// As Qwen's own parser, which ends a function at the end of its call and of the answer.
#[test]
fn functions_of_xml_end_with_their_call() {
    let begin = "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n";
    let whole = "0 weather({\"city\": \"Bern\"})";
    for (text, expected) in [
        (format!("{begin}</tool_call>"), whole.to_owned()),
        (format!("{begin}</tool_call>\nYes."), format!("{whole}\ntext: \nYes.")),
        (
            format!("{begin}</tool_call>\n<tool_call>\n<function=now>\n</tool_call>"),
            format!("{whole}\n1 now({{}})"),
        ),
        (
            format!("{begin}<parameter=list>\n[1]\n</parameter></tool_call>"),
            "0 weather({\"city\": \"Bern\", \"list\": [1]})".to_owned(),
        ),
        // The end of the answer.
        (begin.to_owned(), whole.to_owned()),
        (begin.trim_end().to_owned(), whole.to_owned()),
        (format!("{begin}</func"), whole.to_owned()),
        (format!("{begin}</function>\n</tool"), whole.to_owned()),
        (format!("{begin}</tool_ca"), whole.to_owned()),
        (
            format!("{begin}<parameter=list>\n[1]\n</parameter>\n"),
            "0 weather({\"city\": \"Bern\", \"list\": [1]})".to_owned(),
        ),
        // In a value, the mark is text.
        (
            "<tool_call><function=weather><parameter=city></tool_call></parameter></function></tool_call>"
                .to_owned(),
            "0 weather({\"city\": \"</tool_call>\"})".to_owned(),
        ),
    ] {
        check("qwen3-coder", "", &text, &expected);
    }
}

#[test]
fn white_space_between_text_and_calls_stays() {
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    for (text, expected) in [
        (format!("a\n\n{call}"), "text: a\n\n\n0 now({})"),
        (format!("{call}\n b"), "0 now({})\ntext: \n b"),
        (format!("\n{call}\n{call}\n"), "0 now({})\n1 now({})"),
        (
            format!("a {call} b {call} "),
            "text: a \n0 now({})\ntext:  b \n1 now({})",
        ),
        (
            format!("a\n{call} {call}"),
            "text: a\n\n0 now({})\n1 now({})",
        ),
        ("a\n<tool_call>b".to_owned(), "text: a\n<tool_call>b"),
    ] {
        check("qwen2.5", "", &text, expected);
    }
    check(
        "qwen3",
        "<think>\n",
        &format!("Hm.</think>\n\n{call}"),
        "reasoning: Hm.\n0 now({})",
    );
}

/// Text that a call has kept when it ends is text of the answer.
#[test]
fn values_that_are_not_passed_on_are_text() {
    let begin =
        "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=list>";
    for cut in ["\n[1, 2", "\n[1]\n</para", "\n[1]\n</parameter>\n<para"] {
        let expected = format!("0 weather({{\"city\": \"Bern\", \"list\": …\ntext: {cut}");
        check("qwen3-coder", "", &format!("{begin}{cut}"), &expected);
    }
    let long = "1".repeat((1 << 20) + 2);
    let expected = format!("0 weather({{\"city\": \"Bern\", \"list\": …\ntext: {long}");
    check_long("qwen3-coder", &format!("{begin}{long}"), &expected);
    // Other forms give back what they have read and not passed on.
    check(
        "lfm2",
        "",
        "<|tool_call_start|>[weather(days=few)]",
        "0 weather({\"days\": …\ntext: few)]",
    );
    check(
        "gemma4",
        "",
        "<|tool_call>call:weather{days:1, ?}",
        "0 weather({\"days\": 1, …\ntext: ?}",
    );
    check(
        "qwen2.5",
        "",
        "<tool_call>{\"name\": \"weather\", \"arguments\": {\"days\": 1, x}}",
        "0 weather({\"days\": 1…\ntext: , x}}",
    );
}

#[test]
fn line_ends_in_strings_are_escaped() {
    let text = "{\"name\": \"weather\", \"arguments\": {\"city\": \"a\nb\"}}";
    check("plain", "", text, "0 weather({\"city\": \"a\\nb\"})");
}

#[test]
fn reasoning_is_parted_from_the_answer() {
    let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    for (name, prompt_end, text, expected) in [
        (
            "qwen3",
            "",
            "<think>\nHm.\n</think>\n\nYes.",
            "reasoning: Hm.\ntext: Yes.",
        ),
        ("qwen3", "assistant\n", "Yes <think>.", "text: Yes <think>."),
        (
            "qwen3",
            "<think>\n",
            "Hm.\n\nSo.\n</think>\n\nYes.",
            "reasoning: Hm.\n\nSo.\ntext: Yes.",
        ),
        ("qwen3", "<think>\n\n</think>\n\n", "Yes.", "text: Yes."),
        ("qwen3", "<think>\n", "Hm", "reasoning: Hm"),
        ("qwen3", "", "\n<thin", "text: \n<thin"),
        (
            "qwen3",
            "",
            &format!("<think>{call}</think>{call}"),
            &format!("reasoning: {call}\n0 now({{}})"),
        ),
        (
            "deepseek-r1",
            "<think>\n",
            "Hm.</think>Yes.",
            "reasoning: Hm.\ntext: Yes.",
        ),
        (
            "seed",
            "",
            "<seed:think>a<b</seed:think>c",
            "reasoning: a<b\ntext: c",
        ),
        (
            "ministral-3",
            "",
            "[THINK]a[/b[/THINK]c[TOOL_CALLS]now[ARGS]{}",
            "reasoning: a[/b\ntext: c\n0 now({})",
        ),
        (
            "gemma4",
            "",
            "<|channel>thought\nHm.\n<channel|>Yes.",
            "reasoning: Hm.\ntext: Yes.",
        ),
        ("qwen2.5", "", "<think>a</think>", "text: <think>a</think>"),
    ] {
        check(name, prompt_end, text, expected);
    }
}

#[test]
fn channels_are_parted() {
    let answer = "<|start|>assistant";
    for (prompt_end, text, expected) in [
        (
            answer,
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes.",
            "reasoning: Hm.\ntext: Yes.",
        ),
        (
            answer,
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>",
            "reasoning: a\n\nb",
        ),
        (
            answer,
            "<|channel|>commentary<|message|>First.<|end|><|start|>assistant to=functions.now<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
            "text: First.\n0 now({})",
        ),
        (
            answer,
            "<|channel|>commentary to=functions.now<|message|><|call|>",
            "0 now({})",
        ),
        (answer, "No channel.", "text: No channel."),
        (answer, "<|channel|>final", ""),
        (
            "<|start|>assistant<|channel|>analysis<|message|>",
            "Hm.<|end|>",
            "reasoning: Hm.",
        ),
        (
            "<|start|>assistant<|channel|>final<|message|>",
            "a <|constrain|> b <| c",
            "text: a <|constrain|> b <| c",
        ),
        (
            answer,
            "<|channel|>commentary to=functions.now <|message|>none<|call|>",
            "text: none",
        ),
        (
            answer,
            "<|channel|>commentary to=functions.now <|message|>{\"a\": 1, b}<|call|>",
            "0 now({\"a\": 1…\ntext: , b}",
        ),
    ] {
        check("gpt-oss", prompt_end, text, expected);
    }
}

#[test]
fn without_tools_calls_are_text() {
    for (name, text) in CALLS {
        let shown = shown(&parts(&family(name), "", None, [text]));
        if name == "gpt-oss" {
            assert_eq!(shown, "text: {\"city\": \"Bern\"}");
        } else {
            assert_eq!(shown, format!("text: {text}"), "{name}");
        }
    }
}

#[test]
fn formats_say_what_they_need() {
    for family in &FAMILIES {
        let format = family.format();
        let is_hermes = ["plain", "qwen2.5", "qwen3", "qwen3-coder", "deepseek-r1"];
        let shows = !is_hermes.contains(&family.name);
        assert_eq!(format.shows_special_tokens(), shows, "{}", family.name);
        let knows = !["plain", "deepseek-r1"].contains(&family.name);
        assert_eq!(format.template_knows_tools(), knows, "{}", family.name);
    }
    let qwen = family("qwen3");
    let start = |end: &str| qwen.reasoning_start(end);
    assert_eq!(start("<|im_start|>assistant\n"), ReasoningStart::Possible);
    assert_eq!(start("assistant\n<think>\n"), ReasoningStart::Open);
    assert_eq!(start("<think>\n\n</think>\n\n"), ReasoningStart::Absent);
    assert_eq!(family("plain").reasoning_start(""), ReasoningStart::Absent);
    let marks = qwen.reasoning_marks().expect("it reasons");
    assert_eq!(
        (&*marks.open, &*marks.ending),
        ("<think>", "\n</think>\n\n")
    );
    let harmony = family("gpt-oss");
    assert_eq!(
        harmony.reasoning_start("<|start|>assistant"),
        ReasoningStart::Possible
    );
    // A template in words of its own has no channels if its vocabulary has no such tokens.
    let words = AnswerFormat::recognize("<|start|><|channel|><|message|>", &|_| None);
    assert!(!words.shows_special_tokens());
}

#[test]
fn instructions_name_the_tools_and_the_form() {
    let text = family("plain").instructions(&tools());
    for part in [
        "weather",
        "Does now.",
        "\"city\"",
        "{\"name\": ",
        "\"arguments\": ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let calls = [("now", "{}"), ("weather", "{\"city\": \"Bern\"}")];
    for name in ["plain", "qwen2.5", "llama3"] {
        let format = family(name);
        let written = format.written_calls(calls);
        let expected = "0 now({})\n1 weather({\"city\": \"Bern\"})";
        assert_eq!(read(&format, "", &written), expected, "{name}: {written}");
    }
}

#[test]
fn held_text_is_bounded() {
    // Arguments before the name are kept, but not without end.
    let long = "x".repeat(70 << 10);
    let text = format!("{{\"arguments\": {{\"city\": \"{long}\"}}, \"name\": \"weather\"}}");
    check_long("plain", &text, &format!("text: {text}"));
    // After the name they are passed on, however long they are.
    let text = format!("{{\"name\": \"weather\", \"arguments\": {{\"city\": \"{long}\"}}}}");
    check_long(
        "plain",
        &text,
        &format!("0 weather({{\"city\": \"{long}\"}})"),
    );
    let spaces = " ".repeat(100_000);
    check_long(
        "qwen3",
        &format!("a{spaces}b"),
        &format!("text: a{spaces}b"),
    );
}

fn check_long(name: &str, text: &str, expected: &str) {
    assert!(read(&family(name), "", text) == expected, "{name}");
}
