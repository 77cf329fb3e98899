//! Changes each expectation of the cases and checks that some case then fails.

use serde_json::{Value, json};

use crate::cases::{Case, Suite};
use crate::check::Outcome;
use crate::suites::run_case;

/// Results of changing all expectations of some suites.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    pub(crate) expectations: usize,
    /// Expectations that can change without any failing case.
    pub(crate) unnoticed: Vec<String>,
    /// Cases without expectations, by suite.
    pub(crate) without: Vec<String>,
}

/// Changes each expectation that `is_given` does not mark as an input, by the suite and the
/// JSON pointer.
pub(crate) fn change_all(suites: &[Suite], is_given: impl Fn(&str, &str) -> bool) -> Changed {
    let mut changed = Changed::default();
    for suite in suites {
        for case in &suite.cases {
            if run_case(suite, case) == Ok(Outcome::Unsupported) {
                continue;
            }
            let mut locations = Vec::new();
            find(&case.facts, "", false, &mut locations);
            if locations.is_empty() {
                changed.without.push(suite.name.clone());
            }
            locations.retain(|location| !is_given(&suite.name, location));
            changed.expectations += locations.len();
            locations.retain(|location| !is_noticed(suite, case, location));
            let named = |location| format!("{}, {}: {location}", suite.name, case.name);
            changed.unnoticed.extend(locations.into_iter().map(named));
        }
    }
    changed
}

/// Collects the JSON pointers of all expected values.
fn find(value: &Value, location: &str, expected: bool, locations: &mut Vec<String>) {
    let mut visit = |name: &str, value: &Value, expected: bool| {
        let name = name.replace('~', "~0").replace('/', "~1");
        find(value, &format!("{location}/{name}"), expected, locations);
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name != "note" {
                    visit(name, value, expected || name.starts_with("expect"));
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (i, value) in items.iter().enumerate() {
                visit(&i.to_string(), value, expected);
            }
        }
        _ if expected => locations.push(location.to_owned()),
        _ => {}
    }
}

/// Whether some change of the value makes the case fail. A single change is not enough: `at
/// least 2` also holds for larger values.
fn is_noticed(suite: &Suite, case: &Case, location: &str) -> bool {
    let value = case.facts.pointer(location).expect("it was found there");
    changes(value).into_iter().any(|change| {
        let mut changed = case.clone();
        let value = changed.facts.pointer_mut(location);
        *value.expect("it was found there") = change;
        run_case(suite, &changed).is_err()
    })
}

fn changes(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(flag) => vec![json!(!flag)],
        Value::Number(number) => {
            let is_zero = number.as_f64() == Some(0.0);
            let more = number.as_i64().unwrap_or(0) + 1000;
            vec![json!(more), json!(i64::from(is_zero))]
        }
        Value::String(text) => vec![json!(format!("{text}, or not"))],
        Value::Null => vec![json!(7)],
        Value::Array(_) => vec![json!([7])],
        Value::Object(_) => vec![json!({"new": 7})],
    }
}
