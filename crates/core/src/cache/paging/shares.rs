//! State that other processes may need: which nodes are to be sent to the remote tier.

use std::sync::Arc;

use super::Paging;
use crate::cache::trie::{Node, NodeKey, OffloadState, Trie};
use crate::config::RemoteSends;
use motet_protocol::pager;

impl Paging {
    /// Asks the pager to send the copies of a path that are due, as far as all nodes from the root
    /// on have copies. Nodes without a copy are offered to it first.
    pub(in crate::cache) fn share_path(&mut self, end: NodeKey, trie: &mut Trie) {
        let Some(sends) = self.sends else {
            return;
        };
        let salt = trie.salt_above(end);
        if salt.is_private() {
            return;
        }
        let salt = salt.digest();
        let path = trie.path(end);
        let due = path
            .iter()
            .take_while(|key| is_due(sends, trie.node(**key)));
        let due = &path[..due.count()];
        for key in due {
            if trie.node(*key).offload_state() == OffloadState::NotOffloaded {
                self.backups.add_node(*key);
            }
        }
        let copied = due.iter().take_while(|key| {
            let state = trie.node(**key).offload_state();
            state.has_copy()
        });
        let copied = &due[..copied.count()];
        if copied.iter().all(|key| trie.node(*key).is_shared()) {
            return;
        }
        let edges = copied.iter().map(|key| trie.node(*key).edge());
        let tokens: Arc<[_]> = edges.flatten().copied().collect();
        for key in copied {
            trie.set_shared(*key);
        }
        self.send(pager::Message::Share { salt, tokens });
    }
}

/// Whether a node's state is to be sent.
fn is_due(sends: RemoteSends, node: &Node) -> bool {
    match sends {
        RemoteSends::All => true,
        RemoteSends::UsedTwice => node.hits() > 0 || node.retention() > 0,
    }
}
