//! One seed from beginning to end: a house, everybody who comes, and what must be so when
//! all have gone.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use motet::cache::CacheError;
use motet::error::{KeepError, StartError};
use motet::simulation::Simulation;
use motet::storage::tiers::TierError;
use motet::{Engine, HealthState, Shutdown};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, advance, sleep, timeout};

use crate::devices::Devices;
use crate::fate::{Weather, millis};
use crate::plan::{Fault, POISON, Plan};
use crate::record::{History, Record};
use crate::user;

/// Within this time everybody has what there is for them.
const EVERYBODY_IS_SERVED: Duration = Duration::from_secs(6 * 3_600);
/// Who asks the engine itself has an answer within this time.
const EVERYBODY_IS_ANSWERED: Duration = Duration::from_secs(3_600);
/// And when they have gone, all that they used is free.
const ALL_IS_FREE: Duration = Duration::from_secs(600);
/// An engine that is shut down does not wait for disks like these.
const SLOW_DISKS: [Fault; 2] = [Fault::DiskStalls, Fault::CopySlow];

/// What those see who come.
pub(crate) struct World {
    pub(crate) plan: Arc<Plan>,
    pub(crate) record: Record,
    pub(crate) devices: Devices,
    engine: RefCell<Option<Rc<Engine>>>,
    /// The fate of that engine.
    weather: RefCell<Option<Arc<Weather>>>,
    /// Users wait so many times less than in most houses.
    hurry: u32,
    /// Whether the house is simulated: if not, there are threads and no faults.
    is_simulated: bool,
    /// Whether everybody has gone.
    is_over: Cell<bool>,
    /// Whether sequences were ended by a shutdown.
    pub(crate) was_aborted: Cell<bool>,
    folder: PathBuf,
}

impl World {
    /// Nobody has come yet, and there is no engine.
    pub(crate) fn new(plan: Plan, record: &Record, folder: PathBuf) -> Self {
        Self {
            plan: Arc::new(plan),
            record: record.clone(),
            devices: Devices::default(),
            engine: RefCell::new(None),
            weather: RefCell::new(None),
            hurry: 1,
            is_simulated: true,
            is_over: Cell::new(false),
            was_aborted: Cell::new(false),
            folder,
        }
    }

    /// The same, with threads and a clock that goes by itself, whose users hurry.
    pub(crate) fn real(plan: Plan, record: &Record, folder: PathBuf) -> Self {
        Self {
            hurry: 30,
            is_simulated: false,
            ..Self::new(plan, record, folder)
        }
    }

    /// How long somebody waits who would wait for between these milliseconds.
    pub(crate) fn pause(
        &self,
        dice: &mut ChaCha8Rng,
        range: std::ops::RangeInclusive<u64>,
    ) -> Duration {
        millis(dice, range) / self.hurry
    }

    /// The engine, unless there is none just now.
    pub(crate) fn engine(&self) -> Option<Rc<Engine>> {
        self.engine.borrow().clone()
    }
}

/// Runs a seed. The disk is in this folder, where nothing is.
///
/// # Panics
///
/// When something is not as it must be.
pub(crate) fn run(seed: u64, folder: PathBuf, record_lines: bool) -> History {
    on_paused_clock(record_lines, async |record: Record| {
        let plan = Plan::of(seed, &folder);
        let world = Rc::new(World::new(plan, &record, folder));
        live(&world).await;
        count_oracles_faults(&world);
    })
}

/// Runs what leaves a record, on a paused clock.
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

async fn live(world: &Rc<World>) {
    let plan = &world.plan;
    world.record.say(format_args!(
        "seed {}: {} users, {:?}, {:?}, {:?}, {:?}, host {}, clean {}, disk {:?}",
        plan.seed,
        plan.users,
        plan.oracle.layers,
        plan.config.scheduler,
        plan.config.cache,
        plan.config.recovery,
        plan.config.pager.host_bytes_max,
        plan.config.pager.clean_part,
        // Not its folder: that is another each time.
        plan.config.pager.disk.as_ref().map(|disk| disk.bytes_max)
    ));
    let are_small = u64::from(plan.mailbox_max().is_some());
    world.record.count(Fault::MailboxesSmall.label(), are_small);
    if plan.rate(Fault::Poison) > 0.0 {
        plan.oracle.faults.poison(POISON);
    }
    open(world, 0).await;
    let mut users = JoinSet::new();
    for user in 0..plan.users {
        users.spawn_local(user::visit(Rc::clone(world), user));
    }
    world.record.count("users", plan.users);
    let chaos = tokio::task::spawn_local(chaos(Rc::clone(world)));
    let served = timeout(EVERYBODY_IS_SERVED, async {
        while let Some(ended) = users.join_next().await {
            ended.expect("a user does not panic");
        }
    });
    if served.await.is_err() {
        let stats = world.engine().map(|engine| engine.stats());
        panic!("somebody still waits: {stats:?}");
    }
    world.is_over.set(true);
    chaos.await.expect("chaos comes to an end");
    close(world, Shutdown::Finish).await;
}

