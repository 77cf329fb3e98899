//! State that other processes may need: which nodes are to be sent to the remote tier.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Paging;
use crate::cache::trie::{Node, NodeKey, OffloadState, Trie};
use crate::config::{PagerConfig, RemoteConfig, RemoteSends};
use motet_protocol::pager;

/// Most paths that wait for copies. Older ones are forgotten until they are used again.
const WAITING_MAX: usize = 64;

/// Paths whose state is to be sent.
#[derive(Debug)]
pub(super) struct Shares {
    /// The tier's settings, if there is one.
    remote: Option<RemoteConfig>,
    /// Ends of paths with nodes that are due and have no copy yet.
    waiting: VecDeque<NodeKey>,
}

impl Shares {
    pub(super) fn new(pager: &PagerConfig) -> Self {
        Self {
            remote: pager.remote.clone(),
            waiting: VecDeque::new(),
        }
    }

    /// No paths, as the device is empty.
    pub(super) fn after_reset(self) -> Self {
        Self {
            waiting: VecDeque::new(),
            ..self
        }
    }

    /// Panics unless the paths are bounded.
    pub(super) fn check_integrity(&self) {
        assert!(
            self.waiting.len() <= WAITING_MAX,
            "waiting paths are bounded"
        );
    }

    fn wait(&mut self, end: NodeKey) {
        if self.waiting.contains(&end) {
            return;
        }
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(end);
    }
}

impl Paging {
    /// Asks the pager to send the copies of a path that are due, as far as all nodes from the root
    /// on have copies. Nodes without a copy are offered to it first, and the rest is sent then.
    pub(in crate::cache) fn share_path(&mut self, end: NodeKey, trie: &mut Trie) {
        let Some(remote) = &self.shares.remote else {
            return;
        };
        let sends = remote.sends;
        let key = trie.key_above(end);
        if key.is_private() || !remote.shares(key.digest().salt) {
            return;
        }
        let path = trie.path(end);
        let due = path
            .iter()
            .take_while(|key| is_due(sends, trie.node(**key)));
        let due = &path[..due.count()];
        for key in due {
            if trie.is_not_offloaded(*key) {
                self.backups.add_node(*key);
            }
        }
        let state = |key: &&NodeKey| trie.node(**key).offload_state();
        let copied = due.iter().take_while(|key| state(key).has_copy());
        let (copied, rest) = due.split_at(copied.count());
        let comes = |key| state(&key) != OffloadState::Rejected;
        if rest.first().is_some_and(comes) {
            self.shares.wait(end);
        }
        if copied.iter().all(|key| trie.node(*key).is_shared()) {
            return;
        }
        let edges = copied.iter().map(|key| trie.node(*key).edge());
        let tokens: Arc<[_]> = edges.flatten().copied().collect();
        for key in copied {
            trie.set_shared(*key);
        }
        // A prefix of the path ends before the adapter begins, or its tokens tell where that is.
        let key = key.digest();
        self.send(pager::Message::Share { key, tokens });
    }

    /// Shares what has waited for a copy.
    pub(super) fn share_waiting(&mut self, trie: &mut Trie) {
        for end in std::mem::take(&mut self.shares.waiting) {
            if trie.contains(end) {
                self.share_path(end, trie);
            }
        }
    }
}

/// Whether a node's state is to be sent.
fn is_due(sends: RemoteSends, node: &Node) -> bool {
    match sends {
        RemoteSends::All => true,
        RemoteSends::UsedTwice => node.hits() > 0 || node.retention() > 0,
    }
}
