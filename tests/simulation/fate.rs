//! How long things take, and which of them fail.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use motet::device::Work;
use motet::model::oracle::{OracleConfig, StepFault};
use motet::pager::{Job, Task};
use motet::simulation::{CopyFate, Fate};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;

use crate::plan::{Fault, Plan};
use crate::record::Record;

/// Work that one seed may send to the device. More is going round in circles.
const WORKS_MAX: u64 = 200_000;

/// Messages that cores may take in while no time passes.
const AT_ONCE_MAX: u64 = 20_000;

/// The fate that a plan's seed holds.
pub(crate) struct Weather {
    plan: Arc<Plan>,
    record: Record,
    oracle: OracleConfig,
    dice: Mutex<ChaCha8Rng>,
    /// Bytes that the device may hold.
    device_bytes_max: usize,
    folder: PathBuf,
}

impl Weather {
    pub(crate) fn new(plan: &Arc<Plan>, record: &Record, generation: u64, folder: PathBuf) -> Self {
        let spec = plan.oracle.spec();
        // What comes is there before the device has dropped what it takes the place of.
        let arriving = match plan.config.pager.host_bytes_max {
            0 => 0,
            _ => 2 * spec.tail_bytes(spec.context_tokens_max),
        };
        Self {
            plan: Arc::clone(plan),
            record: record.clone(),
            oracle: plan.oracle.clone(),
            dice: Mutex::new(plan.rng(1_000_000 + generation)),
            device_bytes_max: plan.config.cache.device_bytes_max + arriving,
            folder,
        }
    }

    /// Whether this happens now.
    fn strikes(&self, dice: &mut ChaCha8Rng, fault: Fault) -> bool {
        let rate = self.plan.rate(fault);
        let strikes = rate > 0.0 && dice.random_bool(rate);
        if strikes {
            self.record.count(fault.label(), 1);
            self.record.say(format_args!("{}", fault.label()));
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
            if self.strikes(dice, fault) {
                faults.next_steps(1, step_fault);
            }
        }
    }

    fn check_device(&self) {
        let counts = self.oracle.counters.now();
        assert!(
            counts.bytes_alive <= self.device_bytes_max,
            "{} bytes are on a device of {}",
            counts.bytes_alive,
            self.device_bytes_max
        );
        assert!(counts.steps < WORKS_MAX, "work comes to an end");
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
        self.check_device();
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
        if self.strikes(&mut dice, Fault::DeviceOutOfMemory) {
            self.oracle.faults.refuse_memory(dice.random_range(1..=3));
        }
        if self.strikes(&mut dice, Fault::NotHandedOver) {
            self.oracle.faults.refuse_hand_overs(1);
        }
        let hangs = match self.strikes(&mut dice, Fault::DeviceHangs) {
            true => Duration::from_millis(dice.random_range(1_000..=90_000)),
            false => Duration::ZERO,
        };
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

    fn message(&self, core: &'static str, message: &dyn fmt::Debug) {
        let at_once = self.record.message(core, message);
        assert!(at_once < AT_ONCE_MAX, "actors do not talk in circles");
    }
}

/// Between these milliseconds.
pub(crate) fn millis(dice: &mut impl Rng, range: std::ops::RangeInclusive<u64>) -> Duration {
    Duration::from_millis(dice.random_range(range))
}
