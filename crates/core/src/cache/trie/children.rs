//! The children of a node, found by the first token of their edge and the adapter that computes it.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::NodeKey;
use super::adapters::Adapter;
use motet_protocol::TokenId;

/// The beginning of a child's edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct First {
    pub(super) adapter: Adapter,
    pub(super) token: TokenId,
}

/// Maximum number of children in the list; more are kept in a hash map.
const FEW_MAX: usize = 8;

/// Children by what they begin with. Most nodes have at most one child, and some have one per user.
#[derive(Clone, Debug)]
pub(super) enum Children {
    Few(SmallVec<[(First, NodeKey); 1]>),
    Many(Box<FxHashMap<First, NodeKey>>),
}

impl Children {
    pub(super) fn new() -> Self {
        Self::Few(SmallVec::new())
    }

    pub(super) fn of(first: First, node: NodeKey) -> Self {
        Self::Few(SmallVec::from_buf([(first, node)]))
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

    pub(super) fn get(&self, first: First) -> Option<NodeKey> {
        match self {
            Self::Few(few) => few.iter().find(|(begun, _)| *begun == first).map(|c| c.1),
            Self::Many(many) => many.get(&first).copied(),
        }
    }

    /// The child, if there is exactly one.
    pub(super) fn only(&self) -> Option<NodeKey> {
        (self.len() == 1).then(|| self.iter().next().expect("the length is 1").1)
    }

    /// Inserts a child under what it begins with. Returns the one that it replaces.
    pub(super) fn insert(&mut self, first: First, node: NodeKey) -> Option<NodeKey> {
        match self {
            Self::Few(few) => {
                if let Some(child) = few.iter_mut().find(|(begun, _)| *begun == first) {
                    return Some(std::mem::replace(&mut child.1, node));
                }
                if few.len() < FEW_MAX {
                    few.push((first, node));
                } else {
                    let all = few.drain(..).chain([(first, node)]);
                    *self = Self::Many(Box::new(all.collect()));
                }
                None
            }
            Self::Many(many) => many.insert(first, node),
        }
    }

    pub(super) fn remove(&mut self, first: First) -> Option<NodeKey> {
        match self {
            Self::Few(few) => {
                let at = few.iter().position(|(begun, _)| *begun == first)?;
                Some(few.swap_remove(at).1)
            }
            Self::Many(many) => many.remove(&first),
        }
    }

    /// All children, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (First, NodeKey)> + '_ {
        let (few, many) = match self {
            Self::Few(few) => (Some(few), None),
            Self::Many(many) => (None, Some(many)),
        };
        let few = few.into_iter().flatten().copied();
        let many = many.into_iter().flat_map(|many| many.iter());
        few.chain(many.map(|(first, node)| (*first, *node)))
    }
}
