//! Durations and failures of operations.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use motet::failpoint::Failpoints;
use motet::model::ModelError;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::simulation::{FaultSchedule, ScheduledCopy};
use motet_core::pager::{Job, Task};
use motet_core::scheduler::{Effect, Event};
use motet_model::oracle::StepFault;
use motet_protocol::Work;
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;

use crate::devices::Devices;
use crate::failpoints::ArmedFailpoints;
use crate::plan::{Fault, Plan};
use crate::record::Record;

/// Messages that cores may handle while no time passes.
const AT_ONCE_MAX: u64 = 20_000;

/// Most consecutive failures to load a model again.
const RELOADS_FAIL_MAX: u32 = 3;

/// The fault schedule of a plan's seed for one engine.
pub(crate) struct SeededFaults {
    plan: Arc<Plan>,
    record: Record,
    oracle: OracleConfig,
    devices: Devices,
    matches: ArmedFailpoints,
    rng: Mutex<ChaCha8Rng>,
    builds: Mutex<Builds>,
    /// Whether the device has died since the last one was built.
    device_died: AtomicBool,
    folder: PathBuf,
}

/// Loads of the model so far.
struct Builds {
    rng: ChaCha8Rng,
    /// Whether the first load succeeds.
    first_loads: bool,
    made: u32,
    failed_in_a_row: u32,
}

impl SeededFaults {
    pub(crate) fn new(
        plan: &Arc<Plan>,
        record: &Record,
        devices: &Devices,
        (generation, loads): (u64, bool),
        folder: PathBuf,
    ) -> Self {
        Self {
            plan: Arc::clone(plan),
            record: record.clone(),
            oracle: plan.oracle.clone(),
            devices: devices.clone(),
            matches: ArmedFailpoints::new(record),
            rng: Mutex::new(plan.rng(1_000_000 + generation)),
            builds: Mutex::new(Builds {
                rng: plan.rng(4_000_000 + generation),
                first_loads: loads,
                made: 0,
                failed_in_a_row: 0,
            }),
            device_died: AtomicBool::new(false),
            folder,
        }
    }

    /// The failpoints for the engine.
    pub(crate) fn failpoints(&self) -> Failpoints {
        self.matches.failpoints()
    }

    /// The engine's model, or its replacement.
    pub(crate) fn model(&self) -> Result<Oracle, ModelError> {
        self.check_failpoints();
        let died = self.device_died.swap(false, Ordering::Relaxed);
        let mut builds = self.builds.lock().expect("it is dropped before a panic");
        builds.made += 1;
        let fault = match builds.made {
            1 => Fault::ModelDoesNotLoad,
            _ => Fault::ModelDoesNotReload,
        };
        if fault == Fault::ModelDoesNotReload && !died && builds.failed_in_a_row == 0 {
            self.record_fault(Fault::DeviceStuck);
        }
        let rate = self.plan.rate(fault);
        let fails = match fault {
            Fault::ModelDoesNotLoad => !builds.first_loads,
            _ => {
                builds.failed_in_a_row < RELOADS_FAIL_MAX
                    && rate > 0.0
                    && builds.rng.random_bool(rate)
            }
        };
        if !fails {
            builds.failed_in_a_row = 0;
            let counters = self.devices.another();
            let oracle = OracleConfig {
                counters,
                ..self.oracle.clone()
            };
            return Ok(Oracle::new(oracle).expect("a valid oracle"));
        }
        builds.failed_in_a_row += 1;
        self.record_fault(fault);
        let panics = fault == Fault::ModelDoesNotReload && builds.rng.random_bool(0.5);
        drop(builds);
        assert!(!panics, "while it is loaded (injected)");
        Err(ModelError::Device("it does not load (injected)".into()))
    }

    /// Counts the panics that have happened.
    pub(crate) fn check_failpoints(&self) {
        if self.matches.take_tripped() {
            self.device_died.store(true, Ordering::Relaxed);
        }
    }

    fn record_fault(&self, fault: Fault) {
        self.record.count(fault.label(), 1);
        self.record.log(format_args!("{}", fault.label()));
    }

    /// Whether this fault occurs now. The oracle counts its own faults.
    fn is_due(&self, rng: &mut ChaCha8Rng, fault: Fault) -> bool {
        let rate = self.plan.rate(fault);
        rate > 0.0 && rng.random_bool(rate)
    }

    /// Whether this fault occurs now; counts it.
    fn strike(&self, rng: &mut ChaCha8Rng, fault: Fault) -> bool {
        let strike = self.is_due(rng, fault);
        if strike {
            self.record_fault(fault);
        }
        strike
    }

    fn step_faults(&self, rng: &mut ChaCha8Rng) {
        let faults = &self.oracle.faults;
        for (fault, step_fault) in [
            (Fault::StepFails, StepFault::Fail),
            (Fault::FinishFails, StepFault::FailFinish),
            (Fault::ModelPanics, StepFault::Panic),
        ] {
            if self.is_due(rng, fault) {
                self.record.log(format_args!("{}", fault.label()));
                faults.next_steps(1, step_fault);
            }
        }
    }

