//! Compares the description with the code.

use std::collections::BTreeSet;

use clap::Parser;

use super::*;
use crate::arguments::Arguments;
use crate::body::fields::Fields;
use crate::keys::Keys;
use crate::openai::{chat, parameters::Parameters, text};
use crate::{start, tokens};

async fn described(keys: Keys) -> Value {
    described_with("", keys).await
}

async fn described_with(words: &str, keys: Keys) -> Value {
    let words = words.split_whitespace();
    let arguments = Arguments::parse_from(["server", "--oracle"].into_iter().chain(words));
    let engine = start::engine(&arguments).await.expect("the oracle starts");
    document(&App::new(engine, "oracle".into(), keys, arguments.conduct))
}

/// The names of a body's fields.
fn read<T: Fields>() -> BTreeSet<&'static str> {
    let mut names = BTreeSet::new();
    T::names(&mut |name| {
        names.insert(name);
    });
    names
}

fn names(object: &Value) -> BTreeSet<&str> {
    let object = object.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn every_field_that_is_read_is_described_and_no_other() {
    let document = described(Keys::default()).await;
    let check = |pointer: &str, read: BTreeSet<&str>| {
        let pointer = format!("/components/schemas/{pointer}/properties");
        let properties = document.pointer(&pointer).expect(&pointer);
        assert_eq!(names(properties), read, "{pointer}");
    };
    check(
        "ChatRequest",
        read::<(Parameters, chat::Logprobs, chat::Conversation)>(),
    );
    check(
        "TextRequest",
        read::<(Parameters, text::CompletionFields)>(),
    );
    check("Detokenize", read::<tokens::Detokenize>());
    let [text, chat] = [0, 1].map(|number| {
        let properties = format!("/components/schemas/Tokenize/anyOf/{number}/properties");
        names(document.pointer(&properties).expect("two kinds"))
    });
    let read = read::<(tokens::Tokenize, chat::Conversation)>();
    assert_eq!(&text | &chat, read);
}

/// The router does not list its routes, so the test reads its source.
#[tokio::test]
async fn every_route_is_described_and_no_other() {
    let document = described(Keys::default()).await;
    let source = include_str!("../app.rs");
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
