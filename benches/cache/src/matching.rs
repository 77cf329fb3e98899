//! The speed of matching a long path.

use std::hint::black_box;

use motet_core::cache::{PrefixKey, Salt};
use motet_core::cache::trie::{NodeKey, Sealed, Trie};
use motet_core::config::CacheConfig;
use motet_protocol::SegmentId;

use crate::harness::Texts;
use crate::measured::{Measured, median};
use crate::protocol::Size;
use crate::rounds::{Turn, take_turns, time};

/// The path to match.
#[derive(Debug)]
struct Load {
    /// Length of the path.
    tokens: usize,
    /// Numbers of nodes that the path is cut into; the slowest counts.
    nodes: Vec<usize>,
    rounds: usize,
    /// Matches in each round.
    operations: usize,
}

/// GB/s of token bytes.
pub(crate) fn measure(size: Size) -> Measured {
    let load = Load {
        tokens: size.pick(1 << 16, 1 << 10),
        nodes: vec![1, 32],
        rounds: size.rounds(),
        operations: size.pick(2_000, 10),
    };
    let text = Texts::new().next(load.tokens);
    let tries: Vec<(Trie, NodeKey)> = load.nodes.iter().map(|n| path(&text, *n)).collect();
    let mut turns: Vec<Turn<'_>> = tries
        .iter()
        .map(|(trie, root)| -> Turn<'_> {
            Box::new(|operations| {
                time(operations, || {
                    let found = trie.find(*root, &PrefixKey::default(), black_box(&text));
                    assert_eq!(found.tokens, text.len(), "all of it is cached");
                })
            })
        })
        .collect();
    let bytes = size_of_val(text.as_slice()) as f64;
    let gbps: Vec<Vec<f64>> = take_turns(&mut turns, load.rounds, load.operations)
        .iter()
        .map(|seconds| seconds.iter().map(|s| bytes / s / 1e9).collect())
        .collect();
    let remarks = load.nodes.iter().zip(&gbps).map(|(nodes, gbps)| {
        let (tokens, rate) = (load.tokens, median(gbps));
        format!("{tokens} tokens in {nodes} nodes: {rate:.1} GB/s")
    });
    Measured {
        remarks: remarks.collect(),
        samples: gbps
            .into_iter()
            .min_by(|a, b| median(a).total_cmp(&median(b)))
            .unwrap_or_default(),
    }
}

/// A trie that caches `text` as a path of so many nodes.
fn path(text: &[u32], nodes: usize) -> (Trie, NodeKey) {
    let mut trie = Trie::new(CacheConfig::default().eviction.policy());
    let root = trie.root_or_new(&Salt::default());
    let mut parent = root;
    for (number, edge) in text.chunks(text.len().div_ceil(nodes)).enumerate() {
        let sealed = Sealed {
            segment: SegmentId(number as u64 + 1),
            state_lag: 0,
            bytes: edge.len(),
        };
        parent = trie.insert(parent, &PrefixKey::default(), edge, sealed, 0, 0);
    }
    (trie, root)
}