    /// Additional time that the device takes.
    fn stall_time(&self, rng: &mut ChaCha8Rng) -> Duration {
        let timeout = self.plan.config.scheduler.device_timeout;
        if self.is_due(rng, Fault::DeviceStuck) {
            // Counted when another device replaces it: the engine may end before.
            return timeout + millis(rng, 1_000..=60_000);
        }
        if self.strike(rng, Fault::DeviceStalls) {
            timeout.mul_f64(rng.random_range(0.01..=0.75))
        } else {
            Duration::ZERO
        }
    }

    /// Flips a bit of some file.
    fn damage(&self, rng: &mut ChaCha8Rng) {
        let Ok(files) = std::fs::read_dir(&self.folder) else {
            return;
        };
        let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
        files.retain(|file| file.extension().is_some() && file.is_file());
        files.sort();
        if files.is_empty() {
            return;
        }
        let file = &files[rng.random_range(0..files.len())];
        let Ok(mut bytes) = std::fs::read(file) else {
            return;
        };
        if bytes.is_empty() || !self.strike(rng, Fault::FileDamaged) {
            return;
        }
        let at = rng.random_range(0..bytes.len());
        bytes[at] ^= 1 << rng.random_range(0..8);
        std::fs::write(file, bytes).expect("the folder is ours");
    }
}

impl FaultSchedule for SeededFaults {
    fn work(&self, work: &Work) -> Duration {
        let mut rng = self.rng.lock().expect("nothing panics in here");
        self.plan.check_device(&self.devices.last());
        assert!(
            self.devices.steps() < self.plan.works_max,
            "works are bounded"
        );
        let tokens: usize = work
            .spans
            .iter()
            .map(|span| span.token_source.tokens())
            .sum();
        self.record.log(format_args!(
            "work: {} edits, {} spans, {tokens} tokens, epoch {}",
            work.edits.len(),
            work.spans.len(),
            work.epoch
        ));
        self.record.count("steps", 1);
        if !work.spans.is_empty() {
            self.step_faults(&mut rng);
        }
        if self.is_due(&mut rng, Fault::DeviceOutOfMemory) {
            self.oracle.faults.fail_allocations(rng.random_range(1..=3));
        }
        if self.is_due(&mut rng, Fault::ExportFails) {
            self.oracle.faults.fail_exports(1);
        }
        if self.is_due(&mut rng, Fault::DeviceDies) {
            let outcomes = rng.random_range(1..=2);
            self.matches.arm(Fault::DeviceDies, outcomes);
        }
        let stall_time = self.stall_time(&mut rng);
        let noise = Duration::from_micros(rng.random_range(0..=500));
        let tokens = u32::try_from(tokens).expect("a step is small");
        Duration::from_millis(2) + Duration::from_micros(200) * tokens + noise + stall_time
    }

    fn copy(&self, job: &Job) -> ScheduledCopy {
        let mut rng = self.rng.lock().expect("nothing panics in here");
        self.record
            .log(format_args!("{:?} of {:?}", job.task, job.copy));
        let on_disk = !matches!(job.task, Task::Pack | Task::Unpack);
        if on_disk && self.plan.rate(Fault::FileDamaged) > 0.0 {
            self.damage(&mut rng);
        }
        let mut takes = Duration::from_micros(rng.random_range(20..=400));
        if self.strike(&mut rng, Fault::CopySlow) {
            takes += Duration::from_millis(rng.random_range(10..=1_000));
        }
        if on_disk && self.strike(&mut rng, Fault::DiskStalls) {
            takes += Duration::from_secs(rng.random_range(1..=20));
        }
        let mut fails = None;
        if job.task == Task::Write && self.strike(&mut rng, Fault::DiskFull) {
            fails = Some("the disk is full (injected)".to_owned());
        } else if self.strike(&mut rng, Fault::CopyFails) {
            fails = Some("the copy failed (injected)".to_owned());
        }
        ScheduledCopy { takes, fails }
    }

    fn mailbox_max(&self) -> Option<usize> {
        self.plan.mailbox_max()
    }

    fn full(&self, mailbox: &'static str) {
        self.record
            .log(format_args!("the {mailbox}'s mailbox is full"));
        self.record.count("behaviour: mailbox was full", 1);
    }

    fn scheduler_event(&self, event: &Event) {
        if let Some(classes) = &self.plan.classes {
            classes.event(event);
        }
    }

    fn scheduler_effects(&self, effects: &[Effect]) {
        if let Some(classes) = &self.plan.classes {
            classes.effects(effects, &self.record);
        }
    }

    fn message(&self, core: &'static str, message: &dyn fmt::Debug) {
        let at_once = self.record.message(core, message);
        assert!(
            at_once < AT_ONCE_MAX,
            "messages without a passing of time are bounded"
        );
        self.check_failpoints();
        let fault = ArmedFailpoints::of(core);
        if self.plan.rate(fault) > 0.0 {
            let mut rng = self.rng.lock().expect("nothing panics in here");
            if self.is_due(&mut rng, fault) {
                self.matches.arm(fault, rng.random_range(1..=3));
            }
        }
    }
}

/// A duration in this range of milliseconds.
pub(crate) fn millis(rng: &mut impl Rng, range: std::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(rng.random_range(range))
}
