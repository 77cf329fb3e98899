//! The trie: finding, splitting, appending.
//!
//! The tokens up to its end name a node, in ollama's trie as in Motet's. If two of ollama's
//! siblings have a common prefix, Motet's trie has it once.

use std::collections::BTreeMap;

use motet::TokenId;
use motet::cache::{PrefixKey, Salt};
use motet_core::cache::trie::{NodeKey, Sealed, Trie};
use motet_core::eviction::Lru;
use motet_protocol::SegmentId;

use crate::cases::Fact;
use crate::check::Check;
use crate::suites::{Known, holds};

pub(crate) const SUITES: &[Known] = &[
    Known {
        suite: "trie.find_best_match",
        own_cases: 3,
        beside: &[],
        shapes: &[(&["tree", "queries"], find)],
    },
    Known {
        suite: "trie.split_append",
        own_cases: 2,
        beside: &[],
        shapes: &[(&["tree", "steps"], split_append)],
    },
];

/// A trie whose nodes have the names of a case.
pub(crate) struct Named {
    pub(crate) trie: Trie,
    pub(crate) root: NodeKey,
    keys: BTreeMap<String, NodeKey>,
    segments: u64,
}

impl Named {
    pub(crate) fn new() -> Self {
        let mut trie = Trie::new(Box::new(Lru));
        let root = trie.root_or_new(&Salt::default());
        Self {
            trie,
            root,
            keys: BTreeMap::from([("root".to_owned(), root)]),
            segments: 0,
        }
    }

    pub(crate) fn of(tree: &Fact<'_>) -> Self {
        let mut named = Self::new();
        assert_eq!(tree.get("id").text(), "root");
        assert!(
            tree.get("tokens").items().is_empty(),
            "a root has no tokens"
        );
        named.add_children(tree, &[]);
        named.trie.check_integrity();
        named
    }

    fn add_children(&mut self, node: &Fact<'_>, above: &[TokenId]) {
        for child in node.get("children").items() {
            let spelt = [above, &child.get("tokens").tokens()].concat();
            let key = self.insert(&spelt);
            if let Some(range) = child.maybe("snapshot") {
                assert_eq!(range.numbers(), [above.len(), spelt.len()], "its own range");
            }
            self.keys.insert(child.get("id").text().to_owned(), key);
            self.add_children(&child, &spelt);
        }
    }

    /// Caches these tokens, one per byte, and returns the node that ends with them.
    pub(crate) fn insert(&mut self, spelt: &[TokenId]) -> NodeKey {
        let found = self.trie.find(self.root, &PrefixKey::default(), spelt);
        let mut at = found.path.last().copied().unwrap_or(self.root);
        if let Some((node, tokens)) = found.partial {
            at = self.split(node, tokens);
        }
        let rest = &spelt[found.tokens_with_partial()..];
        match rest {
            [] => at,
            _ => {
                let sealed = self.sealed(rest.len());
                self.trie
                    .insert(at, &PrefixKey::default(), rest, sealed, 0, 0)
            }
        }
    }

    pub(crate) fn split(&mut self, node: NodeKey, at: usize) -> NodeKey {
        let (upper, lower) = self.trie.node(node).segment_size().cut(at);
        let [upper, lower] = [upper, lower].map(|part| self.sealed(part.tokens));
        self.trie
            .split(node, at, upper, lower)
            .expect("it has no lease")
    }

    pub(crate) fn sealed(&mut self, bytes: usize) -> Sealed {
        self.segments += 1;
        Sealed {
            segment: SegmentId(self.segments),
            state_lag: 0,
            bytes,
        }
    }

    pub(crate) fn key(&self, name: &Fact<'_>) -> NodeKey {
        let name = name.text();
        let key = self.keys.get(name).copied();
        key.unwrap_or_else(|| panic!("no node `{name}`"))
    }

    /// All named nodes.
    pub(crate) fn keys(&self) -> Vec<NodeKey> {
        self.keys.values().copied().collect()
    }

