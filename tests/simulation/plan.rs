//! Decisions that a seed makes in advance: the model, the settings, the number of users, and
//! the possible faults.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use motet::TokenId;
use motet::config::{
    DiskConfig, EngineConfig, EvictionPolicy, InterToken, RemoteConfig, RemoteSends, SlotChoice,
};
use motet::model::LayerKind;
use motet::model::oracle::{Faults, OracleConfig};
use motet_model::oracle::{OracleCounters, OracleCounts};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::classes::ClassWatch;

/// One seed in so many has no faults: no request may fail then.
const FAULT_FREE_ONE_IN: u64 = 8;
/// The token that fails steps where one does.
pub(crate) const POISON: TokenId = 49;
/// Host memory and disk are allocated in units of this size.
const PAGE_BYTES: usize = 4096;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    StepFails,
    FinishFails,
    ModelPanics,
    DeviceStalls,
    DeviceStuck,
    DeviceDies,
    DeviceOutOfMemory,
    ExportFails,
    SchedulerPanics,
    CachePanics,
    PagerPanics,
    CopySlow,
    CopyFails,
    DiskFull,
    DiskStalls,
    FileDamaged,
    ClockJumps,
    ModelDoesNotLoad,
    ModelDoesNotReload,
    BreakerOpens,
    Drained,
    Aborted,
    Poison,
    MailboxesSmall,
    RemoteFails,
    RemoteHangs,
    RemoteSlow,
    RemoteLost,
}

pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) oracle: OracleConfig,
    pub(crate) config: EngineConfig,
    pub(crate) users: u64,
    /// Works that may be sent to devices. More of them indicate an endless loop.
    pub(crate) works_max: u64,
    /// Whether requests may be pinned: others may then run out of memory.
    pub(crate) pins: bool,
    /// Checks that no class starves, where classes are saturated.
    pub(crate) classes: Option<ClassWatch>,
    /// Probability of each fault at each opportunity.
    faults: BTreeMap<Fault, f64>,
}

impl Fault {
    pub(crate) const ALL: [Self; 28] = [
        Self::StepFails,
        Self::FinishFails,
        Self::ModelPanics,
        Self::DeviceStalls,
        Self::DeviceStuck,
        Self::DeviceDies,
        Self::DeviceOutOfMemory,
        Self::ExportFails,
        Self::SchedulerPanics,
        Self::CachePanics,
        Self::PagerPanics,
        Self::CopySlow,
        Self::CopyFails,
        Self::DiskFull,
        Self::DiskStalls,
        Self::FileDamaged,
        Self::ClockJumps,
        Self::ModelDoesNotLoad,
        Self::ModelDoesNotReload,
        Self::BreakerOpens,
        Self::Drained,
        Self::Aborted,
        Self::Poison,
        Self::MailboxesSmall,
        Self::RemoteFails,
        Self::RemoteHangs,
        Self::RemoteSlow,
        Self::RemoteLost,
    ];

