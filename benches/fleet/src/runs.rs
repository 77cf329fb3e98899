//! The runs, by name: a kind and a number of workers, as in `reuse_8`.

use std::path::Path;
use std::sync::Mutex;
use std::thread;

use motet_core::config::EvictionPolicy;
use serde_json::Value;

use crate::Result;
use crate::fleet::{self, Outcome};
use crate::measured::{Records, percentile};
use crate::protocol::{self, Request, Size};
use crate::setting::{Losses, RouterSettings, Routing, Setting, Tells, Writes};
use crate::trace::Trace;

/// Fleets, and how many times as fast as in the trace their requests come.
const FLEETS: [(usize, f64); 3] = [(8, 1.0), (100, 12.0), (1_000, 120.0)];
/// Simulations of a figure. The router breaks ties by chance.
const SEEDS: u64 = 3;
/// Requests of a smoke run.
const QUICK_REQUESTS: usize = 200;
/// Moments at which workers are lost.
const LOSSES: usize = 16;

const POLICIES: [(&str, Writes); 3] = [
    ("whole sequences at their ends", Writes::AtEnd),
    ("used twice by a worker", Writes::UsedTwice),
    ("prompts once computed", Writes::AfterPrompt),
];

struct Runs {
    trace: Trace,
    workers: usize,
    setting: Setting,
}

/// Answers requests until standard input ends.
pub(crate) fn serve(trace: &Path) -> Result<()> {
    Ok(protocol::serve(|request| answer(trace, request))?)
}

fn answer(trace: &Path, request: Request) -> Result<Value> {
    let Request::Run { name, size } = request else {
        return Err(format!("not a run: {request:?}").into());
    };
    let unknown = || format!("no run is named {name}");
    let (kind, workers) = name.split_once('_').ok_or_else(unknown)?;
    let workers: usize = workers.parse().map_err(|_| unknown())?;
    let fleet = FLEETS.iter().find(|(fleet, _)| *fleet == workers);
    let (workers, speed_up) = *fleet.ok_or_else(unknown)?;
    let mut trace = Trace::read(trace)?;
    if size == Size::Quick {
        trace.requests.truncate(QUICK_REQUESTS);
    }
    let runs = Runs {
        trace,
        workers,
        setting: Setting::of_fleet(workers, speed_up),
    };
    let records = match kind {
        "reuse" => runs.reuse()?,
        "remote" => runs.remote()?,
        "lost" => runs.lost()?,
        _ => return Err(unknown().into()),
    };
    Ok(serde_json::to_value(records)?)
}

impl Runs {
    /// Reuse without a shared tier.
    fn reuse(&self) -> Result<Records> {
        let setting = self.setting;
        let defaults = Routing::Kv(RouterSettings::DEFAULT);
        let others = [
            (
                "with the router's defaults",
                Setting {
                    routing: defaults,
                    ..setting
                },
            ),
            (
                "with its defaults, blocks told at the ends of sequences",
                Setting {
                    routing: defaults,
                    tells: Tells::AtEnd,
                    ..setting
                },
            ),
            (
                "round robin",
                Setting {
                    routing: Routing::RoundRobin,
                    ..setting
                },
            ),
            (
                "least recently used evicted first",
                Setting {
                    eviction: EvictionPolicy::Lru,
                    ..setting
                },
            ),
        ];
        let mut settings = seeds(setting);
        settings.extend(others.map(|(_, setting)| setting));
        let outcomes = self.outcomes(&settings)?;
        let (ours, beside) = outcomes.split_at(SEEDS as usize);
        let figure = format!("fleet.sim_reuse_{}", self.workers);
        let mut records = Records::default();
        for outcome in ours {
            records.sample(&figure, outcome.reuse_percent());
        }
        records.remark(
            &figure,
            format!("an endless cache: {:.1} %", self.bound_percent()),
        );
        records.remark(&figure, first_tokens(&ours[0]));
        for ((name, _), outcome) in others.iter().zip(beside) {
            let (percent, times) = (outcome.reuse_percent(), first_tokens(outcome));
            records.remark(&figure, format!("{name}: {percent:.1} %; {times}"));
        }
        Ok(records)
    }