/// Starts an engine.
pub(crate) async fn open(world: &World, generation: u64) {
    let (plan, record) = (&world.plan, &world.record);
    let mut dice = plan.rng(2_000_000 + generation);
    loop {
        let rate = plan.rate(Fault::ModelDoesNotLoad);
        let loads = rate == 0.0 || !dice.random_bool(rate);
        let weather = Weather::new(
            plan,
            record,
            &world.devices,
            (generation, loads),
            world.folder.clone(),
        );
        let weather = Arc::new(weather);
        let builds = Arc::clone(&weather);
        let mut builder = Engine::builder(move || builds.model()).config(plan.config.clone());
        if world.is_simulated {
            let simulation = Simulation::new(Arc::clone(&weather) as _);
            builder = builder.simulated(simulation).fuses(weather.fuses());
        }
        match builder.start().await {
            Ok(engine) => {
                *world.weather.borrow_mut() = Some(weather);
                record.say(format_args!("open: {:?}", engine.stats().pager));
                record.count("engines", 1);
                *world.engine.borrow_mut() = Some(Rc::new(engine));
                return;
            }
            Err(StartError::Model(error)) if !loads => {
                record.say(format_args!("not open: {error}"));
                sleep(millis(&mut dice, 10..=1_000)).await;
            }
            // The disk did not answer the engine before, and is not done with it yet.
            Err(StartError::Disk(TierError::Locked { .. })) if plan.has_any(&SLOW_DISKS) => {
                record.count("refused: folder in use", 1);
                sleep(Duration::from_secs(1)).await;
            }
            Err(error) => panic!("the engine does not start: {error}"),
        }
    }
}

