//! How long things take, and which of them fail.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use motet::fuse::Fuses;
use motet::model::ModelError;
use motet::model::oracle::{Oracle, OracleConfig, StepFault};
use motet::simulation::{CopyFate, Fate};
use motet_core::pager::{Job, Task};
use motet_core::protocol::Work;
use motet_core::scheduler::{Effect, Event};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;

use crate::devices::Devices;
use crate::fuses::Matches;
use crate::plan::{Fault, Plan};
use crate::record::Record;

/// Messages that cores may take in while no time passes.
const AT_ONCE_MAX: u64 = 20_000;

/// Times in a row that a model may not be loaded again.
const RELOADS_FAIL_MAX: u32 = 3;

/// The fate that a plan's seed holds for one engine.
pub(crate) struct Weather {
    plan: Arc<Plan>,
    record: Record,
    oracle: OracleConfig,
    devices: Devices,
    matches: Matches,
    dice: Mutex<ChaCha8Rng>,
    builds: Mutex<Builds>,
    /// Whether the device has died since the last one was built.
    device_died: AtomicBool,
    folder: PathBuf,
}

/// How the model was loaded so far.
struct Builds {
    dice: ChaCha8Rng,
    /// Whether the first time goes well.
    first_loads: bool,
    made: u32,
    failed_in_a_row: u32,
}

