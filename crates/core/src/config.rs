//! How an engine is set up: one struct a component, each field with advice.

mod text;

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use crate::cache::eviction::{Eviction, Foresight, Lru};
use crate::pager::Label;
pub use crate::pager::Precision;
use crate::protocol::{GrammarLimits, ModelSpec};
use motet_sync::admission::REQUESTS_MAX;
use motet_sync::users::UserLimits;
pub use text::TextConfig;

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("configuration field `{field}` is {found}; expected {expected}")]
pub struct ConfigError {
    /// The field, with its component, for example `scheduler.step_tokens_max`.
    pub field: &'static str,
    /// What it was set to.
    pub found: String,
    /// What would work.
    pub expected: Cow<'static, str>,
}

/// Settings of a whole engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineConfig {
    /// Tokens that a sequence may have, prompt and output together; the model's whole
    /// context, if none. With fewer, a smaller `cache.device_bytes_max` holds
    /// `cache.full_sequences_min` of them.
    pub context_tokens_max: Option<usize>,
    /// Who runs in a step, and how many may wait.
    pub scheduler: SchedulerConfig,
    /// What is kept on the device.
    pub cache: CacheConfig,
    /// What is kept beside it.
    pub pager: PagerConfig,
    /// What is done when a part of it fails.
    pub recovery: RecoveryConfig,
    /// How text is turned into tokens.
    pub text: TextConfig,
    /// What a request's grammar may cost.
    pub grammar: GrammarLimits,
}

/// Settings of what happens when the device thread or an actor fails: it is made anew, and
/// live sequences go on from their histories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryConfig {
    /// Rebuilds within `rebuilds_window` that are tried. With the next failure the engine is
    /// broken: all that is inside ends, and nothing more is taken in. 0 gives up at once.
    /// Leave room for a request that no device survives: it fails alone at the third try. The
    /// pager's rebuilds count by themselves, and with one too many the engine goes on
    /// without it.
    pub rebuilds_max: usize,
    /// How long a rebuild counts. Longer than `rebuilds_max` times
    /// `scheduler.device_timeout`, or a device that is stuck each time never counts enough.
    pub rebuilds_window: Duration,
    /// After a model that could not be loaded again it is tried again after so long, then
    /// after twice as long, and so on.
    pub reload_delay: Duration,
}

/// Settings of the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulerConfig {
    /// Sequences that may run at once. More give more throughput and a longer
    /// wait between two tokens: measure from where on throughput does not grow.
    pub sequences_max: usize,
    /// Requests that may wait beyond those that run. A full queue refuses at
    /// once. Choose how long a caller may wait, times requests served in that
    /// time.
    pub queue_max: usize,
    /// Tokens of prompts that may wait beyond those that run. A full queue refuses at
    /// once: long prompts fill it sooner than short ones. A prompt that is longer than
    /// this is taken in when no other waits. Choose how long a caller may
    /// wait, times prompt tokens computed in that time.
    pub queue_tokens_max: usize,
    /// Requests that one user may have inside, running and waiting; those without a
    /// user are one user's. More are refused at once, whatever room
    /// others leave. `None`: as many as there may be in all. Fair shares keep a user from
    /// slowing others down, but not from filling the queue: a server whose users may be
    /// hostile sets a part of `sequences_max` and `queue_max` together, an eighth perhaps.
    pub user_requests_max: Option<usize>,
    /// Tokens of prompts that one user may have waiting. A prompt that is longer than this
    /// is taken in when no other of that user's waits. `None`: as many as there may be in
    /// all. Choose it as `user_requests_max`, as a part of `queue_tokens_max`.
    pub user_queue_tokens_max: Option<usize>,
    /// Tokens that one step may evaluate, decode and prefill together, if
    /// `inter_token` allows as many. A step's scratch is reserved for so many. At least
    /// `sequences_max`, so that every sequence is in every step.
    pub step_tokens_max: usize,
    /// How long a step may take for the sake of prompts.
    pub inter_token: InterToken,
    /// A prompt that has a slot makes progress at least every so many steps, even when
    /// decoding leaves no time for it; at least 1.
    pub prefill_wait_steps_max: usize,
    /// Tokens of a prompt that are computed then.
    pub prefill_tokens_min: usize,
    /// What a prompt's token costs its user, in units of service. Tokens that were in
    /// the cache cost nothing.
    pub prompt_token_service: f64,
    /// What a generated token costs its user, in units of service.
    pub output_token_service: f64,
    /// Units of service by which a user may be ahead of the one who has had least, and
    /// still be chosen for having more of its prompt in the cache.
    pub locality_service: f64,
    /// Units of service that a user who comes back may catch up, if it has had as much
    /// less than others: it goes first for so long. More lets those who ask for little
    /// be served as if they were alone, when they ask for several things at once.
    pub credit_service: f64,
    /// A class in which a request has waited so long has turns, although others wait in a
    /// higher one: one start of eight, and at most an eighth of the slots (at least one) and
    /// of the steps. A request that starts in a turn keeps its slot for 16 tokens. With that
    /// no class starves. Choose how long a request of a lower class may wait where a higher class
    /// takes all that there is; the higher class waits for a slot as long as a turn lasts.
    /// `None` never: then a saturated class starves those below it.
    pub ageing: Option<Duration>,
    /// Tokens that a sequence may be ahead of its caller's reading. Then it pauses.
    pub unread_tokens_max: usize,
    /// A sequence whose caller has read nothing for so long while it paused is ended.
    /// `None` never.
    pub unread_timeout: Option<Duration>,
    /// When work has been on the device for so long, the device thread is left behind,
    /// with all the memory that it holds, and the model loaded again on another. Longer
    /// than any step can take.
    pub device_timeout: Duration,
    /// Failed steps in a row, without a new token between, that a sequence may be
    /// part of before it fails itself. After the first it is tried alone.
    pub step_retries_max: u32,
}

