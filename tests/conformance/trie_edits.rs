//! The trie: cutting, merging and removing nodes, and counting their bytes.

use motet::cache::PrefixKey;
use std::rc::Rc;

use motet::TokenId;
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, Model, SegmentSize};
use motet_core::cache::trie::NodeKey;
use motet_model::Segment;

use crate::cases::Fact;
use crate::check::Check;
use crate::segments::{NEXT, can_continue, oracle, sealed};
use crate::suites::Known;
use crate::tries::Named;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "trie.split_merge_snapshots",
        own_cases: 7,
        beside: &[],
        shapes: &[
            (&["node", "split_at"], split),
            (&["tree", "merge"], merge),
            (&["parent_last_used", "child_last_used"], merge_last_used),
            (&["children"], merge_children),
            (&["tree", "remove"], remove_leaf),
            (&["layers", "parent", "child"], merge_layers),
            // A case without input is about the root.
            (&["expect"], remove_root),
        ],
    },
    Known {
        suite: "trie.byte_accounting",
        own_cases: 4,
        beside: &[],
        shapes: &[
            (&["install_bytes", "materialize"], bytes_of_one),
            (&["steps"], bytes_of_a_swap),
            (&["layers", "snapshots"], has_all),
        ],
    },
];

/// A node may follow others: its state then starts at their end.
fn split(check: &mut Check, case: &Fact<'_>) {
    let given = case.get("node");
    let (tokens, range) = (given.get("tokens").tokens(), given.get("snapshot").range());
    let above = vec![NEXT; range.start];
    let mut named = Named::new();
    if !above.is_empty() {
        named.insert(&above);
    }
    let node = named.insert(&[&above[..], &tokens].concat());
    assert_eq!(named.range(node), [range.start, range.end]);
    if given.get("user").flag() {
        named.trie.keep_restorable(node);
    }
    let at = case.get("split_at").within(1..=tokens.len() - 1);
    let upper = named.split(node, at);
    let cut = range.start + at;
    let ranges = [vec![range.start, cut], vec![cut, range.end]];
    let expect = case.get("expect");
    for (name, key, range) in [("parent", upper, &ranges[0]), ("child", node, &ranges[1])] {
        let field = |what: &str| expect.get(&format!("{name}_{what}")).flag();
        check.same("state", named.range(key) == *range, field("has_snapshot"));
        let retained = named.trie.node(key).restore_point();
        check.same("a caller's", retained, field("user"));
    }
}

fn merge(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::of(&case.get("tree"));
    let upper = named.key(&case.get("merge"));
    let lower = named.trie.merges(upper).expect("the two can merge");
    let bytes = named.trie.node(upper).bytes() + named.trie.node(lower).bytes();
    let sealed = named.sealed(bytes);
    named.trie.merge(upper, sealed);
    named.trie.check_integrity();
    let expect = case.get("expect");
    let node = named.trie.node(lower);
    check.same(
        "tokens",
        node.edge().to_vec(),
        expect.get("tokens").tokens(),
    );
    check.same("end", node.end(), expect.get("end").number());
    check.same(
        "state",
        named.range(lower),
        expect.get("snapshot").numbers(),
    );
    let children = named.children(lower);
    let expected = expect.get("children").items();
    let expected: Vec<NodeKey> = expected.iter().map(|name| named.key(name)).collect();
    check.same("children", children.clone(), expected);
    let below = children
        .iter()
        .all(|child| named.trie.node(*child).parent() == lower);
    check.same(
        "below it",
        below,
        expect.get("grandchildren_reparented").flag(),
    );
    // One of the two names is gone. Motet keeps the lower node, which still stands for the same
    // tokens; ollama keeps the upper.
    let lower_gone = !named.trie.contains(lower);
    check.instead(
        "the lower is gone",
        lower_gone,
        false,
        expect.get("child_detached").flag(),
    );
    assert!(!named.trie.contains(upper), "the upper is gone instead");
}

/// Uses two nodes in the order of the case's times.
fn merge_last_used(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::new();
    let (upper, lower) = (named.insert(&[1]), named.insert(&[1, 2]));
    let times = ["parent_last_used", "child_last_used"].map(|field| case.get(field).integer());
    // Using a child also uses its parent, which does not change the order.
    let mut uses = [(times[0], upper), (times[1], lower)];
    uses.sort_by_key(|(time, _)| *time);
    let used = uses.map(|(time, node)| {
        named.trie.use_path(node, 0);
        (named.trie.node(node).last_use(), time)
    });
    let sealed = named.sealed(2);
    named.trie.merge(upper, sealed);
    let merged = named.trie.node(lower).last_use();
    let time = used.iter().find(|(tick, _)| *tick == merged);
    let expected = case.get("expect").get("merged_last_used").integer();
    check.same("last use", time.map(|(_, time)| *time), Some(expected));
}

