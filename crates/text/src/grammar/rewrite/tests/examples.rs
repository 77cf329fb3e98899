use serde_json::json;

use super::*;

/// The schema accepts these texts and none of those.
fn check(schema: Value, accepted: &[&str], rejected: &[&str]) {
    let grammar = compile(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
    for text in accepted {
        assert!(accepts(&grammar, text), "{schema} should accept {text}");
    }
    for text in rejected {
        assert!(
            !accepts(&grammar, text),
            "{schema} should not accept {text}"
        );
    }
    for seed in 0..8 {
        if let Some(text) = output(&grammar, &mut Random::new(seed), 2000) {
            let value = serde_json::from_str(&text).expect("JSON");
            assert!(
                jsonschema::is_valid(&schema, &value),
                "{schema} allowed {text}"
            );
        }
    }
}

/// The schema is rejected for this reason.
fn check_rejected(schema: Value, reason: &str) {
    let error = compile(&schema).expect_err(&schema.to_string());
    assert!(
        matches!(error, GrammarError::Compile { .. }),
        "{schema}: {error}"
    );
    let error = error.to_string();
    assert!(error.contains(reason), "{schema}: {error}");
}

#[test]
fn no_key_is_left() {
    let names = json!({"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"],
                       "additionalProperties": false, "patternProperties": {"^a$": {}}});
    check(names, &[r#"{"a":1}"#], &[r#"{"a":1,"#, r#"{"a":1,"a":1}"#]);
    let names = json!({"type": "object", "properties": {"aa": {}, "ab": {"const": 1}},
                       "additionalProperties": false, "patternProperties": {"^a[ab]$": {"type": "integer"}}});
    check(
        names,
        &["{}", r#"{"aa":1,"ab":1}"#],
        &[r#"{"ac":1}"#, r#"{"aa":true}"#],
    );
}

#[test]
fn nothing_that_follows_is_a_reason() {
    let closed = |more: Value| {
        let mut schema = json!({"type": "object", "additionalProperties": false});
        let more = more.as_object().expect("an object").clone();
        schema.as_object_mut().expect("an object").extend(more);
        schema
    };
    check_rejected(closed(json!({"required": ["a"]})), "'a'");
    check_rejected(closed(json!({"minProperties": 1})), "minProperties");
    check_rejected(
        closed(json!({"properties": {"a": {}}, "minProperties": 3})),
        "minProperties",
    );
    let all_taken = json!({"properties": {"a": {}}, "required": ["a"], "patternProperties": {"^a$": {}},
                           "minProperties": 2});
    check_rejected(closed(all_taken), "nothing follows it");
    check_rejected(json!({"enum": []}), "empty");
    check_rejected(
        json!({"type": "integer", "minimum": 1, "maximum": 0}),
        "minimum",
    );
    check_rejected(
        json!({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}),
        "no integer",
    );
    check_rejected(
        json!({"type": "integer", "minimum": 4, "maximum": 5, "multipleOf": 3}),
        "multiple",
    );
    check_rejected(
        json!({"type": "string", "pattern": "^abc$", "maxLength": 2}),
        "empty",
    );
    check_rejected(
        json!({"type": "string", "pattern": "^a$", "format": "date"}),
        "empty",
    );
    check_rejected(
        json!({"type": "string", "minLength": 3, "maxLength": 2}),
        "minLength",
    );
    check_rejected(
        json!({"type": "array", "minItems": 3, "maxItems": 2}),
        "minItems",
    );
    check_rejected(
        json!({"type": "array", "items": false, "minItems": 1}),
        "item",
    );
    check_rejected(
        json!({"allOf": [{"type": "string"}, {"type": "null"}]}),
        "incompatible",
    );
    check_rejected(json!({"allOf": [{"const": "a"}, {"const": "b"}]}), "empty");
    check_rejected(json!({"not": {}}), "not");
}

#[test]
fn recursion_needs_an_end() {
    let node =
        json!({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]});
    check_rejected(node, "in \"next\": it contains itself without an end");
    check_rejected(json!({"$ref": "#"}), "without an end");
    let list = json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1});
    check_rejected(list, "without an end");
    check_rejected(
        json!({"$defs": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 2},
                                         {"$ref": "#/$defs/a"}]}},
               "type": "object", "properties": {"n": {"$ref": "#/$defs/a"}}, "required": ["n"]}),
        "in \"n\"",
    );
    // The alternative without an end goes, the others stay.
    let some = json!({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}],
                      "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}});
    check(some, &["null"], &["[", "[["]);
    let optional = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"const": 1}},
                          "additionalProperties": false,
                          "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}});
    check(optional, &["{}", r#"{"b":1}"#], &[r#"{"a":"#]);
}

#[test]
fn names_of_members_are_not_repeated() {
    let open = |least: usize| json!({"type": "object", "minProperties": least});
    check(open(1), &[r#"{"a":1}"#], &["{}"]);
    check_rejected(open(2), "`minProperties` is 2");
    let required = json!({"type": "object", "required": ["a", "b"], "minProperties": 3});
    check(required, &[r#"{"a":1,"b":2,"c":3}"#], &[r#"{"a":1,"b":2}"#]);
    let optional = json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}},
                          "additionalProperties": false, "minProperties": 2});
    check(
        optional,
        &[r#"{"a":1,"c":2}"#, r#"{"a":1,"b":1,"c":2}"#],
        &["{}", r#"{"b":2}"#],
    );
    let either = json!({"type": "object", "properties": {"a": {"const": 1}}, "minProperties": 1});
    check(
        either,
        &[r#"{"a":1}"#, r#"{"b":2}"#, r#"{"a":1,"b":2}"#],
        &["{}", r#"{"a":2}"#],
    );
    let both = json!({"type": "object", "properties": {"a": {}, "b": {}, "c": {}},
                      "additionalProperties": {"type": "null"}, "minProperties": 1, "maxProperties": 2});
    check(
        both,
        &[r#"{"a":1,"c":2}"#, r#"{"x":null}"#, r#"{"b":1,"x":null}"#],
        &[
            "{}",
            r#"{"a":1,"b":1,"c":2}"#,
            r#"{"a":1,"b":1,"x":null}"#,
            r#"{"x":1}"#,
        ],
    );
    // Another spelling of a name is the same name.
    let escaped = json!({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}});
    check(escaped, &[r#"{"a":1,"b":2}"#], &[r#"{"\u0061":2}"#]);
}

#[test]
fn members_depend_on_each_other() {
    let required = json!({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}},
                          "additionalProperties": false, "dependentRequired": {"a": ["b"]}});
    check(
        required,
        &["{}", r#"{"b":2}"#, r#"{"a":1,"b":2}"#],
        &[r#"{"a":1}"#],
    );
    let older = json!({"type": "object", "properties": {"a": {"const": 1}, "b": {}}, "additionalProperties": false,
                       "dependencies": {"a": {"properties": {"b": {"const": 2}}}}});
    check(
        older,
        &[r#"{"b":3}"#, r#"{"a":1,"b":2}"#, r#"{"a":1}"#],
        &[r#"{"a":1,"b":3}"#],
    );
    let names = json!({"type": "object", "propertyNames": {"$ref": "#/$defs/kind"}, "additionalProperties": {"type": "null"},
                       "$defs": {"kind": {"enum": ["x", "y"], "title": "Kind", "type": "string"}}});
    check(
        names,
        &["{}", r#"{"y":null}"#],
        &[r#"{"z":null}"#, r#"{"x":1}"#],
    );
    let pattern = json!({"type": "object", "propertyNames": {"pattern": "^[a-z]$"}, "additionalProperties": {"type": "null"}});
    check(
        pattern,
        &["{}", r#"{"y":null}"#],
        &[r#"{"Z":null}"#, r#"{"x":1}"#],
    );
    // A list of types, with texts among them or not.
    let kinds =
        |kinds: Value| json!({"type": "object", "propertyNames": {"type": kinds, "enum": ["x"]}});
    check(
        kinds(json!(["string", "null"])),
        &["{}", r#"{"x":1}"#],
        &[r#"{"y":1}"#],
    );
    check_rejected(kinds(json!(["integer"])), "propertyNames");
    let integers = json!({"type": "object", "propertyNames": {"type": ["integer"]}});
    check_rejected(integers, "propertyNames");
}

#[test]
fn what_nothing_else_evaluates_is_closed() {
    let evaluated = json!({"type": "object", "properties": {"a": {"const": 1}}, "unevaluatedProperties": false});
    check(evaluated, &["{}", r#"{"a":1}"#], &[r#"{"b":1}"#]);
    let items = |more: Value| {
        let mut schema = json!({"type": "array", "unevaluatedItems": {"const": 2}});
        let more = more.as_object().expect("an object").clone();
        schema.as_object_mut().expect("an object").extend(more);
        schema
    };
    check(items(json!({})), &["[]", "[2,2]"], &["[1]"]);
    check(items(json!({"items": {"const": 1}})), &["[1,1]"], &["[2]"]);
    let first = json!([{"const": 1}]);
    check(
        items(json!({"prefixItems": first})),
        &["[1]", "[1,2]"],
        &["[2]", "[1,1]"],
    );
    // A list, as the older draft has it.
    let older = json!({"items": first, "$schema": "https://json-schema.org/draft/2019-09/schema"});
    check(items(older), &["[1]", "[1,2]"], &["[2]", "[1,1]"]);
}

#[test]
fn references_are_decoded() {
    let target =
        |name: &str, reference: &str| json!({"$defs": {name: {"enum": [1]}}, "$ref": reference});
    for (name, reference) in [
        ("a/b", "#/$defs/a~1b"),
        ("a~b", "#/$defs/a~0b"),
        ("~1", "#/$defs/~01"),
        ("a b", "#/$defs/a%20b"),
        ("ä/%", "#/$defs/%C3%A4~1%25"),
        ("List<A>", "#/%24defs/List%3CA%3E"),
        ("", "#/$defs/"),
    ] {
        check(target(name, reference), &["1"], &["2"]);
    }
    // A name that only looks encoded, which validators do not find.
    let grammar = compile(&target("a%20b", "#/$defs/a%20b")).expect("compiles");
    assert!(accepts(&grammar, "1") && !accepts(&grammar, "2"));
    check_rejected(target("a", "#/$defs/b"), "\"#/$defs/b\" names no part");
    check_rejected(target("a", "https://example.org/a"), "names no part");
    check_rejected(target("a", "#b"), "names no part");
    check(
        json!({"$defs": {"x": {"$anchor": "here", "const": 1}}, "$ref": "#here"}),
        &["1"],
        &["2"],
    );
    check(
        json!({"$id": "https://example.org/all.json", "$ref": "part.json#/$defs/n",
               "$defs": {"p": {"$id": "part.json", "$defs": {"n": {"$ref": "#/$defs/m"}, "m": {"const": 1}}},
                         "m": {"const": 2}}}),
        &["1"],
        &["2"],
    );
    // Outside of `$defs`, and nested in one another.
    check(
        json!({"components": {"schemas": {"A": {"anyOf": [{"type": "null"}, {"$ref": "#/components/schemas/B~1C"}]},
                                          "B/C": {"type": "array", "items": {"$ref": "#/components/schemas/A"}, "maxItems": 2.0}}},
               "$ref": "#/components/schemas/A"}),
        &["null", "[null,[null]]"],
        &["[null,null,null]"],
    );
    // Values are no schemas.
    let data = json!({"properties": {"$ref": {"const": {"$ref": "#/nowhere"}}}, "required": ["$ref"],
                      "type": "object", "additionalProperties": false});
    check(data, &[r##"{"$ref":{"$ref":"#/nowhere"}}"##], &["{}"]);
}

#[test]
fn valid_schemas_compile() {
    let text = |more: Value| {
        let mut schema = json!({"type": "string"});
        schema
            .as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        schema
    };
    for format in [
        "uuid4",
        "binary",
        "path",
        "password",
        "int32",
        "iri",
        "regex",
        "json-pointer",
        "date-time-local",
    ] {
        check(
            text(json!({"format": format, "maxLength": 1})),
            &["\"a\""],
            &["\"ab\""],
        );
    }
    check(
        text(json!({"format": "date"})),
        &["\"2024-02-29\""],
        &["\"a\""],
    );
    check(
        json!({"type": "integer", "format": "int64", "minimum": i64::MIN, "maximum": i64::MAX}),
        &["-5", "0"],
        &["0.5"],
    );
    check(
        json!({"type": "integer", "format": "uint64", "minimum": 0.0, "maximum": u64::MAX}),
        &["5"],
        &["-1"],
    );
    check(
        text(json!({"maxLength": 3.0, "minLength": 2.0})),
        &["\"abc\""],
        &["\"a\"", "\"abcd\""],
    );
    check(text(json!({"maxLength": 1e30})), &["\"abc\""], &[]);
    check(
        json!({"type": "array", "minItems": 1.0, "maxItems": 2.0, "items": {"const": 1}}),
        &["[1,1]"],
        &["[]", "[1,1,1]"],
    );
    check(
        json!({"type": "integer", "multipleOf": 3.0}),
        &["-6", "0"],
        &["4"],
    );
    let large = "1000000000000000000000000000000";
    check(
        json!({"minimum": 1e30, "type": "integer"}),
        &[large],
        &["5", "9223372036854775807"],
    );
    check(
        json!({"maximum": -1e30, "type": ["number", "null"]}),
        &[&format!("-{large}"), "null"],
        &["5"],
    );
    check(
        json!({"maximum": 1e30, "type": "number"}),
        &["5", "-0.5"],
        &[large],
    );
    check(
        json!({"minimum": 3e18, "type": "number"}),
        &["4000000000000000000"],
        &["2"],
    );
    check(
        json!({"const": 1_152_921_504_606_846_976_u64, "type": "integer"}),
        &["1152921504606846976"],
        &["1152921504606847000"],
    );
    check_rejected(
        json!({"enum": [i64::MIN, 1]}),
        "-9223372036854775808 cannot be held exactly",
    );
    check(
        json!({"exclusiveMinimum": 0, "exclusiveMaximum": 1, "type": "number"}),
        &["0.5"],
        &["0", "0.0", "1", "1.0"],
    );
    check(
        json!({"exclusiveMinimum": -1, "exclusiveMaximum": 0, "type": "number"}),
        &["-0.5"],
        &["0", "-0", "-0.0", "-1"],
    );
    check_rejected(
        json!({"enum": [1_234_567_890_123_456_789_u64]}),
        "1234567890123456789 cannot be held exactly",
    );
    check(
        json!({"type": "array", "uniqueItems": false, "items": {"const": 1}, "maxItems": 1}),
        &["[1]"],
        &["[2]"],
    );
    check_rejected(json!({"type": "array", "uniqueItems": true}), "uniqueItems");
    check(
        json!({"type": "array", "contains": {}, "minContains": 2, "maxItems": 2}),
        &["[1,2]"],
        &["[1]"],
    );
    check_rejected(
        json!({"type": "array", "contains": {"const": 1}}),
        "contains",
    );
    check(
        json!({"type": "null", "if": {"const": 1}, "$dynamicAnchor": "node"}),
        &["null"],
        &["1"],
    );
}

/// As pydantic and OpenAI's client write them.
#[test]
fn generated_schemas_compile() {
    let pet = |kind: &str| {
        json!({"properties": {"kind": {"const": kind, "default": kind, "title": "Kind", "type": "string"},
                                                 "name": {"type": "string", "maxLength": 2}},
                                  "required": ["name"], "title": kind, "type": "object"})
    };
    let union = json!({
        "$defs": {"Cat": pet("cat"), "Dog": pet("dog")},
        "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]});
    check(
        union,
        &[
            r#"{"kind":"cat","name":"a"}"#,
            r#"{"kind":"dog","name":"a"}"#,
        ],
        &[r#"{"name":"a"}"#],
    );
    let model = json!({
        "$defs": {"Color": {"enum": ["red", "green"], "title": "Color", "type": "string"},
                  "Node": {"additionalProperties": false, "properties": {
                      "children": {"default": [], "items": {"$ref": "#/$defs/Node"}, "title": "Children", "type": "array"},
                      "color": {"$ref": "#/$defs/Color", "default": "red", "description": "its color"}},
                      "required": ["children", "color"], "title": "Node", "type": "object"}},
        "additionalProperties": false,
        "properties": {
            "id": {"format": "uuid4", "title": "Id", "type": "string", "maxLength": 3},
            "when": {"anyOf": [{"format": "date-time", "type": "string"}, {"type": "null"}], "default": null},
            "file": {"anyOf": [{"format": "path", "type": "string"}, {"type": "null"}], "examples": ["/a"]},
            "price": {"exclusiveMinimum": 0, "type": "number", "maximum": 9.5},
            "node": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]},
            "pair": {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "integer"}, {"type": "string"}], "type": "array"},
            "scores": {"additionalProperties": {"type": "integer"}, "propertyNames": {"$ref": "#/$defs/Color"}, "type": "object"},
            "raw": {"contentEncoding": "base64", "format": "binary", "type": "string", "writeOnly": true}},
        "required": ["id", "when", "file", "price", "node", "pair", "scores", "raw"],
        "title": "Model", "type": "object", "$schema": "https://json-schema.org/draft/2020-12/schema"});
    let value = r#"{"id":"a","when":null,"file":"x","price":0.5,"node":{"children":[],"color":"red"},"pair":[1,"a"],"scores":{"red":1},"raw":""}"#;
    check(model, &[value], &["{}"]);
}

#[test]
fn white_space_ends() {
    let grammar = compile(
        &json!({"type": "object", "properties": {"a": {"const": "x                              y"}},
                                  "required": ["a"], "additionalProperties": false}),
    );
    let grammar = grammar.expect("compiles");
    let spaces = |count: usize| format!("{{{}\"a\":\"x{}y\"}}", "\n".repeat(count), " ".repeat(30));
    assert!(accepts(&grammar, &spaces(0)));
    assert!(accepts(&grammar, &spaces(20)));
    assert!(!accepts(&grammar, &spaces(21)));
}