impl Weather {
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
            matches: Matches::new(record),
            dice: Mutex::new(plan.rng(1_000_000 + generation)),
            builds: Mutex::new(Builds {
                dice: plan.rng(4_000_000 + generation),
                first_loads: loads,
                made: 0,
                failed_in_a_row: 0,
            }),
            device_died: AtomicBool::new(false),
            folder,
        }
    }

    /// What the engine burns.
    pub(crate) fn fuses(&self) -> Fuses {
        self.matches.fuses()
    }

    /// The engine's model, or another in its place.
    pub(crate) fn model(&self) -> Result<Oracle, ModelError> {
        self.look_at_fuses();
        let died = self.device_died.swap(false, Ordering::Relaxed);
        let mut builds = self.builds.lock().expect("it is left before a panic");
        builds.made += 1;
        let fault = match builds.made {
            1 => Fault::ModelDoesNotLoad,
            _ => Fault::ModelDoesNotReload,
        };
        if fault == Fault::ModelDoesNotReload && !died && builds.failed_in_a_row == 0 {
            self.happens(Fault::DeviceStuck);
        }
        let rate = self.plan.rate(fault);
        let fails = match fault {
            Fault::ModelDoesNotLoad => !builds.first_loads,
            _ => {
                builds.failed_in_a_row < RELOADS_FAIL_MAX
                    && rate > 0.0
                    && builds.dice.random_bool(rate)
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
        self.happens(fault);
        let panics = fault == Fault::ModelDoesNotReload && builds.dice.random_bool(0.5);
        drop(builds);
        assert!(!panics, "while it is loaded (injected)");
        Err(ModelError::Device("it does not load (injected)".into()))
    }

    /// Counts the panics that have happened.
    pub(crate) fn look_at_fuses(&self) {
        if self.matches.gone_off() {
            self.device_died.store(true, Ordering::Relaxed);
        }
    }

    fn happens(&self, fault: Fault) {
        self.record.count(fault.label(), 1);
        self.record.say(format_args!("{}", fault.label()));
    }

    /// Whether this is to happen now. What the oracle counts is not counted here.
    fn falls(&self, dice: &mut ChaCha8Rng, fault: Fault) -> bool {
        let rate = self.plan.rate(fault);
        rate > 0.0 && dice.random_bool(rate)
    }

    /// Whether this happens now.
    fn strikes(&self, dice: &mut ChaCha8Rng, fault: Fault) -> bool {
        let strikes = self.falls(dice, fault);
        if strikes {
            self.happens(fault);
        }
        strikes
    }

    fn step_faults(&self, dice: &mut ChaCha8Rng) {
        let faults = &self.oracle.faults;
        for (fault, step_fault) in [
            (Fault::StepFails, StepFault::Fail),
            (Fault::LandingFails, StepFault::FailLanding),
            (Fault::ModelPanics, StepFault::Panic),
        ] {
            if self.falls(dice, fault) {
                self.record.say(format_args!("{}", fault.label()));
                faults.next_steps(1, step_fault);
            }
        }
    }

    /// How much longer the device takes.
    fn hangs(&self, dice: &mut ChaCha8Rng) -> Duration {
        let patience = self.plan.config.scheduler.device_timeout;
        if self.falls(dice, Fault::DeviceStuck) {
            // Counted when another takes its place: the engine may end before.
            return patience + millis(dice, 1_000..=60_000);
        }
        match self.strikes(dice, Fault::DeviceHangs) {
            true => patience.mul_f64(dice.random_range(0.01..=0.75)),
            false => Duration::ZERO,
        }
    }

    /// Turns a bit of some file over.
    fn damage(&self, dice: &mut ChaCha8Rng) {
        let Ok(files) = std::fs::read_dir(&self.folder) else {
            return;
        };
        let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
        files.retain(|file| file.extension().is_some() && file.is_file());
        files.sort();
        if files.is_empty() {
            return;
        }
        let file = &files[dice.random_range(0..files.len())];
        let Ok(mut bytes) = std::fs::read(file) else {
            return;
        };
        if bytes.is_empty() || !self.strikes(dice, Fault::FileDamaged) {
            return;
        }
        let at = dice.random_range(0..bytes.len());
        bytes[at] ^= 1 << dice.random_range(0..8);
        std::fs::write(file, bytes).expect("the folder is ours");
    }
}

impl Fate for Weather {
    fn work(&self, work: &Work) -> Duration {
        let mut dice = self.dice.lock().expect("nothing panics in here");
        self.plan.check_device(&self.devices.last());
        assert!(
            self.devices.steps() < self.plan.works_max,
            "work comes to an end"
        );
        let tokens: usize = work.spans.iter().map(|span| span.input.tokens()).sum();
        self.record.say(format_args!(
            "work: {} edits, {} spans, {tokens} tokens, epoch {}",
            work.edits.len(),
            work.spans.len(),
            work.epoch
        ));
        self.record.count("steps", 1);
        if !work.spans.is_empty() {
            self.step_faults(&mut dice);
        }
        if self.falls(&mut dice, Fault::DeviceOutOfMemory) {
            self.oracle.faults.refuse_memory(dice.random_range(1..=3));
        }
        if self.falls(&mut dice, Fault::NotHandedOver) {
            self.oracle.faults.refuse_hand_overs(1);
        }
        if self.falls(&mut dice, Fault::DeviceDies) {
            let outcomes = dice.random_range(1..=2);
            self.matches.light(Fault::DeviceDies, outcomes);
        }
        let hangs = self.hangs(&mut dice);
        let noise = Duration::from_micros(dice.random_range(0..=500));
        let tokens = u32::try_from(tokens).expect("a step is small");
        Duration::from_millis(2) + Duration::from_micros(200) * tokens + noise + hangs
    }

    fn copy(&self, job: &Job) -> CopyFate {
        let mut dice = self.dice.lock().expect("nothing panics in here");
        self.record
            .say(format_args!("{:?} of {:?}", job.task, job.copy));
        let on_disk = !matches!(job.task, Task::Pack | Task::Unpack);
        if on_disk && self.plan.rate(Fault::FileDamaged) > 0.0 {
            self.damage(&mut dice);
        }
        let mut takes = Duration::from_micros(dice.random_range(20..=400));
        if self.strikes(&mut dice, Fault::CopySlow) {
            takes += Duration::from_millis(dice.random_range(10..=1_000));
        }
        if on_disk && self.strikes(&mut dice, Fault::DiskStalls) {
            takes += Duration::from_secs(dice.random_range(1..=20));
        }
        let mut fails = None;
        if job.task == Task::Write && self.strikes(&mut dice, Fault::DiskFull) {
            fails = Some("the disk is full (injected)".to_owned());
        } else if self.strikes(&mut dice, Fault::CopyFails) {
            fails = Some("the copy failed (injected)".to_owned());
        }
        CopyFate { takes, fails }
    }

    fn mailbox_max(&self) -> Option<usize> {
        self.plan.mailbox_max()
    }

    fn full(&self, mailbox: &'static str) {
        self.record
            .say(format_args!("the {mailbox}'s mailbox is full"));
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
        assert!(at_once < AT_ONCE_MAX, "actors do not talk in circles");
        self.look_at_fuses();
        let fault = Matches::of(core);
        if self.plan.rate(fault) > 0.0 {
            let mut dice = self.dice.lock().expect("nothing panics in here");
            if self.falls(&mut dice, fault) {
                self.matches.light(fault, dice.random_range(1..=3));
            }
        }
    }
}

/// Between these milliseconds.
pub(crate) fn millis(dice: &mut impl Rng, range: std::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(dice.random_range(range))
}
