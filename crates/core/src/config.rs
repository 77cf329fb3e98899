//! Engine settings: one struct per component. Each field states its unit and how to choose it.

mod grammar;
mod text;

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use crate::eviction::{Eviction, Foresight, Lru};
pub use crate::protocol::Precision;
use crate::protocol::{GrammarLimits, Label, ModelSpec};
use motet_sync::admission::REQUESTS_MAX;
use motet_sync::admission::users::UserLimits;
pub use text::TextConfig;

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("configuration field `{field}` is {found}; expected {expected}")]
pub struct ConfigError {
    /// The field, with its component, for example `scheduler.step_tokens_max`.
    pub field: &'static str,
    /// The value that was found.
    pub found: String,
    /// The values that would work.
    pub expected: Cow<'static, str>,
}

/// Settings of a whole engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineConfig {
    /// Upper bound on the tokens of one sequence, prompt and output together; `None` is the
    /// model's whole context. With a lower bound, a smaller `cache.device_bytes_max` holds
    /// `cache.full_sequences_min` sequences.
    pub context_tokens_max: Option<usize>,
    /// Settings of the scheduler: steps, queue limits, fairness.
    pub scheduler: SchedulerConfig,
    /// Settings of the cache: state on the device.
    pub cache: CacheConfig,
    /// Settings of the pager: copies in host memory and on disk.
    pub pager: PagerConfig,
    /// Settings of recovery from failed parts.
    pub recovery: RecoveryConfig,
    /// Settings of rendering and tokenising.
    pub text: TextConfig,
    /// Limits on the cost of a request's grammar.
    pub grammar: GrammarLimits,
}

/// Settings of recovery. A failed device thread or actor is rebuilt, and live sequences
/// continue from their histories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Upper bound on the rebuilds within `rebuilds_window`. At the next failure the engine is
    /// broken: all requests end, and none is admitted any more. 0 gives up at the first
    /// failure. Leave headroom for a request that fails the device each time: it fails alone at
    /// the third attempt. Rebuilds of the pager are counted separately. With one too many, the
    /// engine continues without a pager.
    pub rebuilds_max: usize,
    /// Time for which a rebuild counts towards `rebuilds_max`. Choose more than `rebuilds_max`
    /// times `scheduler.device_timeout`. Otherwise a device that gets stuck each time never
    /// reaches the limit.
    pub rebuilds_window: Duration,
    /// Delay after a failed load of the model until the next attempt. It doubles with each
    /// further failed load in a row.
    pub reload_delay: Duration,
}