    /// Its name in the table.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::StepFails => "fault: step fails when submitted",
            Self::FinishFails => "fault: step fails when finished",
            Self::ModelPanics => "fault: model panics",
            Self::DeviceStalls => "fault: device stalls, and comes back",
            Self::DeviceStuck => "fault: device is left behind",
            Self::DeviceDies => "fault: device dies",
            Self::DeviceOutOfMemory => "fault: device out of memory",
            Self::ExportFails => "fault: segment not exported",
            Self::SchedulerPanics => "fault: scheduler panics",
            Self::CachePanics => "fault: cache panics",
            Self::PagerPanics => "fault: pager panics",
            Self::CopySlow => "fault: copy is slow",
            Self::CopyFails => "fault: copy fails",
            Self::DiskFull => "fault: disk full",
            Self::DiskStalls => "fault: disk does not answer",
            Self::FileDamaged => "fault: file damaged",
            Self::ClockJumps => "fault: clock jumps",
            Self::ModelDoesNotLoad => "fault: model does not load",
            Self::ModelDoesNotReload => "fault: model does not load again",
            Self::BreakerOpens => "fault: breaker opens",
            Self::Drained => "fault: drained in the middle",
            Self::Aborted => "fault: shut down in the middle",
            Self::Poison => "fault: a token fails every step",
            Self::MailboxesSmall => "fault: mailboxes are small",
            Self::RemoteFails => "fault: remote tier fails",
            Self::RemoteHangs => "fault: remote tier does not answer",
            Self::RemoteSlow => "fault: remote tier is slow",
            Self::RemoteLost => "fault: copy of remote tier is lost",
        }
    }

    /// The probability that a seed has it.
    fn odds(self) -> f64 {
        match self {
            // It would hide the effects of other faults.
            Self::BreakerOpens => 0.05,
            _ => 0.3,
        }
    }

    /// The probability of an occurrence in a seed that has it.
    fn rates(self) -> [f64; 2] {
        match self {
            Self::StepFails | Self::FinishFails | Self::ModelPanics => [0.01, 0.1],
            Self::DeviceStalls | Self::DeviceStuck | Self::DeviceDies => [0.002, 0.02],
            Self::SchedulerPanics | Self::CachePanics | Self::PagerPanics => [0.000_5, 0.005],
            Self::DeviceOutOfMemory | Self::ExportFails => [0.01, 0.1],
            Self::CopySlow | Self::CopyFails | Self::DiskFull => [0.05, 0.5],
            Self::RemoteFails | Self::RemoteHangs | Self::RemoteSlow | Self::RemoteLost => {
                [0.05, 0.5]
            }
            Self::DiskStalls | Self::FileDamaged => [0.02, 0.2],
            Self::ClockJumps => [0.05, 0.3],
            Self::ModelDoesNotLoad | Self::ModelDoesNotReload => [0.5, 0.5],
            // From the start.
            Self::Poison | Self::MailboxesSmall | Self::BreakerOpens => [1.0, 1.0],
            Self::Drained | Self::Aborted => [0.03, 0.1],
        }
    }
}

