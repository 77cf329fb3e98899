//! Checks of the suites as a whole: our own file is complete, names make no difference, and
//! unknown fields are named in the error.

use serde_json::json;

use crate::cases::{self, Suite};
use crate::check::{Difference, Outcome};
use crate::differences::{DIFFERENCES, UNSUPPORTED};
use crate::suites::{self, difference, known, ours, run, run_case};
use crate::{KNOWN, OWN};

#[test]
fn every_case_of_every_suite() {
    let report = run(&suites::all());
    report.print();
    let complaints = report.complaints.join("\n");
    assert!(report.complaints.is_empty(), "\n{complaints}");
}

#[test]
fn own_file_is_complete() {
    let own = cases::read(OWN.as_ref());
    for known in KNOWN.iter().copied().flatten() {
        let cases = own.iter().filter(|suite| suite.name == known.suite);
        let cases: usize = cases.map(|suite| suite.cases.len()).sum();
        assert_eq!(cases, known.own_cases, "{}", known.suite);
    }
    for Difference { suite, case, .. } in DIFFERENCES {
        let same = |other: &&Difference| other.suite == *suite && other.case == *case;
        let times = DIFFERENCES.iter().filter(same).count();
        assert_eq!(times, 1, "{suite}, {case}: listed once");
        let mut suites = own.iter().filter(|other| other.name == *suite);
        let there = suites.any(|suite| suite.cases.iter().any(|other| other.name == *case));
        assert!(there, "{suite}, {case}: no such case");
    }
}

#[test]
fn every_suite_has_other_cases() {
    let others = cases::read(crate::OTHERS.as_ref());
    let missing = KNOWN.iter().copied().flatten().filter(|known| {
        let mut suites = others.iter();
        !suites.any(|suite| suite.name == known.suite && !suite.cases.is_empty())
    });
    let missing: Vec<&str> = missing.map(|known| known.suite).collect();
    assert_eq!(missing, crate::WITHOUT_OTHERS);
}

/// A case's name decides only whether a difference is listed.
#[test]
fn cases_do_not_depend_on_their_names() {
    let mut suites = ours();
    for suite in &mut suites {
        for (at, case) in suite.cases.iter_mut().enumerate() {
            if difference(&suite.name, &case.name).is_none() {
                case.name = format!("another {at}");
                case.facts["name"] = json!(case.name);
            }
        }
    }
    let complaints = run(&suites).complaints;
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn unlisted_difference_is_an_error() {
    let suites = ours();
    for Difference { suite, case, .. } in DIFFERENCES {
        let mut found = suites.iter().filter(|other| other.name == *suite);
        let found = found.find_map(|suite| {
            let case = suite.cases.iter().find(|other| other.name == *case);
            case.map(|case| (suite, case.clone()))
        });
        let (suite, mut case) = found.expect("it is in our own file");
        case.name = "another".to_owned();
        let why = run_case(suite, &case).expect_err("it is not listed");
        assert!(why.contains("is not listed as a difference"), "{why}");
    }
}

#[test]
fn unsupported_cases_follow_from_their_fields() {
    let suites = ours();
    let mut fields: Vec<&str> = Vec::new();
    for suite in &suites {
        for case in &suite.cases {
            let text = case.facts.to_string();
            let of_suite = UNSUPPORTED
                .iter()
                .filter(|listed| listed.suite == suite.name);
            let has = |field: &str| text.contains(&format!("\"{field}\":"));
            let found = of_suite.map(|listed| listed.field).find(|field| has(field));
            let unsupported = run_case(suite, case) == Ok(Outcome::Unsupported);
            assert_eq!(
                found.is_some(),
                unsupported,
                "{}, {}",
                suite.name,
                case.name
            );
            fields.extend(found);
        }
    }
    let all_used = UNSUPPORTED
        .iter()
        .all(|listed| fields.contains(&listed.field));
    assert!(all_used, "each field listed as unsupported occurs");
}

#[test]
fn unknown_names_are_errors() {
    let own = cases::read(OWN.as_ref());
    let complaints = |change: &dyn Fn(&mut Suite)| {
        let mut suite = own[0].clone();
        suite.cases.truncate(1);
        change(&mut suite);
        run(&[suite]).complaints.join("\n")
    };
    let (suite, case) = (&own[0].name, &own[0].cases[0].name);
    assert_eq!(complaints(&|_| {}), "");
    let unknown = complaints(&|suite| suite.name = "new".into());
    assert_eq!(unknown, "new: the suite is unknown");
    let location = format!("{suite}, {case}: ");
    let field = complaints(&|suite| suite.cases[0].facts["new"] = json!(1));
    assert!(field.starts_with(&location), "{field}");
    assert!(field.ends_with("the field `new` is unknown"), "{field}");
    let shape = complaints(&|suite| suite.cases[0].facts = json!({"new": 1}));
    assert!(shape.starts_with(&location), "{shape}");
    assert!(
        shape.contains(r#"its fields ["new"] match no known shape"#),
        "{shape}"
    );
    assert!(known("new").is_none());
}