/// Settings of the scheduler.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "preemption")]
#[doc(alias = "chunked prefill")]
pub struct SchedulerConfig {
    /// Upper bound on the sequences that run at once. More sequences give more throughput and a
    /// longer wait between two tokens. Measure where throughput stops growing.
    pub sequences_max: usize,
    /// Upper bound on the requests that wait beyond the running ones. A full queue rejects
    /// further requests at once. Choose the longest acceptable wait, times the rate at which
    /// requests are served.
    pub queue_max: usize,
    /// Upper bound on the prompt tokens of requests that wait beyond the running ones. A full
    /// queue rejects further requests at once; long prompts fill it sooner than short ones. A
    /// prompt longer than this is admitted when no other waits. Choose the longest acceptable
    /// wait, times the rate at which prompt tokens are computed.
    pub queue_tokens_max: usize,
    /// Upper bound on the requests that one user has in the engine, running and waiting.
    /// Requests without a user count as one user's. Further requests are rejected at once, even
    /// if the engine has capacity. `None` sets no bound per user. Fair shares keep a user from
    /// slowing others down, but not from filling the queue. A server with possibly hostile
    /// users sets a part of `sequences_max` and `queue_max` together, for example an eighth.
    pub user_requests_max: Option<usize>,
    /// Upper bound on the prompt tokens of one user's waiting requests. A prompt longer than
    /// this is admitted when no other prompt of the user waits. `None` sets no bound per user.
    /// Choose it like `user_requests_max`, as a part of `queue_tokens_max`.
    pub user_queue_tokens_max: Option<usize>,
    /// Upper bound on the tokens that one step evaluates, decode and prefill together;
    /// `inter_token` may lower it. Scratch memory for this many tokens is reserved. It must be
    /// at least `sequences_max`, so that every sequence can be in every step.
    pub step_tokens_max: usize,
    /// Bound on the duration of a step that computes prompts beside decoding sequences.
    pub inter_token: InterToken,
    /// Number of planned steps after which a prompt with a slot computes a chunk, even when
    /// decoding leaves no time for it; at least 1. One such prompt per step gets a chunk.
    /// Choose less for a sooner first token, and more for more even gaps between tokens.
    pub prefill_wait_steps_max: usize,
    /// Tokens of that chunk. No other chunk is shorter either, except at the end of a prompt.
    pub prefill_tokens_min: usize,
    /// Cost of a computed prompt token, in service units charged to its user. Tokens that were
    /// in the cache cost nothing.
    pub prompt_token_service: f64,
    /// Cost of a generated token, in service units charged to its user.
    pub output_token_service: f64,
    /// Service units by which a user may be ahead of the least-served user and still start
    /// first, because more of its prompt is cached.
    pub locality_service: f64,
    /// Service units by which a returning user may start below the least-served active user. A
    /// larger credit lets an occasional user send a burst ahead of heavy users.
    pub credit_service: f64,
    /// Time that a request waits before its class gets turns, although requests of a higher
    /// class wait. Turns take one start of eight, and at most an eighth of the slots (at least
    /// one) and of the steps. A request that starts in a turn keeps its slot for 16 tokens.
    /// With turns no class starves. Choose how long a request of a lower class may wait while a
    /// higher class takes all capacity. The higher class then waits for a slot as long as a
    /// turn lasts. `None` gives no turns: a saturated class starves those below it.
    pub ageing: Option<Duration>,
    /// Upper bound on the tokens that a sequence is ahead of its caller's reading. The sequence
    /// pauses there.
    pub unread_tokens_max: usize,
    /// Time after which a paused sequence fails if its caller has read nothing. `None` never
    /// ends it.
    pub unread_timeout: Option<Duration>,
    /// Upper bound on the duration of one piece of work on the device. After that the engine
    /// abandons the device thread, with all the memory that it holds, and loads the model again
    /// on another thread. Choose longer than any step can take.
    pub device_timeout: Duration,
    /// Upper bound on the failed steps in a row, without a new token between them, that a
    /// sequence survives. After the first one it is tried alone.
    pub step_retries_max: u32,
}

/// Bound on the duration of a step that computes prompts: the gap between two tokens that
/// decoding sequences accept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InterToken {
    /// As long as `step_tokens_max` tokens take: fastest for prompts.
    Unbounded,
    /// Prompts add at most this many times the duration of a step with one decoding sequence,
    /// or as much as all decoding sequences take together, whichever is more. Above 0.
    Relative(f64),
    /// The step takes at most this long. Above 0.
    Absolute(Duration),
}

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
    /// Tokens between two restore points in a prompt, for models that cannot resume after any
    /// token (sliding windows, recurrent layers); at least 1. A shorter interval saves more
    /// recomputation and costs device bytes.
    pub restore_interval_tokens: usize,
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

/// Settings of the pager, which keeps copies of device state in host memory and on disk.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "KV offload")]
pub struct PagerConfig {
    /// Host bytes for copies of state that the device holds or held. 0, the default, disables
    /// the pager: evicted state is computed again. A pager is worth its memory where the device
    /// has memory of its own. On a CPU, a larger `cache.device_bytes_max` serves better.
    pub host_bytes_max: usize,
    /// Bytes of `host_bytes_max` for the labels of copies, those on the disk included. A label
    /// takes 1 KiB, and 4 bytes for each token of its copy. For the label of a new copy, the
    /// pager drops the coldest copies from host memory and disk. If that does not suffice, it
    /// does not make the copy.
    ///
    /// `None` is a sixteenth of `host_bytes_max`. Choose more where the disk is much larger
    /// than host memory and segments are short: 64 MiB suffice for 50,000 copies of 64 tokens.
    /// The range is from 1 KiB to seven eighths of `host_bytes_max`; the rest is memory for the
    /// next copies.
    pub label_bytes_max: Option<usize>,
    /// Folder for copies that do not fit in host memory, and for the next start; `None` uses no
    /// disk.
    pub disk: Option<DiskConfig>,
    /// Number format of state in host memory and on disk. [`Precision::Eight`] takes a quarter
    /// of the bytes of 32-bit numbers, and restores slightly different numbers.
    pub precision: Precision,
    /// Part of the device's bytes that is kept free, or also held in a copy, so that it is
    /// available at once; 0 to 1. With a larger part, more bytes are copied that are never
    /// loaded again.
    pub clean_part: f64,
    /// Tokens by which a live sequence grows until it is copied to host memory again, or an
    /// eighth of its copied tokens where that is more. When the device is lost, the sequence
    /// continues from its copies and computes no more than that again. 0 copies no live
    /// sequence; otherwise from 4 to 2^24. Choose fewer for shorter pauses after a lost device.
    /// Choose more where `label_bytes_max` is short: each copy takes 1 KiB of it, and one copy
    /// on the device.
    pub backup_tokens: usize,
    /// Upper bound on the time for writing cached state to the disk when the engine shuts down
    /// or is flushed. Choose `cache.device_bytes_max` divided by the bytes that the disk writes
    /// in a second.
    pub flush_time: Duration,
    /// Time after which a disk that has not answered is no longer used, until it answers.
    pub disk_timeout: Duration,
}

