//! Calls that a choice forces, of tools with random schemas: each follows its schema, as a
//! validator of JSON schemas says, and is the same streamed.
//!
//! `MOTET_FORCED_CALLS` sets the number of schemas; the default suits every run.

use crate::common::client::{CHAT, Server, chat, post, whole};
use axum::body::Body;
use futures_util::future::join_all;
use http_body_util::BodyExt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Map, Value, json};

/// Schemas of a run, unless the environment says otherwise.
const SCHEMAS: u64 = 40;
/// Requests that run side by side.
const SIDE_BY_SIDE: usize = 8;
/// Deepest nesting of objects and lists.
const LEVELS_MAX: u32 = 3;

fn schemas() -> u64 {
    let set = std::env::var("MOTET_FORCED_CALLS").ok();
    set.map_or(SCHEMAS, |set| set.parse().expect("a number"))
}

/// A random schema of an object.
fn object(random: &mut StdRng, level: u32) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for _ in 0..random.random_range(0..=4) {
        let name = name(random);
        if random.random_bool(0.7) && !properties.contains_key(&name) {
            required.push(name.clone());
        }
        properties
            .entry(name)
            .or_insert_with(|| value(random, level + 1));
    }
    json!({"type": "object", "properties": properties, "required": required,
           "additionalProperties": false})
}

/// A random schema of any value.
fn value(random: &mut StdRng, level: u32) -> Value {
    let kinds = if level < LEVELS_MAX { 11 } else { 9 };
    match random.random_range(0..kinds) {
        0 => json!({"type": "boolean"}),
        1 => json!({"type": "null"}),
        2 => json!({"enum": [name(random), random.random_range(0..100), null]}),
        3 => json!({"const": {"a": [1, name(random)]}}),
        4 => {
            let least = random.random_range(-50..50);
            json!({"type": "integer", "minimum": least, "maximum": least + 120})
        }
        5 => json!({"type": "string", "maxLength": random.random_range(0..12)}),
        6 => json!({"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 3}]}),
        7 => {
            let step = [0.25, 0.75, 2.5][random.random_range(0..3)];
            json!({"type": "number", "multipleOf": step, "minimum": -40})
        }
        8 => json!({"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 9}),
        9 => {
            let least = random.random_range(0..3);
            json!({"type": "array", "items": value(random, level + 1),
                   "minItems": least, "maxItems": least + 2})
        }
        _ => object(random, level),
    }
}

fn name(random: &mut StdRng) -> String {
    let letters = random.random_range(1..10);
    let letter = |_| char::from(random.random_range(b'a'..=b'z'));
    (0..letters).map(letter).collect()
}

/// The tools of a seed: one to three, with a schema each.
fn tools(seed: u64) -> Vec<Value> {
    let mut random = StdRng::seed_from_u64(seed);
    let count = random.random_range(1..=3);
    let tools = (0..count).map(|index| {
        let function =
            json!({"name": format!("tool_{index}"), "parameters": object(&mut random, 0)});
        json!({"type": "function", "function": function})
    });
    tools.collect()
}

fn body(seed: u64, is_streamed: bool) -> Value {
    let choice = match seed % 3 {
        0 => json!({"type": "function", "function": {"name": "tool_0"}}),
        _ => json!("required"),
    };
    chat(json!({
        "tools": tools(seed), "tool_choice": choice, "parallel_tool_calls": seed.is_multiple_of(2),
        "temperature": 1, "seed": seed, "max_tokens": 6000, "stream": is_streamed,
    }))
}

/// Checks the calls of a seed against their schemas.
#[track_caller]
fn check(seed: u64, functions: &[Value]) {
    let tools = tools(seed);
    assert!(!functions.is_empty(), "{seed}: no call");
    assert!(
        seed.is_multiple_of(2) || functions.len() == 1,
        "{seed}: {functions:?}"
    );
    for function in functions {
        let called = tools
            .iter()
            .find(|tool| tool["function"]["name"] == function["name"]);
        let schema = &called.expect("a known tool")["function"]["parameters"];
        assert!(!seed.is_multiple_of(3) || function["name"] == "tool_0");
        let arguments = function["arguments"].as_str().expect("text");
        let arguments: Value = serde_json::from_str(arguments)
            .unwrap_or_else(|error| panic!("{seed}: {error}: {arguments}"));
        let validator = jsonschema::validator_for(schema).expect("a schema");
        let errors: Vec<String> = validator
            .iter_errors(&arguments)
            .map(|e| e.to_string())
            .collect();
        assert!(
            errors.is_empty(),
            "{seed}: {errors:?}: {arguments} of {schema}"
        );
    }
}

/// The called functions of a stream, joined.
fn joined(text: &str) -> Vec<Value> {
    let mut functions: Vec<Value> = Vec::new();
    let events = text
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: {"));
    for event in events {
        let event: Value = serde_json::from_str(&format!("{{{event}")).expect("JSON");
        let deltas = event["choices"][0]["delta"]["tool_calls"].as_array();
        for delta in deltas.into_iter().flatten() {
            let index = delta["index"].as_u64().expect("an index") as usize;
            if index == functions.len() {
                functions.push(delta["function"].clone());
            } else {
                let more = delta["function"]["arguments"].as_str().expect("text");
                let arguments = functions[index]["arguments"].as_str().expect("text");
                functions[index]["arguments"] = json!(format!("{arguments}{more}"));
            }
        }
    }
    functions
}

async fn whole_functions(server: &Server, seed: u64) -> Vec<Value> {
    let answer = server.post(CHAT, &body(seed, false)).await.ok();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{seed}: {answer}");
    let calls = choice["message"]["tool_calls"].as_array().expect("calls");
    calls.iter().map(|call| call["function"].clone()).collect()
}

async fn streamed_functions(server: &Server, seed: u64) -> Vec<Value> {
    let response = server.send(post(CHAT, &body(seed, true))).await;
    joined(&whole(response).await)
}

/// Reads a few parts of a stream, and disconnects.
async fn disconnect(server: &Server, seed: u64) {
    let mut parts: Body = server.send(post(CHAT, &body(seed, true))).await.into_body();
    for _ in 0..=seed % 5 {
        let Some(part) = parts.frame().await else {
            return;
        };
        part.expect("a part");
    }
}

#[tokio::test]
async fn every_forced_call_follows_its_schema() {
    let server = &Server::new().await;
    let seeds: Vec<u64> = (0..schemas()).collect();
    let mut calls = 0;
    for seeds in seeds.chunks(SIDE_BY_SIDE) {
        let whole = join_all(seeds.iter().map(|seed| whole_functions(server, *seed))).await;
        // The same again as streams, while as many others disconnect.
        let others = join_all(seeds.iter().map(|seed| disconnect(server, *seed + 1)));
        let streams = join_all(seeds.iter().map(|seed| streamed_functions(server, *seed)));
        let (streamed, _) = tokio::join!(streams, others);
        for ((seed, whole), streamed) in seeds.iter().zip(&whole).zip(&streamed) {
            check(*seed, whole);
            assert_eq!(whole, streamed, "{seed}");
            calls += whole.len();
        }
    }
    assert!(calls > seeds.len(), "some answers have several calls");
}
