//! Where copies hang that are not on the device: below what is shown of it, and of them.
//!
//! The label of a copy has a digest of the tokens before it. The digests of what is shown are
//! computed, from the roots down and only where copies begin, and compared with those.

use std::collections::{BTreeMap, VecDeque};

use super::salt::SaltDigest;
use crate::TokenId;
use crate::pager::{CopyView, PrefixHasher};
use crate::snapshot::{Tier, TrieNode};

/// Tokens that are hashed to find out where copies hang; the others hang nowhere.
const HASHED_TOKENS_MAX: usize = 1 << 18;
/// Set in the ids of copies, which nodes' do not have.
const COPY: u64 = 1 << 63;

/// Copies that are to be hung.
pub(super) struct Beside<'a> {
    /// Those that hang nowhere yet, by where they begin.
    sought: BTreeMap<(SaltDigest, usize), Vec<&'a CopyView>>,
    /// Those of which it is known where.
    found: VecDeque<Found<'a>>,
    /// One entry for each node that was given: the hash of its tokens and those above. None
    /// where nothing is sought below it.
    ends: Vec<Option<PrefixHasher>>,
    /// As many salts as are looked at, by their numbers.
    salts: Vec<SaltDigest>,
    /// The number of those that are not among them.
    no_salt: usize,
    newest: u64,
    tokens_left: usize,
}

/// A copy, below what it hangs, and the hash of all before it.
struct Found<'a> {
    copy: &'a CopyView,
    parent: Option<usize>,
    prefix: Option<PrefixHasher>,
}

/// Tokens below which copies may hang.
struct Stretch<'a> {
    salt: SaltDigest,
    begin: usize,
    tokens: &'a [TokenId],
    /// Its place among what is shown.
    place: usize,
}

impl<'a> Beside<'a> {
    pub(super) fn new(copies: &[&'a CopyView], salts: Vec<SaltDigest>, no_salt: usize) -> Self {
        let mut sought: BTreeMap<_, Vec<&CopyView>> = BTreeMap::new();
        for copy in copies {
            let place = (copy.label.salt, copy.label.start);
            sought.entry(place).or_default().push(copy);
        }
        Self {
            sought,
            found: VecDeque::new(),
            ends: Vec::new(),
            salts,
            no_salt,
            newest: copies.iter().map(|one| one.last_use).max().unwrap_or(0),
            tokens_left: HASHED_TOKENS_MAX,
        }
    }

    /// Looks for copies below the next node that is shown, which comes after its parent.
    pub(super) fn below_node(&mut self, node: &TrieNode, tokens: &[TokenId]) {
        let place = self.ends.len();
        let end = self.salts.get(node.salt).copied().and_then(|salt| {
            let prefix = match node.parent {
                Some(parent) => self.ends[parent].clone()?,
                None => PrefixHasher::new(salt),
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

    /// Adds all copies to what is shown, below what they continue.
    pub(super) fn hang(mut self, nodes: &mut Vec<TrieNode>) {
        let salts: Vec<SaltDigest> = self.sought.keys().map(|(salt, _)| *salt).collect();
        for salt in salts {
            for copy in self.sought.remove(&(salt, 0)).unwrap_or_default() {
                let prefix = Some(PrefixHasher::new(salt));
                let parent = None;
                self.found.push_back(Found {
                    copy,
                    parent,
                    prefix,
                });
            }
        }
        loop {
            while let Some(mut found) = self.found.pop_front() {
                let label = &found.copy.label;
                let stretch = Stretch {
                    salt: label.salt,
                    begin: label.start,
                    tokens: &label.tokens,
                    place: nodes.len(),
                };
                nodes.push(self.view(&found));
                if let Some(parent) = found.parent {
                    nodes[parent].children += 1;
                }
                if let Some(prefix) = found.prefix.take() {
                    self.below(&stretch, prefix);
                }
            }
            // Nothing that is shown leads to these.
            let Some((_, copies)) = self.sought.pop_first() else {
                return;
            };
            self.found.extend(copies.into_iter().map(|copy| Found {
                copy,
                parent: None,
                prefix: None,
            }));
        }
    }

    /// Finds the copies that begin in this stretch, after its first token, or where it ends.
    fn below(&mut self, stretch: &Stretch<'_>, mut prefix: PrefixHasher) -> Option<PrefixHasher> {
        let (salt, begin) = (stretch.salt, stretch.begin);
        let end = begin + stretch.tokens.len();
        let starts = self.sought.range((salt, begin + 1)..=(salt, usize::MAX));
        let starts: Vec<usize> = starts.map(|((_, start), _)| *start).collect();
        if starts.is_empty() || stretch.tokens.len() > self.tokens_left {
            return None;
        }
        self.tokens_left -= stretch.tokens.len();
        let mut at = begin;
        for start in starts.into_iter().take_while(|start| *start <= end) {
            prefix.take_in(&stretch.tokens[at - begin..start - begin]);
            at = start;
            let before = prefix.digest();
            let here = self.sought.entry((salt, start)).or_default();
            let continues = here.extract_if(.., |copy| copy.label.before == before);
            self.found.extend(continues.map(|copy| Found {
                copy,
                parent: Some(stretch.place),
                prefix: Some(prefix.clone()),
            }));
        }
        self.sought.retain(|_, copies| !copies.is_empty());
        prefix.take_in(&stretch.tokens[at - begin..]);
        Some(prefix)
    }

    fn view(&self, found: &Found<'_>) -> TrieNode {
        let (copy, label) = (found.copy, &found.copy.label);
        let salt = self.salts.iter().position(|salt| *salt == label.salt);
        TrieNode {
            id: COPY | copy.copy.0,
            parent: found.parent,
            // One that nothing on the device has.
            salt: salt.unwrap_or(self.no_salt),
            tier: if copy.in_host { Tier::Host } else { Tier::Disk },
            tokens_before: label.start,
            tokens: label.tokens.len(),
            bytes: label.bytes,
            holders: 0,
            hits: 0,
            idle_uses: self.newest - copy.last_use,
            children: 0,
        }
    }
}