/// A folder for copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The folder, which one process uses at a time. Copies that an earlier process left there
    /// are found again if they belong to the same model. The folder holds users' texts: protect
    /// it as such.
    pub folder: PathBuf,
    /// Upper bound on the bytes of the folder's files.
    pub bytes_max: usize,
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

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            sequences_max: 64,
            queue_max: 256,
            queue_tokens_max: 1 << 20,
            user_requests_max: None,
            user_queue_tokens_max: None,
            step_tokens_max: 256,
            inter_token: InterToken::Relative(2.5),
            prefill_wait_steps_max: 16,
            prefill_tokens_min: 16,
            prompt_token_service: 1.0,
            output_token_service: 2.0,
            locality_service: 2048.0,
            credit_service: 4096.0,
            ageing: Some(Duration::from_secs(30)),
            unread_tokens_max: 256,
            unread_timeout: None,
            device_timeout: Duration::from_secs(60),
            step_retries_max: 2,
        }
    }
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            rebuilds_max: 5,
            rebuilds_window: Duration::from_secs(600),
            reload_delay: Duration::from_millis(500),
        }
    }
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            device_bytes_max: 0,
            share_tokens_min: 16,
            eviction: EvictionPolicy::default(),
            slot_choice: SlotChoice::default(),
            restore_interval_tokens: 8192,
            merge_tokens_max: 512,
            pinned_bytes_max: None,
            full_sequences_min: 1,
            block_tokens: 16,
        }
    }
}

impl Default for PagerConfig {
    fn default() -> Self {
        Self {
            host_bytes_max: 0,
            label_bytes_max: None,
            disk: None,
            precision: Precision::Full,
            clean_part: 0.5,
            backup_tokens: 64,
            flush_time: Duration::from_secs(5),
            disk_timeout: Duration::from_secs(2),
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
}

impl EvictionPolicy {
    /// Creates the policy, with nothing learned yet.
    #[must_use]
    pub fn policy(self) -> Box<dyn Eviction> {
        match self {
            Self::Lru => Box::new(Lru),
            Self::Foresight => Box::<Foresight>::default(),
        }
    }
}

impl EngineConfig {
    /// Checks that every setting can work.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the first field that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        positive(
            "context_tokens_max",
            self.context_tokens_max.unwrap_or(usize::MAX),
        )?;
        self.grammar.validate()?;
        self.recovery.validate()?;
        positive("scheduler.sequences_max", self.scheduler.sequences_max)?;
        positive("scheduler.step_tokens_max", self.scheduler.step_tokens_max)?;
        positive(
            "scheduler.unread_tokens_max",
            self.scheduler.unread_tokens_max,
        )?;
        positive(
            "scheduler.user_requests_max",
            self.scheduler.user_requests_max.unwrap_or(usize::MAX),
        )?;
        let is_set = self.cache.device_bytes_max > 0;
        if is_set {
            bytes("cache.device_bytes_max", self.cache.device_bytes_max)?;
        }
        positive("cache.block_tokens", self.cache.block_tokens)?;
        positive(
            "cache.restore_interval_tokens",
            self.cache.restore_interval_tokens,
        )?;
        let pinned_bytes_max = self.cache.pinned_bytes_max();
        if is_set && pinned_bytes_max > self.cache.device_bytes_max {
            return Err(ConfigError {
                field: "cache.pinned_bytes_max",
                found: pinned_bytes_max.to_string(),
                expected: "at most `cache.device_bytes_max`".into(),
            });
        }
        let inside = self
            .scheduler
            .sequences_max
            .checked_add(self.scheduler.queue_max);
        if inside.is_none_or(|inside| inside > REQUESTS_MAX) {
            return Err(ConfigError {
                field: "scheduler.queue_max",
                found: self.scheduler.queue_max.to_string(),
                expected: "with `scheduler.sequences_max`, less than 2^24: a queue is bounded"
                    .into(),
            });
        }
        self.scheduler.validate_policy()?;
        self.pager.validate()?;
        self.text.validate()?;
        if self.scheduler.step_tokens_max >= self.scheduler.sequences_max {
            return Ok(());
        }
        Err(ConfigError {
            field: "scheduler.step_tokens_max",
            found: self.scheduler.step_tokens_max.to_string(),
            expected: "at least `scheduler.sequences_max`, so that all sequences may decode".into(),
        })
    }
}

