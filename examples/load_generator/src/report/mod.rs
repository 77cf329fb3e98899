//! The figures of a run. `--json` writes a [`Report`]: the fields' names and meanings
//! are those of the file.

mod figures;
mod layout;
mod page;
mod percentiles;
mod plot;
mod table;
mod transcript;

use serde::Serialize;

use crate::arguments::{EngineSettings, Load};
use crate::mix::Kind;

pub(crate) use page::page;
pub(crate) use percentiles::Percentiles;
pub(crate) use table::table;
pub(crate) use transcript::transcripts;

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// The users' planned behaviour.
    pub(crate) load: Load,
    /// The engine's settings; null for a server.
    pub(crate) engine: Option<EngineSettings>,
    /// The server's URL; null for an engine in this process.
    pub(crate) url: Option<String>,
    /// The model that ran.
    pub(crate) model: ModelFigures,
    /// Time from the first request to the end of the last reply, in seconds.
    pub(crate) wall_seconds: f64,
    /// Whether the run was interrupted.
    pub(crate) interrupted: bool,
    /// Counts of requests by their outcome.
    pub(crate) requests: Requests,
    /// Time until and between tokens, as the users measured it.
    pub(crate) latency: Latency,
    /// The same for each kind of user.
    pub(crate) kinds: Vec<KindFigures>,
    /// Token counts: computed, and served from cache.
    pub(crate) tokens: Tokens,
    /// Forward passes; null for a server.
    pub(crate) steps: Option<Steps>,
    /// Bytes; null for a server.
    pub(crate) memory: Option<Memory>,
    /// The 90th percentile of this program's own delay, in milliseconds.
    pub(crate) client_late_p90_ms: f64,
}

/// The model that ran.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModelFigures {
    /// The model's name.
    pub(crate) name: String,
    /// Whether it is the oracle on a simulated device.
    pub(crate) simulated: bool,
    /// Time until the engine accepted requests, in seconds.
    pub(crate) load_seconds: f64,
}

/// Counts of requests by their outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Requests {
    /// Requests in the users' scripts.
    pub(crate) planned: usize,
    /// Requests with a complete reply.
    pub(crate) finished: usize,
    /// Requests that ended in an error or were rejected.
    pub(crate) failed: usize,
    /// Requests that the end of the run cut short.
    pub(crate) interrupted: usize,
    /// Number of times that a request found the queue full and was retried.
    pub(crate) rejections: u64,
    /// The errors, and the count of each.
    pub(crate) errors: std::collections::BTreeMap<String, usize>,
}

/// The figures of users of one kind.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KindFigures {
    pub(crate) kind: Kind,
    pub(crate) users: usize,
    pub(crate) finished: usize,
    pub(crate) output_tokens: usize,
    pub(crate) latency: Latency,
}

/// Latencies as the users measured them. Null where nothing was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Latency {
    /// Time from the first try to submit a request to its first token.
    pub(crate) first_token: Option<Percentiles>,
    /// Time between two tokens of a reply.
    pub(crate) between_tokens: Option<Percentiles>,
    /// Time from the first try to submit a request to the end of its reply; finished
    /// requests only.
    pub(crate) whole_reply: Option<Percentiles>,
}

/// Token counts: computed, and served from cache.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Tokens {
    /// Tokens in replies, as the users got them.
    pub(crate) output: usize,
    /// Output tokens a second.
    pub(crate) output_per_second: f64,
    /// Tokens in the prompts of all requests that started. For a server: of those that
    /// finished and whose usage it reported.
    pub(crate) prompt: u64,
    /// Prompt tokens that were served from cache.
    pub(crate) prompt_from_cache: u64,
    /// The same as a share of the prompt tokens, from 0 to 1.
    pub(crate) prompt_from_cache_share: f64,
    /// Left out for a server, whose tokens are not known.
    #[serde(flatten)]
    pub(crate) computed: Option<Computed>,
}

/// Tokens that had to be computed, and tokens that were.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Computed {
    /// Tokens in prompts, with equal prefixes counted once.
    pub(crate) prompt_distinct: usize,
    /// Tokens in prompts and in the computed part of their replies, with equal prefixes
    /// counted once. A device has to evaluate at least this many.
    pub(crate) distinct: usize,
    /// Tokens that the device evaluated.
    pub(crate) evaluated: u64,
    /// Tokens that all prompts begin with.
    pub(crate) shared_start: usize,
    /// Whether the shared start was certainly evaluated only once: there was more than one
    /// request, and fewer tokens than the shared start has were evaluated again.
    pub(crate) shared_start_computed_once: bool,
}

/// Forward passes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Steps {
    /// The number of steps.
    pub(crate) count: u64,
    /// Mean sequences in a step.
    pub(crate) sequences_mean: f64,
    /// The number of steps by their number of sequences; the first entry is for one.
    pub(crate) by_sequences: Vec<u64>,
    /// Time that the device was busy, in seconds.
    pub(crate) device_busy_seconds: f64,
}

/// Copies in host memory and on the disk.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Paged {
    /// Copies in host memory, and their bytes.
    pub(crate) host_copies: usize,
    pub(crate) host_bytes: usize,
    /// Copies on the disk, and their bytes.
    pub(crate) disk_copies: usize,
    pub(crate) disk_bytes: usize,
    /// Segments that were offloaded.
    pub(crate) left: u64,
    /// Copies that were loaded back, and the number of these that came from the disk.
    pub(crate) came_back: u64,
    pub(crate) from_disk: u64,
    /// Number of times that computing was estimated to be faster than loading.
    pub(crate) computed_instead: u64,
}

/// Bytes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Memory {
    /// The most bytes that the device had in use, by its own count.
    pub(crate) device_peak_bytes: usize,
    /// Cached state at the end.
    pub(crate) cached_bytes: usize,
    /// The most cached state in any sample, with ten samples a second: sealed segments and
    /// the tails of live sequences.
    pub(crate) cached_bytes_max: usize,
    /// Bytes of the distinct tokens' state, each kept once.
    pub(crate) needed_bytes: usize,
    /// Cached state at the end ÷ `needed_bytes`; below 1 where segments were evicted. The
    /// oracle counts its own bytes. For other devices, which hold more than cached state, the
    /// cache's count is used.
    pub(crate) held_by_needed: f64,
    /// The same for the most cached state at any time.
    pub(crate) held_max_by_needed: f64,
    /// Tokens whose state is cached at the end.
    pub(crate) cached_tokens: usize,
    /// The number of segments that hold them.
    pub(crate) segments: usize,
    /// Segments that were evicted.
    pub(crate) evicted_segments: u64,
    /// Restore points; null if the model can resume after any token.
    pub(crate) restore: Option<Restored>,
    /// Copies off the device at the end, and the copies that were moved; null without a pager.
    pub(crate) pager: Option<Paged>,
}

/// Restore points of a model that cannot resume after any token.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Restored {
    /// Restore points that were taken, and the number of these that were given up.
    pub(crate) taken: u64,
    pub(crate) given_up: u64,
    /// Segments with state of window or recurrent layers at the end, and the bytes of that
    /// state.
    pub(crate) snapshots: usize,
    pub(crate) snapshot_bytes: usize,
    /// Sequences that opened a slot, and the share of them that resumed from cached state.
    pub(crate) prompts: u64,
    pub(crate) resumed_share: f64,
    /// Cached prompt tokens that were computed again, because no state lay at their end.
    pub(crate) recomputed_tokens: u64,
}
