//! The settings of a simulation.

use std::time::Duration;

use motet_core::config::EvictionPolicy;

/// Tokens of a block in the router's index.
pub(crate) const BLOCK_TOKENS: usize = 512;
/// Most tokens of a step, and most sequences of a worker, as in Dynamo's simulated engine.
pub(crate) const STEP_TOKENS: usize = 8_192;
pub(crate) const SEQUENCES_MAX: usize = 256;

/// A fleet, and what happens to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) workers: usize,
    /// Blocks of a worker's memory.
    pub(crate) worker_blocks: usize,
    /// Arrivals are so many times as fast as in the trace.
    pub(crate) speed_up: f64,
    pub(crate) routing: Routing,
    pub(crate) eviction: EvictionPolicy,
    pub(crate) tells: Tells,
    pub(crate) tier: Option<Writes>,
    pub(crate) losses: Option<Losses>,
    /// The seed of the router, which breaks ties by chance.
    pub(crate) seed: u64,
}

/// The choice of a sequence's worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Routing {
    /// Each in turn.
    RoundRobin,
    /// Dynamo's router.
    Kv(RouterSettings),
}

/// The settings of Dynamo's router that differ here; all others are its defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RouterSettings {
    /// `--router-kv-overlap-score-credit`: the weight of a block that a worker has.
    pub(crate) overlap_credit: f64,
    /// `--router-predicted-ttl-secs`: how long a worker is expected to have the blocks of a sequence that was
    /// sent to it, before it tells so.
    pub(crate) predicted: Option<Duration>,
}

/// When a worker tells the router of a prompt's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tells {
    /// As they are computed: as Motet does.
    AsComputed,
    /// When the sequence ends, or another one shares them: its progress is not reported.
    AtEnd,
}

/// A worker's writes to the shared tier, as far as that lacks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// All of a sequence, when it ends: `--remote-sends all`.
    AtEnd,
    /// Blocks that a sequence found in the worker's own cache: `--remote-sends used-twice`.
    UsedTwice,
    /// All of its prompt, once that is computed. No setting of the product does so.
    AfterPrompt,
}

/// Workers that are lost. Empty ones take their places at once, and the router sends their sequences to
/// other workers, which go on with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Moments at which workers are lost, evenly spread over the trace.
    pub(crate) moments: usize,
    /// Workers that are lost at each.
    pub(crate) workers: usize,
    /// Whether they first write to the shared tier what these sequences have computed.
    pub(crate) hand_over: bool,
}

impl RouterSettings {
    /// The router's defaults.
    pub(crate) const DEFAULT: Self = Self {
        overlap_credit: 1.0,
        predicted: None,
    };
    /// For workers that compute a prompt once for all sequences that share it: the router may send
    /// them those that come before its blocks are told.
    pub(crate) const FOR_MOTET: Self = Self {
        overlap_credit: 2.0,
        predicted: Some(Duration::from_secs(30)),
    };
}

impl Setting {
    /// The setting of the peer's figures: memory of 1,000 blocks, and arrivals that are sped up with
    /// the fleet.
    pub(crate) fn of_fleet(workers: usize, speed_up: f64) -> Self {
        Self {
            workers,
            worker_blocks: 1_000,
            speed_up,
            routing: Routing::Kv(RouterSettings::FOR_MOTET),
            eviction: EvictionPolicy::default(),
            tells: Tells::AsComputed,
            tier: None,
            losses: None,
            seed: 0,
        }
    }

    /// The same with a shared tier that never drops anything.
    pub(crate) fn writing(self, writes: Writes) -> Self {
        Self {
            tier: Some(writes),
            ..self
        }
    }
}