impl SchedulerConfig {
    /// Returns the upper bound on admitted requests, running and waiting.
    #[must_use]
    pub fn inside_max(&self) -> usize {
        self.sequences_max.saturating_add(self.queue_max)
    }

    /// Returns the limits of one user; `None` where neither is set.
    #[must_use]
    pub fn user_limits(&self) -> Option<UserLimits> {
        let limits = (self.user_requests_max, self.user_queue_tokens_max);
        (limits != (None, None)).then(|| UserLimits {
            requests_max: limits.0.unwrap_or(usize::MAX),
            tokens_max: limits.1.unwrap_or(usize::MAX),
        })
    }

    fn validate_policy(&self) -> Result<(), ConfigError> {
        let error = |field, found: String, expected: &'static str| ConfigError {
            field,
            found,
            expected: expected.into(),
        };
        if self.device_timeout.is_zero() {
            let expected = "longer than any step can take";
            return Err(error("scheduler.device_timeout", "0".into(), expected));
        }
        if self.prefill_wait_steps_max == 0 {
            let field = "scheduler.prefill_wait_steps_max";
            return Err(error(field, "0".into(), "at least 1"));
        }
        if self.unread_timeout.is_some_and(|timeout| timeout.is_zero()) {
            let expected = "longer than any reader may take, or none";
            return Err(error("scheduler.unread_timeout", "0".into(), expected));
        }
        match self.inter_token {
            InterToken::Absolute(Duration::ZERO) => {
                return Err(error("scheduler.inter_token", "0".into(), "a time above 0"));
            }
            InterToken::Relative(times) if !(times > 0.0 && times.is_finite()) => {
                let expected = "a finite number above 0";
                return Err(error("scheduler.inter_token", times.to_string(), expected));
            }
            _ => {}
        }
        for (field, value) in [
            ("scheduler.prompt_token_service", self.prompt_token_service),
            ("scheduler.output_token_service", self.output_token_service),
            ("scheduler.locality_service", self.locality_service),
            ("scheduler.credit_service", self.credit_service),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(error(
                    field,
                    value.to_string(),
                    "a finite number, at least 0",
                ));
            }
        }
        Ok(())
    }
}

impl RecoveryConfig {
    fn validate(&self) -> Result<(), ConfigError> {
        time("recovery.rebuilds_window", self.rebuilds_window)?;
        time("recovery.reload_delay", self.reload_delay)
    }
}

/// Range of `pager.backup_tokens`. Below it, a label costs more than its tokens are worth. No
/// sequence is as long as its end.
const BACKUP_TOKENS: std::ops::RangeInclusive<usize> = 4..=1 << 24;

