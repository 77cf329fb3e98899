//! The figures of a run. [`Report`] is also what `--json` writes: its fields'
//! names and meanings are those of the file.

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
    /// What the users were to do.
    pub(crate) load: Load,
    /// How the engine was set up; null of a server.
    pub(crate) engine: Option<EngineSettings>,
    /// The server that was asked; null of an engine in this process.
    pub(crate) url: Option<String>,
    /// What ran.
    pub(crate) model: ModelFigures,
    /// From the first request to the end of the last reply, in seconds.
    pub(crate) wall_seconds: f64,
    /// Whether the run was ended before its time.
    pub(crate) interrupted: bool,
    /// What became of the requests.
    pub(crate) requests: Requests,
    /// Time until and between tokens, as the users met it.
    pub(crate) latency: Latency,
    /// The same for each kind of user.
    pub(crate) kinds: Vec<KindFigures>,
    /// Tokens, and who computed them.
    pub(crate) tokens: Tokens,
    /// Forward passes; null of a server.
    pub(crate) steps: Option<Steps>,
    /// Bytes; null of a server.
    pub(crate) memory: Option<Memory>,
    /// How late this program itself was when it had something to do, in milliseconds:
    /// nine times of ten no later than this.
    pub(crate) client_late_p90_ms: f64,
}

/// What ran.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModelFigures {
    /// The model's name.
    pub(crate) name: String,
    /// Whether it is the oracle on a simulated device.
    pub(crate) simulated: bool,
    /// From nothing to an engine that takes requests, in seconds.
    pub(crate) load_seconds: f64,
}

/// What became of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Requests {
    /// All that the users would have made.
    pub(crate) planned: usize,
    /// Ended as they should.
    pub(crate) finished: usize,
    /// Ended in an error, or were not taken in.
    pub(crate) failed: usize,
    /// Cut short by the end of the run.
    pub(crate) interrupted: usize,
    /// Times that a request found the queue full and had to be tried again.
    pub(crate) rejections: u64,
    /// The errors, and how often each came.
    pub(crate) errors: std::collections::BTreeMap<String, usize>,
}

/// What users of one kind met.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KindFigures {
    pub(crate) kind: Kind,
    pub(crate) users: usize,
    pub(crate) finished: usize,
    pub(crate) output_tokens: usize,
    pub(crate) latency: Latency,
}

/// As the users met it. Null where nothing was measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Latency {
    /// From the first try to submit a request to its first token.
    pub(crate) first_token: Option<Percentiles>,
    /// Between two tokens of a reply.
    pub(crate) between_tokens: Option<Percentiles>,
    /// From the first try to submit a request to the end of its reply; finished
    /// requests only.
    pub(crate) whole_reply: Option<Percentiles>,
}

/// Tokens, and who computed them.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Tokens {
    /// In replies, as the users got them.
    pub(crate) output: usize,
    /// Of these, a second.
    pub(crate) output_per_second: f64,
    /// In the prompts of all requests that started; of a server, that finished and
    /// whose usage it told.
    pub(crate) prompt: u64,
    /// Of these, served from cache.
    pub(crate) prompt_from_cache: u64,
    /// The same, of 1.
    pub(crate) prompt_from_cache_share: f64,
    /// Left out of a server, whose tokens nobody knows.
    #[serde(flatten)]
    pub(crate) computed: Option<Computed>,
}

/// What had to be computed, and what was.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Computed {
    /// In prompts, equal prefixes counted once.
    pub(crate) prompt_distinct: usize,
    /// In prompts and what was computed of their replies, equal prefixes counted
    /// once: what a device has to evaluate at least.
    pub(crate) distinct: usize,
    /// Evaluated by the device.
    pub(crate) evaluated: u64,
    /// Tokens that all prompts begin with.
    pub(crate) shared_start: usize,
    /// Whether these were certainly evaluated once only: more than one request,
    /// and fewer tokens evaluated again than there are of them.
    pub(crate) shared_start_computed_once: bool,
}

/// Forward passes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Steps {
    /// How many there were.
    pub(crate) count: u64,
    /// Mean sequences in a step.
    pub(crate) sequences_mean: f64,
    /// How many steps had so many sequences; the first entry is for one.
    pub(crate) by_sequences: Vec<u64>,
    /// Time that the device worked, in seconds.
    pub(crate) device_busy_seconds: f64,
}

/// What is kept beside the device.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Paged {
    /// Copies in host memory, and their bytes.
    pub(crate) host_copies: usize,
    pub(crate) host_bytes: usize,
    /// Copies on the disk, and their bytes.
    pub(crate) disk_copies: usize,
    pub(crate) disk_bytes: usize,
    /// Segments that were copied out.
    pub(crate) left: u64,
    /// Copies that were brought back, and how many of these came from the disk.
    pub(crate) came_back: u64,
    pub(crate) from_disk: u64,
    /// Times that computing was found faster than bringing.
    pub(crate) computed_instead: u64,
}

/// Bytes.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Memory {
    /// Most that the device had in use, as it counts itself.
    pub(crate) device_peak_bytes: usize,
    /// Cached state that is left at the end.
    pub(crate) cached_bytes: usize,
    /// The most cached state that was seen, looking ten times a second: sealed
    /// segments and the tails of live sequences.
    pub(crate) cached_bytes_max: usize,
    /// What the state of the distinct tokens weighs, each kept once.
    pub(crate) needed_bytes: usize,
    /// Cached state at the end ÷ what the distinct tokens need: below 1 where segments
    /// were evicted. As the oracle counts it; of other devices, which hold more than
    /// cached state, by the cache's own account.
    pub(crate) held_by_needed: f64,
    /// The same for the most cached state at any time.
    pub(crate) held_max_by_needed: f64,
    /// Tokens whose state is left at the end.
    pub(crate) cached_tokens: usize,
    /// Segments that they are in.
    pub(crate) segments: usize,
    /// Segments that were evicted.
    pub(crate) evicted_segments: u64,
    /// What is kept beside the device at the end, and what was moved; none without a
    /// pager.
    pub(crate) pager: Option<Paged>,
}