/// Ends the engine, once nobody is just asking it something, and looks for what is left.
pub(crate) async fn close(world: &World, how: Shutdown) {
    let engine = world.engine.borrow_mut().take();
    let mut engine = engine.expect("an engine that is open");
    if how == Shutdown::Finish && !is_broken(world, &engine) {
        is_free(world, &engine).await;
    }
    let answered = timeout(EVERYBODY_IS_ANSWERED, async {
        loop {
            match Rc::try_unwrap(engine) {
                Ok(engine) => return engine,
                Err(still_asked) => engine = still_asked,
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    let engine = answered.await.expect("whoever asks is answered");
    let begun = Instant::now();
    world.record.say(format_args!("close: {how:?}"));
    let done = timeout(Duration::from_secs(600), engine.shutdown(how)).await;
    assert!(done.is_ok(), "a shutdown ends");
    let took = begun.elapsed();
    world.record.say(format_args!("closed after {took:?}"));
    // The actors that have stopped are dropped when they are next looked at, and so are
    // copies that were under way when a disk was not waited for.
    let free = timeout(ALL_IS_FREE, async {
        while Handle::current().metrics().num_alive_tasks() > 0 || !nothing_is_alive(world) {
            sleep(Duration::from_millis(10)).await;
        }
    });
    if free.await.is_err() {
        let tasks = Handle::current().metrics().num_alive_tasks();
        let alive = world.devices.alive();
        panic!("something is left: {tasks} tasks; segments, tails, bytes: {alive:?}");
    }
    if let Some(weather) = world.weather.borrow_mut().take() {
        weather.look_at_fuses();
    }
}

/// Whether its breaker is open, which must be a fault of this seed.
fn is_broken(world: &World, engine: &Engine) -> bool {
    let HealthState::Broken { reason } = engine.health().state else {
        return false;
    };
    let opens = world.plan.rate(Fault::BreakerOpens) > 0.0;
    assert!(opens, "nothing fails that often: {reason}");
    world.record.count(Fault::BreakerOpens.label(), 1);
    world.record.say(format_args!("broken: {reason}"));
    true
}

/// The oracle knows which of the faults that it was asked for have struck.
pub(crate) fn count_oracles_faults(world: &World) {
    let counts = world.plan.oracle.faults.counts();
    for (fault, times) in [
        (Fault::StepFails, counts.failed - counts.poisoned),
        (Fault::LandingFails, counts.failed_landing),
        (Fault::ModelPanics, counts.panicked),
        (Fault::Poison, counts.poisoned),
        (Fault::DeviceOutOfMemory, counts.memory_refused),
        (Fault::NotHandedOver, counts.hand_overs_refused),
    ] {
        world.record.count(fault.label(), times);
    }
}

fn nothing_is_alive(world: &World) -> bool {
    world.devices.alive() == [0; 3]
}

/// Nobody is there: then everything that is cached can go, since nobody holds it.
async fn is_free(world: &World, engine: &Engine) {
    let free = timeout(ALL_IS_FREE, async {
        loop {
            match engine.clear_all_caches().await {
                // Asked again it has failed again.
                Ok(()) | Err(KeepError::Cache(CacheError::Lost)) => {}
                Err(KeepError::Stopped) if is_broken(world, engine) => return,
                Err(error) => panic!("it answers: {error}"),
            }
            let stats = engine.stats();
            let inside = (stats.running, stats.waiting, stats.paused);
            let cache = stats.cache;
            let held = (cache.segments, cache.sealed_bytes, cache.reserved_bytes);
            let tails = world.devices.last().tails_alive;
            let is_free = inside == (0, 0, 0) && held == (0, 0, 0) && tails == 0;
            if is_free && cache.protected_bytes == 0 {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
    });
    if free.await.is_err() {
        let counts = world.devices.last();
        panic!("somebody holds something: {:?}, {counts:?}", engine.stats());
    }
    world.record.say(format_args!("free: {:?}", engine.stats()));
}

/// What happens to the whole house, now and then.
async fn chaos(world: Rc<World>) {
    let mut dice = world.plan.rng(3_000_000);
    let mut generation = 0;
    loop {
        sleep(millis(&mut dice, 20..=2_000)).await;
        if world.is_over.get() {
            return;
        }
        budgets_hold(&world);
        let strikes = |fault: Fault, dice: &mut ChaCha8Rng| {
            let rate = world.plan.rate(fault);
            let strikes = rate > 0.0 && dice.random_bool(rate);
            if strikes {
                world.record.count(fault.label(), 1);
                world.record.say(format_args!("{}", fault.label()));
            }
            strikes
        };
        let broken = world.engine().filter(|engine| is_broken(&world, engine));
        if broken.is_some() {
            drop(broken);
            close(&world, Shutdown::Abort).await;
            generation += 1;
            open(&world, generation).await;
        }
        if strikes(Fault::ClockJumps, &mut dice) {
            let most = [100, 10_000, 100_000][dice.random_range(0..3)];
            advance(millis(&mut dice, 1..=most)).await;
        }
        let drains = strikes(Fault::Drained, &mut dice);
        if drains {
            let engine = world.engine().expect("chaos closes it");
            let drained = timeout(millis(&mut dice, 1..=30_000), engine.drain()).await;
            let whole = drained.is_ok();
            world.record.say(format_args!("drained: {whole}"));
        }
        if strikes(Fault::Aborted, &mut dice) || drains {
            world.was_aborted.set(true);
            close(&world, Shutdown::Abort).await;
            sleep(millis(&mut dice, 0..=500)).await;
            generation += 1;
            open(&world, generation).await;
        }
    }
}

/// No tier holds more than it may.
pub(crate) fn budgets_hold(world: &World) {
    let Some(engine) = world.engine() else {
        return;
    };
    world.plan.check_device(&world.devices.last());
    let (stats, config) = (engine.stats(), &world.plan.config);
    let pager = stats.pager;
    assert!(
        pager.host_bytes + pager.label_bytes <= config.pager.host_bytes_max
            && pager.label_bytes <= config.pager.label_bytes_max(),
        "host memory: {pager:?}"
    );
    let disk_bytes_max = config.pager.disk.as_ref().map_or(0, |disk| disk.bytes_max);
    assert!(pager.disk_bytes <= disk_bytes_max, "the disk: {pager:?}");
    if disk_bytes_max > 0
        && let Ok(files) = std::fs::read_dir(&world.folder)
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
