//! Bounds on schemas, and the count beside the work that llguidance does.

mod real_cost;

use serde_json::{Map, json};

use super::*;

/// The name of the bound that a schema exceeds.
fn bound(schema: &Value, limits: &GrammarLimits) -> Option<&'static str> {
    judge(schema, limits).err().map(|rejection| rejection.bound)
}

#[test]
fn each_bound_is_named() {
    let strict = GrammarLimits {
        depth_max: 9,
        enum_values_max: 3,
        patterns_max: 4,
        pattern_pairs_max: 3,
        intersected_patterns_max: 2,
        members_max: 4,
        intersections_max: 40,
        expansion_max: 200,
        multiple_of_max: 100,
        ..GrammarLimits::default()
    };
    let check = |schema: Value, expected: Option<&str>| {
        assert_eq!(bound(&schema, &strict), expected, "{schema}");
    };
    check(json!({"type": "object"}), None);
    check(json!([[[[[[[[[1]]]]]]]]]), Some("grammar.depth_max"));
    check(json!({"enum": [1, 2, 3]}), None);
    check(
        json!({"items": {"enum": [1, 2, 3, 4]}}),
        Some("grammar.enum_values_max"),
    );
    let keys = |n: usize| -> Value {
        (0..n)
            .map(|k| (format!("^{k}"), json!(true)))
            .collect::<Map<_, _>>()
            .into()
    };
    check(json!({"patternProperties": keys(3)}), None);
    check(
        json!({"patternProperties": keys(4)}),
        Some("grammar.pattern_pairs_max"),
    );
    check(
        json!({"patternProperties": keys(5)}),
        Some("grammar.patterns_max"),
    );
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    check(json!({"allOf": [text("a"), text("b")]}), None);
    check(
        json!({"allOf": [text("a"), text("b"), text("c")]}),
        Some("grammar.intersected_patterns_max"),
    );
    check(json!({"properties": keys(4)}), None);
    check(json!({"properties": keys(5)}), Some("grammar.members_max"));
    check(
        json!({"required": ["a", "b", "c", "d", "e"]}),
        Some("grammar.members_max"),
    );
    check(json!({"type": "integer", "multipleOf": 0.25}), None);
    check(
        json!({"type": "integer", "multipleOf": 101}),
        Some("grammar.multiple_of_max"),
    );
    check(
        json!({"allOf": [{"type": "number", "multipleOf": 20}, {"type": "number", "multipleOf": 30}]}),
        Some("grammar.multiple_of_max"),
    );
    check(
        json!({"properties": {"x-guidance": {}}}),
        Some("grammar.options_allowed"),
    );
}

#[test]
fn options_multiply() {
    let limits = GrammarLimits {
        intersections_max: 100,
        ..GrammarLimits::default()
    };
    let options = |n: usize| -> Value {
        let each = (0..n).map(|k| json!({"type": "object", "required": [format!("{k}")]}));
        json!({"anyOf": each.collect::<Vec<_>>()})
    };
    assert_eq!(
        bound(&json!({"allOf": [options(9), options(9)]}), &limits),
        None
    );
    assert_eq!(
        bound(
            &json!({"allOf": [options(9), options(9), options(9)]}),
            &limits
        ),
        Some("grammar.intersections_max")
    );
    let inside = |n| json!({"type": "object", "properties": {"a": options(n)}});
    assert_eq!(
        bound(
            &json!({"allOf": [inside(5), inside(5), inside(5)]}),
            &limits
        ),
        Some("grammar.intersections_max")
    );
}

