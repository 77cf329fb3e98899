//! Common prefixes.
//!
//! Motet caches token ids and nothing else. An embedder keys whatever else stands in a
//! prompt, an embedding or a picture, by an id of its own, equal where the thing is
//! equal; so does this.

use motet::TokenId;
use motet::cache::trie::common_prefix;
use serde_json::Value;

use crate::Known;
use crate::cases::Fact;
use crate::check::Check;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "input_cache.common_prefix.llamarunner",
        cases: &[
            ("Equal", shared),
            ("Prefix", shared),
            ("Embeddings Prefix Partial", shared),
            ("Mixed", shared),
            ("Both Empty", shared),
        ],
    },
    Known {
        suite: "input_cache.common_prefix.ollamarunner",
        cases: &[
            ("Equal", shared),
            ("Prefix", shared),
            ("Mixed", shared),
            ("Mixed, Same Length", shared),
            ("Both Empty", shared),
        ],
    },
];

/// Ids beyond any model's vocabulary.
const THINGS: TokenId = 1 << 30;

fn shared(check: &mut Check, case: &Fact<'_>) {
    let mut things = Vec::new();
    let [a, b] = ["a", "b"].map(|list| keys(&case.get(list), &mut things));
    let shared = common_prefix(&a, &b);
    check.same("common prefix", shared, case.get("expect").number());
}

fn keys<'a>(list: &Fact<'a>, things: &mut Vec<&'a Value>) -> Vec<TokenId> {
    let mut key = |item: &Fact<'a>| match item.maybe("t") {
        Some(token) => token.number() as TokenId,
        None => {
            let thing = item.value();
            let known = things.iter().position(|known| *known == thing);
            let at = known.unwrap_or_else(|| {
                things.push(thing);
                things.len() - 1
            });
            THINGS + at as TokenId
        }
    };
    list.items().iter().map(&mut key).collect()
}
