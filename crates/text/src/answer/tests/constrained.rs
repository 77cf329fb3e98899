//! Answers by a grammar: whatever token is chosen, the calls are calls.

use std::sync::Arc;

use serde_json::{Value, json};

use super::models::{FAMILIES, FIRST_SPECIAL, Family, family};
use super::schemas::{self, Random};
use super::{parts, tools};
use crate::answer::{AnswerPart, ReasoningStart, Tool, ToolChoice, ToolError, Tools};
use crate::grammar::{
    Grammar, GrammarError, GrammarLimits, GrammarSource, GrammarVocabulary, MaskPool, Next,
};
use motet_protocol::TokenId;

/// Random sets of tools.
const CASES: u64 = 1000;
/// Tokens after which a walk is given up.
const STEPS_MAX: usize = 1200;
const END: TokenId = 0;
/// Marks that are whole tokens, though no special ones: text that random bytes seldom spell.
const LONG: [&str; 6] = [
    "</think>",
    "<think>",
    "<tool_call>",
    "</tool_call>",
    "{\"name\": \"",
    "\n",
];

/// The end, all bytes, special tokens, some longer tokens.
fn vocabulary(family: &Family) -> (Vec<String>, GrammarVocabulary) {
    let mut bytes = vec![Vec::new()];
    bytes.extend((0..=255u8).map(|byte| vec![byte]));
    assert_eq!(bytes.len(), FIRST_SPECIAL as usize);
    bytes.extend(family.special.iter().map(|_| Vec::new()));
    bytes.extend(LONG.iter().map(|text| text.as_bytes().to_vec()));
    let special = family.special.iter().map(|text| (*text).to_owned());
    let vocabulary = GrammarVocabulary::from_bytes(bytes, &[END]).expect("a vocabulary");
    (special.collect(), vocabulary)
}

/// The text of a random walk; `None` if it is too long.
fn walk(grammar: &Grammar, special: &[String], random: &mut Random) -> Option<String> {
    let mut matcher = grammar.matcher();
    let mut bytes = Vec::new();
    for _ in 0..STEPS_MAX {
        let Next::Mask(mask) = matcher.next_tokens().expect("goes on") else {
            return Some(String::from_utf8(bytes).expect("grammars allow UTF-8 only"));
        };
        let allowed: Vec<TokenId> = mask.tokens().collect();
        // Without a preference for what ends something, texts and numbers are too long.
        let ends = |token: &TokenId| {
            *token == END
                || *token >= FIRST_SPECIAL
                || b"\"}],-".contains(&u8::try_from(*token - 1).unwrap_or(0))
        };
        let preferred: Vec<TokenId> = allowed.iter().copied().filter(ends).collect();
        let chosen = if preferred.is_empty() || random.one_in(3) {
            &allowed
        } else {
            &preferred
        };
        let token = chosen[random.below(chosen.len())];
        matcher.accept(token).expect("it is allowed");
        match token {
            END => return Some(String::from_utf8(bytes).expect("grammars allow UTF-8 only")),
            token if token < FIRST_SPECIAL => bytes.push((token - 1) as u8),
            token => {
                let at = (token - FIRST_SPECIAL) as usize;
                let long = |at: usize| LONG[at - special.len()];
                let text = special
                    .get(at)
                    .map(String::as_str)
                    .unwrap_or_else(|| long(at));
                bytes.extend_from_slice(text.as_bytes());
            }
        }
    }
    None
}

/// The calls of an answer, and its text.
fn calls(parts: Vec<AnswerPart>) -> (Vec<(String, Value)>, String) {
    let (mut calls, mut text, mut json) = (Vec::new(), String::new(), String::new());
    for part in parts {
        match part {
            AnswerPart::CallStart { name, .. } => {
                json.clear();
                calls.push((name, Value::Null));
            }
            AnswerPart::CallArguments { json: more, .. } => json.push_str(&more),
            AnswerPart::CallEnd { is_complete, .. } => {
                assert!(is_complete, "{json}");
                let value = serde_json::from_str(&json).expect("arguments are JSON");
                calls.last_mut().expect("it has started").1 = value;
            }
            AnswerPart::Text(more) => text.push_str(&more),
            AnswerPart::Reasoning(_) => {}
        }
    }
    (calls, text)
}

