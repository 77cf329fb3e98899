//! Views of the scheduler and the cache at one moment.

use std::sync::Arc;
use std::time::Duration;

use motet_protocol::{CopyId, Label, Priority, SequenceId, UserId};

/// The sequences and users of the scheduler.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct SchedulerSnapshot {
    /// Sequences with slots in order of arrival, then starting ones, then queued ones in order
    /// of arrival; [`SEQUENCES_MAX`](Self::SEQUENCES_MAX) at most.
    pub sequences: Vec<SequenceView>,
    /// Number of sequences left out.
    pub sequences_left_out: usize,
    /// Users with unfinished sequences, those with the most first; [`USERS_MAX`](Self::USERS_MAX) at most.
    pub users: Vec<UserView>,
    /// Number of users left out.
    pub users_left_out: usize,
}

impl SchedulerSnapshot {
    /// Upper bound on the sequences in a snapshot; the others are only counted.
    pub const SEQUENCES_MAX: usize = 128;
    /// Upper bound on the users in a snapshot; the others are only counted.
    pub const USERS_MAX: usize = 64;
}

/// One sequence that is not finished.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SequenceView {
    /// The sequence.
    pub sequence: SequenceId,
    /// The user that it belongs to.
    pub user: UserId,
    /// Its priority class.
    pub priority: Priority,
    /// Its stage.
    pub stage: Stage,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens whose state its slot holds.
    pub computed_tokens: usize,
    /// Tokens that it has generated.
    pub output_tokens: usize,
    /// Tokens that it may generate.
    pub output_tokens_max: usize,
    /// Times that it was preempted.
    pub preempted: u32,
    /// Total time that it has spent in the queue.
    pub waited: Duration,
}

/// The stage of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// It is in the queue.
    Queued,
    /// The cache opens a slot for it.
    Starting,
    /// It waits for another sequence to compute their common prefix.
    AwaitingPrefix,
    /// Its prompt is computed.
    Prefill,
    /// It generates tokens.
    Decode,
    /// It is paused, since its caller does not read.
    Paused,
}

/// The sequences of one user.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct UserView {
    /// The user.
    pub user: UserId,
    /// Its sequences that have slots.
    pub running: usize,
    /// Its sequences that wait for a slot.
    pub waiting: usize,
    /// Its sequences whose callers do not read, with or without a slot.
    pub paused: usize,
    /// Tokens with which its waiting sequences will start.
    pub waiting_tokens: usize,
    /// Longest time that one of its waiting sequences has been in the queue.
    pub longest_wait: Duration,
    /// Service that it has received: see [`fairness`](crate::scheduler::policy::fairness).
    pub service: f64,
}

/// The prefix trie: the nodes that live sequences hold and the nodes with the most use, each
/// with all nodes above it, and offloaded copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrieView {
    /// Parents before their children; [`NODES_MAX`](Self::NODES_MAX) at most.
    pub nodes: Vec<TrieNode>,
    /// Number of nodes on the device left out.
    pub nodes_left_out: usize,
    /// Bytes of the nodes left out.
    pub bytes_left_out: usize,
    /// Upper bound on the number of offloaded copies left out: some may be copies of segments
    /// that are still on the device.
    pub copies_left_out: usize,
    /// Number of salts under which state is or was cached.
    pub salts: usize,
}

impl TrieView {
    /// Upper bound on the trie nodes in a snapshot; the others are only counted.
    pub const NODES_MAX: usize = 256;
}

/// One cached token range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrieNode {
    /// Id that stays the same in every snapshot, as long as the range ends at the same token.
    pub id: u64,
    /// Index of the parent in [`TrieView::nodes`]; `None` at the top.
    pub parent: Option<usize>,
    /// Number of its salt, the same within one snapshot.
    pub salt: usize,
    /// The tier that holds its state.
    pub tier: Tier,
    /// Tokens before the range.
    pub tokens_before: usize,
    /// Tokens of the range.
    pub tokens: usize,
    /// Bytes in its tier.
    pub bytes: usize,
    /// The part of them that is state of window or recurrent layers at the end of the range: the
    /// snapshot from which a sequence can resume there. 0 for copies, whose parts are not known.
    pub snapshot_bytes: usize,
    /// Whether a caller asked to keep its end restorable.
    pub restore_point: bool,
    /// Live sequences and pins whose path contains the node.
    pub ref_count: usize,
    /// Sequences that have used the node since its state came to the device.
    pub hits: u32,
    /// Uses of any node since the last use of this one.
    pub idle_uses: u64,
    /// Number of its children, those left out included.
    pub children: usize,
}

/// A place that holds state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// The device only.
    Device,
    /// The device, with a copy elsewhere: eviction costs nothing.
    DeviceAndCopy,
    /// Host memory.
    Host,
    /// The disk only.
    Disk,
}

/// A copy as monitoring shows it.
#[derive(Clone, Debug)]
pub struct CopyView {
    /// The copy.
    pub copy: CopyId,
    /// Label of the copy.
    pub label: Arc<Label>,
    /// Whether it is in host memory; if false, it is on the disk only.
    pub in_host: bool,
    /// Use count of the pager at its last use; larger is later.
    pub last_use: u64,
}
