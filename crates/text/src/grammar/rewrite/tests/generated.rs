//! Random schemas: what compiles and ends is valid, and what is valid is accepted, or is known not to be.
//!
//! The validator is the crate `jsonschema`. `crates/text/fixtures/schema_verdicts.py` recorded what Python's
//! jsonschema says about cases of this kind, and the crate is held to that.

use serde_json::{Map, json};

use super::*;
use crate::schema::walk::each_mut;

/// Random schemas of one test. The variable `MOTET_SCHEMA_CASES` names another number.
const CASES: u64 = 800;
const OUTPUTS: u64 = 3;
/// Bytes after which an output is given up.
const BYTES_MAX: usize = 400;
const DEPTH: usize = 3;

const NAMES: [&str; 4] = ["a", "ab", "b", "x/y"];
const PATTERNS: [&str; 7] = ["^a$", "^a", "b$", "^[xy]", "^(a|ab)$", "^[^a]*$", "[0-9]"];
const FORMATS: [&str; 5] = ["date", "uuid4", "ipv4", "binary", "time"];
const TYPES: [&str; 7] = [
    "null", "boolean", "integer", "number", "string", "array", "object",
];

/// References, the first two to definitions. Members and items may have any; elsewhere a ring would be a schema
/// about which JSON schema says nothing.
const ALL: [&str; 4] = ["#/$defs/one", "#/$defs/x~1y", "#", "#anchor"];

/// A random schema, which may be one of these references.
fn schema(random: &mut Random, depth: usize, refs: &[&str]) -> Value {
    match random.below(if depth == 0 { 5 } else { 20 }) {
        0 => json!(true),
        1 => json!({"const": constant(random, 1)}),
        2 => json!({"enum": (0..random.below(3)).map(|_| constant(random, 1)).collect::<Vec<_>>()}),
        3 if random.one_in(3) => json!(false),
        4 if !refs.is_empty() => json!({"$ref": random.pick(refs)}),
        5 | 6 => combined(random, depth, refs),
        _ => plain(random, depth, refs),
    }
}

/// A schema of one type or two, with any keywords of theirs.
fn plain(random: &mut Random, depth: usize, refs: &[&str]) -> Value {
    let kind = *random.pick(&TYPES[2..]);
    let mut fields = Map::new();
    match kind {
        "object" => object(random, depth, &mut fields),
        "array" => array(random, depth, &mut fields),
        "string" => text(random, &mut fields),
        _ => number(random, &mut fields),
    }
    let kind = match random.below(8) {
        0 => json!([kind, random.pick(&TYPES[..2])]),
        1 if depth < DEPTH => return fields.into(),
        _ => json!(kind),
    };
    fields.insert("type".to_owned(), kind);
    if random.one_in(8) {
        fields.extend(
            combined(random, depth, refs)
                .as_object()
                .expect("an object")
                .clone(),
        );
    }
    fields.into()
}

fn combined(random: &mut Random, depth: usize, refs: &[&str]) -> Value {
    let depth = depth.saturating_sub(1);
    let some = |random: &mut Random| -> Vec<Value> {
        (0..1 + random.below(3))
            .map(|_| schema(random, depth, refs))
            .collect()
    };
    match random.below(10) {
        0..3 => json!({"anyOf": some(random)}),
        3 | 4 => json!({"oneOf": some(random)}),
        5..8 => json!({"allOf": some(random)}),
        8 => json!({"not": schema(random, depth, refs)}),
        _ => json!({"if": schema(random, depth, refs), "then": schema(random, depth, refs)}),
    }
}

/// Adds a keyword in one of so many cases.
fn add(
    random: &mut Random,
    one_in: usize,
    fields: &mut Map<String, Value>,
    name: &str,
    value: impl FnOnce(&mut Random) -> Value,
) {
    if random.one_in(one_in) {
        let value = value(random);
        fields.insert(name.to_owned(), value);
    }
}

/// A small count, sometimes with a point.
fn count(random: &mut Random) -> Value {
    let number = random.below(4);
    if random.one_in(4) {
        json!(number as f64)
    } else {
        json!(number)
    }
}

