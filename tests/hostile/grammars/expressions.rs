//! Regular expressions.

use super::{HostileGrammar, joined};

pub(super) fn expressions() -> Vec<HostileGrammar> {
    let regex = |name, source| HostileGrammar {
        name,
        kind: "regex",
        source,
    };
    vec![
        regex(
            "alternation_of_thousands",
            joined(800, "|", |n| format!("{n:x}")),
        ),
        regex(
            "alternation_of_letters",
            joined(2000, "|", |n| char::from(b'a' + (n % 26) as u8).into()),
        ),
        regex(
            "alternation_of_stars",
            joined(300, "|", |n| format!("a{n}b*.*c{n}")),
        ),
        regex("repeat_huge", "a{1000000}".into()),
        regex(
            "repeats_nested",
            "((((a{1,50}){1,50}){1,50}){1,50}){1,50}".into(),
        ),
        regex(
            "repeats_nested_exact",
            "(((((ab?){9}){9}){9}){9}){9}".into(),
        ),
        regex(
            "repeats_of_classes",
            "[a-z]{0,1000}[0-9]{0,1000}[a-z]{0,1000}".into(),
        ),
        regex(
            "repeats_of_unicode",
            r"(\p{L}{1,100}\p{N}{1,100}){1,100}".into(),
        ),
        regex(
            "stars_nested",
            format!("{}a{}", "(".repeat(200), ")*".repeat(200)),
        ),
        regex(
            "groups_deep",
            format!("{}a{}", "(".repeat(2000), ")".repeat(2000)),
        ),
        regex(
            "optionals",
            format!("{}{}", "a?".repeat(700), "a".repeat(700)),
        ),
        regex("states_exponential", "(a|b)*a(a|b){24}".into()),
        regex("states_of_a_search", ".*a.{20}b.{20}c".into()),
        regex("searches", ".*a.*b.*c.*d.*e.*f.*g.*h.*i.*j.*k.*l".into()),
        regex(
            "unicode_classes",
            r"[^\p{Han}\p{Cyrillic}]+|[\p{L}--\p{Lu}]*|\P{Greek}{3,9}".into(),
        ),
        regex("unicode_classes_many", r"[\p{L}&&\P{Lu}]+".repeat(200)),
        regex("case_folded", format!("(?i){}", "straßeķ".repeat(300))),
        regex("groups_only", "()".repeat(2000)),
    ]
}
