//! A naive model of the cache: plain token lists, and the pins that hold them.
//!
//! It has no nodes, no slots and no memory, so that nothing is evicted from it. A cache with
//! memory for everything holds what the model holds, and any other cache holds no more. Salts
//! are numbers here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use motet_core::cache::{NodeView, TreeView};
use motet_protocol::{LayerKind, ModelSpec, PinId, SegmentSize, TokenId, common_prefix};

/// The content of a cache that never evicts.
#[derive(Debug)]
pub struct NaiveCache {
    spec: ModelSpec,
    lists: BTreeMap<usize, Lists>,
    /// The pins by name.
    pub pins: BTreeMap<PinId, NaivePin>,
}

/// The token lists of one key.
#[derive(Debug, Default)]
struct Lists {
    /// Published lists. Each stands for all its prefixes, and none is a prefix of another.
    longest: Vec<Vec<TokenId>>,
    /// Everything that was published: state was sealed at the end of each list.
    sealed: BTreeSet<Vec<TokenId>>,
}

/// A pinned prefix.
#[derive(Debug)]
pub struct NaivePin {
    /// The key's number.
    pub key: usize,
    /// The prefix.
    pub tokens: Vec<TokenId>,
    /// When it expires.
    pub expires_at: Option<Duration>,
    /// Whether its prefix was lost with the device and is not back.
    pub lost: bool,
}

impl NaiveCache {
    /// The empty cache of such a model.
    #[must_use]
    pub fn new(spec: &ModelSpec) -> Self {
        Self {
            spec: spec.clone(),
            lists: BTreeMap::new(),
            pins: BTreeMap::new(),
        }
    }

    /// The numbers of its model.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// A sequence with these tokens has sealed its state at their end.
    pub fn publish(&mut self, key: usize, list: &[TokenId]) {
        let lists = self.lists.entry(key).or_default();
        if list.is_empty() || !lists.sealed.insert(list.to_vec()) {
            return;
        }
        let longest = &mut lists.longest;
        if !longest.iter().any(|longer| longer.starts_with(list)) {
            longest.retain(|older| !list.starts_with(older));
            longest.push(list.to_vec());
        }
    }

    /// Whether all tokens of the prefix are known.
    #[must_use]
    pub fn may_be_cached(&self, key: usize, prefix: &[TokenId]) -> bool {
        let mut longest = self.longest(key);
        prefix.is_empty() || longest.any(|list| list.starts_with(prefix))
    }

    /// The length of the longest known prefix of `tokens`.
    #[must_use]
    pub fn cached_tokens(&self, key: usize, tokens: &[TokenId]) -> usize {
        let shared = self.longest(key).map(|list| common_prefix(list, tokens));
        shared.max().unwrap_or(0)
    }

    /// The largest number of these tokens that a sequence can start from.
    #[must_use]
    pub fn resumable(&self, key: usize, tokens: &[TokenId]) -> usize {
        let mut starts = (0..=self.cached_tokens(key, tokens)).rev();
        let start = starts.find(|at| self.can_start(key, &tokens[..*at]));
        start.unwrap_or(0)
    }

    /// Whether the layers' state after `past` is there. A layer with a window has its state at a
    /// sealed end, and the tokens of a window before it. A recurrent layer has its state at the
    /// sealed end only.
    fn can_start(&self, key: usize, past: &[TokenId]) -> bool {
        let sealed = || self.lists.get(&key).into_iter().flat_map(|of| &of.sealed);
        let has_row = |row: usize, window: usize| {
            sealed().any(|end| {
                let held = end.len().saturating_sub(window)..end.len();
                held.contains(&row) && end[..=row] == past[..=row]
            })
        };
        self.spec.layer_groups.iter().all(|group| match group.kind {
            LayerKind::Full => true,
            LayerKind::Window { tokens: window } => {
                let rows = past.len().saturating_sub(window)..past.len();
                rows.into_iter().all(|row| has_row(row, window))
            }
            LayerKind::Recurrent => past.is_empty() || sealed().any(|end| end == past),
        })
    }

    /// The number of distinct known prefixes: tokens that are computed once each.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let of_key = |lists: &Lists| {
            let mut before: &[TokenId] = &[];
            let mut tokens = 0;
            for list in &lists.sealed {
                tokens += list.len() - common_prefix(before, list);
                before = list;
            }
            tokens
        };
        self.lists.values().map(of_key).sum()
    }

    /// Removes everything of a key except `held` and pinned prefixes.
    pub fn clear(&mut self, key: usize, held: &[Vec<TokenId>]) {
        let pinned: Vec<_> = self.held_pins(key).cloned().collect();
        self.lists.remove(&key);
        for list in held.iter().chain(&pinned) {
            self.publish(key, list);
        }
    }

    /// The device has lost everything.
    pub fn reset(&mut self) {
        self.lists.clear();
        for pin in self.pins.values_mut() {
            pin.lost = true;
        }
    }

    /// Removes the pins that have expired.
    pub fn expire(&mut self, now: Duration) {
        self.pins
            .retain(|_, pin| pin.expires_at.is_none_or(|at| at > now));
    }

    /// The prefixes that pins hold under a key.
    pub fn held_pins(&self, key: usize) -> impl Iterator<Item = &Vec<TokenId>> {
        let held = move |pin: &&NaivePin| pin.key == key && !pin.lost;
        self.pins.values().filter(held).map(|pin| &pin.tokens)
    }

    /// Least bytes of a prefix.
    #[must_use]
    pub fn pinned_bytes(&self, tokens: usize) -> usize {
        self.spec.segment_bytes(SegmentSize::whole(tokens))
    }

    /// Bytes of all pins together with another one, for a model with full attention only;
    /// `None` if the pinned prefixes are not known.
    #[must_use]
    pub fn all_pinned_bytes(&self, key: usize, list: &[TokenId]) -> Option<usize> {
        if !self.spec.resumes_anywhere() || self.pins.values().any(|pin| pin.lost) {
            return None;
        }
        let pins = self.pins.values().map(|pin| (pin.key, &pin.tokens[..]));
        let prefixes: BTreeSet<(usize, &[TokenId])> = pins
            .chain([(key, list)])
            .flat_map(|(key, list)| (1..=list.len()).map(move |end| (key, &list[..end])))
            .collect();
        Some(prefixes.len() * self.pinned_bytes(1))
    }

    /// A list to pin a prefix of, with its key.
    #[must_use]
    pub fn any_list(&self, choice: usize) -> Option<(usize, &Vec<TokenId>)> {
        let keys = self.lists.iter();
        let all = keys.flat_map(|(key, lists)| lists.longest.iter().map(|list| (*key, list)));
        let all: Vec<_> = all.collect();
        all.get(choice.checked_rem(all.len())?).copied()
    }

    fn longest(&self, key: usize) -> impl Iterator<Item = &Vec<TokenId>> {
        self.lists.get(&key).into_iter().flat_map(|of| &of.longest)
    }
}

/// The nodes of a tree, parents before their children, each with all tokens up to its end.
///
/// # Panics
///
/// If a node does not begin where its parent ends.
#[must_use]
pub fn spelled(view: &TreeView) -> Vec<(Vec<TokenId>, &NodeView)> {
    let mut all: Vec<(Vec<TokenId>, &NodeView)> = Vec::new();
    for node in &view.nodes {
        let above = node.parent.map_or(&[][..], |parent| &all[parent].0);
        let tokens = [above, &node.tokens].concat();
        assert_eq!(node.tokens_before, above.len(), "end counts are consistent");
        all.push((tokens, node));
    }
    all
}