fn object(random: &mut Random, depth: usize, fields: &mut Map<String, Value>) {
    let below = depth.saturating_sub(1);
    let some_names = |random: &mut Random| -> Vec<Value> {
        NAMES
            .iter()
            .filter(|_| random.one_in(3))
            .map(|name| json!(name))
            .collect()
    };
    let members = |random: &mut Random| -> Value {
        let names = some_names(random);
        let members = names.iter().map(|name| {
            (
                name.as_str().expect("a text").to_owned(),
                schema(random, below, &ALL),
            )
        });
        members.collect::<Map<_, _>>().into()
    };
    add(random, 2, fields, "properties", members);
    add(random, 3, fields, "patternProperties", |random| {
        let pattern = random.pick(&PATTERNS).to_string();
        json!({pattern: schema(random, below, &ALL)})
    });
    add(random, 2, fields, "additionalProperties", |random| {
        if random.one_in(2) {
            json!(false)
        } else {
            schema(random, below, &ALL)
        }
    });
    add(random, 3, fields, "required", |random| {
        some_names(random).into()
    });
    add(random, 6, fields, "minProperties", count);
    add(random, 6, fields, "maxProperties", count);
    add(
        random,
        12,
        fields,
        "dependentRequired",
        |random| json!({"a": some_names(random)}),
    );
    add(
        random,
        12,
        fields,
        "dependentSchemas",
        |random| json!({"b": schema(random, below, &ALL)}),
    );
    add(random, 12, fields, "propertyNames", |random| {
        let mut names = match random.below(4) {
            0 => json!({"enum": some_names(random)}),
            1 => json!({"pattern": random.pick(&PATTERNS)}),
            2 => json!({}),
            _ => return json!(random.one_in(2)),
        };
        if random.one_in(2) {
            names["type"] = match random.below(4) {
                0 => json!("string"),
                1 => json!(["integer"]),
                _ => json!([random.pick(&TYPES[..4]), "string"]),
            };
        }
        names
    });
    add(random, 20, fields, "unevaluatedProperties", |random| {
        schema(random, below, &ALL)
    });
}

fn array(random: &mut Random, depth: usize, fields: &mut Map<String, Value>) {
    let below = depth.saturating_sub(1);
    add(random, 2, fields, "items", |random| {
        schema(random, below, &ALL)
    });
    add(random, 4, fields, "prefixItems", |random| {
        (0..1 + random.below(2))
            .map(|_| schema(random, below, &ALL))
            .collect()
    });
    add(random, 3, fields, "minItems", count);
    add(random, 3, fields, "maxItems", count);
    add(random, 15, fields, "uniqueItems", |random| {
        json!(random.one_in(2))
    });
    add(random, 15, fields, "contains", |random| {
        schema(random, 0, &ALL)
    });
    add(random, 15, fields, "minContains", count);
    add(random, 8, fields, "unevaluatedItems", |random| {
        schema(random, below, &ALL)
    });
}

fn text(random: &mut Random, fields: &mut Map<String, Value>) {
    add(random, 4, fields, "minLength", count);
    add(random, 3, fields, "maxLength", count);
    add(random, 3, fields, "pattern", |random| {
        json!(random.pick(&PATTERNS))
    });
    add(random, 8, fields, "format", |random| {
        json!(random.pick(&FORMATS))
    });
}

fn number(random: &mut Random, fields: &mut Map<String, Value>) {
    let bound = |random: &mut Random| {
        let small = random.below(9) as f64 - 4.0;
        match random.below(12) {
            0 => json!(small * 1e19),
            1 => json!(small * 1e15),
            2..5 => json!(small / 4.0),
            5..7 => json!(small),
            _ => json!(small as i64),
        }
    };
    for name in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
        add(random, 4, fields, name, bound);
    }
    add(random, 5, fields, "multipleOf", |random| {
        random
            .pick(&[json!(2), json!(3.0), json!(0.5), json!(0.75)])
            .clone()
    });
}

