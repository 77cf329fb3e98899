use serde_json::{Map, json};

use super::*;

/// Which bound a schema passes.
fn bound(schema: &Value, limits: &GrammarLimits) -> Option<&'static str> {
    judge(schema, limits).err().map(|refusal| refusal.bound)
}

#[test]
fn each_bound_is_named() {
    let tight = GrammarLimits {
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
        assert_eq!(bound(&schema, &tight), expected, "{schema}");
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