#[test]
fn options_of_one_of_are_compared_at_each_intersection() {
    let limits = GrammarLimits {
        expansion_max: 12_000,
        ..GrammarLimits::default()
    };
    let options = |count: usize, names: usize| -> Vec<Value> {
        let required: Vec<_> = (0..names).map(|name| format!("{name}")).collect();
        let each = |n: usize| json!({"type": "object", "required": required, "properties": {"0": {"const": n}}});
        (0..count).map(each).collect()
    };
    let with = |keyword: &str, count: usize, names: usize, more: &[Value]| {
        let mut parts = vec![json!({keyword: options(count, names)})];
        parts.extend_from_slice(more);
        bound(&json!({"allOf": parts}), &limits)
    };
    let expansion = Some("grammar.expansion_max");
    // Fifty options of fifteen names: 1000 schemas each time that all of them are compared.
    assert_eq!(with("oneOf", 50, 15, &[]), None);
    let objects = vec![json!({"type": "object"}); 9];
    assert_eq!(with("anyOf", 50, 15, &objects), None);
    assert_eq!(with("oneOf", 50, 15, &objects), expansion);
    assert_eq!(with("oneOf", 50, 1, &objects), None);
    // A schema that allows everything causes a new copy as well.
    let anything = vec![json!({}); 20];
    assert_eq!(with("anyOf", 50, 15, &anything), None);
    assert_eq!(with("oneOf", 50, 15, &anything), expansion);
    // An option of its own that allows everything does not hide the others.
    let mut all = options(50, 15);
    all.push(json!({}));
    let mut parts = vec![json!({"oneOf": all})];
    parts.extend(objects);
    assert_eq!(bound(&json!({"allOf": parts}), &limits), expansion);
}

#[test]
fn options_of_one_of_inside_others_are_compared_as_well() {
    let limits = GrammarLimits {
        expansion_max: 50_000,
        ..GrammarLimits::default()
    };
    let kinds = |first: usize, count: usize| -> Value {
        let each = (first..first + count).map(|n| json!({"const": format!("{n}")}));
        json!({"anyOf": each.collect::<Vec<_>>()})
    };
    // Comparing one pair takes as many comparisons as their members have pairs of options.
    let nested = |keyword: &str, count: usize| {
        let each = (0..40).map(|n| {
            let kinds = kinds(n * count, count);
            json!({"type": "object", "required": ["a"], "properties": {"a": kinds}})
        });
        bound(&json!({keyword: each.collect::<Vec<_>>()}), &limits)
    };
    assert_eq!(nested("oneOf", 3), None);
    assert_eq!(nested("anyOf", 30), None);
    assert_eq!(nested("oneOf", 30), Some("grammar.expansion_max"));
    // A member costs as much as the pattern key that its name matches.
    let matched = |keyword: &str, members: usize| {
        let names = (0..members).map(|n| (format!("{n}"), json!({})));
        let each: Vec<_> = (0..60).map(|n| json!({"const": format!("{n}")})).collect();
        let schema = json!({
            "$defs": {"a": {keyword: each}},
            "patternProperties": {"^": {"$ref": "#/$defs/a"}},
            "properties": names.collect::<Map<_, _>>(),
        });
        bound(&schema, &limits)
    };
    assert_eq!(matched("oneOf", 9), None);
    assert_eq!(matched("anyOf", 400), None);
    assert_eq!(matched("oneOf", 400), Some("grammar.expansion_max"));
    assert_eq!(matched("anyOf", 900), Some("grammar.expansion_max"));
}

#[test]
fn references_expand_where_they_are_intersected_only() {
    let limits = GrammarLimits {
        expansion_max: 5000,
        ..GrammarLimits::default()
    };
    let definitions = |schema: &dyn Fn(String) -> Value| -> Value {
        let mut all: Map<_, _> = (0..20)
            .map(|n| (format!("d{n}"), schema(format!("#/$defs/d{}", n + 1))))
            .collect();
        all.insert("d20".into(), json!({"type": "object"}));
        json!({"$ref": "#/$defs/d0", "$defs": all})
    };
    let plain = definitions(
        &|next| json!({"type": "object", "properties": {"a": {"$ref": next}, "b": {"$ref": next}}}),
    );
    assert_eq!(bound(&plain, &limits), None);
    let doubled = definitions(&|next| {
        let part = json!({"allOf": [{"$ref": next}, {"type": "object", "properties": {"c": {}}}]});
        json!({"type": "object", "properties": {"a": part, "b": part}})
    });
    assert_eq!(bound(&doubled, &limits), Some("grammar.expansion_max"));
    let ring = json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]});
    assert_eq!(bound(&ring, &limits), None);
    assert_eq!(bound(&json!({"$ref": "#/nowhere"}), &limits), None);
}