impl PagerConfig {
    /// Returns the bytes of `host_bytes_max` for the labels of copies.
    #[must_use]
    pub fn label_bytes_max(&self) -> usize {
        self.label_bytes_max.unwrap_or(self.host_bytes_max / 16)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        if !(0.0..=1.0).contains(&self.clean_part) {
            return Err(ConfigError {
                field: "pager.clean_part",
                found: self.clean_part.to_string(),
                expected: "a part of the device's bytes, 0 to 1".into(),
            });
        }
        if self.backup_tokens > 0 && !BACKUP_TOKENS.contains(&self.backup_tokens) {
            return Err(ConfigError {
                field: "pager.backup_tokens",
                found: self.backup_tokens.to_string(),
                expected: format!(
                    "0, so that no live sequence is copied, or from {} to {} tokens",
                    BACKUP_TOKENS.start(),
                    BACKUP_TOKENS.end()
                )
                .into(),
            });
        }
        if self.host_bytes_max > 0 {
            bytes("pager.host_bytes_max", self.host_bytes_max)?;
            time("pager.disk_timeout", self.disk_timeout)?;
        }
        if let Some(disk) = self.disk.as_ref().filter(|disk| disk.bytes_max > 0) {
            bytes("pager.disk.bytes_max", disk.bytes_max)?;
        }
        let most = self.host_bytes_max - self.host_bytes_max / 8;
        if let Some(bytes) = self.label_bytes_max
            && self.host_bytes_max > 0
            && !(Label::RECORD_BYTES..=most).contains(&bytes)
        {
            return Err(ConfigError {
                field: "pager.label_bytes_max",
                found: bytes.to_string(),
                expected: format!(
                    "from {} to seven eighths of `pager.host_bytes_max`, {most}",
                    Label::RECORD_BYTES
                )
                .into(),
            });
        }
        let no_disk = |expected: &'static str| ConfigError {
            field: "pager.disk",
            found: "a folder".into(),
            expected: expected.into(),
        };
        match &self.disk {
            Some(_) if self.host_bytes_max == 0 => Err(no_disk(
                "`pager.host_bytes_max` above 0, since copies reach the disk through host \
                 memory",
            )),
            Some(disk) if disk.bytes_max == 0 => Err(no_disk("`bytes_max` above 0")),
            _ => Ok(()),
        }
    }
}

impl EngineConfig {
    /// Returns the upper bound on the tokens of a sequence of this model.
    #[must_use]
    pub fn context_tokens_max(&self, spec: &ModelSpec) -> usize {
        self.context_tokens_max.unwrap_or(spec.context_tokens_max)
    }

    /// Returns the device bytes that the largest step needs beside weights and cached state.
    #[must_use]
    pub fn scratch_bytes(&self, spec: &ModelSpec) -> usize {
        spec.scratch_bytes_per_token
            .saturating_mul(self.scheduler.step_tokens_max)
    }

    /// Returns what must fit on the device at once, even after everything else was preempted or
    /// evicted.
    #[must_use]
    pub fn worst_case(&self, spec: &ModelSpec) -> WorstCase {
        let context_tokens = self.context_tokens_max(spec);
        let tail = spec.tail_bytes(context_tokens);
        let full_sequences = self.cache.full_sequences_min;
        WorstCase {
            full_sequences,
            context_tokens,
            // At least one byte is left for the cache.
            tail_bytes: tail.saturating_mul(full_sequences).max(1),
            scratch_bytes: self.scratch_bytes(spec),
        }
    }

    /// Checks the context limit against the model's, and the budget against the worst case: the
    /// scratch memory of the largest step, and `cache.full_sequences_min` sequences of the
    /// whole context at once. With at least one of them, one sequence can always continue after
    /// all others were preempted. A budget of 0 is checked when the model is loaded.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the valid context, or the bytes that would suffice.
    pub fn validate_for(&self, spec: &ModelSpec) -> Result<(), ConfigError> {
        let context = self.context_tokens_max(spec);
        if context == 0 || context > spec.context_tokens_max {
            return Err(ConfigError {
                field: "context_tokens_max",
                found: context.to_string(),
                expected: format!(
                    "from 1 to the model's own context, {}",
                    spec.context_tokens_max
                )
                .into(),
            });
        }
        let worst = self.worst_case(spec);
        let (needed, scratch) = (worst.bytes(), worst.scratch_bytes);
        let budget = self.cache.device_bytes_max;
        if budget == 0 || needed <= budget {
            return Ok(());
        }
        Err(ConfigError {
            field: "cache.device_bytes_max",
            found: self.cache.device_bytes_max.to_string(),
            expected: format!(
                "at least {needed} bytes: `cache.full_sequences_min` = {} sequences of \
                 {context} tokens (lower that to 0 if no request is that long, or set \
                 `context_tokens_max`), and {scratch} for a step of \
                 `scheduler.step_tokens_max` tokens",
                self.cache.full_sequences_min
            )
            .into(),
        })
    }
}

/// Memory that must fit on the device at once: see [`EngineConfig::worst_case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorstCase {
    /// Sequences of the whole context: `cache.full_sequences_min`.
    pub full_sequences: usize,
    /// Tokens of each sequence.
    pub context_tokens: usize,
    /// Bytes of cached state of all these sequences.
    pub tail_bytes: usize,
    /// Bytes of scratch memory for the largest step.
    pub scratch_bytes: usize,
}