    /// Reuse with a shared tier, by what is written to it.
    fn remote(&self) -> Result<Records> {
        let figure = format!("fleet.sim_reuse_{}_remote", self.workers);
        let gap = format!("fleet.sim_gap_{}_remote", self.workers);
        let mut records = Records::default();
        for outcome in self.outcomes(&seeds(self.setting.writing(Writes::AtEnd)))? {
            records.sample(&figure, outcome.reuse_percent());
            records.sample(&gap, self.bound_percent() - outcome.reuse_percent());
        }
        let in_turn = Setting {
            routing: Routing::RoundRobin,
            ..self.setting
        };
        let settings = [self.setting, in_turn];
        let settings = POLICIES
            .iter()
            .flat_map(|(_, writes)| settings.map(|s| s.writing(*writes)));
        let outcomes = self.outcomes(&settings.collect::<Vec<_>>())?;
        for ((name, _), outcomes) in POLICIES.iter().zip(outcomes.chunks(2)) {
            let millions = |outcome: &Outcome| outcome.written_tokens as f64 / 1e6;
            let remark = format!(
                "{name}: {:.1} %, {:.1} M tokens written; round robin {:.1} %, {:.1} M",
                outcomes[0].reuse_percent(),
                millions(&outcomes[0]),
                outcomes[1].reuse_percent(),
                millions(&outcomes[1]),
            );
            records.remark(&figure, remark);
        }
        Ok(records)
    }

    /// Tokens that are computed again for the sequences of a lost worker. A tenth of a large fleet is
    /// lost at a time.
    fn lost(&self) -> Result<Records> {
        let at_once = (self.workers / 10).max(1);
        let losses = |hand_over| {
            Some(Losses {
                moments: LOSSES,
                workers: at_once,
                hand_over,
            })
        };
        let all = self.setting.writing(Writes::AtEnd);
        let kinds = [
            (
                "",
                Setting {
                    losses: losses(false),
                    ..self.setting
                },
            ),
            (
                "_remote",
                Setting {
                    losses: losses(false),
                    ..all
                },
            ),
            (
                "_remote_hand_over",
                Setting {
                    losses: losses(true),
                    ..all
                },
            ),
        ];
        let mut settings = vec![self.setting, all];
        settings.extend(kinds.map(|(_, setting)| setting));
        let outcomes = self.outcomes(&settings)?;
        let mut records = Records::default();
        let lost_workers = (LOSSES * at_once) as f64;
        for ((kind, setting), outcome) in kinds.iter().zip(&outcomes[2..]) {
            let figure = format!("fleet.sim_lost_machine_{}{kind}", self.workers);
            records.sample(&figure, outcome.again_tokens as f64 / lost_workers);
            let undisturbed = &outcomes[usize::from(setting.tier.is_some())];
            let more = undisturbed.reused_tokens as f64 - outcome.reused_tokens as f64;
            let remark = format!(
                "{lost_workers} lost, {at_once} at a time; reuse {:.1} %, undisturbed {:.1} %: {:.0} tokens \
                 of prompts more for each",
                outcome.reuse_percent(),
                undisturbed.reuse_percent(),
                more / lost_workers,
            );
            records.remark(&figure, remark);
        }
        Ok(records)
    }

    fn bound_percent(&self) -> f64 {
        100.0 * self.trace.bound() as f64 / self.trace.prompt_tokens() as f64
    }

    /// Simulates all of them, as many at a time as there are processors.
    fn outcomes(&self, settings: &[Setting]) -> Result<Vec<Outcome>> {
        let outcomes = Mutex::new(Vec::new());
        let next = Mutex::new(settings.iter().enumerate());
        let threads = thread::available_parallelism()?.get();
        let simulate = || {
            loop {
                let claimed = next.lock().expect("no thread panics here").next();
                let Some((at, setting)) = claimed else { return };
                let outcome = fleet::run(&self.trace, setting);
                outcomes
                    .lock()
                    .expect("no thread panics here")
                    .push((at, outcome));
            }
        };
        thread::scope(|scope| {
            for _ in 0..threads.min(settings.len()) {
                scope.spawn(simulate);
            }
        });
        let mut outcomes = outcomes.into_inner().expect("no thread panics here");
        outcomes.sort_by_key(|(at, _)| *at);
        outcomes.into_iter().map(|(_, outcome)| outcome).collect()
    }
}

fn seeds(setting: Setting) -> Vec<Setting> {
    (0..SEEDS).map(|seed| Setting { seed, ..setting }).collect()
}

fn first_tokens(outcome: &Outcome) -> String {
    let seconds = &outcome.first_token_seconds;
    let mean = seconds.iter().sum::<f64>() / seconds.len().max(1) as f64;
    format!(
        "first token after {:.0} ms, p99 {:.0}",
        1e3 * mean,
        1e3 * percentile(seconds, 0.99)
    )
}
