//! One seed from start to end: an engine, its users, and the checks after all users have left.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use motet::cache::CacheError;
use motet::error::{CacheCommandError, StartError};
use motet::model::oracle::Oracle;
use motet::simulation::Simulation;
use motet::{Engine, HealthState, Shutdown};
use motet_storage::tiers::TierError;
use motet_testkit::remote::{Call, MemoryRemote, RemoteFault};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, advance, sleep, timeout};

use crate::devices::Devices;
use crate::fault_schedule::{SeededFaults, millis};
use crate::plan::{Fault, POISON, Plan};
use crate::record::{History, Record};
use crate::user;

/// Every user has been served within this time.
const SERVED_WITHIN: Duration = Duration::from_secs(6 * 3_600);
/// A call to the engine itself is answered within this time.
const ANSWERED_WITHIN: Duration = Duration::from_secs(3_600);
/// After all users have left, all memory is free within this time.
const RELEASED_WITHIN: Duration = Duration::from_secs(600);
/// An engine that is shut down does not wait for disks with these faults.
const SLOW_DISKS: [Fault; 2] = [Fault::DiskStalls, Fault::CopySlow];

/// The engine as its users see it.
pub(crate) struct SimulationHarness {
    pub(crate) plan: Arc<Plan>,
    pub(crate) record: Record,
    pub(crate) devices: Devices,
    engine: RefCell<Option<Rc<Engine>>>,
    /// The fault schedule of that engine.
    seeded_faults: RefCell<Option<Arc<SeededFaults>>>,
    /// Factor by which users' waits are shorter than in most runs.
    speedup: u32,
    /// Whether the engine is simulated. If not, there are threads and no faults.
    is_simulated: bool,
    /// Whether all users have left.
    is_finished: Cell<bool>,
    /// Whether a shutdown ended sequences.
    pub(crate) was_aborted: Cell<bool>,
    folder: PathBuf,
    /// The tier that the engines share, in turn.
    remote: MemoryRemote,
}

impl SimulationHarness {
    /// Creates the harness without users and without an engine.
    pub(crate) fn new(plan: Plan, record: &Record, folder: PathBuf) -> Self {
        let plan = Arc::new(plan);
        let remote = MemoryRemote::new();
        remote.fault_by(remote_faults(&plan, record));
        Self {
            remote,
            plan,
            record: record.clone(),
            devices: Devices::default(),
            engine: RefCell::new(None),
            seeded_faults: RefCell::new(None),
            speedup: 1,
            is_simulated: true,
            is_finished: Cell::new(false),
            was_aborted: Cell::new(false),
            folder,
        }
    }

    /// The same with threads and a real clock, and with shorter waits of the users.
    pub(crate) fn real(plan: Plan, record: &Record, folder: PathBuf) -> Self {
        Self {
            speedup: 30,
            is_simulated: false,
            ..Self::new(plan, record, folder)
        }
    }

    /// A duration in this range of milliseconds, divided by `speedup`.
    pub(crate) fn pause(
        &self,
        rng: &mut ChaCha8Rng,
        range: std::ops::RangeInclusive<u64>,
    ) -> Duration {
        millis(rng, range) / self.speedup
    }

    /// The engine, unless there is none at the moment.
    pub(crate) fn engine(&self) -> Option<Rc<Engine>> {
        self.engine.borrow().clone()
    }
}

/// Runs a seed. The disk tier is in this folder, which does not exist yet.
///
/// # Panics
///
/// If any check fails.
pub(crate) fn run(seed: u64, folder: PathBuf, record_lines: bool) -> History {
    on_paused_clock(record_lines, async |record: Record| {
        let plan = Plan::of(seed, &folder);
        let harness = Rc::new(SimulationHarness::new(plan, &record, folder));
        live(&harness).await;
        count_oracles_faults(&harness);
    })
}

/// Runs `live`, which writes a record, on a paused clock.
pub(crate) fn on_paused_clock(record_lines: bool, live: impl AsyncFnOnce(Record)) -> History {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let record = Record::new(record_lines);
        crate::panics::remember(&record);
        live(record.clone()).await;
        record.history()
    })
}

