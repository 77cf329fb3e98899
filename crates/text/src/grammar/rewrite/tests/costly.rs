//! Schemas that would take long to rewrite, or much memory: nothing else has judged them by then.

use serde_json::{Map, json};

use super::*;
use crate::grammar::rewrite::{Budget, prepared};

fn check_too_costly(schema: &Value, reason: &str) {
    assert!(schema.to_string().len() <= GrammarSource::SCHEMA_BYTES_MAX);
    let error = prepared(schema, &mut Budget::default()).expect_err("too costly");
    assert!(error.contains(reason), "{error}");
}

/// Each pass follows references that lead back, on ten ways at once.
#[test]
fn rings_of_references_end() {
    let back = |reference: &str| vec![json!({"$ref": reference}); 10];
    for ring in [
        json!({"type": "object", "minProperties": 1, "allOf": back("#")}),
        json!({"type": "object", "maxProperties": 1, "anyOf": back("#")}),
        json!({"type": "object", "minProperties": 1, "oneOf": back("#")}),
        json!({"oneOf": back("#"), "discriminator": {"propertyName": "a"}}),
        json!({"type": "object", "propertyNames": {"$ref": "#/propertyNames"}}),
        json!({"type": "object", "propertyNames": {"allOf": back("#/propertyNames")}}),
        json!({"type": "object", "dependentSchemas": {"a": {"allOf": back("#")}}}),
        json!({"type": "object", "minProperties": 1, "dependencies": {"a": {"$ref": "#"}}}),
        json!({"type": "array", "prefixItems": back("#"), "unevaluatedItems": {"$ref": "#"}}),
        json!({"allOf": [{"$ref": "#/components/a"}],
               "components": {"a": {"minProperties": 1, "allOf": back("#/components/b")},
                              "b": {"minProperties": 1, "allOf": back("#/components/a")}}}),
    ] {
        // Some are no grammar. All end.
        let _ = compile(&ring);
    }
    let names = json!({"type": "object", "minProperties": 2, "maxProperties": 2, "$ref": "#/$defs/a",
                       "$defs": {"a": {"required": ["a"], "allOf": [{"$ref": "#/$defs/b", "required": ["b"]}]},
                                 "b": {"allOf": back("#/$defs/a")}}});
    let prepared = prepared(&names, &mut Budget::default()).expect("two names are required");
    assert_eq!(prepared.get("minProperties"), None);
}

#[test]
fn copies_are_bounded_together() {
    // Each object is small when it is written out; they share the names.
    let names: Vec<String> = (0..1000).map(|name| format!("{name}")).collect();
    let objects = |count: usize, object: Value| -> Value {
        let objects = vec![object; count];
        json!({"anyOf": objects, "$defs": {"n": {"enum": names}}})
    };
    let listed = |values: usize| {
        json!({"propertyNames": {"$ref": "#/$defs/n"},
               "additionalProperties": {"enum": vec![1; values]}})
    };
    let mut budget = Budget::default();
    prepared(&objects(1, listed(100)), &mut budget).expect("one is small enough");
    check_too_costly(&objects(150, listed(100)), "propertyNames");
    // The schemas of one request count together.
    let another = prepared(&objects(2, listed(100)), &mut budget);
    assert!(another.is_err_and(|error| error.contains("propertyNames")));
    // Nor are they many where their schema is small.
    check_too_costly(&objects(300, listed(1)), "propertyNames");
    let members: Map<_, _> = (0..63).map(|name| (format!("{name}"), json!(1))).collect();
    let sets = json!({"type": "object", "properties": members, "maxProperties": 1});
    prepared(&sets, &mut Budget::default()).expect("one is small enough");
    check_too_costly(&objects(60, sets), "sets of members");
}

#[test]
fn steps_are_bounded_together() {
    // Options with the same constants for many members, of which none tells them apart.
    let members: Map<_, _> = (0..500)
        .map(|name| (format!("{name}"), json!({"$ref": "#/$defs/e"})))
        .collect();
    let texts: Vec<String> = (0..2000).map(|text| format!("{text}")).collect();
    let unions = vec![json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}); 300];
    let schema = json!({"items": {"anyOf": unions},
                        "$defs": {"a": {"type": "object", "properties": members}, "e": {"enum": texts}}});
    check_too_costly(&schema, "steps");
    let required: Vec<String> = (0..4000).map(|name| format!("{name}")).collect();
    let objects = vec![json!({"minProperties": 1, "$ref": "#/$defs/a"}); 500];
    let schema = json!({"anyOf": objects, "$defs": {"a": {"required": required}}});
    check_too_costly(&schema, "steps");
}

#[test]
fn paths_are_bounded() {
    let schema = json!({"properties": {"a".repeat(30_000): {"allOf": vec![true; 5000]}}});
    check_too_costly(&schema, "paths");
}
