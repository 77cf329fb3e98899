//! The prompts of live sequences, in lexicographic order.
//!
//! Of all prompts, the one that shares the longest beginning with a given one stands
//! next to where that one would stand. So finding it takes a logarithm of
//! comparisons, however many sequences are live.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::salt::Salt;
use super::trie::common_prefix;
use crate::{SequenceId, TokenId};

/// Who computes what just now.
#[derive(Debug, Default)]
pub(super) struct LivePrompts {
    by_salt: BTreeMap<Salt, BTreeSet<Prompt>>,
}

/// In order of the tokens, and of arrival where these are equal.
type Prompt = (Arc<[TokenId]>, SequenceId);

impl LivePrompts {
    pub(super) fn insert(&mut self, salt: &Salt, tokens: &Arc<[TokenId]>, sequence: SequenceId) {
        let prompt = (Arc::clone(tokens), sequence);
        match self.by_salt.get_mut(salt) {
            Some(prompts) => prompts.insert(prompt),
            None => {
                let prompts = BTreeSet::from([prompt]);
                self.by_salt.insert(salt.clone(), prompts).is_none()
            }
        };
    }

    pub(super) fn remove(&mut self, salt: &Salt, tokens: &Arc<[TokenId]>, sequence: SequenceId) {
        let prompts = self.by_salt.get_mut(salt).expect("a live prompt is listed");
        let listed = prompts.remove(&(Arc::clone(tokens), sequence));
        assert!(listed, "a live prompt is listed");
        if prompts.is_empty() {
            self.by_salt.remove(salt);
        }
    }

    /// The live sequence that shares the longest beginning with `tokens`, and how
    /// many tokens that is. Of the two that stand next to it, the older where they
    /// share alike.
    pub(super) fn nearest(
        &self,
        salt: &Salt,
        tokens: &Arc<[TokenId]>,
    ) -> Option<(SequenceId, usize)> {
        let prompts = self.by_salt.get(salt)?;
        let place = (Arc::clone(tokens), SequenceId(0));
        let before = prompts.range(..&place).next_back();
        let after = prompts.range(&place..).next();
        before
            .into_iter()
            .chain(after)
            .map(|(prompt, sequence)| (*sequence, common_prefix(prompt, tokens)))
            .max_by_key(|(sequence, shared)| (*shared, std::cmp::Reverse(*sequence)))
    }

    pub(super) fn len(&self) -> usize {
        self.by_salt.values().map(BTreeSet::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn nobody_shares_more_than_the_nearest(
            prompts in prop::collection::vec(prop::collection::vec(0u32..3, 1..8), 0..20),
            query in prop::collection::vec(0u32..3, 1..8),
        ) {
            let salt = Salt::default();
            let mut live = LivePrompts::default();
            for (i, prompt) in prompts.iter().enumerate() {
                live.insert(&salt, &prompt.as_slice().into(), SequenceId(i as u64 + 1));
            }
            let best = prompts.iter().map(|prompt| common_prefix(prompt, &query)).max();
            let nearest = live.nearest(&salt, &query.as_slice().into());
            prop_assert_eq!(nearest.map(|(_, shared)| shared), best);
            prop_assert_eq!(live.nearest(&Salt::new("other"), &query.as_slice().into()), None);
        }
    }
}
