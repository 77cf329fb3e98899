//! One engine for a long time: its memory must not grow, and all of it is freed in the end.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use motet::Shutdown;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep, timeout};

use crate::harness::{self, SimulationHarness};
use crate::plan::Plan;
use crate::record::{Counts, Record};
use crate::{heap, user};

const MINUTE: Duration = Duration::from_secs(60);
/// Visits that are in progress at the end of the run finish within this time.
const VISITS_END_WITHIN: Duration = Duration::from_secs(3_600);
/// Samples from which the slope is computed.
const SAMPLES: u32 = 120;

/// Duration of a soak, and its number of users.
pub(crate) struct Length {
    pub(crate) time: Duration,
    pub(crate) users: u64,
}

/// Result of a soak.
pub(crate) struct SoakReport {
    samples: Vec<Sample>,
    pub(crate) counts: Counts,
    /// Tasks, segments, tails and bytes in the end.
    pub(crate) left: [usize; 4],
    /// Number of rebuilds.
    pub(crate) rebuilds: u64,
}

/// Memory use at one moment.
struct Sample {
    minutes: f64,
    /// Allocated bytes.
    held_bytes: usize,
    /// Resident bytes of the process, where the system tells them.
    process_bytes: Option<usize>,
    device_bytes: usize,
    tasks: usize,
    inside: usize,
}

/// With faults, on a paused clock.
pub(crate) fn simulated(length: &Length, folder: PathBuf) -> SoakReport {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    run(runtime.expect("a runtime"), length, |record| {
        SimulationHarness::new(Plan::long(&folder), record, folder)
    })
}

/// Without faults, with threads and a real clock.
pub(crate) fn real(length: &Length, folder: PathBuf) -> SoakReport {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build();
    run(runtime.expect("a runtime"), length, |record| {
        SimulationHarness::real(Plan::long_and_calm(&folder), record, folder)
    })
}

fn run(
    runtime: Runtime,
    length: &Length,
    harness: impl FnOnce(&Record) -> SimulationHarness,
) -> SoakReport {
    let local = LocalSet::new();
    local.block_on(&runtime, async {
        let record = Record::new(false);
        crate::panics::remember(&record);
        let harness = Rc::new(harness(&record));
        live(&harness, length).await
    })
}

async fn live(harness: &Rc<SimulationHarness>, length: &Length) -> SoakReport {
    harness::open(harness, 0).await;
    let started_at = Instant::now();
    let is_finished = Rc::new(Cell::new(false));
    let mut users = JoinSet::new();
    for user in 0..length.users {
        let (harness, is_finished, all) =
            (Rc::clone(harness), Rc::clone(&is_finished), length.users);
        users.spawn_local(async move {
            let mut visit = user;
            while !is_finished.get() {
                user::visit(Rc::clone(&harness), visit).await;
                visit += all;
            }
        });
    }
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        sleep(length.time / SAMPLES).await;
        harness::budgets_hold(harness);
        samples.push(Sample::now(harness, started_at));
    }
    is_finished.set(true);
    let gone = timeout(VISITS_END_WITHIN, async {
        while let Some(ended) = users.join_next().await {
            ended.expect("users do not panic");
        }
    });
    gone.await.expect("every user is served");
    let rebuilds = harness.engine().map(|engine| engine.stats().rebuilds);
    harness::close(harness, Shutdown::Finish).await;
    harness::count_oracles_faults(harness);
    let [segments, tails, bytes] = harness.devices.alive();
    let tasks = Handle::current().metrics().num_alive_tasks();
    SoakReport {
        samples,
        counts: harness.record.history().counts,
        left: [tasks, segments, tails, bytes],
        rebuilds: rebuilds.expect("it was open"),
    }
}

impl Sample {
    fn now(harness: &SimulationHarness, started_at: Instant) -> Self {
        let stats = harness.engine().expect("it is open").stats();
        Self {
            minutes: started_at.elapsed().as_secs_f64() / MINUTE.as_secs_f64(),
            held_bytes: heap::held_bytes(),
            process_bytes: process_bytes(),
            device_bytes: harness.devices.alive()[2],
            tasks: Handle::current().metrics().num_alive_tasks(),
            inside: stats.running + stats.waiting + stats.paused,
        }
    }
}

impl SoakReport {
    /// Prints the growth of each of them.
    pub(crate) fn print(&self) {
        println!(
            "{:<34} {:>12} {:>12} {:>14} {:>14}",
            "", "first", "last", "a minute", "in 2nd half"
        );
        self.print_line("allocated, bytes", |sample| Some(sample.held_bytes));
        self.print_line("process, bytes", |sample| sample.process_bytes);
        self.print_line("device, bytes", |sample| Some(sample.device_bytes));
        self.print_line("tasks", |sample| Some(sample.tasks));
        self.print_line("sequences inside", |sample| Some(sample.inside));
        let [tasks, segments, tails, bytes] = self.left;
        println!(
            "in the end: {tasks} tasks, {segments} segments, {tails} tails, {bytes} bytes on devices"
        );
        println!("rebuilt: {} times", self.rebuilds);
    }

    fn print_line(&self, what: &str, of: impl Fn(&Sample) -> Option<usize>) {
        let points = self.samples.iter().filter_map(|sample| {
            let value = of(sample)?;
            Some((sample.minutes, value as f64))
        });
        let points: Vec<(f64, f64)> = points.collect();
        let (Some(first), Some(last)) = (points.first(), points.last()) else {
            return println!("{what:<34} unknown on this system");
        };
        println!(
            "{what:<34} {:>12} {:>12} {:>14.1} {:>14.1}",
            first.1,
            last.1,
            slope(&points),
            slope(&points[points.len() / 2..])
        );
    }
}

/// Growth of the second number with the first, by least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |sum, point| {
        (sum.0 + point.0 / count, sum.1 + point.1 / count)
    });
    let (above, below) = points.iter().fold((0.0, 0.0), |sum, point| {
        let (dx, dy) = (point.0 - x, point.1 - y);
        (sum.0 + dx * dy, sum.1 + dx * dx)
    });
    above / below
}

/// Resident bytes of this process, where the system tells them.
fn process_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

#[test]
fn slope_is_that_of_the_least_squares_line() {
    assert_eq!(slope(&[(1.0, 5.0), (2.0, 7.0), (3.0, 9.0)]), 2.0);
    assert_eq!(slope(&[(0.0, 1.0), (1.0, 4.0), (2.0, 1.0)]), 0.0);
}
