//! Figures of the cache's core, and kvbm-logical's beside it; and of what models reuse.

use anyhow::Result;
use serde_json::{Value, json};

use super::statistics::Measured;
use super::workbench::Workbench;

/// GB/s at which the tokens of a long path are matched.
pub(super) fn matching(workbench: &mut Workbench) -> Result<Measured> {
    let request = json!({
        "do": "match",
        "tokens": workbench.pick(1 << 16, 1 << 10),
        "nodes": [1, 32],
        "rounds": workbench.rounds(),
        "operations": workbench.pick(2_000, 10),
    });
    ask(workbench, &request)
}

/// Time to match, open and close a cached prompt ÷ time of kvbm-logical's match.
pub(super) fn session(workbench: &mut Workbench) -> Result<Measured> {
    let request = json!({
        "do": "session",
        "blocks": 128,
        "live": 16,
        "conversations": workbench.pick(1_000, 10),
        "conversation_tokens": 128,
        "nodes": [1, 8],
        // One node for each block: no real conversation is cached in this shape.
        "nodes_beside": [128],
        "rounds": workbench.rounds(),
        "operations": workbench.pick(20_000, 10),
    });
    ask(workbench, &request)
}

/// Time of an insertion and an eviction in a large trie ÷ in a small one.
pub(super) fn evict_growth(workbench: &mut Workbench) -> Result<Measured> {
    let nodes = match workbench.pick(1_000_000, 2_000) {
        large @ 1_000_000 => vec![1_000, 10_000, 100_000, large],
        large => vec![1_000, large],
    };
    let request = json!({
        "do": "evict_growth",
        "nodes": nodes,
        "rounds": workbench.rounds(),
        "operations": workbench.pick(50_000, 100),
    });
    ask(workbench, &request)
}

/// Host bytes of bookkeeping for each cached token.
pub(super) fn host_bytes(workbench: &mut Workbench) -> Result<Measured> {
    let request = json!({
        "do": "host_bytes",
        "conversations": workbench.pick(1_000, 10),
        "tokens": 100,
        "shared_tokens": 20,
    });
    ask(workbench, &request)
}

/// Chats on models that cannot resume after any token, beside full attention of the same shape.
pub(super) fn hybrid(workbench: &mut Workbench, figure: &str) -> Result<Measured> {
    let request = json!({
        "do": "hybrid",
        "chats": workbench.pick(12, 2),
        "turns": workbench.pick(10, 3),
    });
    super::scheduler::ask(workbench, &request, figure)
}

fn ask(workbench: &mut Workbench, request: &Value) -> Result<Measured> {
    let answer = workbench.cache_core()?.ask(request)?;
    let mut measured = Measured::new(answer.numbers("samples")?);
    for remark in answer.texts("remarks")? {
        measured = measured.remark(remark);
    }
    Ok(measured)
}
