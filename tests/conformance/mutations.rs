//! Every expectation is compared with something: whichever is changed, its case fails.

use serde_json::{Value, json};

use crate::cases::{self, Case, Suite};
use crate::{known, run, run_case};

/// What an expectation says beside its case, for people.
const NOTES: [&str; 1] = ["note"];

/// What stands with an expectation and is given: where a prompt ends otherwise than all
/// that is cached, it does not matter how.
const GIVEN: [(&str, &str); 5] = [
    ("FindSplitAppendSequence", "/expect/finds/2/0/"),
    (
        "TestBranchCreationAndReuse",
        "/expect/findable_after_A/tokens/",
    ),
    ("TestSnapshotBeyondPrefillSkipped", "/expect/prompt/"),
    ("TestSnapshotBeyondPrefillSkipped", "/expect/scheduled/"),
    ("TestPrefillSnapshotsKeptOnCancel", "/expect/prompt/"),
];

#[test]
fn no_expectation_can_change_unnoticed() {
    let mut unnoticed = Vec::new();
    let mut expectations = 0;
    for suite in cases::own_suites() {
        for case in &suite.cases {
            let mut places = Vec::new();
            find_expectations(&case.facts, "", false, &mut places);
            assert!(!places.is_empty(), "{}, {}", suite.name, case.name);
            let given = |place: &str| {
                let mut given = GIVEN.iter();
                given.any(|(name, start)| *name == case.name && place.starts_with(start))
            };
            places.retain(|place| !given(place));
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
        let mut suites = cases::own_suites();
        // One case will do.
        suites.truncate(1);
        let missing = run(&suites).complaints.len();
        change(&mut suites);
        let complaints = run(&suites).complaints;
        assert!(complaints.contains(&complaint.to_owned()), "{complaints:?}");
        assert!(complaints.len() > missing);
    };
    let suite = &cases::own_suites()[0];
    let (name, case) = (&suite.name, &suite.cases[0].name);
    check(
        &|suites| suites[0].name = "new".into(),
        "new: is not known here",
    );
    let new = format!("{name}, new: is not known here");
    check(&|suites| suites[0].cases[0].name = "new".into(), &new);
    let missing = format!("{name}, {case}: is missing");
    check(&|suites| drop(suites[0].cases.remove(0)), &missing);
    let twice = format!("{name}, {case}: is there twice");
    let double = |suites: &mut Vec<Suite>| {
        let case = suites[0].cases[0].clone();
        suites[0].cases.push(case);
    };
    check(&double, &twice);
}

/// The JSON pointers of all values that are expected.
fn find_expectations(value: &Value, place: &str, expected: bool, places: &mut Vec<String>) {
    let mut look = |name: &str, value: &Value, expected: bool| {
        let name = name.replace('~', "~0").replace('/', "~1");
        find_expectations(value, &format!("{place}/{name}"), expected, places);
    };
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if !NOTES.contains(&name.as_str()) {
                    look(name, value, expected || name.starts_with("expect"));
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (i, value) in items.iter().enumerate() {
                look(&i.to_string(), value, expected);
            }
        }
        _ if expected => places.push(place.to_owned()),
        _ => {}
    }
}

/// Whether some change of the value makes the case fail. One is not enough: `at least 2`
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
        run_case(suite, &changed, run).is_err()
    })
}

fn changes(value: &Value) -> Vec<Value> {
    match value {
        Value::Bool(flag) => vec![json!(!flag)],
        Value::Number(number) => {
            let number = number.as_i64().unwrap_or(0);
            vec![json!(number + 1000), json!(i64::from(number == 0))]
        }
        Value::String(text) => vec![json!(format!("{text}, or not"))],
        Value::Null => vec![json!(7)],
        Value::Array(_) => vec![json!([7])],
        Value::Object(_) => vec![json!({"new": 7})],
    }
}