impl Plan {
    /// The plan of this seed, with its disk tier, if any, in this folder.
    pub(crate) fn of(seed: u64, folder: &Path) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let oracle = oracle(&mut rng);
        let mut plan = Self {
            seed,
            config: config(&mut rng, &oracle, folder),
            oracle,
            users: rng.random_range(1..=24),
            works_max: 200_000,
            pins: rng.random_bool(0.3),
            classes: None,
            faults: BTreeMap::new(),
        };
        if !seed.is_multiple_of(FAULT_FREE_ONE_IN) {
            let is_present = |fault: &Fault| rng.random_bool(fault.odds());
            let faults: Vec<Fault> = Fault::ALL.into_iter().filter(is_present).collect();
            let rate = |fault: Fault| (fault, fault.rates()[rng.random_range(0..2)]);
            plan.faults = faults.into_iter().map(rate).collect();
        }
        if plan.rate(Fault::BreakerOpens) > 0.0 {
            plan.config.recovery.rebuilds_max = rng.random_range(0..=3);
            plan.config.recovery.rebuilds_window = Duration::from_secs(600);
        }
        plan
    }

    /// One engine for a long time: every fault that does not end it occurs now and then.
    pub(crate) fn long(folder: &Path) -> Self {
        let mut plan = Self::long_and_calm(folder);
        plan.config.scheduler.device_timeout = Duration::from_secs(10);
        let ends = [
            Fault::ModelDoesNotLoad,
            Fault::BreakerOpens,
            Fault::Drained,
            Fault::Aborted,
            Fault::Poison,
            Fault::MailboxesSmall,
            // Only `chaos` causes it.
            Fault::ClockJumps,
        ];
        let goes_on = |fault: &Fault| !ends.contains(fault);
        let rare = |fault: Fault| (fault, fault.rates()[0] / 4.0);
        plan.faults = Fault::ALL.into_iter().filter(goes_on).map(rare).collect();
        plan
    }

    /// The same without faults.
    pub(crate) fn long_and_calm(folder: &Path) -> Self {
        let oracle = OracleConfig {
            vocab_size: 50,
            context_tokens_max: 256,
            end_tokens: vec![0],
            end_one_in: 40,
            tail_block_tokens: 16,
            can_shift: true,
            ..OracleConfig::with_layers(&[LayerKind::Full, LayerKind::Window { tokens: 12 }])
        };
        let mut config = EngineConfig::default();
        config.scheduler.sequences_max = 16;
        config.scheduler.admission.queue_max = 200;
        config.scheduler.admission.queue_tokens_max = 20_000;
        config.scheduler.chunking.step_tokens_max = 64;
        // A machine that stalls for a while must not fail any request.
        config.scheduler.device_timeout = Duration::from_secs(3_600);
        config.scheduler.unread_timeout = None;
        config.recovery.rebuilds_max = 1_000;
        config.recovery.rebuilds_window = Duration::from_secs(60);
        let spec = oracle.spec();
        let whole = spec.tail_bytes(spec.context_tokens_max);
        config.cache.device_bytes_max = 6 * whole;
        // Enough for 100 copies, for their labels and those of the copies on the disk, and for
        // memory that is kept for the next copies.
        config.pager.host_bytes_max = 160 * PAGE_BYTES;
        config.pager.label_bytes_max = Some(40 * PAGE_BYTES);
        config.pager.disk = Some(DiskConfig {
            folder: folder.to_owned(),
            bytes_max: 200 * PAGE_BYTES,
        });
        config.pager.remote = Some(RemoteConfig {
            grid_tokens: 16,
            ..RemoteConfig::default()
        });
        Self {
            seed: 0,
            oracle,
            config,
            users: 0,
            works_max: u64::MAX,
            pins: true,
            classes: None,
            faults: BTreeMap::new(),
        }
    }

    /// A plan with saturated classes, in turn and together, and without faults.
    pub(crate) fn saturated(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let oracle = oracle(&mut rng);
        let mut config = EngineConfig::default();
        let scheduler = &mut config.scheduler;
        scheduler.sequences_max = rng.random_range(1..=6);
        scheduler.admission.queue_max = 1_000;
        scheduler.admission.queue_tokens_max = 100_000;
        scheduler.chunking.step_tokens_max = scheduler.sequences_max + rng.random_range(0..=40);
        scheduler.chunking.inter_token = match rng.random_range(0..3) {
            0 => InterToken::Unbounded,
            1 => InterToken::Absolute(Duration::from_millis(5)),
            _ => InterToken::Relative(2.5),
        };
        scheduler.chunking.prefill_wait_steps_max = rng.random_range(1..=3);
        scheduler.chunking.prefill_tokens_min = rng.random_range(8..=16);
        scheduler.unread_tokens_max = rng.random_range(1..=32);
        scheduler.fairness.ageing = Some(Duration::from_millis(rng.random_range(50..=300)));
        scheduler.fairness.locality_service = [0.0, 64.0, 2_048.0][rng.random_range(0..3)];
        let whole = oracle.spec();
        let whole = whole.tail_bytes(whole.context_tokens_max);
        config.cache.device_bytes_max = whole * rng.random_range(10..=60) / 10;
        config.cache.share_tokens_min = rng.random_range(1..=16);
        let classes = ClassWatch::new(seed, &config.scheduler);
        Self {
            seed,
            oracle,
            config,
            users: 0,
            works_max: 200_000,
            pins: false,
            classes: Some(classes),
            faults: BTreeMap::new(),
        }
    }

    /// Capacity of the mailboxes of scheduler and pager, if it is small.
    pub(crate) fn mailbox_max(&self) -> Option<usize> {
        let are_small = self.rate(Fault::MailboxesSmall) > 0.0;
        are_small.then(|| 1 + self.seed as usize % 4)
    }

    /// Its probability at each opportunity.
    pub(crate) fn rate(&self, fault: Fault) -> f64 {
        self.faults.get(&fault).copied().unwrap_or_default()
    }

    /// Asserts that the current device is within its budget.
    pub(crate) fn check_device(&self, counts: &OracleCounts) {
        let spec = self.oracle.spec();
        // A replacement is there before the device has dropped the replaced state.
        let arriving = match self.config.pager.host_bytes_max {
            0 => 0,
            _ => 2 * spec.tail_bytes(spec.context_tokens_max),
        };
        let bytes_max = self.config.cache.device_bytes_max + arriving;
        assert!(
            counts.bytes_alive <= bytes_max,
            "{} bytes are on a device of {bytes_max}",
            counts.bytes_alive
        );
    }

    /// Whether any of these faults may occur.
    /// The draft model of every fourth seed: as good as the model where the model's layers are all of
    /// full attention.
    pub(crate) fn draft_model(&self) -> Option<OracleConfig> {
        let full = vec![LayerKind::Full; self.oracle.layers.len()];
        (self.seed % 4 == 1).then(|| OracleConfig {
            layers: full,
            device_bytes: None,
            counters: OracleCounters::default(),
            faults: Faults::default(),
            ..self.oracle.clone()
        })
    }

    pub(crate) fn has_any(&self, faults: &[Fault]) -> bool {
        faults.iter().any(|fault| self.rate(*fault) > 0.0)
    }

    /// Random numbers for one part of the seed, independent of all other parts.
    pub(crate) fn rng(&self, part: u64) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(part + 1);
        rng
    }
}