fn compile(
    source: &GrammarSource,
    vocabulary: &GrammarVocabulary,
) -> Result<Grammar, GrammarError> {
    let pool = MaskPool::start(1).expect("a thread");
    Grammar::compile(source, vocabulary, &pool)
}

/// One random set of tools: the choice, the family and the start of the reasoning are random, too.
/// Returns the number of its calls; `None` if the walk was too long.
fn check_case(seed: u64) -> Option<usize> {
    let random = &mut Random::new(seed);
    let family = &FAMILIES[random.below(FAMILIES.len())];
    let format = family.format();
    let tools = schemas::tools(random);
    let first = tools.iter().next().expect("there is one").name.clone();
    let choice = match random.below(3) {
        0 => ToolChoice::Auto,
        1 => ToolChoice::Named(first.clone()),
        _ => ToolChoice::Required,
    };
    let parallel = random.one_in(2);
    let (start, prompt_end) = match (random.below(3), format.reasoning_marks()) {
        (0, Some(_)) => (ReasoningStart::Possible, String::new()),
        (1, Some(marks)) => {
            let answer = if family.name == "gpt-oss" {
                "<|start|>assistant"
            } else {
                ""
            };
            (ReasoningStart::Open, format!("{answer}{}", marks.open))
        }
        _ => (ReasoningStart::Absent, String::new()),
    };
    let source = format.grammar(&tools, &choice, parallel, start);
    let source = source.expect("valid").expect("it is constrained");
    let (special, vocabulary) = vocabulary(family);
    let grammar = match compile(&source, &vocabulary) {
        Ok(grammar) => grammar,
        Err(error) => panic!("{}, seed {seed}: {error}", family.name),
    };
    let text = walk(&grammar, &special, random)?;
    let case = format!(
        "{}, seed {seed}, {choice:?}, {start:?}: {text}",
        family.name
    );
    let (calls, free) = calls(parts(&format, &prompt_end, Some(&tools), [&*text]));
    if choice != ToolChoice::Auto {
        assert!(!calls.is_empty(), "{case}");
        assert_eq!(free, "", "{case}");
    }
    if !parallel || choice == ToolChoice::Named(first.clone()) {
        assert!(calls.len() <= 1, "{case}");
    }
    for (name, arguments) in &calls {
        let tool = tools.get(name).expect("it is offered");
        let is_constrained = tool.is_strict || choice != ToolChoice::Auto;
        let is_valid = !is_constrained || jsonschema::is_valid(&tool.parameters, arguments);
        assert!(is_valid, "{case}");
        assert!(arguments.is_object(), "{case}");
        if let ToolChoice::Named(chosen) = &choice {
            assert_eq!(name, chosen, "{case}");
        }
    }
    Some(calls.len())
}

#[test]
fn every_choice_of_tokens_gives_valid_calls() {
    let found: Vec<Option<usize>> = (1..=CASES).map(check_case).collect();
    let finished = found.iter().flatten().count();
    let calls: usize = found.iter().flatten().sum();
    assert!(
        finished * 20 >= found.len() * 19,
        "{finished} walks finished"
    );
    assert!(calls > finished / 2, "{calls} calls");
}

#[test]
fn grammars_are_made_where_they_hold_something() {
    let format = family("qwen2.5");
    let absent = ReasoningStart::Absent;
    let grammar = |tools: &Tools, choice| format.grammar(tools, &choice, true, absent);
    let free = tools();
    assert_eq!(grammar(&free, ToolChoice::Auto), Ok(None));
    assert_eq!(grammar(&free, ToolChoice::None), Ok(None));
    assert!(matches!(grammar(&free, ToolChoice::Required), Ok(Some(_))));
    let unknown = grammar(&free, ToolChoice::Named("x".into()));
    assert_eq!(unknown, Err(ToolError::UnknownTool { name: "x".into() }));
    let none = Tools::new(Vec::new()).expect("valid");
    assert_eq!(
        grammar(&none, ToolChoice::Required),
        Err(ToolError::NoTools)
    );
    assert_eq!(grammar(&none, ToolChoice::Auto), Ok(None));
}