/// How long a step may take for the sake of prompts: the gap between two tokens that
/// those who decode have to bear.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InterToken {
    /// As long as `step_tokens_max` tokens take: fastest for prompts.
    Unbounded,
    /// Prompts add at most so many times what a step of one decoding sequence takes, or
    /// as much as all who decode take together, whichever is more; above 0.
    Relative(f64),
    /// So long.
    Absolute(Duration),
}

/// Settings of the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheConfig {
    /// Device bytes for cached state (sealed segments and the tails of live sequences)
    /// and a step's scratch. Weights come on top. A request that could never fit is
    /// refused.
    ///
    /// 0, as it is unless set, has it chosen when the model is loaded: half of the memory that
    /// is free on a CPU, less `pager.host_bytes_max`, where the machine and the process's control
    /// groups both count; nine tenths of what a GPU has left; 2 GiB where the device cannot tell.
    /// The engine logs what it chose, and tells (`Engine::device_budget`). Set it where
    /// other programs will want the machine's memory, or all of it is the engine's.
    pub device_bytes_max: usize,
    /// A new sequence waits for another's prefill only if that spares it at least
    /// this many tokens.
    pub share_tokens_min: usize,
    /// Who goes first when room is needed.
    pub eviction: EvictionPolicy,
    /// What becomes of a conversation that a newcomer continues in another way.
    pub slot_choice: SlotChoice,
    /// Models that cannot resume after any token (sliding windows, recurrent layers)
    /// are made restorable every so many tokens of a prompt. Smaller saves more
    /// recomputing and costs device bytes.
    pub restore_interval_tokens: usize,
    /// Two segments in a row are made one, when nobody uses them, if they are no
    /// longer than this together. Each costs the device a copy; 0 never merges.
    pub merge_tokens_max: usize,
    /// Device bytes that pins may hold; half of `device_bytes_max`, if none. What is
    /// pinned is not there for live sequences.
    pub pinned_bytes_max: Option<usize>,
    /// Sequences as long as the model's whole context that must fit at once. The
    /// engine does not start on a budget, or a device, that is too small for them: it takes
    /// and writes to as much once, at about 4 GB in a second on a CPU. 0 asks for none, where no
    /// request is that long.
    pub full_sequences_min: usize,
    /// Tokens of a block, as which those who follow it are told what is cached: see
    /// `Engine::follow_blocks`. What reads them says which
    /// size it wants.
    pub block_tokens: usize,
}