async fn live(harness: &Rc<SimulationHarness>) {
    let plan = &harness.plan;
    harness.record.log(format_args!(
        "seed {}: {} users, {:?}, {:?}, {:?}, {:?}, host {}, clean {}, disk {:?}",
        plan.seed,
        plan.users,
        plan.oracle.layers,
        plan.config.scheduler,
        plan.config.cache,
        plan.config.recovery,
        plan.config.pager.host_bytes_max,
        plan.config.pager.clean_part,
        // The folder is left out: it differs in each run.
        plan.config.pager.disk.as_ref().map(|disk| disk.bytes_max)
    ));
    let are_small = u64::from(plan.mailbox_max().is_some());
    harness
        .record
        .count(Fault::MailboxesSmall.label(), are_small);
    if plan.rate(Fault::Poison) > 0.0 {
        plan.oracle.faults.poison(POISON);
    }
    open(harness, 0).await;
    let mut users = JoinSet::new();
    for user in 0..plan.users {
        users.spawn_local(user::visit(Rc::clone(harness), user));
    }
    harness.record.count("users", plan.users);
    let chaos = tokio::task::spawn_local(chaos(Rc::clone(harness)));
    let served = timeout(SERVED_WITHIN, async {
        while let Some(ended) = users.join_next().await {
            ended.expect("users do not panic");
        }
    });
    if served.await.is_err() {
        let stats = harness.engine().map(|engine| engine.stats());
        panic!("a user still waits: {stats:?}");
    }
    harness.is_finished.set(true);
    chaos.await.expect("chaos ends");
    close(harness, Shutdown::Finish).await;
}

/// Starts an engine.
pub(crate) async fn open(harness: &SimulationHarness, generation: u64) {
    let (plan, record) = (&harness.plan, &harness.record);
    let mut rng = plan.rng(2_000_000 + generation);
    loop {
        let rate = plan.rate(Fault::ModelDoesNotLoad);
        let loads = rate == 0.0 || !rng.random_bool(rate);
        let seeded_faults = SeededFaults::new(
            plan,
            record,
            &harness.devices,
            (generation, loads),
            harness.folder.clone(),
        );
        let seeded_faults = Arc::new(seeded_faults);
        let builds = Arc::clone(&seeded_faults);
        let mut builder = Engine::builder(move || builds.model()).config(plan.config.clone());
        if let Some(draft) = plan.draft_model() {
            let build = move || Ok(Oracle::new(draft.clone()).expect("a valid oracle"));
            builder = builder.draft_model(build);
        }
        if plan.config.pager.remote.is_some() {
            builder = builder.remote_tier(Arc::new(harness.remote.clone()));
        }
        if harness.is_simulated {
            let simulation = Simulation::new(Arc::clone(&seeded_faults) as _);
            builder = builder
                .simulated(simulation)
                .failpoints(seeded_faults.failpoints());
        }
        match builder.start().await {
            Ok(engine) => {
                *harness.seeded_faults.borrow_mut() = Some(seeded_faults);
                record.log(format_args!("open: {:?}", engine.stats().pager));
                record.count("engines", 1);
                *harness.engine.borrow_mut() = Some(Rc::new(engine));
                return;
            }
            Err(StartError::Model(error)) if !loads => {
                record.log(format_args!("not open: {error}"));
                sleep(millis(&mut rng, 10..=1_000)).await;
            }
            // The disk did not respond to the previous engine, and still works for it.
            Err(StartError::Disk(TierError::Locked { .. })) if plan.has_any(&SLOW_DISKS) => {
                record.count("rejected: folder in use", 1);
                sleep(Duration::from_secs(1)).await;
            }
            Err(error) => panic!("the engine does not start: {error}"),
        }
    }
}

