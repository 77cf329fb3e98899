//! Common prefixes.
//!
//! Motet caches token ids only. A case with an embedding or a picture in a prompt shows nothing
//! about Motet.

use motet::TokenId;
use motet_protocol::common_prefix;

use crate::cases::Fact;
use crate::check::Check;
use crate::suites::Known;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "input_cache.common_prefix.llamarunner",
        own_cases: 5,
        beside: &[],
        shapes: &[(&["a", "b"], shared)],
    },
    Known {
        suite: "input_cache.common_prefix.ollamarunner",
        own_cases: 5,
        beside: &[],
        shapes: &[(&["a", "b"], shared)],
    },
];

fn shared(check: &mut Check, case: &Fact<'_>) {
    let lists = ["a", "b"].map(|list| case.get(list).items());
    for item in lists.iter().flatten() {
        let fields = item.fields();
        if let Some((field, _)) = fields.iter().find(|(field, _)| *field != "t") {
            return check.unsupported(field);
        }
    }
    let token = |item: &Fact<'_>| item.get("t").number() as TokenId;
    let [a, b] = lists.map(|list| list.iter().map(token).collect::<Vec<_>>());
    let shared = common_prefix(&a, &b);
    check.same("common prefix", shared, case.get("expect").number());
}
