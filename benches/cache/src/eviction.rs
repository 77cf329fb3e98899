//! Insertion and eviction at steady state, from small tries to large ones.

use motet_core::cache::{PrefixKey, Salt};
use motet_core::cache::trie::{NodeKey, Sealed, Trie};
use motet_core::config::CacheConfig;
use motet_protocol::SegmentId;

use crate::Result;
use crate::harness::Texts;
use crate::measured::{Measured, median};
use crate::protocol::Size;
use crate::rounds::{Turn, ratios, take_turns, time};

/// Tokens of a node: few, so that costs that grow with the nodes weigh most.
const EDGE_TOKENS: usize = 16;
/// Turns after which a conversation is finished.
const TURNS_MAX: usize = 8;
/// Conversations in progress at once, however many past ones are cached.
const ACTIVE_CONVERSATIONS: usize = 100;
/// Nodes for each conversation, if any past one may be continued.
const NODES_PER_CONVERSATION: usize = 4;

/// The sizes of the tries.
#[derive(Debug)]
struct Load {
    /// Nodes, ascending: the last is compared with the first.
    nodes: Vec<usize>,
    rounds: usize,
    /// Insertions, each with an eviction, in each round.
    operations: usize,
}

/// The shape of the trie.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// All nodes below one root.
    Flat,
    /// Conversations of several turns, with a fixed number in progress.
    Conversations,
    /// The same, but any past conversation is equally likely to be continued: each insertion
    /// accesses memory that was not accessed for long.
    Scattered,
}

/// The measured shapes, and whether the figure counts them.
const SHAPES: [(Shape, bool); 3] = [
    (Shape::Flat, true),
    (Shape::Conversations, true),
    // The growth here is that of a cache miss's time, not of the number of steps.
    (Shape::Scattered, false),
];

/// Time of an insertion and an eviction in the largest trie ÷ in the smallest. The shape with
/// the largest growth counts.
pub(crate) fn measure(size: Size) -> Result<Measured> {
    let load = Load {
        nodes: size.pick(vec![1_000, 10_000, 100_000, 1_000_000], vec![1_000, 2_000]),
        rounds: size.rounds(),
        operations: size.pick(50_000, 100),
    };
    let (mut worst, mut remarks) = (Vec::new(), Vec::new());
    for (shape, counts) in SHAPES {
        let mut forests: Vec<Forest> = load.nodes.iter().map(|n| Forest::new(*n, shape)).collect();
        let mut turns: Vec<Turn<'_>> = forests
            .iter_mut()
            .map(|forest| -> Turn<'_> {
                Box::new(|operations| time(operations, || forest.replace_one()))
            })
            .collect();
        let seconds = take_turns(&mut turns, load.rounds, load.operations);
        drop(turns);
        let (Some(small), Some(large)) = (seconds.first(), seconds.last()) else {
            return Err("no sizes to compare".into());
        };
        let growth = ratios(large, small);
        let curve: Vec<String> = load
            .nodes
            .iter()
            .zip(&seconds)
            .map(|(nodes, seconds)| format!("{:.0} ns at {nodes}", median(seconds) * 1e9))
            .collect();
        let (growth_median, beside) = (
            median(&growth),
            if counts { "" } else { " (does not count)" },
        );
        remarks.push(format!(
            "{shape:?}: {} nodes: {growth_median:.2}{beside}",
            curve.join(", ")
        ));
        if counts && (worst.is_empty() || growth_median > median(&worst)) {
            worst = growth;
        }
    }
    Ok(Measured {
        samples: worst,
        remarks,
    })
}

/// A trie of a constant number of nodes.
struct Forest {
    trie: Trie,
    root: NodeKey,
    shape: Shape,
    texts: Texts,
    /// Ends of conversations, and their numbers of turns.
    ends: Vec<(NodeKey, usize)>,
    edge: [u32; EDGE_TOKENS],
    inserted: u32,
}

impl Forest {
    /// Creates a trie in its steady state.
    fn new(nodes: usize, shape: Shape) -> Self {
        let mut trie = Trie::new(CacheConfig::default().eviction.policy());
        let root = trie.root_or_new(&Salt::default());
        let conversations = match shape {
            Shape::Flat => 0,
            Shape::Conversations => ACTIVE_CONVERSATIONS,
            Shape::Scattered => nodes / NODES_PER_CONVERSATION,
        };
        let mut forest = Self {
            trie,
            root,
            shape,
            texts: Texts::new(),
            ends: vec![(root, TURNS_MAX); conversations.max(1)],
            edge: [7; EDGE_TOKENS],
            inserted: 0,
        };
        while forest.trie.len() < nodes {
            forest.insert();
        }
        for _ in 0..2 * nodes {
            forest.replace_one();
        }
        forest
    }

    fn replace_one(&mut self) {
        self.insert();
        self.trie.evict().expect("nothing is leased");
    }

    fn insert(&mut self) {
        self.inserted += 1;
        // No two edges begin alike, so each may be below any node.
        self.edge[0] = self.inserted;
        let sealed = Sealed {
            segment: SegmentId(self.inserted.into()),
            state_lag: 0,
            bytes: EDGE_TOKENS,
        };
        let conversation = match self.shape {
            Shape::Flat => None,
            Shape::Conversations | Shape::Scattered => Some(self.texts.below(self.ends.len())),
        };
        let from_root = (self.root, 0);
        let (parent, turns) = match conversation.map(|conversation| self.ends[conversation]) {
            Some((end, turns)) if turns < TURNS_MAX && self.trie.contains(end) => (end, turns),
            _ => from_root,
        };
        let node = self.trie.insert(parent, &PrefixKey::default(), &self.edge, sealed, 0, 0);
        if let Some(conversation) = conversation {
            self.ends[conversation] = (node, turns + 1);
        }
    }
}