/// A small value.
fn constant(random: &mut Random, depth: usize) -> Value {
    let texts = ["", "a", "ab", "x1", "é\n\"", "2024-02-29"];
    match random.below(if depth == 0 { 6 } else { 9 }) {
        0 => json!(null),
        1 => json!(random.one_in(2)),
        2 => json!(random.below(7) as i64 - 3),
        // Integers are written without a point.
        3 => json!((2.0 * random.below(9) as f64 - 9.0) / 4.0),
        4 | 5 => json!(random.pick(&texts)),
        6 => (0..random.below(3))
            .map(|_| constant(random, depth - 1))
            .collect(),
        _ => {
            let names = NAMES.iter().filter(|_| random.one_in(2));
            let names: Vec<_> = names.map(|name| (*name).to_owned()).collect();
            let members = names
                .into_iter()
                .map(|name| (name, constant(random, depth - 1)));
            members.collect::<Map<_, _>>().into()
        }
    }
}

/// A whole document.
fn document(random: &mut Random) -> Value {
    let outer = [ALL[0], ALL[1]];
    let mut document = schema(random, DEPTH, &outer);
    while !document.is_object() {
        document = schema(random, DEPTH, &outer);
    }
    let mut named = json!({"one": schema(random, 2, &[]), "x/y": schema(random, 1, &[])});
    let anchored = json!({"$anchor": "anchor", "anyOf": [schema(random, 1, &[])]});
    named["two"] = anchored;
    document["$defs"] = named;
    if random.one_in(4) {
        write_older(&mut document);
    }
    document
}

const OLDER: &str = "https://json-schema.org/draft/2019-09/schema";

/// Writes a document as the older draft has it: `items` may be a list.
fn write_older(document: &mut Value) {
    let written = each_mut(document, &mut |fields| {
        if let Some(list) = fields.shift_remove("prefixItems") {
            let others = fields.insert("items".to_owned(), list);
            fields.extend(others.map(|others| ("additionalItems".to_owned(), others)));
        }
        Ok::<_, ()>(())
    });
    written.expect("it does not fail");
    document["$schema"] = json!(OLDER);
}

/// Reasons for which schemas are rejected that some value follows (docs/semantics.md).
const LIMITS: [&str; 11] = [
    "Unimplemented keys",
    "oneOf constraints are not supported",
    "circular references with sibling keys",
    "different names for several members",
    "are not disjoint",
    "sets of members",
    "too costly",
    "too large",
    "min/maxProperties only supported when all keys",
    // A definition that no value follows, though no member needs it.
    "while processing",
    // Formats that JSON schema does not check.
    "Regex is empty",
];

fn validator(schema: &Value) -> jsonschema::Validator {
    let draft = match schema.get("$schema") {
        Some(older) if older == OLDER => jsonschema::Draft::Draft201909,
        _ => jsonschema::Draft::Draft202012,
    };
    let options = jsonschema::options().with_draft(draft);
    options
        .build(schema)
        .unwrap_or_else(|error| panic!("{schema}: {error}"))
}

/// Outcomes of random schemas, for a look at whether the test tests anything.
#[derive(Debug, Default)]
struct Counts {
    compiled: usize,
    outputs: usize,
    too_long: usize,
    accepted: usize,
    narrowed: usize,
}

/// Random schemas, their outputs and further values.
fn run(seeds: std::ops::Range<u64>) -> Counts {
    let mut counts = Counts::default();
    for seed in seeds {
        let random = &mut Random::new(seed);
        let schema = document(random);
        let is_valid = validator(&schema);
        let grammar = match compile(&schema) {
            Ok(grammar) => grammar,
            Err(error) => {
                check_rejection(seed, &schema, &error.to_string(), &is_valid);
                continue;
            }
        };
        counts.compiled += 1;
        for _ in 0..OUTPUTS {
            let Some(text) = output(&grammar, random, BYTES_MAX) else {
                counts.too_long += 1;
                continue;
            };
            let value = serde_json::from_str(&text);
            let value = value.unwrap_or_else(|error| panic!("seed {seed}: {text}: {error}"));
            assert!(
                is_valid.is_valid(&value),
                "seed {seed}: {schema} allowed {text}"
            );
            counts.outputs += 1;
        }
        for _ in 0..12 {
            let value = constant(random, 2);
            if !is_valid.is_valid(&value) {
                assert!(
                    !accepts(&grammar, &value.to_string()),
                    "seed {seed}: {schema} accepts {value}"
                );
            } else if accepts(&grammar, &value.to_string()) {
                counts.accepted += 1;
            } else {
                counts.narrowed += 1;
                assert!(
                    is_narrowed(&schema, &value),
                    "seed {seed}: {schema} rejects {value}"
                );
            }
        }
    }
    counts
}

