//! Host bytes of the cache's bookkeeping.

use crate::allocations::{self, Allocated};
use crate::harness::{CacheHarness, Texts};
use crate::measured::Measured;
use crate::protocol::Size;

/// The bound: bytes per token and per node.
const TOKEN_BYTES_MAX: usize = 8;
const NODE_BYTES_MAX: usize = 200;

/// Finished conversations.
#[derive(Debug)]
struct Load {
    conversations: usize,
    /// Length of each.
    tokens: usize,
    /// Tokens of each that all conversations share.
    shared_tokens: usize,
}

/// Host bytes per cached token. The count is exact, so one sample suffices.
pub(crate) fn measure(size: Size) -> Measured {
    let load = Load {
        conversations: size.pick(1_000, 10),
        tokens: 100,
        shared_tokens: 20,
    };
    let mut texts = Texts::new();
    let beginning = texts.next(load.shared_tokens);
    let own_tokens = load.tokens - load.shared_tokens;
    let conversations: Vec<_> = (0..load.conversations)
        .map(|_| texts.after(&beginning, own_tokens))
        .collect();

    let (harness, Allocated { bytes, .. }) = allocations::count(|| {
        let mut harness = CacheHarness::new();
        for conversation in &conversations {
            harness.converse(conversation);
        }
        harness
    });

    let stats = harness.core.stats();
    let (tokens, nodes) = (stats.cached_tokens, stats.segments);
    let bytes_max = TOKEN_BYTES_MAX * tokens + NODE_BYTES_MAX * nodes;
    let per_node = (bytes - (size_of::<u32>() * tokens) as isize) as f64 / nodes as f64;
    Measured {
        samples: vec![bytes as f64 / tokens as f64],
        remarks: vec![format!(
            "{bytes} bytes for {tokens} tokens in {nodes} nodes: {per_node:.0} for each node beside \
             4 for each token; {:.2} of the bound of {TOKEN_BYTES_MAX} per token and \
             {NODE_BYTES_MAX} per node",
            bytes as f64 / bytes_max as f64
        )],
    }
}