/// Settings of the pager: what leaves the device is kept in host memory and on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct PagerConfig {
    /// Host bytes for copies of what the device holds or held. 0, as it is unless set, is
    /// no pager: what the device has no room for is computed again. Worth setting where
    /// the device's memory is its own; on a CPU, a larger `cache.device_bytes_max` serves
    /// better.
    pub host_bytes_max: usize,
    /// The part of `host_bytes_max` that is for what is known of copies beside their bytes,
    /// those on the disk included: of each its tokens, 4 bytes each, and 1 KiB. What finds
    /// no room there is not copied, and what is coldest is given up for what is wanted, from
    /// host memory and from the disk.
    ///
    /// A sixteenth of `host_bytes_max`, if none. Choose more where the disk is very much
    /// larger than host memory and segments are short: 64 MiB do for 50,000 copies of 64
    /// tokens. From 1 KiB to seven eighths of `host_bytes_max`: the last is memory
    /// that is kept for the next copies.
    pub label_bytes_max: Option<usize>,
    /// A folder for what host memory has no room for, and for the next start, if any.
    pub disk: Option<DiskConfig>,
    /// How numbers are kept in host memory and on disk. [`Precision::Eight`] takes a
    /// quarter of the room of 32-bit numbers, and gives back slightly other ones.
    pub precision: Precision,
    /// The part of the device's bytes that is to be free, or held in a copy as well, so
    /// that it can be had at once; 0 to 1. More copies more than will ever be asked for.
    pub clean_part: f64,
    /// A live sequence is copied to host memory, as it goes, each time that it has so many
    /// tokens more than are in copies, or an eighth more where that is more: when the device is
    /// lost it goes on from there, and computes no more than that. 0 copies nothing that is
    /// alive; else from 4 to 2^24. Choose fewer for shorter pauses after a lost device, and more
    /// where `label_bytes_max` is short: each copy takes 1 KiB of it, and is copied on the
    /// device once.
    pub backup_tokens: usize,
    /// For so long at most what is cached and not on disk is written when the engine is shut
    /// down or flushed. Choose it as `cache.device_bytes_max` divided
    /// by what the disk writes in a second.
    pub flush_time: Duration,
    /// After so long a disk that has not answered is given up until it does.
    pub disk_patience: Duration,
}

/// A folder that keeps copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// The folder, which one process uses at a time. What a former one has left there is
    /// found again, if it is of the same model. It holds what users have said: keep it as
    /// you keep that.
    pub folder: PathBuf,
    /// Bytes of its files.
    pub bytes_max: usize,
}

/// Who goes first when room is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// What was used least recently: the yardstick.
    Lru,
    /// What has the smallest chance of reuse, as learned from what is asked for, for
    /// the room and time it takes. See [`Foresight`].
    #[default]
    Foresight,
}

/// What becomes of a conversation that a newcomer continues in another way, for
/// example since its last message was edited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SlotChoice {
    /// It stays, beside the newcomer, as worthy as before: right for many users.
    #[default]
    Best,
    /// The newcomer takes its place: what it does not continue is the first to go.
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
            disk_patience: Duration::from_secs(2),
        }
    }
}

impl CacheConfig {
    /// What `device_bytes_max` is where it is not set and the device cannot tell what it has.
    pub const DEVICE_BYTES: usize = 2 << 30;

    /// Device bytes that pins may hold.
    #[must_use]
    pub fn pinned_bytes_max(&self) -> usize {
        self.pinned_bytes_max.unwrap_or(self.device_bytes_max / 2)
    }
}

impl EvictionPolicy {
    /// The policy, with nothing learned yet.
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
    /// [`ConfigError`] names the first field that cannot.
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
        match self.scheduler.step_tokens_max >= self.scheduler.sequences_max {
            true => Ok(()),
            false => Err(ConfigError {
                field: "scheduler.step_tokens_max",
                found: self.scheduler.step_tokens_max.to_string(),
                expected: "at least `scheduler.sequences_max`, so that all may decode".into(),
            }),
        }
    }
}

impl SchedulerConfig {
    /// Requests that may be inside, running and waiting.
    #[must_use]
    pub fn inside_max(&self) -> usize {
        self.sequences_max.saturating_add(self.queue_max)
    }

