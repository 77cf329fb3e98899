//! The trie: cutting, merging and removing nodes, and counting their bytes.

use std::rc::Rc;

use motet::TokenId;
use motet::cache::trie::NodeKey;
use motet::model::oracle::OracleConfig;
use motet::model::{Extent, LayerKind, Model, Segment};

use crate::Known;
use crate::cases::Fact;
use crate::check::Check;
use crate::pieces::{NEXT, goes_on, oracle, sealed};
use crate::tries::Named;

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "trie.split_merge_snapshots",
        cases: &[
            ("SplitNodeWithSnapshots", split),
            ("Merge Basic", merge),
            ("Merge LastUsed", merge_last_used),
            ("Merge PanicOnMultipleChildren", merge_two_children),
            ("Remove Leaf", remove_leaf),
            ("Remove PanicOnRoot", remove_root),
            ("Merge with stateless layers", merge_layers),
        ],
    },
    Known {
        suite: "trie.byte_accounting",
        cases: &[
            ("UpdatesOnMaterialize", bytes_of_one),
            ("SwapDetachesHook", bytes_of_a_swap),
            ("HasAll: stateful all", has_all),
            ("HasAll: one missing", has_all),
        ],
    },
];

fn split(check: &mut Check, case: &Fact<'_>) {
    let given = case.get("node");
    let mut named = Named::new();
    let node = named.insert(&given.get("tokens").tokens());
    assert_eq!(named.range(node), given.get("snapshot").numbers());
    if given.get("user").flag() {
        named.trie.keep_restorable(node);
    }
    let at = case.get("split_at").number();
    let above = named.split(node, at);
    let end = given.get("tokens").items().len();
    let ranges = [vec![0, at], vec![at, end]];
    let expect = case.get("expect");
    for (name, key, range) in [("parent", above, &ranges[0]), ("child", node, &ranges[1])] {
        let field = |what: &str| expect.get(&format!("{name}_{what}")).flag();
        check.same("state", named.range(key) == *range, field("has_snapshot"));
        let kept = named.trie.node(key).restore_point();
        check.same("a caller's", kept, field("user"));
    }
}

fn merge(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::of(&case.get("tree"));
    let upper = named.key(&case.get("merge"));
    let lower = named.trie.merges(upper).expect("the two can be one");
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
    // One of the two names is gone. Motet keeps the lower, which goes on to mean the
    // same tokens; ollama keeps the upper.
    let lower_gone = !named.trie.contains(lower);
    check.instead(
        "the lower is gone",
        lower_gone,
        false,
        expect.get("child_detached").flag(),
    );
    assert!(!named.trie.contains(upper), "the upper is gone instead");
}

fn merge_last_used(check: &mut Check, case: &Fact<'_>) {
    let fields = ["parent_last_used", "child_last_used"].map(|field| case.get(field).integer());
    // To use a child is to use its parent too, so that either is the later only when it
    // is the parent that was used alone.
    for parent_later in [fields[0] > fields[1], true] {
        let mut named = Named::new();
        let (upper, lower) = (named.insert(&[1]), named.insert(&[1, 2]));
        let later = if parent_later { upper } else { lower };
        named.trie.use_path(later, 0);
        let last = named.trie.node(later).last_use();
        let sealed = named.sealed(2);
        named.trie.merge(upper, sealed);
        let merged = named.trie.node(lower).last_use();
        assert_eq!(merged, last, "used when either was used last");
    }
    let expected = case.get("expect").get("merged_last_used").integer();
    check.same("last use", fields[0].max(fields[1]), expected);
}

fn merge_two_children(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::new();
    let upper = named.insert(&[1]);
    for child in 0..case.get("children").number() {
        named.insert(&[1, 2 + child as TokenId]);
    }
    assert_eq!(named.trie.merges(upper), None, "it cannot be merged");
    check.prose(&case.get("expect"), "error");
}

fn remove_leaf(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::of(&case.get("tree"));
    let leaf = named.key(&case.get("remove"));
    let segment = named.trie.node(leaf).word().segment();
    let (bytes, leaf_bytes) = (named.trie.bytes(), named.trie.node(leaf).bytes());
    let shared = named.trie.node(leaf).parent();
    // What is removed is what was used least recently.
    for other in named.children(shared) {
        if other != leaf {
            named.trie.use_path(other, 0);
        }
    }
    let gone = named.trie.evict().expect("a leaf may go");
    assert_eq!(gone.segment, segment, "the leaf was evicted");
    let expect = case.get("expect");
    let expected = expect.get("shared_children").items();
    let expected: Vec<NodeKey> = expected.iter().map(|name| named.key(name)).collect();
    check.same("what is left", named.children(shared), expected);
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
            other => panic!("`{other}` is no kind of layer"),
        })
    };
    layers.items().iter().map(kind).collect()
}

