//! Cases of another shape: each ends in an outcome, or in a failure that says what is wrong with it, never in a
//! panic of the suite's own code about an index or a missing value.

use serde_json::{Value, json};

use crate::cases::{Case, Suite};
use crate::suites::{caught, ours, run_case};

/// Changes that are tried for each case. The variable `MOTET_SHAPES_EACH` names another number.
const EACH: usize = 2;
/// Beginnings of the messages of panics that no rule of a suite has written.
const ANONYMOUS: [&str; 10] = [
    "index out of bounds",
    "range start index",
    "range end index",
    "slice index starts",
    "called `Option::unwrap()`",
    "called `Result::unwrap()`",
    "attempt to",
    "capacity overflow",
    "byte index",
    "no entry found for key",
];
/// Where the suites' own code is.
const OWN_CODE: [&str; 2] = ["tests/conformance/", "tests/text_conformance/"];

#[test]
fn other_shapes_end_in_an_outcome_or_a_named_failure() {
    let each = std::env::var("MOTET_SHAPES_EACH").ok();
    let each = each.map_or(EACH, |each| each.parse().expect("a number"));
    let (mut tried, mut failed) = (0, 0);
    let mut anonymous = Vec::new();
    for suite in ours() {
        for (nth, case) in suite.cases.iter().enumerate() {
            for (what, changed) in some(case, nth, each) {
                tried += 1;
                let Err(why) = run_case(&suite, &changed) else {
                    continue;
                };
                failed += 1;
                anonymous.extend(place(&why).map(|place| described(&suite, case, &what, &place)));
            }
        }
    }
    anonymous.sort();
    anonymous.dedup_by(|a, b| a.split(": ").next() == b.split(": ").next());
    assert!(anonymous.is_empty(), "\n{}", anonymous.join("\n"));
    assert!(
        tried > 100 && failed > tried / 3,
        "{failed} of {tried} failed"
    );
}

#[test]
fn anonymous_panics_are_noticed() {
    let list: Vec<usize> = Vec::new();
    let why = caught(|| list[list.len() + 7]).expect_err("there is none");
    assert!(place(&why).is_some(), "{why}");
    let why = caught(|| assert!(list.len() > 7, "a list of {}", list.len()));
    assert_eq!(place(&why.expect_err("it is empty")), None);
}

fn described(suite: &Suite, case: &Case, what: &str, place: &str) -> String {
    format!("{place}: {}, {}, {what}", suite.name, case.name)
}

/// The place of an anonymous panic in the suites' own code.
fn place(why: &str) -> Option<String> {
    let (location, message) = why.split_once('\n')?;
    let is_own = OWN_CODE.iter().any(|folder| location.contains(folder));
    let is_anonymous = ANONYMOUS.iter().any(|words| message.starts_with(words));
    (is_own && is_anonymous).then(|| {
        let location = location.split("panicked at ").last().unwrap_or_default();
        format!(
            "{} {message}",
            location.trim_end_matches(':').replace(':', " ")
        )
    })
}

/// Some changes of a case. They are other ones for each number of a case.
fn some(case: &Case, nth: usize, each: usize) -> Vec<(String, Case)> {
    let mut locations = Vec::new();
    find(&case.facts, String::new(), &mut locations);
    // A step that visits all places, and all kinds of changes, before it comes back.
    let step = 7919 + 2 * nth;
    let changes = (0..each).filter_map(|number| {
        let at = (number + 1) * step;
        change(case, &locations[at % locations.len()], at / locations.len())
    });
    changes.collect()
}

/// The case with one of its values changed, or removed.
fn change(case: &Case, location: &str, which: usize) -> Option<(String, Case)> {
    let mut changed = case.clone();
    let others = others(case.facts.pointer(location)?);
    let Some(other) = others.get(which % (others.len() + 1)) else {
        let is_removed = remove(&mut changed.facts, location);
        return is_removed.then(|| (format!("no {location}"), changed));
    };
    *changed.facts.pointer_mut(location)? = other.clone();
    Some((format!("{location} = {other}"), changed))
}

/// Collects the JSON pointers of all values but the notes.
fn find(value: &Value, location: String, locations: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields
                .iter()
                .filter(|(name, _)| *name != "note" && *name != "name")
            {
                let name = name.replace('~', "~0").replace('/', "~1");
                find(value, format!("{location}/{name}"), locations);
            }
        }
        Value::Array(items) => {
            for (at, value) in items.iter().enumerate() {
                find(value, format!("{location}/{at}"), locations);
            }
        }
        _ => {}
    }
    if !location.is_empty() {
        locations.push(location);
    }
}

/// Values of other types, of other lengths, and beyond the bounds.
fn others(value: &Value) -> Vec<Value> {
    let mut others = vec![
        json!(null),
        json!(true),
        json!(-1),
        json!("other"),
        json!([]),
        json!({}),
    ];
    match value {
        Value::Number(_) => {
            let number = value.as_i64().unwrap_or(1);
            let numbers = [0, 1, number + 1, number - 1, 10 * number, 1 << 31, i64::MAX];
            others.extend(numbers.map(|number| json!(number)));
            others.push(json!(0.5));
        }
        Value::Array(items) => {
            let twice = items.iter().chain(items).cloned().collect();
            let shorter = items.iter().take(items.len().saturating_sub(1)).cloned();
            others.extend([
                twice,
                shorter.collect(),
                json!([value]),
                json!([1]),
                json!([[]]),
            ]);
            others.push(items.iter().rev().cloned().collect());
        }
        Value::Object(_) => others.push(json!({"other": 1})),
        Value::String(text) => {
            others.extend([json!(""), json!(format!("{text}x")), json!("é\u{0}")])
        }
        Value::Null | Value::Bool(_) => others.push(json!(false)),
    }
    others
}

/// Removes a value from its list or object.
fn remove(facts: &mut Value, location: &str) -> bool {
    let Some((above, last)) = location.rsplit_once('/') else {
        return false;
    };
    let last = last.replace("~1", "/").replace("~0", "~");
    match facts.pointer_mut(above) {
        Some(Value::Object(fields)) => fields.remove(&last).is_some(),
        Some(Value::Array(items)) => {
            let at = last.parse().ok().filter(|at: &usize| *at < items.len());
            at.map(|at| items.remove(at)).is_some()
        }
        _ => false,
    }
}
