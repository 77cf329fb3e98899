//! Views of the scheduler and the cache at one moment.

use std::time::Duration;

use crate::protocol::Priority;
use crate::{SequenceId, UserId};

/// Sequences that a snapshot shows; of the others, how many there are.
pub const SEQUENCES_MAX: usize = 128;
/// Users that a snapshot shows; of the others, how many there are.
pub const USERS_MAX: usize = 64;
/// Nodes of the trie that a snapshot shows; of the others, how many there are.
pub const NODES_MAX: usize = 256;

/// Who is inside.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HouseView {
    /// Those who have slots, then those who wait, each in order of arrival;
    /// [`SEQUENCES_MAX`] at most.
    pub sequences: Vec<SequenceView>,
    /// Sequences beyond these.
    pub sequences_left_out: usize,
    /// Users who have sequences inside, those with most first; [`USERS_MAX`] at most.
    pub users: Vec<UserView>,
    /// Users beyond these.
    pub users_left_out: usize,
}

/// One sequence that is not over.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct SequenceView {
    /// The sequence.
    pub sequence: SequenceId,
    /// Whose it is.
    pub user: UserId,
    /// Its class.
    pub class: Priority,
    /// Where it is on its way.
    pub stage: Stage,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of which its slot holds the state.
    pub computed_tokens: usize,
    /// Tokens that it has generated.
    pub output_tokens: usize,
    /// Tokens that it may generate.
    pub output_tokens_max: usize,
    /// Times that it has lost its slot for want of memory.
    pub preempted: u32,
    /// How long it has been in the queue, all its times there together.
    pub waited: Duration,
}

/// Where a sequence is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// In the queue.
    Queued,
    /// The cache makes it a slot.
    Starting,
    /// Another sequence computes what both begin with.
    AwaitingPrefix,
    /// Its prompt is computed.
    Prefill,
    /// It generates tokens.
    Decode,
    /// Its caller does not read.
    Paused,
}

/// What one user has inside.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct UserView {
    /// The user.
    pub user: UserId,
    /// Its sequences that have slots.
    pub running: usize,
    /// Its sequences that wait for one.
    pub waiting: usize,
    /// Its sequences whose caller does not read, wherever they are.
    pub paused: usize,
    /// Tokens of what those that wait begin with.
    pub waiting_tokens: usize,
    /// How long the one that has waited longest is in the queue.
    pub longest_wait: Duration,
    /// The service that it has had: see [`fair`](crate::scheduler::fair).
    pub service: f64,
}

/// What is cached: the nodes that live sequences hold and those that are used most, each
/// with all nodes above it, and copies of what has left the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrieView {
    /// Parents before their children; [`NODES_MAX`] at most.
    pub nodes: Vec<TrieNode>,
    /// Nodes on the device beyond these.
    pub nodes_left_out: usize,
    /// Their bytes.
    pub bytes_left_out: usize,
    /// Copies of what has left the device, beyond these: as many at most, for some are
    /// copies of what is there still.
    pub copies_left_out: usize,
    /// Salts that something is or was cached under.
    pub salts: usize,
}

/// One cached token range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrieNode {
    /// The same from snapshot to snapshot, as long as the range ends where it does.
    pub id: u64,
    /// The node above, by its place in [`TrieView::nodes`]; none at the top.
    pub parent: Option<usize>,
    /// A number for its salt, which is the same within one snapshot.
    pub salt: usize,
    /// Where it is.
    pub tier: Tier,
    /// Tokens before the range.
    pub tokens_before: usize,
    /// Tokens of the range.
    pub tokens: usize,
    /// Bytes, in its tier.
    pub bytes: usize,
    /// Live sequences and pins whose path leads through it.
    pub holders: usize,
    /// Sequences that have used it since it came to the device.
    pub hits: u32,
    /// Uses of anything since it was used last.
    pub idle_uses: u64,
    /// Nodes below it, of which some may be left out.
    pub children: usize,
}

/// Where state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Tier {
    /// On the device, and nowhere else.
    Device,
    /// On the device, and in a copy: it can go at no cost.
    DeviceAndCopy,
    /// In host memory.
    Host,
    /// On the disk only.
    Disk,
}