/// Whether a grammar accepts fewer values: members come in one order, formats are checked, a union is told apart by a
/// member that is required then, and more members than one are not left to `minProperties`.
fn is_narrowed(schema: &Value, value: &Value) -> bool {
    let text = schema.to_string();
    has_order(value)
        || ["\"format\"", "\"minProperties\""]
            .iter()
            .any(|keyword| text.contains(keyword))
}

/// Whether an object within the value has several members.
fn has_order(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().any(has_order),
        Value::Object(fields) => fields.len() > 1 || fields.values().any(has_order),
        _ => false,
    }
}

/// A rejection names its reason: nothing follows the schema, or a limit of what a grammar expresses.
fn check_rejection(seed: u64, schema: &Value, error: &str, is_valid: &jsonschema::Validator) {
    let random = &mut Random::new(seed);
    let mut values = (0..40).map(|_| constant(random, 2));
    if let Some(value) = values.find(|value| is_valid.is_valid(value)) {
        let is_known = LIMITS.iter().any(|limit| error.contains(limit))
            || schema.to_string().contains("\"minProperties\"");
        assert!(is_known, "seed {seed}: {schema}: {error}; {value} is valid");
    }
}

#[test]
fn what_compiles_and_ends_is_valid() {
    let cases = std::env::var("MOTET_SCHEMA_CASES").ok();
    let cases = cases.map_or(CASES, |cases| cases.parse().expect("a number"));
    let counts = run(0..cases);
    let cases = cases as usize;
    assert!(counts.compiled > cases / 2, "{counts:?}");
    assert!(counts.outputs > counts.compiled * 2, "{counts:?}");
    assert!(counts.too_long < cases / 20, "{counts:?}");
    assert!(counts.accepted > cases / 2, "{counts:?}");
    assert!(counts.narrowed < cases / 10, "{counts:?}");
}

/// Seeds of the cases that Python's jsonschema has seen, beyond those of the other test.
const PYTHON_SEEDS: std::ops::Range<u64> = 100_000..100_070;

/// Schemas and values, for `schema_verdicts.py`.
#[test]
#[ignore = "prints cases for a script"]
fn cases_for_python() {
    for seed in PYTHON_SEEDS {
        let random = &mut Random::new(seed);
        let schema = document(random);
        let mut values: Vec<Value> = (0..6).map(|_| constant(random, 2)).collect();
        if let Ok(grammar) = compile(&schema) {
            let outputs = (0..3).filter_map(|_| output(&grammar, random, 200));
            values.extend(outputs.filter_map(|text| serde_json::from_str(&text).ok()));
        }
        println!("CASE {}", json!({"schema": schema, "values": values}));
    }
}

/// The crate says what Python's jsonschema says, and so do grammars.
#[test]
fn python_agrees() {
    let text = include_str!("../../../../fixtures/schema_verdicts.json");
    let cases: Vec<Value> = serde_json::from_str(text).expect("JSON");
    assert!(cases.len() > 50);
    for case in &cases {
        let schema = &case["schema"];
        let is_valid = validator(schema);
        let grammar = compile(schema);
        let values = case["values"].as_array().expect("a list");
        let said = case["valid"].as_array().expect("a list");
        for (value, said) in values.iter().zip(said) {
            assert_eq!(json!(is_valid.is_valid(value)), *said, "{schema}: {value}");
            if let Ok(grammar) = &grammar {
                let is_accepted = accepts(grammar, &value.to_string());
                assert!(
                    !is_accepted || *said == json!(true),
                    "{schema} accepts {value}"
                );
            }
        }
    }
}
