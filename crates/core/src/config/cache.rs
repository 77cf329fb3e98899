//! Settings of the cache.

use super::ConfigError;
use super::bounds::{bytes, positive};
use crate::eviction::{Eviction, Foresight, Lru};

/// Settings of the cache.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "prefix cache")]
#[doc(alias = "KV cache")]
pub struct CacheConfig {
    /// Device bytes for cached state (sealed segments and the tails of live sequences) and for
    /// a step's scratch memory. Weights come on top. A request that could never fit is
    /// rejected.
    ///
    /// With 0, the default, the engine chooses a budget when it loads the model:
    ///
    /// * on a CPU, half of the free memory, less `pager.host_bytes_max`. The machine and the
    ///   process's control groups both count.
    /// * on a GPU, nine tenths of the free memory.
    /// * 2 GiB where the device cannot report its memory.
    ///
    /// The engine logs its choice, and `Engine::device_budget` returns it. Set a budget where
    /// other programs will need the machine's memory, or where the engine may use all of it.
    pub device_bytes_max: usize,
    /// Minimum of prefill tokens that waiting for another sequence's prefill saves. With fewer,
    /// a new sequence computes them itself.
    pub share_tokens_min: usize,
    /// Policy that chooses the segments to evict when memory runs out.
    pub eviction: EvictionPolicy,
    /// Treatment of a conversation that a new request continues in another way.
    pub slot_choice: SlotChoice,
    /// Minimum of tokens between two restore points that no turn or branch asks for, for models
    /// that cannot resume after any token (sliding windows, recurrent layers); at least 1. The
    /// interval is longer where state weighs more than the keys and values of so many tokens. A
    /// shorter interval saves more recomputation and costs device bytes.
    pub restore_interval_tokens: usize,
    /// Where state is taken and how long it is kept, for models that cannot resume after any
    /// token.
    pub restore_points: RestorePointPolicy,
    /// Upper bound on the tokens of a merged segment. Two consecutive unused segments are
    /// merged if they are no longer than this together. Each merge costs the device a copy; 0
    /// never merges.
    pub merge_tokens_max: usize,
    /// Upper bound on the device bytes that pins hold; `None` is half of `device_bytes_max`.
    /// Pinned bytes are not available to live sequences.
    pub pinned_bytes_max: Option<usize>,
    /// Number of sequences of the whole context that must fit on the device at once. The engine
    /// does not start on a budget or a device that is too small for them. It allocates and
    /// writes as much memory once, at about 4 GB per second on a CPU. Choose 0 where no request
    /// is that long.
    pub full_sequences_min: usize,
    /// Tokens of a block in the events that tell followers which blocks are cached: see
    /// `Engine::follow_blocks`. Choose the size that the reader of the events expects.
    pub block_tokens: usize,
}

/// Policy that chooses the segments to evict when memory runs out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// Evicts the least recently used segments: the baseline for comparison.
    Lru,
    /// Evicts the segments with the smallest chance of reuse for the memory and time that they
    /// take, as learned from requests. See [`Foresight`].
    #[default]
    Foresight,
}

/// Where state is taken that keys and values cannot replace, and how long it is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RestorePointPolicy {
    /// State is taken where a resume is likely, and given up once a later turn has passed it.
    #[default]
    Likely,
    /// State is also taken before the last token of each prompt, and all of it is kept until its
    /// segment is evicted: the baseline for comparison.
    EveryNode,
}

/// Treatment of a conversation that a new request continues in another way, for example after
/// its last message was edited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SlotChoice {
    /// The old continuation stays beside the new one, with an unchanged score: right for many
    /// users.
    #[default]
    Best,
    /// The new continuation replaces the old one, whose remaining tokens are evicted first.
    /// Right for one user with one conversation at a time.
    Longest,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            device_bytes_max: 0,
            share_tokens_min: 16,
            eviction: EvictionPolicy::default(),
            slot_choice: SlotChoice::default(),
            restore_interval_tokens: 512,
            restore_points: RestorePointPolicy::default(),
            merge_tokens_max: 512,
            pinned_bytes_max: None,
            full_sequences_min: 1,
            block_tokens: 16,
        }
    }
}

impl CacheConfig {
    /// Value of `device_bytes_max` where it is not set and the device cannot report its memory.
    pub const DEVICE_BYTES: usize = 2 << 30;

    /// Returns the device bytes that pins may hold.
    #[must_use]
    pub fn pinned_bytes_max(&self) -> usize {
        self.pinned_bytes_max.unwrap_or(self.device_bytes_max / 2)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        let is_set = self.device_bytes_max > 0;
        if is_set {
            bytes("cache.device_bytes_max", self.device_bytes_max)?;
        }
        positive("cache.block_tokens", self.block_tokens)?;
        positive(
            "cache.restore_interval_tokens",
            self.restore_interval_tokens,
        )?;
        let pinned_bytes_max = self.pinned_bytes_max();
        if is_set && pinned_bytes_max > self.device_bytes_max {
            return Err(ConfigError {
                field: "cache.pinned_bytes_max",
                found: pinned_bytes_max.to_string(),
                expected: "at most `cache.device_bytes_max`".into(),
            });
        }
        Ok(())
    }
}

impl EvictionPolicy {
    /// Creates the policy, with nothing learned yet.
    #[must_use]
    #[doc(hidden)]
    pub fn policy(self) -> Box<dyn Eviction> {
        match self {
            Self::Lru => Box::new(Lru),
            Self::Foresight => Box::<Foresight>::default(),
        }
    }
}