    /// The tokens up to a node's end.
    fn spelt(&self, key: NodeKey) -> Vec<TokenId> {
        let path = self.trie.path(key).into_iter();
        path.flat_map(|node| self.trie.node(node).edge().to_vec())
            .collect()
    }

    pub(crate) fn children(&self, key: NodeKey) -> Vec<NodeKey> {
        let mut children: Vec<NodeKey> = self.trie.node(key).children().collect();
        children.sort_by_key(|child| self.trie.node(*child).edge().to_vec());
        children
    }

    /// The range that a node's segment holds.
    pub(crate) fn range(&self, key: NodeKey) -> Vec<usize> {
        let node = self.trie.node(key);
        vec![node.end() - node.edge().len(), node.end()]
    }
}

fn find(check: &mut Check, case: &Fact<'_>) {
    let named = Named::of(&case.get("tree"));
    let known = named.keys();
    for query in case.get("queries").items() {
        let found = named.trie.find(
            named.root,
            &PrefixKey::default(),
            &query.get("tokens").tokens(),
        );
        let expect = query.get("expect");
        let matched = found.tokens_with_partial();
        check.same("matched", matched, expect.get("matched").number());
        // A node that holds the common prefix of several of ollama's siblings has no name.
        let partial = found.partial.map(|(node, _)| node);
        let path = [named.root].into_iter().chain(found.path).chain(partial);
        let path: Vec<NodeKey> = path.filter(|node| known.contains(node)).collect();
        if let Some(last) = expect.maybe("path_last") {
            check.same(
                "the path's last",
                path.last().copied(),
                Some(named.key(&last)),
            );
        }
        if let Some(expected) = expect.maybe("path") {
            let expected = expected.items();
            let expected: Vec<NodeKey> = expected.iter().map(|name| named.key(name)).collect();
            check.same("path", path, expected);
        }
    }
}

fn split_append(check: &mut Check, case: &Fact<'_>) {
    let mut named = Named::of(&case.get("tree"));
    let mut first_split = None;
    let mut is_sound = true;
    for step in case.get("steps").items() {
        match step.get("op").text() {
            "find" => {
                let found = named.trie.find(
                    named.root,
                    &PrefixKey::default(),
                    &step.get("tokens").tokens(),
                );
                let expected = step.get("expect_matched").number();
                check.same("matched", found.tokens_with_partial(), expected);
            }
            "split" => {
                let node = named.key(&step.get("node"));
                let upper = named.split(node, step.get("at").number());
                first_split.get_or_insert(upper);
                named.keys.insert(step.get("new").text().to_owned(), upper);
            }
            "append_child" => {
                let parent = named.key(&step.get("node"));
                let spelt = [named.spelt(parent), step.get("tokens").tokens()].concat();
                let child = named.insert(&spelt);
                if let Some(new) = step.maybe("new") {
                    named.keys.insert(new.text().to_owned(), child);
                }
            }
            other => panic!("`{other}` is not an operation"),
        }
        is_sound &= holds(|| named.trie.check_integrity());
    }
    let shared = || first_split.expect("something was split");
    for (field, expected) in case.get("expect").fields() {
        match field {
            "finds" => {
                for query in expected.items() {
                    let [tokens, matched] = &query.items()[..] else {
                        panic!("tokens and how many match");
                    };
                    let found =
                        named
                            .trie
                            .find(named.root, &PrefixKey::default(), &tokens.tokens());
                    check.same("matched", found.tokens_with_partial(), matched.number());
                }
            }
            "invariants" => check.same("invariants", is_sound, expected.flag()),
            "root_children" => {
                let children = named.children(named.root).len();
                check.same("below the root", children, expected.number());
            }
            "shared_children" => {
                let children = named.children(shared()).len();
                check.same("below the cut", children, expected.number());
            }
            "shared_tokens" => {
                let tokens = named.trie.node(shared()).edge().to_vec();
                check.same("above the cut", tokens, expected.tokens());
            }
            _ => panic!("the field `expect.{field}` is unknown"),
        }
    }
    assert!(is_sound, "the trie is sound after each step");
}