    /// What one user may have inside; none where that is all there may be.
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
        if self
            .unread_timeout
            .is_some_and(|patience| patience.is_zero())
        {
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

/// Below, what is known of a copy takes more than the tokens that it saves are worth; above, no
/// sequence is ever as long.
const BACKUP_TOKENS: std::ops::RangeInclusive<usize> = 4..=1 << 24;

impl PagerConfig {
    /// The part of `host_bytes_max` that is for what is known of copies.
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
                    "0, so that nothing that lives is copied, or from {} to {} tokens",
                    BACKUP_TOKENS.start(),
                    BACKUP_TOKENS.end()
                )
                .into(),
            });
        }
        if self.host_bytes_max > 0 {
            bytes("pager.host_bytes_max", self.host_bytes_max)?;
            time("pager.disk_patience", self.disk_patience)?;
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
                "`pager.host_bytes_max` above 0, since all that is on the disk comes through \
                 host memory",
            )),
            Some(disk) if disk.bytes_max == 0 => Err(no_disk("`bytes_max` above 0")),
            _ => Ok(()),
        }
    }
}

impl EngineConfig {
    /// Tokens that a sequence of this model may have.
    #[must_use]
    pub fn context_tokens_max(&self, spec: &ModelSpec) -> usize {
        self.context_tokens_max.unwrap_or(spec.context_tokens_max)
    }

    /// Device bytes that the largest step needs beside weights and cached state.
    #[must_use]
    pub fn scratch_bytes(&self, spec: &ModelSpec) -> usize {
        spec.scratch_bytes_per_token
            .saturating_mul(self.scheduler.step_tokens_max)
    }

    /// What must fit on the device at once, whatever else gives way.
    #[must_use]
    pub fn worst_case(&self, spec: &ModelSpec) -> WorstCase {
        let context_tokens = self.context_tokens_max(spec);
        let tail = spec.tail_bytes(context_tokens);
        let full_sequences = self.cache.full_sequences_min;
        WorstCase {
            full_sequences,
            context_tokens,
            // One byte at least is left for the cache.
            tail_bytes: tail.saturating_mul(full_sequences).max(1),
            scratch_bytes: self.scratch_bytes(spec),
        }
    }

    /// Checks the context limit against the model's, and the budget against the worst
    /// case: so many sequences of the whole context at once, and the largest step's
    /// scratch. So there is always one that can go on, whoever else must give way. A budget
    /// that is to be chosen is judged when the model is loaded.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] says how many bytes would do.
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
        match budget == 0 || needed <= budget {
            true => Ok(()),
            false => Err(ConfigError {
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
            }),
        }
    }
}

/// What must fit on the device at once: see [`EngineConfig::worst_case`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorstCase {
    /// Sequences of the whole context: `cache.full_sequences_min`.
    pub full_sequences: usize,
    /// Tokens of each.
    pub context_tokens: usize,
    /// Bytes of all their cached state.
    pub tail_bytes: usize,
    /// Bytes that the largest step needs beside it.
    pub scratch_bytes: usize,
}

impl WorstCase {
    /// All bytes together.
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

/// No machine has more: a setting beyond is a slip.
const BYTES_MAX: usize = 1 << 48;

/// A budget of bytes that can be meant.
fn bytes(field: &'static str, value: usize) -> Result<(), ConfigError> {
    match (1..=BYTES_MAX).contains(&value) {
        true => Ok(()),
        false => Err(ConfigError {
            field,
            found: value.to_string(),
            expected: format!("from 1 to {BYTES_MAX} bytes").into(),
        }),
    }
}

/// A time in which something can happen.
fn time(field: &'static str, value: Duration) -> Result<(), ConfigError> {
    match value.is_zero() {
        false => Ok(()),
        true => Err(ConfigError {
            field,
            found: "0".into(),
            expected: "a time above 0".into(),
        }),
    }
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
    fn copies_of_a_few_tokens_or_of_none_that_can_be_are_refused() {
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
    fn labels_have_room_within_that_of_the_host() {
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
                    let told = error.to_string();
                    let numbers = [found, most].map(|number| number.to_string());
                    assert!(numbers.iter().all(|one| told.contains(one)), "{told}");
                }
            }
        };
        check(1 << 20, None, true);
        check(1 << 20, Some(1024), true);
        check(1 << 20, Some(1023), false);
        check(1 << 20, Some(7 << 17), true);
        check(1 << 20, Some((7 << 17) + 1), false);
        // Without a pager there is nothing to know of.
        check(0, Some(0), true);
        assert_eq!(PagerConfig::default().label_bytes_max(), 0);
    }
}
