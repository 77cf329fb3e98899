//! Runs all users at once, until the last has finished or CTRL-C is pressed.

use std::process;
use std::time::{Duration, Instant};

use motet::{Engine, EngineStats};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::EXIT_INTERRUPTED;
use crate::load_target::LoadTarget;
use crate::progress::Progress;
use crate::script::Script;
use crate::user::{self, Stop, Visit};

/// The interval at which the engine's figures are read.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time that the engine may take to free the last sequence's state.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(2);
/// The device counts as idle when its bytes have not changed for this time.
const STABLE_TIME_MIN: Duration = Duration::from_millis(20);

/// The results of all users, and the engine's figures.
#[derive(Debug)]
pub(crate) struct LoadRun {
    /// In the order of the users.
    pub(crate) visits: Vec<Visit>,
    pub(crate) wall: Duration,
    pub(crate) interrupted: bool,
    /// Requests of all users.
    pub(crate) planned: usize,
    /// This program's delay at each sample of the engine's figures.
    pub(crate) late: Vec<Duration>,
    /// The figures of an engine in this process; `None` for a server.
    pub(crate) engine: Option<EngineReport>,
}

/// An engine's figures of the run.
#[derive(Debug)]
pub(crate) struct EngineReport {
    pub(crate) stats: EngineStats,
    /// The most bytes of cached state in any sample, live sequences included.
    pub(crate) cached_bytes_max: usize,
}

/// Plays all scripts. The engine accepts no requests afterwards.
pub(crate) async fn run(
    load_target: &LoadTarget,
    scripts: Vec<Script>,
    progress: &Progress,
    stop: Stop,
) -> LoadRun {
    let planned = scripts.iter().map(|script| script.turns.len()).sum();
    let reply_tokens = scripts
        .iter()
        .map(|script| script.turns.len() * script.reply_tokens_max)
        .sum();
    let bars = progress.run(planned, reply_tokens);
    let mut cached_bytes_max = 0;
    let mut late = Vec::new();
    let mut sample_interval = tokio::time::interval(SAMPLE_INTERVAL);
    sample_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut visits = Vec::new();
    let start = Instant::now();
    let mut users = JoinSet::new();
    for (number, script) in scripts.into_iter().enumerate() {
        let (load_target, stop, bars) = (load_target.clone(), stop.clone(), bars.clone());
        users.spawn(async move {
            let visit = user::visit(&load_target, &script, start, stop, &bars).await;
            (number, visit)
        });
    }
    loop {
        tokio::select! {
            visit = users.join_next() => match visit {
                Some(visit) => visits.push(visit.expect("a user neither panics nor is aborted")),
                None => break,
            },
            due = sample_interval.tick() => {
                late.push(due.elapsed());
                if let Some(engine) = load_target.engine() {
                    let stats = engine.stats();
                    cached_bytes_max = cached_bytes_max.max(cached_bytes(&stats));
                    bars.show_stats(&stats);
                }
            }
        }
    }
    let wall = start.elapsed();
    bars.clear();
    let interrupted = stop.is_pressed();
    let engine = match load_target.engine() {
        Some(engine) => Some(engine_report(engine, cached_bytes_max).await),
        None => None,
    };
    visits.sort_unstable_by_key(|(number, _)| *number);
    LoadRun {
        visits: visits.into_iter().map(|(_, visit)| visit).collect(),
        wall,
        interrupted,
        planned,
        late,
        engine,
    }
}

async fn engine_report(engine: &Engine, cached_bytes_max: usize) -> EngineReport {
    engine.drain().await;
    let stats = stats_when_idle(engine).await;
    EngineReport {
        cached_bytes_max: cached_bytes_max.max(cached_bytes(&stats)),
        stats,
    }
}

/// Ends the run at the first CTRL-C, and the program at the second.
pub(crate) fn stop_at_ctrl_c() -> Stop {
    let (pressed, stop) = watch::channel(false);
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_err() {
            return;
        }
        pressed.send_replace(true);
        if tokio::signal::ctrl_c().await.is_ok() {
            process::exit(EXIT_INTERRUPTED.into());
        }
    });
    Stop(stop)
}

fn cached_bytes(stats: &EngineStats) -> usize {
    stats.cache.sealed_bytes + stats.cache.reserved_bytes
}

/// Returns the engine's figures once no sequence runs.
async fn stats_when_idle(engine: &Engine) -> EngineStats {
    let started_at = Instant::now();
    let (mut stable_since, mut bytes) = (started_at, None);
    loop {
        let stats = engine.stats();
        let now = Some(stats.device_memory.active_bytes);
        if std::mem::replace(&mut bytes, now) != now {
            stable_since = Instant::now();
        }
        let is_idle = stats.running == 0
            && stats.cache.reserved_bytes == 0
            && stable_since.elapsed() > STABLE_TIME_MIN;
        if is_idle || started_at.elapsed() > IDLE_WAIT_MAX {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