fn merge_children(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::new();
    let upper = named.insert(&[1]);
    for child in 0..case.get("children").number() {
        named.insert(&[1, 2 + child as TokenId]);
    }
    let merges = named.trie.merges(upper).map_or("error", |_| "merged");
    check.prose(&case.get("expect"), merges);
}

fn remove_leaf(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::of(&case.get("tree"));
    let leaf = named.key(&case.get("remove"));
    let segment = named.trie.node(leaf).lease_count().segment();
    let (bytes, leaf_bytes) = (named.trie.bytes(), named.trie.node(leaf).bytes());
    let shared = named.trie.node(leaf).parent();
    // The least recently used node is evicted.
    for other in named.keys() {
        if other != leaf && named.children(other).is_empty() {
            named.trie.use_path(other, 0);
        }
    }
    let gone = named.trie.evict().expect("a leaf may go");
    assert_eq!(gone.segment, segment, "the leaf was evicted");
    let expect = case.get("expect");
    let expected = expect.get("shared_children").items();
    let expected: Vec<NodeKey> = expected.iter().map(|name| named.key(name)).collect();
    check.same("the remaining tokens", named.children(shared), expected);
    let detached = !named.trie.contains(leaf);
    check.same(
        "the leaf is gone",
        detached,
        expect.get("removed_detached").flag(),
    );
    let freed = named.trie.bytes() + leaf_bytes == bytes;
    check.same(
        "its state is gone",
        freed,
        expect.get("removed_snapshots_closed").flag(),
    );
}

fn remove_root(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::new();
    assert_eq!(named.trie.evict(), None, "a root is never evicted");
    assert!(named.trie.clear(named.root).is_empty());
    assert!(named.trie.contains(named.root));
    check.prose(&case.get("expect"), "error");
}

fn kinds(layers: &Fact<'_>) -> Vec<Option<LayerKind>> {
    let kind = |layer: &Fact<'_>| {
        (!layer.is_null()).then(|| match layer.text() {
            "rewindable" | "kv" => LayerKind::Full,
            "recurrent" | "rec" => LayerKind::Recurrent,
            other => panic!("`{other}` is not a kind of layer"),
        })
    };
    layers.items().iter().map(kind).collect()
}

/// Two consecutive segments, of a model that lacks state for some of its layers.
fn merge_layers(check: &mut Check, case: &Fact<'_>) {
    let kinds = kinds(&case.get("layers"));
    let stateful: Vec<LayerKind> = kinds.iter().copied().flatten().collect();
    let config = OracleConfig::with_layers(&stateful);
    let mut oracle = oracle(&config);
    let [parent, child] = ["parent", "child"].map(|part| case.get(part).get("tokens").tokens());
    let all = [&parent[..], &child].concat();
    let parts = [
        ("parent", &parent, 0..parent.len()),
        ("child", &all, parent.len()..all.len()),
    ];
    let [upper, lower] = parts.map(|(part, computed, range)| {
        let given = case.get(part).get("snapshots").items();
        for (kind, given) in kinds.iter().zip(&given) {
            let own = kind.map(|_| vec![range.start, range.end]);
            let given = (!given.is_null()).then(|| given.numbers());
            assert_eq!(
                given, own,
                "each layer's state, if it has any, is of the range"
            );
        }
        sealed(&mut oracle, computed, range)
    });
    let merged = oracle.merge(&upper, &lower);
    let merged = Rc::new(merged.expect("they follow each other"));
    let tokens = merged.tokens();
    // All state is present: later rows are the same as without a cache.
    let present = can_continue(&mut oracle, &config, &[merged], &all, &[NEXT]);
    for (field, expected) in case.get("expect").fields() {
        match field {
            "tokens_len" => check.same("tokens", tokens, expected.number()),
            "end" => check.same("end", tokens, expected.number()),
            _ => match layers_in(field, kinds.len()) {
                Some(layers) if expected.is_null() => {
                    let without = layers.iter().all(|layer| kinds[*layer].is_none());
                    check.same("without state", without, true);
                }
                Some(layers) => {
                    let all_of_them = (0..kinds.len()).filter(|layer| kinds[*layer].is_some());
                    assert_eq!(layers, all_of_them.collect::<Vec<_>>(), "{field}");
                    check.same("all state", present, expected.flag());
                }
                None => panic!("the field `expect.{field}` is unknown"),
            },
        }
    }
}

/// The layers in a field's name: `layer1`, or `layers_0_and_2_present`.
fn layers_in(field: &str, count: usize) -> Option<Vec<usize>> {
    let parse = |layer: &str| layer.parse().ok().filter(|layer| *layer < count);
    if let Some(layer) = field.strip_prefix("layer").and_then(parse) {
        return Some(vec![layer]);
    }
    let layers = field.strip_prefix("layers_")?.strip_suffix("_present")?;
    layers.split("_and_").map(parse).collect()
}