/// Ends the engine once no call to it is pending, and checks that nothing is left.
pub(crate) async fn close(harness: &SimulationHarness, how: Shutdown) {
    let engine = harness.engine.borrow_mut().take();
    let mut engine = engine.expect("an engine that is open");
    if how == Shutdown::Finish && !is_broken(harness, &engine) {
        is_free(harness, &engine).await;
    }
    let answered = timeout(ANSWERED_WITHIN, async {
        loop {
            match Rc::try_unwrap(engine) {
                Ok(engine) => return engine,
                Err(shared) => engine = shared,
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    let engine = answered.await.expect("every call is answered");
    let started_at = Instant::now();
    harness.record.log(format_args!("close: {how:?}"));
    let done = timeout(Duration::from_secs(600), engine.shutdown(how)).await;
    assert!(done.is_ok(), "a shutdown ends");
    let took = started_at.elapsed();
    harness.record.log(format_args!("closed after {took:?}"));
    // A stopped actor is dropped when it is next polled. Copies that were in flight when a disk
    // was not waited for are dropped then too.
    let free = timeout(RELEASED_WITHIN, async {
        while Handle::current().metrics().num_alive_tasks() > 0 || !nothing_is_alive(harness) {
            sleep(Duration::from_millis(10)).await;
        }
    });
    if free.await.is_err() {
        let tasks = Handle::current().metrics().num_alive_tasks();
        let alive = harness.devices.alive();
        panic!("left over: {tasks} tasks; segments, tails, bytes: {alive:?}");
    }
    if let Some(seeded_faults) = harness.seeded_faults.borrow_mut().take() {
        seeded_faults.check_failpoints();
    }
}

/// Whether its breaker is open, which must be a fault of this seed.
fn is_broken(harness: &SimulationHarness, engine: &Engine) -> bool {
    let HealthState::Broken { reason } = engine.health().state else {
        return false;
    };
    let opens = harness.plan.rate(Fault::BreakerOpens) > 0.0;
    assert!(opens, "failures are bounded: {reason}");
    harness.record.count(Fault::BreakerOpens.label(), 1);
    harness.record.log(format_args!("broken: {reason}"));
    true
}

/// Counts the faults that the oracle was asked for and that have occurred.
pub(crate) fn count_oracles_faults(harness: &SimulationHarness) {
    let counts = harness.plan.oracle.faults.counts();
    for (fault, times) in [
        (Fault::StepFails, counts.failed - counts.poisoned),
        (Fault::FinishFails, counts.failed_finish),
        (Fault::ModelPanics, counts.panicked),
        (Fault::Poison, counts.poisoned),
        (Fault::DeviceOutOfMemory, counts.allocations_failed),
        (Fault::ExportFails, counts.exports_failed),
    ] {
        harness.record.count(fault.label(), times);
    }
}

fn nothing_is_alive(harness: &SimulationHarness) -> bool {
    harness.devices.alive() == [0; 3]
}

/// Without users, everything that is cached can be evicted, because no lease is left.
async fn is_free(harness: &SimulationHarness, engine: &Engine) {
    let free = timeout(RELEASED_WITHIN, async {
        loop {
            match engine.clear_all_caches().await {
                // The second attempt has failed too.
                Ok(()) | Err(CacheCommandError::Cache(CacheError::Lost)) => {}
                Err(CacheCommandError::Stopped) if is_broken(harness, engine) => return,
                Err(error) => panic!("it answers: {error}"),
            }
            let stats = engine.stats();
            let inside = (stats.running, stats.waiting, stats.paused);
            let cache = stats.cache;
            let held = (cache.segments, cache.sealed_bytes, cache.reserved_bytes);
            let tails = harness.devices.last().tails_alive;
            let is_free = inside == (0, 0, 0) && held == (0, 0, 0) && tails == 0;
            if is_free && cache.protected_bytes == 0 {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    if free.await.is_err() {
        let counts = harness.devices.last();
        panic!(
            "something is still leased: {:?}, {counts:?}",
            engine.stats()
        );
    }
    harness
        .record
        .log(format_args!("free: {:?}", engine.stats()));
}

/// Decides how calls of the remote tier end.
fn remote_faults(
    plan: &Arc<Plan>,
    record: &Record,
) -> impl FnMut(Call) -> RemoteFault + Send + use<> {
    let (plan, record, mut rng) = (Arc::clone(plan), record.clone(), plan.rng(4_000_000));
    move |_| {
        let slow = Duration::from_millis(rng.random_range(1..=2_000));
        let faults = [
            (Fault::RemoteFails, RemoteFault::Fails),
            (Fault::RemoteHangs, RemoteFault::Hangs),
            (Fault::RemoteSlow, RemoteFault::Slow(slow)),
            (Fault::RemoteLost, RemoteFault::Lost),
        ];
        record.count("behaviour: remote tier was called", 1);
        for (fault, becomes) in faults {
            let rate = plan.rate(fault);
            if rate > 0.0 && rng.random_bool(rate) {
                record.count(fault.label(), 1);
                return becomes;
            }
        }
        RemoteFault::Slow(Duration::from_micros(rng.random_range(50..=5_000)))
    }
}

/// Occasional faults of the whole engine.
async fn chaos(harness: Rc<SimulationHarness>) {
    let mut rng = harness.plan.rng(3_000_000);
    let mut generation = 0;
    loop {
        sleep(millis(&mut rng, 20..=2_000)).await;
        if harness.is_finished.get() {
            return;
        }
        budgets_hold(&harness);
        let strikes = |fault: Fault, rng: &mut ChaCha8Rng| {
            let rate = harness.plan.rate(fault);
            let strikes = rate > 0.0 && rng.random_bool(rate);
            if strikes {
                harness.record.count(fault.label(), 1);
                harness.record.log(format_args!("{}", fault.label()));
            }
            strikes
        };
        let broken = harness
            .engine()
            .filter(|engine| is_broken(&harness, engine));
        if broken.is_some() {
            drop(broken);
            close(&harness, Shutdown::Abort).await;
            generation += 1;
            open(&harness, generation).await;
        }
        if strikes(Fault::ClockJumps, &mut rng) {
            let most = [100, 10_000, 100_000][rng.random_range(0..3)];
            advance(millis(&mut rng, 1..=most)).await;
        }
        let drains = strikes(Fault::Drained, &mut rng);
        if drains {
            let engine = harness.engine().expect("chaos closes it");
            let drained = timeout(millis(&mut rng, 1..=30_000), engine.drain()).await;
            let is_drained = drained.is_ok();
            harness.record.log(format_args!("drained: {is_drained}"));
        }
        if strikes(Fault::Aborted, &mut rng) || drains {
            harness.was_aborted.set(true);
            let how = if rng.random_bool(0.5) {
                Shutdown::Abort
            } else {
                Shutdown::HandOver
            };
            close(&harness, how).await;
            sleep(millis(&mut rng, 0..=500)).await;
            generation += 1;
            open(&harness, generation).await;
        }
    }
}

/// Checks that no tier exceeds its budget.
pub(crate) fn budgets_hold(harness: &SimulationHarness) {
    let Some(engine) = harness.engine() else {
        return;
    };
    harness.plan.check_device(&harness.devices.last());
    let (stats, config) = (engine.stats(), &harness.plan.config);
    let pager = stats.pager;
    assert!(
        pager.host_bytes + pager.label_bytes <= config.pager.host_bytes_max
            && pager.label_bytes <= config.pager.label_bytes_max(),
        "host memory: {pager:?}"
    );
    let disk_bytes_max = config.pager.disk.as_ref().map_or(0, |disk| disk.bytes_max);
    assert!(pager.disk_bytes <= disk_bytes_max, "the disk: {pager:?}");
    if disk_bytes_max > 0
        && let Ok(files) = std::fs::read_dir(&harness.folder)
    {
        let bytes = files.flatten().filter_map(|file| file.metadata().ok());
        let bytes: u64 = bytes.map(|file| file.len()).sum();
        assert!(bytes <= disk_bytes_max as u64, "{bytes} bytes of files");
    }
    let cache = stats.cache;
    let held = cache.sealed_bytes + cache.reserved_bytes;
    assert!(
        held <= config.cache.device_bytes_max,
        "the device: {cache:?}"
    );
}
