//! JSON schemas.

use super::{HostileGrammar, joined, letters};

pub(super) fn schemas() -> Vec<HostileGrammar> {
    let schema = |name, source| HostileGrammar {
        name,
        kind: "json_schema",
        source,
    };
    vec![
        schema("pattern_keys_1365", pattern_keys(1365)),
        schema("pattern_keys_400", pattern_keys(400)),
        schema("pattern_keys_in_many_objects", pattern_keys_in_objects()),
        schema("pattern_keys_overlap", pattern_keys_overlap()),
        schema("pattern_keys_by_names", pattern_keys_by_names()),
        schema(
            "guidance_at_the_top",
            guidance(r#"(?s:.*a.*b.*c.*d.*e.*f){1,400}"#),
        ),
        schema("guidance_long_pattern", guidance(&"(a|b)*c".repeat(3500))),
        schema(
            "guidance_deep_inside",
            format!(
                r#"{{"properties":{{"a":{{"items":{}}}}}}}"#,
                guidance("(a?){500}a{500}")
            ),
        ),
        schema(
            "guidance_in_an_option",
            format!(r#"{{"anyOf":[{{"type":"null"}},{}]}}"#, guidance("x*y*z*")),
        ),
        schema(
            "guidance_in_a_definition",
            format!(
                r##"{{"$ref":"#/$defs/a","$defs":{{"a":{}}}}}"##,
                guidance(".*")
            ),
        ),
        schema("all_of_any_of_wide", all_of_any_of(12, 12)),
        schema("all_of_any_of_long", all_of_any_of(200, 3)),
        schema("all_of_any_of_objects", all_of_any_of_objects(6, 6, 60)),
        schema(
            "all_of_one_of",
            all_of_any_of(10, 10).replace("anyOf", "oneOf"),
        ),
        schema("any_of_nested", nested("anyOf", 2, 10)),
        schema("all_of_nested", nested("allOf", 2, 10)),
        schema("all_and_any_alternate", alternate(5)),
        schema("ref_to_itself", r##"{"$ref":"#"}"##.into()),
        schema("ref_ring", ref_ring(300)),
        schema("ref_ring_in_all_of", ref_ring_in_all_of(60)),
        schema("ref_fan_out", ref_fan_out(30, "anyOf")),
        schema("ref_fan_out_all_of", ref_fan_out(30, "allOf")),
        schema("ref_fan_out_properties", ref_fan_out_properties(24)),
        schema("ref_mutual_trees", ref_mutual_trees(24)),
        schema("ref_squares", ref_squares(9)),
        schema("enum_of_thousands", enum_of(6000)),
        schema("enum_of_long_strings", enum_of_long(15, 4000)),
        schema("enum_of_objects", enum_of_objects(1200)),
        schema("enums_intersected", enums_intersected(900)),
        schema(
            "const_deep",
            format!(r#"{{"const":{}1{}}}"#, "[".repeat(120), "]".repeat(120)),
        ),
        schema(
            "const_wide",
            format!(r#"{{"const":[{}0]}}"#, "0,".repeat(30_000)),
        ),
        schema(
            "deep_properties",
            deep(r#"{"type":"object","properties":{"a":"#, "{}", "}}", 60),
        ),
        schema("deep_items", deep(r#"{"items":"#, "true", "}", 120)),
        schema("deeper_than_json", deep(r#"{"items":"#, "true", "}", 6000)),
        schema("deep_not", deep(r#"{"not":"#, "{}", "}", 100)),
        schema(
            "min_length_huge",
            r#"{"type":"string","minLength":4000000000}"#.into(),
        ),
        schema(
            "max_length_huge",
            r#"{"type":"string","maxLength":4000000000}"#.into(),
        ),
        schema(
            "lengths_with_pattern",
            r#"{"type":"string","minLength":5000,"maxLength":90000,"pattern":"(a|b)*c(a|b)*"}"#
                .into(),
        ),
        schema("many_lengths", many_lengths(900)),
        schema(
            "min_items_huge",
            r#"{"type":"array","minItems":4000000000}"#.into(),
        ),
        schema(
            "min_items_nested",
            deep(
                r#"{"type":"array","minItems":60,"maxItems":9000,"items":"#,
                "{}",
                "}",
                20,
            ),
        ),
        schema(
            "min_properties_huge",
            r#"{"minProperties":3000000000,"maxProperties":4000000000}"#.into(),
        ),
        schema("min_properties_pairs", min_properties_pairs(700)),
        schema(
            "multiple_of_prime",
            r#"{"type":"integer","multipleOf":4294967291}"#.into(),
        ),
        schema(
            "multiple_of_small",
            r#"{"type":"number","multipleOf":0.0000007}"#.into(),
        ),
        schema("multiple_of_many", multiple_of_many(40)),
        schema("multiple_of_common", multiple_of_common()),
        schema("bounds_of_many_digits", bounds_of_many(700)),
        schema("one_of_overlapping_objects", one_of_objects(40)),
        schema("one_of_disjoint_pairs", one_of_disjoint(600)),
        schema("one_of_in_all_of", one_of_in_all_of(300, 36)),
        schema("one_of_beside_anything", one_of_beside_anything(150, 8000)),
        schema("one_of_by_pattern_key", one_of_by_pattern_key(200, 900)),
        schema("pattern_key_copied", pattern_key_copied(900, 900)),
        schema("dependent_schemas", dependent_schemas(300)),
        schema("properties_of_thousands", properties_of(4000)),
        schema("optional_properties_nested", optional_nested(5, 4)),
        schema(
            "patterns_of_unicode_classes",
            patterns(r"^\\p{L}+\\p{N}*[^\\p{P}]{1,60}$", 60),
        ),
        schema("patterns_of_searches", patterns("a.*b.*c.*d.*e.*f", 60)),
        schema("pattern_states", patterns("(a|b)*a(a|b){18}", 1)),
        schema("patterns_intersected", patterns_intersected(14)),
        schema("pattern_and_format", pattern_and_format()),
        schema("formats_of_all_kinds", formats(60)),
        schema("required_of_thousands", required_of(7000)),
    ]
}

fn deep(before: &str, inside: &str, after: &str, depth: usize) -> String {
    format!("{}{inside}{}", before.repeat(depth), after.repeat(depth))
}

/// Pattern keys of three bytes, as in the audit. Each pair of them costs an intersection.
pub(super) fn pattern_keys(count: usize) -> String {
    let alphabet = b"abcdefghijklmnopqrstuvwxyz0123456789_";
    let letter = |of: usize| char::from(alphabet[of % alphabet.len()]);
    let keys = joined(count, ",", |n| {
        let (first, second) = (letter(n / alphabet.len()), letter(n));
        format!(r#""^{first}{second}":{{"type":"integer"}}"#)
    });
    format!(r#"{{"type":"object","patternProperties":{{{keys}}}}}"#)
}

fn pattern_keys_in_objects() -> String {
    let objects = joined(40, ",", |n| {
        let keys = joined(25, ",", |k| format!(r#""^{}":true"#, letters(n * 25 + k)));
        format!(r#""p{n}":{{"patternProperties":{{{keys}}}}}"#)
    });
    format!(r#"{{"properties":{{{objects}}}}}"#)
}

fn pattern_keys_overlap() -> String {
    let keys = joined(20, ",", |n| {
        format!(r#""^x{}(a|b)*a(a|b){{{}}}$":true"#, letters(n), n + 4)
    });
    format!(r#"{{"patternProperties":{{{keys}}}}}"#)
}

fn pattern_keys_by_names() -> String {
    let keys = joined(30, ",", |n| format!(r#""^{}.*z":true"#, letters(n)));
    let names = joined(2000, ",", |n| format!(r#""{}z{n}":true"#, letters(n)));
    format!(r#"{{"patternProperties":{{{keys}}},"properties":{{{names}}}}}"#)
}

pub(super) fn guidance(pattern: &str) -> String {
    format!(
        r#"{{"type":"object","x-guidance":{{"whitespace_pattern":"{pattern}","item_separator":"{pattern}","lenient":true}}}}"#
    )
}

fn all_of_any_of(sets: usize, options: usize) -> String {
    let sets = joined(sets, ",", |set| {
        let options = joined(options, ",", |option| {
            format!(r#"{{"properties":{{"s{set}o{option}":{{"type":"null"}}}}}}"#)
        });
        format!(r#"{{"anyOf":[{options}]}}"#)
    });
    format!(r#"{{"allOf":[{sets}]}}"#)
}

fn all_of_any_of_objects(sets: usize, options: usize, members: usize) -> String {
    let sets = joined(sets, ",", |set| {
        let options = joined(options, ",", |option| {
            let members = joined(members, ",", |m| format!(r#""m{set}{option}{m}":{{}}"#));
            format!(r#"{{"properties":{{{members}}}}}"#)
        });
        format!(r#"{{"anyOf":[{options}]}}"#)
    });
    format!(r#"{{"allOf":[{sets}]}}"#)
}

fn nested(keyword: &str, fan: usize, depth: usize) -> String {
    let inside = match depth {
        0 => return r#"{"type":"null"}"#.into(),
        _ => nested(keyword, fan, depth - 1),
    };
    format!(r#"{{"{keyword}":[{}]}}"#, vec![inside; fan].join(","))
}

fn alternate(depth: usize) -> String {
    let keyword = if depth.is_multiple_of(2) {
        "anyOf"
    } else {
        "allOf"
    };
    let inside = |n| match depth {
        0 => format!(r#"{{"properties":{{"p{n}":{{"type":"string"}}}}}}"#),
        _ => alternate(depth - 1),
    };
    format!(r#"{{"{keyword}":[{}]}}"#, joined(3, ",", inside))
}

fn ref_ring(count: usize) -> String {
    let defs = joined(count, ",", |n| {
        format!(r##""d{n}":{{"$ref":"#/$defs/d{}"}}"##, (n + 1) % count)
    });
    format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{defs}}}}}"##)
}

fn ref_ring_in_all_of(count: usize) -> String {
    let defs = joined(count, ",", |n| {
        let next = (n + 1) % count;
        let after = (n + 2) % count;
        format!(
            r##""d{n}":{{"allOf":[{{"$ref":"#/$defs/d{next}"}},{{"$ref":"#/$defs/d{after}"}}],"properties":{{"p{n}":{{}}}}}}"##
        )
    });
    format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{defs}}}}}"##)
}

fn ref_fan_out(levels: usize, keyword: &str) -> String {
    let defs = joined(levels, ",", |n| {
        let next = n + 1;
        format!(
            r##""d{n}":{{"{keyword}":[{{"$ref":"#/$defs/d{next}"}},{{"$ref":"#/$defs/d{next}"}}]}}"##
        )
    });
    format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{defs},"d{levels}":{{"type":"object"}}}}}}"##)
}

fn ref_fan_out_properties(levels: usize) -> String {
    let defs = joined(levels, ",", |n| {
        let next = n + 1;
        let members = joined(4, ",", |m| {
            format!(
                r##""m{m}":{{"allOf":[{{"$ref":"#/$defs/d{next}"}},{{"properties":{{"x{n}{m}":{{}}}}}}]}}"##
            )
        });
        format!(r##""d{n}":{{"properties":{{{members}}}}}"##)
    });
    format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{defs},"d{levels}":{{"type":"object"}}}}}}"##)
}

fn ref_mutual_trees(count: usize) -> String {
    let defs = joined(count, ",", |n| {
        let next = (n + 1) % count;
        format!(
            r##""t{n}":{{"type":"object","properties":{{"left":{{"$ref":"#/$defs/t{next}"}},"right":{{"$ref":"#/$defs/t{n}"}}}}}}"##
        )
    });
    let all = joined(count, ",", |n| format!(r##"{{"$ref":"#/$defs/t{n}"}}"##));
    format!(r##"{{"allOf":[{all}],"$defs":{{{defs}}}}}"##)
}

/// Each definition squares the options of the next one.
fn ref_squares(levels: usize) -> String {
    let defs = joined(levels, ",", |n| {
        let next = n + 1;
        format!(
            r##""d{n}":{{"allOf":[{{"anyOf":[{{"$ref":"#/$defs/d{next}"}},{{"required":["r{n}"]}}]}},{{"anyOf":[{{"$ref":"#/$defs/d{next}"}},{{"required":["s{n}"]}}]}}]}}"##
        )
    });
    format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{defs},"d{levels}":{{"required":["end"]}}}}}}"##)
}

fn enum_of(count: usize) -> String {
    format!(
        r#"{{"enum":[{}]}}"#,
        joined(count, ",", |n| format!(r#""{n:x}""#))
    )
}

fn enum_of_long(count: usize, bytes: usize) -> String {
    let values = joined(count, ",", |n| {
        format!(r#""{}{n}""#, "ab".repeat(bytes / 2))
    });
    format!(r#"{{"enum":[{values}]}}"#)
}

fn enum_of_objects(count: usize) -> String {
    let values = joined(count, ",", |n| {
        format!(r#"{{"a":{{"b":[{n},{n},"{n}"]}}}}"#)
    });
    format!(r#"{{"enum":[{values}]}}"#)
}

fn enums_intersected(count: usize) -> String {
    let one = joined(count, ",", |n| n.to_string());
    let other = joined(count, ",", |n| (n + 1).to_string());
    format!(r#"{{"allOf":[{{"enum":[{one}]}},{{"enum":[{other}]}},{{"enum":[{one}]}}]}}"#)
}

fn many_lengths(count: usize) -> String {
    let members = joined(count, ",", |n| {
        format!(
            r#""{}":{{"type":"string","maxLength":{}}}"#,
            letters(n),
            3000 + n
        )
    });
    format!(r#"{{"properties":{{{members}}}}}"#)
}

fn min_properties_pairs(count: usize) -> String {
    let members = joined(count, ",", |n| {
        format!(r#""{}":{{"type":"null"}}"#, letters(n))
    });
    format!(r#"{{"properties":{{{members}}},"minProperties":1,"additionalProperties":false}}"#)
}

fn multiple_of_many(count: usize) -> String {
    let members = joined(count, ",", |n| {
        format!(
            r#""{}":{{"type":"number","multipleOf":{}.{}7}}"#,
            letters(n),
            997 + 2 * n,
            n
        )
    });
    format!(r#"{{"properties":{{{members}}}}}"#)
}

fn multiple_of_common() -> String {
    let primes = [9973, 9967, 9949, 9941, 9931];
    let all = joined(primes.len(), ",", |n| {
        format!(r#"{{"type":"integer","multipleOf":{}}}"#, primes[n])
    });
    format!(r#"{{"allOf":[{all}]}}"#)
}

fn bounds_of_many(count: usize) -> String {
    let members = joined(count, ",", |n| {
        format!(
            r#""{}":{{"type":"number","minimum":-{n}.123456789123,"exclusiveMaximum":98765432{n}.98765}}"#,
            letters(n)
        )
    });
    format!(r#"{{"properties":{{{members}}}}}"#)
}

fn one_of_objects(count: usize) -> String {
    let options = joined(count, ",", |n| {
        let members = joined(20, ",", |m| {
            format!(r#""{}":{{"type":["string","null"]}}"#, letters(m + n))
        });
        format!(r#"{{"type":"object","properties":{{{members}}}}}"#)
    });
    format!(r#"{{"oneOf":[{options}]}}"#)
}

fn one_of_disjoint(count: usize) -> String {
    let options = joined(count, ",", |n| {
        format!(
            r#"{{"type":"object","properties":{{"kind":{{"const":"{}"}},"v{n}":{{}}}},"required":["kind"]}}"#,
            letters(n)
        )
    });
    format!(r#"{{"oneOf":[{options}]}}"#)
}

/// Options that differ only in the last of their required names, except for the last two. All of them are compared
/// each time.
fn one_of_overlapping(count: usize) -> String {
    let names = joined(32, ",", |n| format!(r#""{}""#, char::from(b'A' + n as u8)));
    let names = names.replace('\\', "_");
    let options = joined(count, ",", |n| {
        format!(
            r#"{{"type":"object","required":[{names},"k"],"properties":{{"k":{{"const":"{}"}}}}}}"#,
            letters(n.min(count - 2))
        )
    });
    format!(r#"{{"oneOf":[{options}]}}"#)
}

fn one_of_in_all_of(options: usize, intersections: usize) -> String {
    let objects = vec![r#"{"type":"object"}"#; intersections].join(",");
    format!(r#"{{"allOf":[{},{objects}]}}"#, one_of_overlapping(options))
}

/// An option that allows everything is intersected as well.
fn one_of_beside_anything(options: usize, intersections: usize) -> String {
    let anything = vec!["{}"; intersections].join(",");
    format!(
        r#"{{"allOf":[{},{anything}]}}"#,
        one_of_overlapping(options)
    )
}

/// Each member is intersected with the schema of its pattern key.
fn one_of_by_pattern_key(options: usize, members: usize) -> String {
    let members = joined(members, ",", |n| format!(r#""{}":{{}}"#, letters(n)));
    let options = one_of_overlapping(options);
    format!(r#"{{"patternProperties":{{"^":{options}}},"properties":{{{members}}}}}"#)
}

/// Each member takes a copy of the schema of its pattern key.
fn pattern_key_copied(size: usize, members: usize) -> String {
    let inside = properties_of(size);
    let members = joined(members, ",", |n| format!(r#""{}":{{}}"#, letters(n)));
    format!(r#"{{"patternProperties":{{"^":{inside}}},"properties":{{{members}}}}}"#)
}

fn dependent_schemas(count: usize) -> String {
    let members = joined(count, ",", |n| {
        format!(r#""{}":{{"not":{{"required":["x{n}"]}}}}"#, letters(n))
    });
    format!(r#"{{"type":"object","dependentSchemas":{{{members}}}}}"#)
}

fn properties_of(count: usize) -> String {
    let members = joined(count, ",", |n| format!(r#""{}":{{}}"#, letters(n)));
    format!(r#"{{"properties":{{{members}}}}}"#)
}

fn optional_nested(fan: usize, depth: usize) -> String {
    if depth == 0 {
        return r#"{"type":"string","maxLength":3}"#.into();
    }
    let inside = optional_nested(fan, depth - 1);
    let members = joined(fan, ",", |n| format!(r#""{n}":{inside}"#));
    format!(r#"{{"properties":{{{members}}}}}"#)
}

fn patterns(pattern: &str, count: usize) -> String {
    let members = joined(count, ",", |n| {
        format!(
            r#""{}":{{"type":"string","pattern":"{pattern}"}}"#,
            letters(n)
        )
    });
    format!(r#"{{"properties":{{{members}}}}}"#)
}

fn patterns_intersected(count: usize) -> String {
    let all = joined(count, ",", |n| {
        format!(
            r#"{{"type":"string","pattern":"(a|b)*a(a|b){{{}}}$"}}"#,
            n + 3
        )
    });
    format!(r#"{{"allOf":[{all}]}}"#)
}

fn pattern_and_format() -> String {
    let all = ["uuid", "email", "uri", "date-time", "ipv6"];
    let members = joined(all.len(), ",", |n| {
        let format = all[n];
        format!(
            r#""{format}":{{"type":"string","format":"{format}","pattern":"^.*a.*b.*c$","minLength":9,"maxLength":4000}}"#
        )
    });
    format!(r#"{{"properties":{{{members}}}}}"#)
}

fn formats(count: usize) -> String {
    let all = [
        "uuid",
        "email",
        "uri",
        "date-time",
        "ipv6",
        "hostname",
        "duration",
        "time",
        "date",
        "ipv4",
    ];
    let members = joined(count, ",", |n| {
        format!(
            r#""{}":{{"type":"string","format":"{}"}}"#,
            letters(n),
            all[n % all.len()]
        )
    });
    format!(r#"{{"properties":{{{members}}}}}"#)
}

fn required_of(count: usize) -> String {
    format!(
        r#"{{"type":"object","required":[{}]}}"#,
        joined(count, ",", |n| format!(r#""{}""#, letters(n)))
    )
}
