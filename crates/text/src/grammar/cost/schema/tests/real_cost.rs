//! The count beside the work that llguidance does, over random schemas.
//!
//! The work is the number of allocations while llguidance compiles a schema: each copy of a schema takes
//! some.

use allocation_counter::measure;
use llguidance::api::{GrammarInit, ParserLimits, TopLevelGrammar};

use super::*;
use crate::grammar::rewrite::Random;

/// Random schemas. The variable `MOTET_SCHEMA_CASES` names another number.
const CASES: u64 = 800;
/// Most allocations for a schema that is not copied, and for each schema that is counted.
const WORK_OF_ANY: f64 = 5000.0;
const WORK_PER_SCHEMA: f64 = 20.0;
const DEPTH: usize = 3;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn document(random: &mut Random) -> Value {
    let mut root = schema(random, DEPTH);
    root["$defs"] = json!({"x": schema(random, DEPTH - 1), "y": schema(random, 1)});
    root
}

/// A schema of few patterns and numbers: what counts is how often it is copied.
fn schema(random: &mut Random, depth: usize) -> Value {
    if depth == 0 {
        return leaf(random);
    }
    let mut fields = Map::new();
    if !random.one_in(3) {
        object(random, depth, &mut fields);
    }
    let combinations = usize::from(fields.is_empty()) + random.below(2);
    for _ in 0..combinations {
        let keyword = *random.pick(&["allOf", "anyOf", "oneOf"]);
        let parts = (0..1 + random.below(4)).map(|_| schema(random, depth - 1));
        let parts: Vec<Value> = parts.collect();
        fields.insert(keyword.to_owned(), parts.into());
    }
    fields.into()
}

fn leaf(random: &mut Random) -> Value {
    match random.below(9) {
        0 => json!({"type": "string"}),
        1 => json!({"type": ["boolean", "null"]}),
        2 => json!({"type": "array", "items": {"type": "null"}}),
        3 => json!({"const": random.pick(&NAMES)}),
        4 => json!({"enum": NAMES[..1 + random.below(NAMES.len())]}),
        5 => json!({"$ref": "#/$defs/x"}),
        6 => json!({"$ref": "#/$defs/y"}),
        7 => json!({}),
        _ => json!({"type": "object", "required": [random.pick(&NAMES)]}),
    }
}

fn object(random: &mut Random, depth: usize, fields: &mut Map<String, Value>) {
    if !random.one_in(3) {
        fields.insert("type".to_owned(), json!("object"));
    }
    let names = NAMES.iter().filter(|_| random.one_in(2));
    let names: Vec<&str> = names.copied().collect();
    let members = names
        .iter()
        .map(|name| ((*name).to_owned(), schema(random, depth - 1)));
    let members: Map<_, _> = members.collect();
    fields.insert("properties".to_owned(), members.into());
    if random.one_in(2) {
        fields.insert("required".to_owned(), json!(names));
    }
    if random.one_in(3) {
        fields.insert("additionalProperties".to_owned(), schema(random, depth - 1));
    }
}

fn allocations(schema: &Value) -> f64 {
    let grammar = TopLevelGrammar::from_json_schema(schema.clone());
    let work = measure(|| {
        let grammar = GrammarInit::Serialized(grammar);
        drop(grammar.to_internal(None, ParserLimits::default()));
    });
    work.count_total as f64
}

/// The most work for so many schemas.
fn work_max(schemas: f64) -> f64 {
    WORK_OF_ANY + WORK_PER_SCHEMA * schemas
}

#[test]
fn llguidance_copies_no_more_than_is_counted() {
    let limits = GrammarLimits::default();
    let (mut all_counted, mut all_work) = (0.0, 0.0);
    let mut copied = 0;
    let cases = std::env::var("MOTET_SCHEMA_CASES").ok();
    let cases = cases.map_or(CASES, |cases| cases.parse().expect("a number"));
    for seed in 0..cases {
        let schema = document(&mut Random::new(seed));
        let Ok(account) = account([&schema], &limits) else {
            continue;
        };
        let (counted, work) = (account.expansion, allocations(&schema));
        assert!(
            work <= work_max(counted),
            "seed {seed}: {work} allocations for {counted} schemas: {schema}"
        );
        // Without copies, a schema would take no more than this.
        let written = schema.to_string().matches('{').count();
        copied += usize::from(work > work_max(written as f64));
        all_counted += counted;
        all_work += work;
    }
    assert!(copied > cases as usize / 50, "{copied} are copied");
    // Nor is much more counted than llguidance does.
    assert!(
        all_counted < 4.0 * all_work,
        "{all_work} allocations for {all_counted} schemas"
    );
}

/// Options are copied beside one that allows everything, too.
#[test]
fn options_beside_one_for_anything_are_counted() {
    let members: Map<_, _> = (0..100)
        .map(|name| (format!("{name}"), json!(true)))
        .collect();
    let required = |name: usize| json!({"required": [format!("{name}")]});
    let options: Vec<Value> = (0..100).map(required).chain([json!({})]).collect();
    let schema = json!({"type": "object", "properties": members, "anyOf": options});
    let limits = GrammarLimits::default();
    let account = account([&schema], &limits).expect("within bounds");
    assert!(account.expansion > 100.0 * 100.0);
    assert!(allocations(&schema) <= work_max(account.expansion));
}
