//! The naive model: plain token lists, and the pins that hold them.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;

use motet_model::{ModelSpec, SegmentSize};
use motet_protocol::{PinId, TokenId};

/// The allowed content of the cache, as plain lists. If models resume after any token and
/// memory suffices for everything, it is also the required content.
#[derive(Debug, Default)]
pub(crate) struct Naive {
    /// Published token lists by salt. Each stands for all its prefixes.
    published: [Vec<Vec<TokenId>>; 2],
    pub(crate) pins: BTreeMap<PinId, NaivePin>,
}

#[derive(Debug)]
pub(crate) struct NaivePin {
    pub(crate) salt: usize,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) expires_at: Option<Duration>,
    /// Whether its prefix was lost with the device and is not back.
    pub(crate) lost: bool,
}

impl Naive {
    pub(crate) fn publish(&mut self, salt: usize, list: &[TokenId]) {
        if list.is_empty() || self.may_be_cached(salt, list) {
            return;
        }
        let published = &mut self.published[salt];
        published.retain(|older| !list.starts_with(older));
        published.push(list.to_vec());
    }

    pub(crate) fn may_be_cached(&self, salt: usize, prefix: &[TokenId]) -> bool {
        let published = &self.published[salt];
        prefix.is_empty() || published.iter().any(|list| list.starts_with(prefix))
    }

    /// Length of the longest prefix of `tokens` that was published.
    pub(crate) fn cached_tokens(&self, salt: usize, tokens: &[TokenId]) -> usize {
        let shared = |list: &Vec<TokenId>| common_prefix(list, tokens);
        self.published[salt].iter().map(shared).max().unwrap_or(0)
    }

    /// Number of distinct prefixes of all published lists.
    pub(crate) fn tokens(&self) -> usize {
        let of_salt = |lists: &Vec<Vec<TokenId>>| {
            let mut sorted = lists.clone();
            sorted.sort();
            let mut before: &[TokenId] = &[];
            let mut tokens = 0;
            for list in &sorted {
                tokens += list.len() - common_prefix(before, list);
                before = list;
            }
            tokens
        };
        self.published.iter().map(of_salt).sum()
    }

    /// Removes everything of a salt except `held` and pinned prefixes.
    pub(crate) fn clear(&mut self, salt: usize, held: &[Vec<TokenId>]) {
        self.published[salt].clear();
        for list in held {
            self.publish(salt, list);
        }
        let pinned: Vec<_> = self.held_pins(salt).cloned().collect();
        for list in pinned {
            self.publish(salt, &list);
        }
    }

    /// The device has lost everything.
    pub(crate) fn reset(&mut self) {
        self.published = Default::default();
        for pin in self.pins.values_mut() {
            pin.lost = true;
        }
    }

    pub(crate) fn expire(&mut self, now: Duration) {
        self.pins
            .retain(|_, pin| pin.expires_at.is_none_or(|at| at > now));
    }

    /// The prefixes that pins hold under a salt.
    pub(crate) fn held_pins(&self, salt: usize) -> impl Iterator<Item = &Vec<TokenId>> {
        let held = move |pin: &&NaivePin| pin.salt == salt && !pin.lost;
        self.pins.values().filter(held).map(|pin| &pin.tokens)
    }

    /// Least bytes of a prefix.
    pub(crate) fn pinned_bytes(&self, spec: &ModelSpec, tokens: usize) -> usize {
        spec.segment_bytes(SegmentSize::whole(tokens))
    }

    /// Bytes of all pins together with another one, for a model with full attention only;
    /// `None` if the pinned prefixes are not known.
    pub(crate) fn all_pinned_bytes(
        &self,
        spec: &ModelSpec,
        salt: usize,
        list: &[TokenId],
    ) -> Option<usize> {
        if !spec.resumes_anywhere() || self.pins.values().any(|pin| pin.lost) {
            return None;
        }
        let pins = self.pins.values().map(|pin| (pin.salt, &pin.tokens[..]));
        let prefixes: BTreeSet<(usize, &[TokenId])> = pins
            .chain([(salt, list)])
            .flat_map(|(salt, list)| (1..=list.len()).map(move |end| (salt, &list[..end])))
            .collect();
        Some(prefixes.len() * spec.segment_bytes(SegmentSize::whole(1)))
    }

    /// A list to pin a prefix of.
    pub(crate) fn any_list(&self, choice: usize) -> Option<(usize, &Vec<TokenId>)> {
        let lists = |salt: usize| self.published[salt].iter().map(move |list| (salt, list));
        let all: Vec<_> = lists(0).chain(lists(1)).collect();
        all.get(choice.checked_rem(all.len())?).copied()
    }
}

fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