/// References of a tool's schema are within it, though it is one of several in the grammar.
#[test]
fn references_of_tools_are_their_own() {
    let tool = |name: &str, value: u64| Tool {
        name: name.into(),
        description: None,
        parameters: json!({"$defs": {"a/b": {"enum": [value]}}, "required": ["a"],
                           "properties": {"a": {"$ref": "#/$defs/a~1b"}}}),
        is_strict: true,
    };
    let tools = Tools::new(vec![tool("one", 1), tool("two", 2)]).expect("valid");
    let (_, vocabulary) = vocabulary(&FAMILIES[0]);
    let format = family("plain");
    let source = format.grammar(&tools, &ToolChoice::Required, false, ReasoningStart::Absent);
    let grammar =
        compile(&source.expect("valid").expect("constrained"), &vocabulary).expect("compiles");
    for (name, value, is_valid) in [("one", 1, true), ("two", 2, true), ("two", 1, false)] {
        let text = format!(r#"{{"name": "{name}", "arguments": {{"a": {value}}}}}"#);
        let mut matcher = grammar.matcher();
        let is_accepted = text.bytes().all(|letter| {
            let token = TokenId::from(letter) + 1;
            let next = matcher.next_tokens().expect("goes on");
            let is_allowed = next
                .mask()
                .is_some_and(|mask| mask.tokens().any(|one| one == token));
            is_allowed && matcher.accept(token).is_ok()
        });
        assert_eq!(is_accepted, is_valid, "{text}");
    }
}

/// An error names the tool whose schema is wrong, also where several are in one grammar.
#[test]
fn schema_that_is_no_grammar_names_its_tool() {
    let (_, vocabulary) = vocabulary(&FAMILIES[0]);
    let tool = |name: &str, parameters: Value| Tool {
        name: name.into(),
        description: None,
        parameters,
        is_strict: true,
    };
    let check = |schema: Value, expected: &dyn Fn(&GrammarError) -> bool| {
        let good = json!({"type": "object", "properties": {"a": {"type": "string"}}});
        let tools = vec![
            tool("good", good.clone()),
            tool("bad", schema.clone()),
            tool("last", good),
        ];
        let tools = Tools::new(tools).expect("valid");
        let format = family("plain");
        let source = format.grammar(&tools, &ToolChoice::Auto, true, ReasoningStart::Absent);
        let source = source.expect("valid").expect("strict");
        match compile(&source, &vocabulary) {
            Err(GrammarError::Tool { name, error }) => {
                assert_eq!(name, "bad", "{schema}");
                assert!(expected(&error), "{schema}: {error}");
            }
            other => panic!("{schema}: {other:?}"),
        }
    };
    let is_compile = |error: &GrammarError| matches!(error, GrammarError::Compile { .. });
    let is_dear = |error: &GrammarError| matches!(error, GrammarError::TooExpensive { .. });
    check(json!({"properties": {"a": {"type": 7}}}), &is_compile);
    check(
        json!({"properties": {"a": {"$ref": "https://example.org/"}}}),
        &is_compile,
    );
    check(
        json!({"properties": {"a": {"pattern": "(?=a)"}}}),
        &is_compile,
    );
    check(
        json!({"properties": {"a": false}, "required": ["a"]}),
        &is_compile,
    );
    // A tool that nothing follows does not vanish beside the others.
    check(
        json!({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}),
        &is_compile,
    );
    check(json!({"minProperties": 2}), &is_compile);
    check(json!({"x-guidance": {"lenient": true}}), &is_dear);
    let many: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let long = json!({"properties": {"a": {"enum": many[..2_000]}}});
    let limits = GrammarLimits {
        enum_values_max: 100,
        ..GrammarLimits::default()
    };
    let vocabulary = vocabulary.clone().with_limits(limits);
    let tools = Tools::new(vec![tool("long", long)]).expect("valid");
    let choice = ToolChoice::Required;
    let source = family("plain").grammar(&tools, &choice, true, ReasoningStart::Absent);
    let error = compile(&source.expect("valid").expect("constrained"), &vocabulary);
    assert!(matches!(error, Err(GrammarError::Tool { name, .. }) if name == "long"));
    // Sources are bounded as a whole before anything else is done.
    let huge = json!({"properties": {"a": {"enum": many}}});
    let tools = Tools::new(vec![tool("huge", huge)]).expect("valid");
    let source = family("plain").grammar(&tools, &choice, true, ReasoningStart::Absent);
    let source = source.expect("valid").expect("constrained");
    assert!(source.check_bytes().is_err());
}

/// Answers as models write them follow the grammar of their format.
#[test]
fn usual_answers_follow_the_grammar() {
    let follows = |name: &str, start: ReasoningStart, choice: &ToolChoice, text: &str| {
        let family = FAMILIES.iter().find(|family| family.name == name);
        let family = family.expect("listed");
        let (special, vocabulary) = vocabulary(family);
        let all = tools();
        let strict = all.iter().cloned().map(|tool| Tool {
            is_strict: true,
            ..tool
        });
        let strict = Tools::new(strict.collect()).expect("valid");
        let source = family.format().grammar(&strict, choice, true, start);
        let grammar = compile(&source.expect("valid").expect("constrained"), &vocabulary);
        let mut matcher = grammar.expect("compiles").matcher();
        let mut rest = text;
        while !rest.is_empty() {
            let special = special
                .iter()
                .position(|token| rest.starts_with(token.as_str()));
            let (token, bytes) = match special {
                Some(at) => (FIRST_SPECIAL + at as TokenId, family.special[at].len()),
                None => (TokenId::from(rest.as_bytes()[0]) + 1, 1),
            };
            let next = matcher.next_tokens().expect("goes on");
            let allowed = next
                .mask()
                .is_some_and(|mask| mask.tokens().any(|allowed| allowed == token));
            if !allowed {
                return false;
            }
            matcher.accept(token).expect("allowed");
            rest = &rest[bytes..];
        }
        matcher.is_complete()
    };
    let auto = &ToolChoice::Auto;
    let absent = ReasoningStart::Absent;
    let call = r#"{"name": "weather", "arguments": {"city": "Bern"}}"#;
    let hermes = format!("<tool_call>\n{call}\n</tool_call>");
    let bad = hermes.replace("\"Bern\"", "7");
    for (name, start, text, expected) in [
        ("qwen2.5", absent, "Just text.", true),
        ("qwen2.5", absent, "", true),
        ("qwen2.5", absent, &*format!("Let me look.\n{hermes}"), true),
        ("qwen2.5", absent, &*format!("{hermes}\n{hermes}"), true),
        ("qwen2.5", absent, &*bad, false),
        ("qwen2.5", absent, &*format!("text {bad}"), false),
        ("qwen2.5", absent, "<tool_call>\nno call", false),
        (
            "qwen3",
            ReasoningStart::Possible,
            &*format!("<think>\nHm.\n</think>\n\n{hermes}"),
            true,
        ),
        (
            "qwen3",
            ReasoningStart::Open,
            &*format!("Hm.\n</think>\n\n{hermes}"),
            true,
        ),
        ("qwen3", ReasoningStart::Open, "Hm.\n</think>\n\nYes.", true),
        (
            "qwen3",
            ReasoningStart::Open,
            &*format!("Hm. {bad}</think>{hermes}"),
            true,
        ),
        (
            "plain",
            absent,
            &*format!("Let me look.\n{call}\n{call}"),
            true,
        ),
        ("plain", absent, call, true),
        ("plain", absent, "One.\n\nTwo: {}.\n", true),
        ("plain", absent, "{\"other\": 1}", false),
        ("plain", absent, &*call.replace("\"Bern\"", "7"), false),
        (
            "lfm2",
            absent,
            &*format!("Yes. <|tool_call_start|>[{call}, {call}]<|tool_call_end|>"),
            true,
        ),
        (
            "mistral-nemo",
            absent,
            &*format!("[TOOL_CALLS][{call}]"),
            true,
        ),
        (
            "ministral-3",
            absent,
            "Well.[TOOL_CALLS]weather[ARGS]{\"city\":\"Bern\"}",
            true,
        ),
        (
            "ministral-3",
            ReasoningStart::Possible,
            "[THINK]Hm.[/THINK]Yes.",
            true,
        ),
        (
            "ministral-3",
            absent,
            "[TOOL_CALLS]weather[ARGS]{\"city\": 7}",
            false,
        ),
        (
            "gpt-oss",
            ReasoningStart::Possible,
            "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern\"}",
            true,
        ),
        ("gpt-oss", absent, "<|channel|>final<|message|>Yes.", true),
        ("gpt-oss", absent, "Yes.", false),
        (
            "gemma4",
            ReasoningStart::Possible,
            "<|channel>thought\nHm.<channel|>Yes.",
            true,
        ),
    ] {
        assert_eq!(follows(name, start, auto, text), expected, "{name}: {text}");
        let is_call = text.contains("Bern") || text.contains("7");
        let required = follows(name, start, &ToolChoice::Required, text);
        let starts_with_call =
            !text.contains("look") && !text.contains("Well") && !text.contains("Yes");
        assert_eq!(
            required,
            expected && is_call && starts_with_call,
            "{name}: {text}"
        );
    }
}

#[test]
fn json_answers_may_follow_reasoning() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
                        "required": ["a"], "additionalProperties": false});
    let absent = ReasoningStart::Absent;
    let plain = family("qwen3").json_grammar(Some(&schema), absent);
    assert_eq!(plain, GrammarSource::JsonSchema(schema.to_string()));
    assert_eq!(
        family("plain").json_grammar(None, absent),
        GrammarSource::Json
    );
    for (name, start, prompt_end) in [
        ("qwen3", ReasoningStart::Open, "<think>\n"),
        ("qwen3", ReasoningStart::Possible, ""),
        ("gpt-oss", ReasoningStart::Possible, ""),
        ("gpt-oss", absent, ""),
    ] {
        let family = FAMILIES.iter().find(|family| family.name == name);
        let (special, vocabulary) = vocabulary(family.expect("listed"));
        let format = family.expect("listed").format();
        let grammar = compile(&format.json_grammar(Some(&schema), start), &vocabulary);
        let grammar = grammar.expect("compiles");
        let mut finished = 0;
        for seed in 1..30 {
            let Some(text) = walk(&grammar, &special, &mut Random::new(seed)) else {
                continue;
            };
            finished += 1;
            let (calls, json) = calls(parts(&format, prompt_end, None, [&*text]));
            assert!(calls.is_empty());
            let value: Value = serde_json::from_str(&json).expect("the text is JSON");
            assert!(jsonschema::is_valid(&schema, &value), "{name}: {json}");
        }
        assert!(finished > 20, "{name}: {finished}");
    }
}

/// A source is cheap to clone, and its `Debug` output has no content.
#[test]
fn sources_show_no_content() {
    let source = family("plain").grammar(
        &tools(),
        &ToolChoice::Required,
        true,
        ReasoningStart::Absent,
    );
    let source = source.expect("valid").expect("constrained");
    let shown = format!("{source:?}");
    assert!(shown.starts_with("grammar of an answer of "), "{shown}");
    assert_eq!(source.clone(), source);
    let pool = Arc::clone(&MaskPool::start(1).expect("a thread"));
    let (_, vocabulary) = vocabulary(&FAMILIES[0]);
    let grammar = Grammar::compile(&source, &vocabulary, &pool).expect("compiles");
    assert_eq!(grammar.source(), &source);
}
