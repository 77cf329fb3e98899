//! Compares the description with the code.

use std::collections::BTreeSet;

use clap::Parser;

use super::*;
use crate::arguments::Arguments;
use crate::keys::Keys;
use crate::start;

async fn described(keys: Keys) -> Value {
    described_with("", keys).await
}

async fn described_with(words: &str, keys: Keys) -> Value {
    let words = words.split_whitespace();
    let arguments = Arguments::parse_from(["server", "--oracle"].into_iter().chain(words));
    let engine = start::engine(&arguments).await.expect("the oracle starts");
    document(&App::new(engine, "oracle".into(), keys, arguments.access))
}

fn names(object: &Value) -> BTreeSet<&str> {
    let object = object.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}

/// The handlers parse the same structs that the schemas are derived from, so only what the
/// description adds to them can be wrong.
#[tokio::test]
async fn fields_have_the_limits_of_the_running_server() {
    let document = described_with("--class-max normal", Keys::default()).await;
    let schema = |pointer: &str| {
        let pointer = format!("/components/schemas/{pointer}");
        document.pointer(&pointer).expect(&pointer).clone()
    };
    let arguments = Arguments::parse_from(["server", "--oracle"]);
    let engine = start::engine(&arguments).await.expect("the oracle starts");
    let model = engine.model();
    assert_eq!(schema("Token/maximum"), model.vocab_size - 1);
    for body in ["ChatRequest", "TextRequest"] {
        let field = |field: &str| schema(&format!("{body}/properties/{field}"));
        assert_eq!(field("model/enum"), json!(["oracle", null]));
        assert_eq!(field("num_keep/maximum"), model.context_tokens_max - 1);
        let least = u64::from(body == "ChatRequest");
        assert_eq!(field("max_tokens/minimum"), least);
        assert_eq!(field("max_tokens/maximum"), u64::MAX);
        assert_eq!(field("top_p/exclusiveMinimum"), 0);
        assert_eq!(field("n/maximum"), motet::Request::N_MAX);
        let priority = field("priority/description").to_string();
        assert!(priority.contains("the highest is normal"), "{priority}");
    }
    assert_eq!(schema("ChatRequest/required"), json!(["messages"]));
    assert_eq!(schema("TextRequest/required"), json!(["prompt"]));
}

#[tokio::test]
async fn answers_have_the_described_fields_and_no_other() {
    let document = described(Keys::default()).await;
    let schemas = &document["components"]["schemas"];
    for name in [
        "ChatCompletion",
        "TextPart",
        "Response",
        "State",
        "Error",
        "Usage",
    ] {
        assert_eq!(schemas[name]["additionalProperties"], false, "{name}");
    }
    assert_eq!(schemas["State"]["required"], json!(["state"]));
    let completion = &schemas["ChatCompletion"];
    assert_eq!(
        completion["properties"]["object"]["const"],
        "chat.completion"
    );
    let required = completion["required"].as_array().expect("a list");
    assert!(required.contains(&json!("usage")), "{required:?}");
    // Formats of numbers, which only Rust knows. A field may have that name.
    assert!(!document.to_string().contains("\"format\":\""));
}

/// The router does not list its routes, so the test reads its source.
#[tokio::test]
async fn every_route_is_described_and_no_other() {
    let document = described(Keys::default()).await;
    let source = concat!(
        include_str!("../routes.rs"),
        include_str!("../responses/mod.rs")
    );
    let routes = source.split(".route(\"").skip(1).map(|route| {
        let (path, rest) = route.split_once("\", ").expect("a path and its handler");
        let method = rest.split_once('(').expect("a method").0;
        (path.replace("{*", "{"), method.to_owned())
    });
    let paths = document["paths"].as_object().expect("paths");
    let described = paths.iter().flat_map(|(path, operations)| {
        let methods = names(operations).into_iter();
        methods.map(|method| (path.clone(), method.to_owned()))
    });
    assert_eq!(
        routes.collect::<BTreeSet<_>>(),
        described.collect::<BTreeSet<_>>()
    );
}

#[tokio::test]
async fn key_is_documented_where_it_can_be_required() {
    let open = described(Keys::default()).await;
    let guarded = described(Keys::parse("ann secret").expect("a key")).await;
    let chat = "/paths/~1v1~1chat~1completions/post/security";
    assert_eq!(open.pointer(chat), None);
    assert!(guarded.pointer(chat).is_some());
    assert_eq!(guarded.pointer("/paths/~1health/get/security"), None);
    let metrics = "/paths/~1metrics/get/security";
    assert!(guarded.pointer(metrics).is_some());
    let keys = Keys::parse("ann secret").expect("a key");
    let all = described_with("--operator-open", keys).await;
    assert_eq!(all.pointer(metrics), None);
}

#[tokio::test]
async fn references_resolve() {
    let document = described(Keys::default()).await;
    let text = document.to_string();
    let references: BTreeSet<&str> = text
        .split("\"$ref\":\"#")
        .skip(1)
        .map(|rest| rest.split('"').next().expect("an end"))
        .collect();
    assert!(references.len() > 10, "{references:?}");
    for reference in references {
        assert!(document.pointer(reference).is_some(), "{reference}");
    }
}