fn oracle(rng: &mut ChaCha8Rng) -> OracleConfig {
    let window = LayerKind::Window { tokens: 12 };
    let layers: &[LayerKind] = match rng.random_range(0..5) {
        0 | 1 => &[LayerKind::Full],
        2 => &[LayerKind::Full, window],
        3 => &[LayerKind::Full, LayerKind::Recurrent],
        _ => &[window, LayerKind::Recurrent],
    };
    OracleConfig {
        vocab_size: 50,
        context_tokens_max: rng.random_range(96..=256),
        end_tokens: vec![0],
        end_one_in: 40,
        tail_block_tokens: [1, 4, 16][rng.random_range(0..3)],
        can_shift: rng.random_bool(0.7),
        ..OracleConfig::with_layers(layers)
    }
}

fn config(rng: &mut ChaCha8Rng, oracle: &OracleConfig, folder: &Path) -> EngineConfig {
    let spec = oracle.spec();
    let mut config = EngineConfig::default();
    let scheduler = &mut config.scheduler;
    // Shorter than a jump of the clock, or longer than any.
    scheduler.device_timeout = Duration::from_secs([10, 120][rng.random_range(0..2)]);
    scheduler.sequences_max = rng.random_range(1..=12);
    scheduler.admission.queue_max = rng.random_range(0..=24);
    scheduler.admission.queue_tokens_max = rng.random_range(50..=2_000);
    scheduler.chunking.step_tokens_max = scheduler.sequences_max + rng.random_range(0..=40);
    scheduler.chunking.inter_token = match rng.random_range(0..3) {
        0 => InterToken::Unbounded,
        1 => InterToken::Absolute(Duration::from_millis(20)),
        _ => InterToken::Relative(2.5),
    };
    scheduler.chunking.prefill_tokens_min = rng.random_range(1..=16);
    scheduler.unread_tokens_max = rng.random_range(1..=32);
    let unread = rng.random_bool(0.6).then(|| rng.random_range(1..=60));
    scheduler.unread_timeout = unread.map(Duration::from_secs);
    scheduler.fairness.ageing = rng.random_bool(0.7).then(|| Duration::from_secs(3));
    scheduler.fairness.locality_service = [0.0, 64.0, 2_048.0][rng.random_range(0..3)];
    scheduler.step_retries_max = rng.random_range(0..=3);
    // More than ever happen. A part that fails while no time passes is ended by this bound.
    config.recovery.rebuilds_max = 1_000;
    config.recovery.rebuilds_window = Duration::from_secs(60);
    let cache = &mut config.cache;
    let whole = spec.tail_bytes(spec.context_tokens_max);
    cache.device_bytes_max = whole * rng.random_range(10..=60) / 10;
    cache.share_tokens_min = rng.random_range(1..=16);
    cache.restore_interval_tokens = rng.random_range(8..=64);
    cache.merge_tokens_max = [0, 32, 512][rng.random_range(0..3)];
    if rng.random_bool(0.5) {
        cache.eviction = EvictionPolicy::Lru;
    }
    if rng.random_bool(0.3) {
        cache.slot_choice = SlotChoice::Longest;
    }
    let pager = &mut config.pager;
    if rng.random_bool(0.7) {
        pager.host_bytes_max = rng.random_range(2..=200) * PAGE_BYTES;
        // Enough for the labels of a few copies, or of all possible ones.
        let labels = [2, 100][rng.random_range(0..2)] * PAGE_BYTES;
        pager.host_bytes_max += labels + labels / 3 + pager.host_bytes_max / 8 + 1;
        pager.label_bytes_max = Some(labels);
        pager.clean_part = [0.1, 0.5, 1.0][rng.random_range(0..3)];
        pager.disk = rng.random_bool(0.5).then(|| DiskConfig {
            folder: folder.to_owned(),
            bytes_max: rng.random_range(1..=300) * PAGE_BYTES,
        });
        pager.remote = rng.random_bool(0.5).then(|| RemoteConfig {
            sends: [RemoteSends::All, RemoteSends::UsedTwice][rng.random_range(0..2)],
            shares_salted: rng.random_bool(0.5),
            grid_tokens: [4, 8, 16][rng.random_range(0..3)],
            answer_timeout: Duration::from_millis(rng.random_range(1..=500)),
            timeout: Duration::from_millis(rng.random_range(10..=5_000)),
        });
    }
    config
}
