//! Every expectation is compared with something: whichever is changed, its case fails.

use std::path::Path;

use serde_json::{Value, json};

use crate::cases::{Case, Suite};
use crate::{OWN, known, run, run_case, suites};

/// Suites that expect what their names say, and no value.
const WITHOUT_VALUES: [&str; 1] = ["sample.batched_equals_single"];

/// What stands with an expectation and is given: how close is close enough.
const GIVEN: [&str; 1] = ["tolerance"];

#[test]
fn no_expectation_can_change_unnoticed() {
    let mut unnoticed = Vec::new();
    let mut expectations = 0;
    for suite in suites(Path::new(OWN)) {
        for case in &suite.cases {
            let mut places = Vec::new();
            find_expectations(&case.facts, "", false, &mut places);
            let has_values = !WITHOUT_VALUES.contains(&suite.name.as_str());
            assert_eq!(
                !places.is_empty(),
                has_values,
                "{}, {}",
                suite.name,
                case.name
            );
            expectations += places.len();
            places.retain(|place| !is_noticed(&suite, case, place));
            let named = |place| format!("{}, {}: {place}", suite.name, case.name);
            unnoticed.extend(places.into_iter().map(named));
        }
    }
    println!("{expectations} expectations");
    assert!(unnoticed.is_empty(), "\n{}", unnoticed.join("\n"));
}

#[test]
fn what_is_unknown_or_missing_is_named() {
    let check = |change: &dyn Fn(&mut Vec<Suite>), complaint: &str| {
        let mut suites = suites(Path::new(OWN));
        // One case will do.
        suites.truncate(1);
        let missing = run(&suites).1.len();
        change(&mut suites);
        let complaints = run(&suites).1;
        let found = complaints.iter().any(|found| found.starts_with(complaint));
        assert!(found, "{complaint}: {complaints:?}");
        assert!(complaints.len() > missing);
    };
    let suite = &suites(Path::new(OWN))[0];
    let (name, case) = (&suite.name, &suite.cases[0].name);
    check(&|suites| suites[0].name = "new".into(), "new: is not known");
    let new = format!("{name}, new: is not known here");
    check(&|suites| suites[0].cases[0].name = "new".into(), &new);
    let missing = format!("{name}, {case}: is missing");
    check(&|suites| drop(suites[0].cases.remove(0)), &missing);
    let double = |suites: &mut Vec<Suite>| {
        let case = suites[0].cases[0].clone();
        suites[0].cases.push(case);
    };
    check(&double, &format!("{name}, {case}: is there twice"));
    let field = |suites: &mut Vec<Suite>| suites[0].cases[0].facts["new"] = json!(1);
    check(
        &field,
        &format!("{name}, {case}: the field `new` is not known"),
    );
}

/// The JSON pointers of all values that are expected.
fn find_expectations(value: &Value, place: &str, expected: bool, places: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let expected = expected || name.starts_with("expect");
                if !GIVEN.contains(&name.as_str()) {
                    find_expectations(value, &format!("{place}/{name}"), expected, places);
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (i, value) in items.iter().enumerate() {
                find_expectations(value, &format!("{place}/{i}"), expected, places);
            }
        }
        _ if expected => places.push(place.to_owned()),
        _ => {}
    }
}

/// Whether some change of the value makes the case fail. One is not enough: `at most 3`
/// holds for what is more.
fn is_noticed(suite: &Suite, case: &Case, place: &str) -> bool {
    let known = known(&suite.name).expect("the suite is known");
    let run = known.runs(&case.name).expect("the case is known");
    let value = case.facts.pointer(place).expect("it was found there");
    changes(value).into_iter().any(|change| {
        let mut changed = case.clone();
        *changed
            .facts
            .pointer_mut(place)
            .expect("it was found there") = change;
        run_case(known, &changed, run).is_err()
    })
}

fn changes(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(flag) => vec![json!(!flag)],
        Value::Number(number) => {
            let is_zero = number.as_f64() == Some(0.0);
            vec![json!(1000), json!(i64::from(is_zero))]
        }
        Value::String(text) => vec![json!(format!("{text}, or not"))],
        Value::Null => vec![json!(7)],
        Value::Array(_) => vec![json!([7])],
        Value::Object(_) => vec![json!({"new": 7})],
    }
}