/// Motet seals compact copies: a segment's bytes are counted when it is made.
fn bytes_of_one(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::new();
    let bytes = case.get("materialize").size();
    let sealed = named.sealed(bytes);
    named
        .trie
        .insert(named.root, &PrefixKey::default(), &[1], sealed, 0, 0);
    let expected = case.get("expect_counter").sizes();
    let at_first = case.get("install_bytes").size();
    check.theirs("counted", vec![at_first, bytes], expected.clone());
    let counted = vec![named.trie.bytes(); 2];
    check.same_or_instead("counted", counted, vec![bytes; 2], expected);
}

/// A step with a named snapshot.
enum Step<'a> {
    Install(&'a str, usize),
    SwapIn(&'a str, usize),
    Materialize(&'a str, usize),
}

impl<'a> Step<'a> {
    /// `install A(0)`, `swap in B(0)`, `materialize A +1MiB`.
    fn of(text: &'a str) -> Self {
        let known = || -> Option<Self> {
            if let Some(grown) = text.strip_prefix("materialize ") {
                let (name, size) = grown.split_once(" +")?;
                let mib: usize = size.strip_suffix("MiB")?.parse().ok()?;
                return Some(Self::Materialize(name, mib << 20));
            }
            let (act, snapshot) = text.rsplit_once(' ')?;
            let (name, size) = snapshot.strip_suffix(')')?.split_once('(')?;
            match act {
                "install" => Some(Self::Install(name, size.parse().ok()?)),
                "swap in" => Some(Self::SwapIn(name, size.parse().ok()?)),
                _ => None,
            }
        };
        known().unwrap_or_else(|| panic!("`{text}` is not a known step"))
    }
}

/// ollama counts the materialized bytes of the installed snapshot. Motet counts all bytes of a
/// segment from its creation on.
fn bytes_of_a_swap(check: &mut Check, case: &Fact<'_>) {
    let texts = case.get("steps").texts();
    let steps: Vec<Step<'_>> = texts.iter().map(|text| Step::of(text)).collect();
    let whole = |requested: &str| -> usize {
        let size = |step: &Step<'_>| match *step {
            Step::Install(name, size)
            | Step::SwapIn(name, size)
            | Step::Materialize(name, size) => usize::from(name == requested) * size,
        };
        steps.iter().map(size).sum()
    };
    let mut named = Named::new();
    let mut node = None;
    let (mut current, mut bytes_now) = ("", 0);
    let (mut counted, mut own_rule, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for step in &steps {
        match *step {
            Step::Install(name, size) | Step::SwapIn(name, size) => {
                let sealed = named.sealed(whole(name));
                let key = match (step, node) {
                    (Step::SwapIn(..), Some((key, segment))) => {
                        assert_eq!(named.trie.replace(key, sealed), Some(segment));
                        key
                    }
                    _ => named
                        .trie
                        .insert(named.root, &PrefixKey::default(), &[1], sealed, 0, 0),
                };
                node = Some((key, sealed.segment));
                (current, bytes_now) = (name, size);
            }
            Step::Materialize(name, size) if name == current => bytes_now += size,
            Step::Materialize(..) => {}
        }
        counted.push(named.trie.bytes());
        own_rule.push(whole(current));
        theirs.push(bytes_now);
        named.trie.check_integrity();
    }
    let expected = case.get("expect_counter").sizes();
    check.theirs("counted", theirs, expected.clone());
    check.same_or_instead("counted", counted, own_rule, expected);
}

/// A node has all state that its model needs if a sequence can resume at its end.
fn has_all(check: &mut Check, case: &Fact<'_>) {
    let kinds = kinds(&case.get("layers"));
    let held = case.get("snapshots").items();
    let held: Vec<bool> = held.iter().map(Fact::flag).collect();
    assert_eq!(kinds.len(), held.len(), "a flag for each layer");
    let missing: Vec<LayerKind> = kinds
        .iter()
        .zip(&held)
        .filter_map(|(kind, held)| kind.filter(|_| !held))
        .collect();
    if missing.contains(&LayerKind::Full) {
        check.lacks("segments without the state of full attention");
    }
    // Recurrent state is missing where a segment was cut.
    let cut = missing.contains(&LayerKind::Recurrent);
    let stateful: Vec<LayerKind> = kinds.iter().copied().flatten().collect();
    let oracle = oracle(&OracleConfig::with_layers(&stateful));
    let segment = SegmentSize {
        tokens: 3,
        state_lag: usize::from(cut),
    };
    let resumes = oracle.spec().can_resume(&[segment]);
    check.same("all state", resumes, case.get("expect").flag());
}