/// Two segments in a row, of a model that has no state for its middle layer.
fn merge_layers(check: &mut Check, case: &Fact<'_>) {
    let kinds = kinds(&case.get("layers"));
    let stateful: Vec<LayerKind> = kinds.iter().copied().flatten().collect();
    let config = OracleConfig::with_layers(&stateful);
    let mut oracle = oracle(&config);
    let [parent, child] = ["parent", "child"].map(|part| case.get(part).get("tokens").tokens());
    let all = [&parent[..], &child].concat();
    let upper = sealed(&mut oracle, &parent, 0..parent.len());
    let lower = sealed(&mut oracle, &all, parent.len()..all.len());
    let merged = Rc::new(
        oracle
            .merge(&upper, &lower)
            .expect("they follow each other"),
    );
    let expect = case.get("expect");
    check.same("tokens", merged.tokens(), expect.get("tokens_len").number());
    check.same("end", merged.tokens(), expect.get("end").number());
    assert!(
        expect.get("layer1").is_null() && kinds[1].is_none(),
        "it has no state"
    );
    // All the others have theirs: what follows is what it is without a cache.
    let present = goes_on(&mut oracle, &config, &[merged], &all, &[NEXT]);
    check.same(
        "all state",
        present,
        expect.get("layers_0_and_2_present").flag(),
    );
}

/// Motet seals compact copies: a segment's bytes are counted when it is made.
fn bytes_of_one(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::new();
    let bytes = case.get("materialize").number();
    let sealed = named.sealed(bytes);
    named.trie.insert(named.root, &[1], sealed, 0, 0);
    let expected = case.get("expect_counter").numbers();
    let at_first = case.get("install_bytes").number();
    check.instead("at first", named.trie.bytes(), bytes, at_first);
    check.same("counted", vec![at_first, named.trie.bytes()], expected);
}

fn bytes_of_a_swap(check: &mut Check, case: &Fact<'_>) {
    let words = [
        "install A(0)",
        "swap in B(0)",
        "materialize A +1MiB",
        "materialize B +2MiB",
    ];
    assert_eq!(case.get("steps").texts(), words, "the steps are others");
    let mut named = Named::new();
    let first = named.sealed(1 << 20);
    let node = named.trie.insert(named.root, &[1], first, 0, 0);
    let mut counted = vec![named.trie.bytes()];
    let second = named.sealed(2 << 20);
    assert_eq!(named.trie.replace(node, second), Some(first.segment));
    counted.push(named.trie.bytes());
    let mut expected = case.get("expect_counter").numbers();
    let at_last = expected.pop();
    check.same("at last", counted.last().copied(), at_last);
    check.same("before", vec![0; 3], expected.clone());
    check.instead("before", counted, vec![1 << 20, 2 << 20], expected);
    named.trie.check_integrity();
}

/// A node has all state that its model needs where a sequence can resume at its end.
fn has_all(check: &mut Check, case: &Fact<'_>) {
    let kinds = kinds(&case.get("layers"));
    let held: Vec<bool> = case
        .get("snapshots")
        .items()
        .iter()
        .map(Fact::flag)
        .collect();
    let missing = |(kind, held): (&Option<LayerKind>, &bool)| match kind {
        None | Some(LayerKind::Window { .. }) => false,
        Some(LayerKind::Full) => {
            assert!(held, "every segment has the state of full attention");
            false
        }
        Some(LayerKind::Recurrent) => !held,
    };
    // Recurrent state is missing where a segment was cut.
    let cut = kinds.iter().zip(&held).any(missing);
    let stateful: Vec<LayerKind> = kinds.iter().copied().flatten().collect();
    let oracle = oracle(&OracleConfig::with_layers(&stateful));
    let segment = Extent {
        tokens: 3,
        beyond: usize::from(cut),
    };
    let resumes = oracle.spec().can_resume(&[segment]);
    check.same("all state", resumes, case.get("expect").flag());
}
