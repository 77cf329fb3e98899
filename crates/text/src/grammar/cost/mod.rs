//! Estimates the cost of compiling a grammar before it is compiled.
//!
//! llguidance bounds part of its own work by fuel and sizes. The rest grows with the square of a
//! source, or exponentially, and nothing can stop it: pairs of `patternProperties`, copies of
//! schemas that are intersected, members of an object, products of expressions, tables of
//! remainders. This module counts these. A grammar that passes compiles within a second or two of
//! processor time; the hostile corpus shows it (`tests/grammars.rs`).

mod bounds;
mod schema;

use bounds::{check, options};
use motet_protocol::{GrammarBound, GrammarLimits};
pub(super) use schema::{judge as judge_schema, judge_all as judge_schemas};

/// Checks the cost of a Lark text, and of the schemas inside it.
pub(super) fn judge_lark(text: &str, limits: &GrammarLimits) -> Result<(), GrammarBound> {
    for directive in ["%json", "%llguidance"] {
        let found = text.matches(directive).count();
        if found > 0 && !limits.options_allowed {
            return Err(options(found));
        }
    }
    for (at, found) in text.match_indices("%json") {
        let inside = &text[at + found.len()..];
        let first = serde_json::Deserializer::from_str(inside)
            .into_iter()
            .next();
        // A text that is no JSON does not compile either.
        if let Some(Ok(schema)) = first {
            judge_schema(&schema, limits)?;
        }
    }
    let found = operators(text);
    check(
        "grammar.intersected_patterns_max",
        limits.intersected_patterns_max,
        found as f64,
    )
}

/// Number of intersections and complements in a Lark text: each `&`, and each `~` that does not
/// repeat, outside of strings, expressions and comments.
fn operators(text: &str) -> usize {
    let mut found = 0;
    for line in text.lines() {
        let mut inside: Option<char> = None;
        let mut letters = line.chars().peekable();
        while let Some(letter) = letters.next() {
            match (inside, letter) {
                (Some(_), '\\') => {
                    letters.next();
                }
                (Some(end), _) if letter == end => inside = None,
                (Some(_), _) => {}
                (None, '"' | '\'') => inside = Some(letter),
                (None, '/') if letters.peek() == Some(&'/') => break,
                (None, '/') => inside = Some('/'),
                (None, '#') => break,
                (None, '&') => found += 1,
                (None, '~') if !letters.peek().is_some_and(char::is_ascii_digit) => found += 1,
                (None, _) => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_counted_outside_strings() {
        let check = |text: &str, found| assert_eq!(operators(text), found, "{text}");
        check("start: A\nA: /a/ & /b/ & ~(/c/)", 3);
        check("start: \"a&~\" /&\\/&~/ # & ~", 0);
        check("a: b~3 b~1..9 // & ~", 0);
        check("a: 'x' & ~ B", 2);
    }

    #[test]
    fn options_must_be_allowed_by_the_operator() {
        let text = "start: x\nx: %json {\"patternProperties\": {\"x-guidance\": {}}}";
        let mut limits = GrammarLimits::default();
        let rejected =
            |limits: &GrammarLimits| judge_lark(text, limits).expect_err("rejected").bound;
        assert_eq!(rejected(&limits), "grammar.options_allowed");
        limits.options_allowed = true;
        assert_eq!(judge_lark(text, &limits), Ok(()));
        limits.patterns_max = 0;
        assert_eq!(rejected(&limits), "grammar.patterns_max");
    }
}
