//! Cost of each hostile schema on a server that does nothing else.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use xtask::ui;

use super::attack::{Attack, Tally};
use super::grammars::HostileGrammar;
use super::victim::{Death, Victim, WatchOutcome};
use super::{MEGABYTE, payloads};
use crate::measured::Measured;

/// Tokens of an answer: few, because the model's time for them counts as well.
const TOKENS: usize = 4;
/// A server that still computes this long after a schema is ended. The schema's cost is at least
/// that.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Schemas that cost more are listed one by one.
const NOTABLE_SECONDS: f64 = 1.0;
const NOTABLE_MEGABYTES: f64 = 64.0;
/// Number of the most expensive schemas that are listed below the figure.
const SHOWN: usize = 5;

/// Costs of the schemas.
pub(super) struct Alone {
    costs: Vec<Cost>,
    /// Cost of a schema that is not in the corpus.
    honest: Cost,
    /// Peak growth of the server since it started, in bytes.
    growth_bytes: u64,
    tally: Tally,
}

struct Cost {
    name: &'static str,
    processor_seconds: f64,
    /// Whether the server came to rest by itself.
    is_whole: bool,
}

impl Alone {
    /// Sends each schema to an idle server, and waits until it is idle again.
    ///
    /// # Errors
    ///
    /// When the server ends by itself. The error names all schemas that caused it.
    pub(super) fn measure(victim: &mut Victim, schemas: &[HostileGrammar]) -> Result<Self> {
        let mut alone = Self {
            costs: Vec::new(),
            honest: Cost {
                name: "none",
                processor_seconds: 0.0,
                is_whole: true,
            },
            growth_bytes: 0,
            tally: Tally::default(),
        };
        let mut deaths = Vec::new();
        let mut resident = alone.warm_up(victim)?;
        let mut task = ui::Task::start("schemas, one by one");
        for (number, schema) in schemas.iter().enumerate() {
            task.progress(&format!("{number} of {}", schemas.len()));
            match alone.ask(victim, schema, number) {
                Ok((cost, peak)) => {
                    let is_whole = cost.is_whole;
                    alone.note(cost, peak.saturating_sub(resident));
                    if is_whole {
                        continue;
                    }
                }
                Err(error) if error.is::<Death>() => {
                    ui::note(&format!("{}: {error:#}", schema.name));
                    deaths.push(format!("{}: {error:#}", schema.name));
                }
                Err(error) => return Err(error.context(format!("at {}", schema.name))),
            }
            victim.restart()?;
            resident = alone.warm_up(victim)?;
        }
        task.done();
        if !deaths.is_empty() {
            ui::note(&alone.processor_seconds().remarks.join("\n  "));
            bail!("schemas end our server: {}", deaths.join("; "));
        }
        Ok(alone)
    }

    fn note(&mut self, cost: Cost, grown_bytes: u64) {
        self.growth_bytes = self.growth_bytes.max(grown_bytes);
        let grown = grown_bytes as f64 / MEGABYTE;
        if cost.processor_seconds > NOTABLE_SECONDS || grown > NOTABLE_MEGABYTES {
            ui::note(&format!("{}; grown by {grown:.0} MB", cost.line()));
        }
        self.costs.push(cost);
    }

    /// Processor seconds of the most expensive schema.
    pub(super) fn processor_seconds(&self) -> Measured {
        let mut dearest: Vec<&Cost> = self.costs.iter().collect();
        dearest.sort_by(|a, b| b.processor_seconds.total_cmp(&a.processor_seconds));
        let most = dearest.first().map_or(0.0, |cost| cost.processor_seconds);
        let lines: Vec<String> = dearest.iter().take(SHOWN).map(|cost| cost.line()).collect();
        let unended = self.costs.iter().filter(|cost| !cost.is_whole).count();
        let is_expensive = |cost: &&&Cost| cost.processor_seconds > 2.0;
        Measured::new(vec![most])
            .remark(format!("the dearest: {}", lines.join("; ")))
            .remark(format!(
                "{} of {} cost more than 2 s, {unended} of them were not finished after {} s; an honest one costs {:.2} s, its \
                 {TOKENS} tokens included",
                dearest.iter().filter(is_expensive).count(),
                self.costs.len(),
                TIME_MAX.as_secs(),
                self.honest.processor_seconds,
            ))
            .remark(format!("their requests: {}", self.tally))
    }

    /// Peak growth of the server, in megabytes.
    pub(super) fn growth(&self) -> Measured {
        Measured::new(vec![self.growth_bytes as f64 / MEGABYTE])
    }

    /// Sends an honest schema twice. Returns the resident bytes after that.
    fn warm_up(&mut self, victim: &mut Victim) -> Result<u64> {
        let honest = payloads::honest();
        let tally = self.tally.clone();
        for number in [usize::MAX - 1, usize::MAX] {
            self.honest = self.ask(victim, &honest, number)?.0;
            if !self.honest.is_whole {
                bail!("our server does not come to rest after an honest schema");
            }
        }
        self.tally = tally;
        let resident = victim.process().resident_bytes()?;
        victim.process().reset_peak()?;
        Ok(resident)
    }

    /// Sends a schema once, and waits until the server rests. Returns its cost and the peak
    /// resident bytes.
    fn ask(
        &mut self,
        victim: &mut Victim,
        schema: &HostileGrammar,
        number: usize,
    ) -> Result<(Cost, u64)> {
        let started_at = Instant::now();
        let before = victim.process().processor_seconds()?;
        let shots = vec![payloads::schema_shot(schema, number, TOKENS)];
        let attack = Attack::start(victim.port(), 1, shots, Duration::ZERO);
        let watch_outcome =
            victim.watch(|| attack.is_finished() || started_at.elapsed() >= TIME_MAX)?;
        self.tally.add(&attack.end());
        let left = TIME_MAX.saturating_sub(started_at.elapsed());
        let is_whole = watch_outcome == WatchOutcome::Well && victim.comes_to_rest(left)?;
        // An ended server has no counters left. It has grown to its limit.
        let (spent, peak) = if victim.was_ended() {
            (
                started_at.elapsed().as_secs_f64(),
                victim.resident_bytes_max(),
            )
        } else {
            let spent = victim.process().processor_seconds()? - before;
            (spent, victim.process().peak_bytes()?)
        };
        let cost = Cost {
            name: schema.name,
            processor_seconds: spent,
            is_whole,
        };
        Ok((cost, peak))
    }
}

impl Cost {
    fn line(&self) -> String {
        let at_least = if self.is_whole { "" } else { "at least " };
        format!("{} {at_least}{:.1} s", self.name, self.processor_seconds)
    }
}