impl WorstCase {
    /// Returns the sum of all bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tail_bytes.saturating_add(self.scratch_bytes)
    }
}

impl std::fmt::Display for WorstCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} for {} sequences of {} tokens, and {} for the largest step's scratch",
            self.tail_bytes, self.full_sequences, self.context_tokens, self.scratch_bytes
        )
    }
}

/// Upper bound on a setting in bytes. No machine has more, so a larger one is a mistake.
const BYTES_MAX: usize = 1 << 48;

/// Checks that a budget is from 1 to `BYTES_MAX` bytes.
fn bytes(field: &'static str, value: usize) -> Result<(), ConfigError> {
    if (1..=BYTES_MAX).contains(&value) {
        return Ok(());
    }
    Err(ConfigError {
        field,
        found: value.to_string(),
        expected: format!("from 1 to {BYTES_MAX} bytes").into(),
    })
}

/// Checks that a time is above 0.
fn time(field: &'static str, value: Duration) -> Result<(), ConfigError> {
    if !value.is_zero() {
        return Ok(());
    }
    Err(ConfigError {
        field,
        found: "0".into(),
        expected: "a time above 0".into(),
    })
}

fn positive(field: &'static str, value: usize) -> Result<(), ConfigError> {
    if value > 0 {
        return Ok(());
    }
    Err(ConfigError {
        field,
        found: "0".into(),
        expected: "at least 1".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backup_tokens_out_of_range_are_rejected() {
        for (backup_tokens, is_valid) in [
            (0, true),
            (1, false),
            (3, false),
            (4, true),
            (64, true),
            (1 << 24, true),
            ((1 << 24) + 1, false),
            (usize::MAX, false),
        ] {
            let config = PagerConfig {
                backup_tokens,
                ..PagerConfig::default()
            };
            let judged = config.validate();
            assert_eq!(judged.is_ok(), is_valid, "{backup_tokens}");
            if let Err(error) = judged {
                assert_eq!(error.field, "pager.backup_tokens");
                assert_eq!(error.found, backup_tokens.to_string());
            }
        }
    }

    #[test]
    fn defaults_are_valid_and_zeroes_are_named() {
        assert_eq!(EngineConfig::default().validate(), Ok(()));
        let mut config = EngineConfig::default();
        config.scheduler.step_tokens_max = 0;
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "scheduler.step_tokens_max");
        config.scheduler.step_tokens_max = config.scheduler.sequences_max - 1;
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "scheduler.step_tokens_max");
        let mut config = EngineConfig::default();
        config.scheduler.user_requests_max = Some(0);
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "scheduler.user_requests_max");
        let mut config = EngineConfig::default();
        config.text.shift_contexts_max = 0;
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "text.shift_contexts_max");
        let mut config = EngineConfig::default();
        config.scheduler.queue_max = usize::MAX;
        assert_eq!(config.validate().unwrap_err().field, "scheduler.queue_max");
        let mut config = EngineConfig::default();
        config.scheduler.device_timeout = Duration::ZERO;
        let error = config.validate().unwrap_err();
        assert_eq!(error.field, "scheduler.device_timeout");
    }

    #[test]
    fn label_bytes_must_fit_in_host_bytes() {
        let check = |host_bytes_max, label_bytes_max, is_valid: bool| {
            let mut config = EngineConfig::default();
            config.pager.host_bytes_max = host_bytes_max;
            config.pager.label_bytes_max = label_bytes_max;
            match config.validate() {
                Ok(()) => assert!(is_valid, "{label_bytes_max:?} of {host_bytes_max}"),
                Err(error) => {
                    assert!(!is_valid, "{error}");
                    assert_eq!(error.field, "pager.label_bytes_max");
                    let (found, most) = (label_bytes_max.unwrap(), host_bytes_max / 8 * 7);
                    let message = error.to_string();
                    let numbers = [found, most].map(|number| number.to_string());
                    assert!(numbers.iter().all(|one| message.contains(one)), "{message}");
                }
            }
        };
        check(1 << 20, None, true);
        check(1 << 20, Some(1024), true);
        check(1 << 20, Some(1023), false);
        check(1 << 20, Some(7 << 17), true);
        check(1 << 20, Some((7 << 17) + 1), false);
        // Without a pager there are no labels.
        check(0, Some(0), true);
        assert_eq!(PagerConfig::default().label_bytes_max(), 0);
    }
}
