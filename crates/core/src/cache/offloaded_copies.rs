//! The places of copies that are not on the device: below the shown nodes, or below each
//! other.
//!
//! The label of a copy contains a digest of the tokens before it. The digests of the shown
//! prefixes are computed from the roots down, only at offsets where copies start, and compared
//! with the labels.

use std::collections::{BTreeMap, VecDeque};

use crate::snapshot::CopyView;
use crate::snapshot::{Tier, TrieNode};
use motet_protocol::TokenId;
use motet_protocol::{KeyDigest, PrefixHasher, SaltDigest};

/// Maximum number of tokens hashed to locate copies. Copies that are not located have no
/// parent.
const HASHED_TOKENS_MAX: usize = 1 << 18;
/// Set in the ids of copies and never in the ids of nodes.
const COPY: u64 = 1 << 63;

/// Copies to be attached.
pub(super) struct OffloadedCopies<'a> {
    /// Copies without a known place, by salt and start offset.
    unlocated: BTreeMap<(SaltDigest, usize), Vec<&'a CopyView>>,
    /// Copies whose place is known.
    located: VecDeque<Located<'a>>,
    /// One entry per shown node: the hash of its tokens and all above. `None` if no copies are
    /// searched for below it.
    ends: Vec<Option<PrefixHasher>>,
    /// The salts that are searched, by index.
    salts: Vec<SaltDigest>,
    /// The index given to copies of other salts.
    no_salt: usize,
    newest: u64,
    tokens_left: usize,
}

/// A copy, its parent, and the hash of all tokens before it.
struct Located<'a> {
    copy: &'a CopyView,
    parent: Option<usize>,
    prefix: Option<PrefixHasher>,
}

/// A token range below which copies may be attached.
struct Stretch<'a> {
    salt: SaltDigest,
    begin: usize,
    tokens: &'a [TokenId],
    /// Its index among the shown nodes.
    place: usize,
}

impl<'a> OffloadedCopies<'a> {
    pub(super) fn new(copies: &[&'a CopyView], salts: Vec<SaltDigest>, no_salt: usize) -> Self {
        let mut unlocated: BTreeMap<_, Vec<&CopyView>> = BTreeMap::new();
        for copy in copies {
            let place = (copy.label.key.salt, copy.label.start);
            unlocated.entry(place).or_default().push(copy);
        }
        Self {
            unlocated,
            located: VecDeque::new(),
            ends: Vec::new(),
            salts,
            no_salt,
            newest: copies.iter().map(|one| one.last_use).max().unwrap_or(0),
            tokens_left: HASHED_TOKENS_MAX,
        }
    }

    /// Searches for copies below the next shown node. Parents come before their children.
    pub(super) fn below_node(&mut self, node: &TrieNode, key: KeyDigest, tokens: &[TokenId]) {
        let place = self.ends.len();
        let end = self.salts.get(node.salt).copied().and_then(|salt| {
            let prefix = match node.parent {
                Some(parent) => self.ends[parent].clone()?,
                None => PrefixHasher::new(key),
            };
            let stretch = Stretch {
                salt,
                begin: node.tokens_before,
                tokens,
                place,
            };
            self.below(&stretch, prefix)
        });
        self.ends.push(end);
    }

    /// Adds all copies to the shown nodes, below the nodes that they continue.
    pub(super) fn attach(mut self, nodes: &mut Vec<TrieNode>) {
        let salts: Vec<SaltDigest> = self.unlocated.keys().map(|(salt, _)| *salt).collect();
        for salt in salts {
            for copy in self.unlocated.remove(&(salt, 0)).unwrap_or_default() {
                let prefix = Some(PrefixHasher::new(KeyDigest::of(salt)));
                let parent = None;
                self.located.push_back(Located {
                    copy,
                    parent,
                    prefix,
                });
            }
        }
        loop {
            while let Some(mut located) = self.located.pop_front() {
                let label = &located.copy.label;
                let stretch = Stretch {
                    salt: label.key.salt,
                    begin: label.start,
                    tokens: &label.tokens,
                    place: nodes.len(),
                };
                nodes.push(self.view(&located));
                if let Some(parent) = located.parent {
                    nodes[parent].children += 1;
                }
                if let Some(prefix) = located.prefix.take() {
                    self.below(&stretch, prefix);
                }
            }
            // No shown node leads to these copies.
            let Some((_, copies)) = self.unlocated.pop_first() else {
                return;
            };
            self.located.extend(copies.into_iter().map(|copy| Located {
                copy,
                parent: None,
                prefix: None,
            }));
        }
    }

    /// Finds the copies that start within this range, after its first token, or at its end.
    fn below(&mut self, stretch: &Stretch<'_>, mut prefix: PrefixHasher) -> Option<PrefixHasher> {
        let (salt, begin) = (stretch.salt, stretch.begin);
        let end = begin + stretch.tokens.len();
        let starts = self.unlocated.range((salt, begin + 1)..=(salt, usize::MAX));
        let starts: Vec<usize> = starts.map(|((_, start), _)| *start).collect();
        if starts.is_empty() || stretch.tokens.len() > self.tokens_left {
            return None;
        }
        self.tokens_left -= stretch.tokens.len();
        let mut at = begin;
        for start in starts.into_iter().take_while(|start| *start <= end) {
            prefix.update(&stretch.tokens[at - begin..start - begin]);
            at = start;
            let before = prefix.digest();
            let here = self.unlocated.entry((salt, start)).or_default();
            let continues = here.extract_if(.., |copy| copy.label.before == before);
            self.located.extend(continues.map(|copy| Located {
                copy,
                parent: Some(stretch.place),
                prefix: Some(prefix.clone()),
            }));
        }
        self.unlocated.retain(|_, copies| !copies.is_empty());
        prefix.update(&stretch.tokens[at - begin..]);
        Some(prefix)
    }

    fn view(&self, located: &Located<'_>) -> TrieNode {
        let (copy, label) = (located.copy, &located.copy.label);
        let salt = self.salts.iter().position(|salt| *salt == label.key.salt);
        TrieNode {
            id: COPY | copy.copy.0,
            parent: located.parent,
            // An index that no salt on the device has.
            salt: salt.unwrap_or(self.no_salt),
            tier: if copy.in_host { Tier::Host } else { Tier::Disk },
            tokens_before: label.start,
            tokens: label.tokens.len(),
            bytes: label.bytes,
            snapshot_bytes: 0,
            restore_point: false,
            ref_count: 0,
            hits: 0,
            idle_uses: self.newest - copy.last_use,
            children: 0,
        }
    }
}
