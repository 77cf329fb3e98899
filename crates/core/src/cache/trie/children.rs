//! The children of a node, found by the first token of their edge.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::NodeKey;
use motet_protocol::TokenId;

/// Maximum number of children in the list; more are kept in a hash map.
const FEW_MAX: usize = 8;

/// Children by first token. Most nodes have at most one child, and some have one per user.
#[derive(Clone, Debug)]
pub(super) enum Children {
    Few(SmallVec<[(TokenId, NodeKey); 1]>),
    Many(Box<FxHashMap<TokenId, NodeKey>>),
}

impl Children {
    pub(super) fn new() -> Self {
        Self::Few(SmallVec::new())
    }

    pub(super) fn of(token: TokenId, node: NodeKey) -> Self {
        Self::Few(SmallVec::from_buf([(token, node)]))
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn get(&self, token: TokenId) -> Option<NodeKey> {
        match self {
            Self::Few(few) => few.iter().find(|(first, _)| *first == token).map(|c| c.1),
            Self::Many(many) => many.get(&token).copied(),
        }
    }

    /// The child, if there is exactly one.
    pub(super) fn only(&self) -> Option<NodeKey> {
        (self.len() == 1).then(|| self.iter().next().expect("the length is 1").1)
    }

    /// Inserts a child under its first token. Returns the one that it replaces.
    pub(super) fn insert(&mut self, token: TokenId, node: NodeKey) -> Option<NodeKey> {
        match self {
            Self::Few(few) => {
                if let Some(child) = few.iter_mut().find(|(first, _)| *first == token) {
                    return Some(std::mem::replace(&mut child.1, node));
                }
                if few.len() < FEW_MAX {
                    few.push((token, node));
                } else {
                    let all = few.drain(..).chain([(token, node)]);
                    *self = Self::Many(Box::new(all.collect()));
                }
                None
            }
            Self::Many(many) => many.insert(token, node),
        }
    }

    pub(super) fn remove(&mut self, token: TokenId) -> Option<NodeKey> {
        match self {
            Self::Few(few) => {
                let at = few.iter().position(|(first, _)| *first == token)?;
                Some(few.swap_remove(at).1)
            }
            Self::Many(many) => many.remove(&token),
        }
    }

    /// All children, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (TokenId, NodeKey)> + '_ {
        let (few, many) = match self {
            Self::Few(few) => (Some(few), None),
            Self::Many(many) => (None, Some(many)),
        };
        let few = few.into_iter().flatten().copied();
        let many = many.into_iter().flat_map(|many| many.iter());
        few.chain(many.map(|(token, node)| (*token, *node)))
    }
}
