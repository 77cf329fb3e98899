//! Streams that are first undisturbed and then beside an attack, in turns.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use xtask::ui;

use super::attack::{Attack, Shot, Tally};
use super::streams::{Streams, Window};
use super::victim::{Victim, WatchOutcome};
use crate::measured::{Measured, median, range};

/// Tokens that each stream receives before a measurement starts.
const RUNNING_TOKENS: usize = 8;
/// A stream without a token for this long after an attack is abandoned. Its gap is at least that
/// long.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Longest time that a server may compute after all clients have left, before another is started.
const REST_TIME_MAX: Duration = Duration::from_secs(3);
const MILLISECOND: f64 = 1e-3;

/// Sizes of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) pairs: usize,
    pub(super) streams: usize,
    /// Most tokens that a stream requests before it starts over.
    pub(super) stream_tokens: usize,
    pub(super) clients: usize,
    /// Length of an undisturbed stretch, and the least length of an attacked one.
    pub(super) calm: Duration,
    /// Time after which the clients of an attack leave.
    pub(super) attack_max: Duration,
    /// Time from the clients' leaving to the measurement whether their work has ended.
    pub(super) grace: Duration,
}

/// Results of all pairs.
pub(super) struct Gaps {
    pairs: Vec<Pair>,
    tally: Tally,
    remarks: Vec<String>,
}

/// One undisturbed stretch and one beside an attack, in seconds.
#[derive(Clone, Copy, Debug)]
struct Pair {
    step: f64,
    longest_undisturbed: f64,
    longest_attacked: f64,
    /// Processor time for each token, before the attack and after it.
    cost_before: f64,
    cost_after: f64,
    came_to_rest: bool,
}

impl Gaps {
    /// Measures the pairs. `shots` returns the requests of each pair's attack.
    ///
    /// # Errors
    ///
    /// When the server ends or has to be ended, or a stream breaks.
    pub(super) fn measure(
        name: &str,
        victim: &mut Victim,
        plan: &Plan,
        shots: impl Fn(usize) -> Vec<Shot>,
    ) -> Result<Self> {
        let mut gaps = Self {
            pairs: Vec::new(),
            tally: Tally::default(),
            remarks: Vec::new(),
        };
        for round in 0..plan.pairs {
            let label = format!("{name}, pair {} of {}", round + 1, plan.pairs);
            let mut task = ui::Task::start(label);
            let pair = gaps.pair(victim, plan, round, shots(round), &mut task)?;
            task.done();
            ui::note(&pair.line());
            if !pair.came_to_rest && round + 1 < plan.pairs {
                victim.restart()?;
            }
            gaps.pairs.push(pair);
        }
        let unrested = gaps.pairs.iter().filter(|pair| !pair.came_to_rest).count();
        gaps.remark(format!("requests of hostile clients: {}", gaps.tally));
        gaps.remark(format!(
            "{unrested} of {} servers went on computing {} s after all clients had left",
            plan.pairs,
            REST_TIME_MAX.as_secs()
        ));
        Ok(gaps)
    }

    /// Adds a remark below each figure.
    pub(super) fn remark(&mut self, remark: String) {
        self.remarks.push(remark);
    }

    /// Longest gap beside the attack ÷ undisturbed step.
    pub(super) fn longest_by_step(&self) -> Measured {
        let undisturbed = self.all(|pair| pair.longest_undisturbed / pair.step);
        let remark = format!(
            "undisturbed: step {:.1} ms, longest gap {:.2} of them ({:.2} … {:.2}); beside the attack {:.0} ms",
            median(&self.all(|pair| pair.step)) / MILLISECOND,
            median(&undisturbed),
            range(&undisturbed).0,
            range(&undisturbed).1,
            median(&self.all(|pair| pair.longest_attacked)) / MILLISECOND,
        );
        self.measured(self.all(Pair::longest_in_steps), remark)
    }

    /// The figure of [`longest_by_step`](Self::longest_by_step) as text.
    pub(super) fn longest_line(&self) -> String {
        let gaps = self.all(Pair::longest_in_steps);
        let (least, most) = range(&gaps);
        format!("{:.2} ({least:.2} … {most:.2})", median(&gaps))
    }

    /// Processor time for each token after the attack ÷ before.
    pub(super) fn after_by_before(&self) -> Measured {
        let remark = format!(
            "{:.2} ms of a processor for each token before, {:.2} ms after",
            median(&self.all(|pair| pair.cost_before)) / MILLISECOND,
            median(&self.all(|pair| pair.cost_after)) / MILLISECOND,
        );
        self.measured(self.all(|pair| pair.cost_after / pair.cost_before), remark)
    }

    fn all(&self, value: fn(&Pair) -> f64) -> Vec<f64> {
        self.pairs.iter().map(value).collect()
    }

    fn measured(&self, samples: Vec<f64>, remark: String) -> Measured {
        let remarks = std::iter::once(&remark).chain(&self.remarks);
        remarks.fold(Measured::new(samples), Measured::remark)
    }

    fn pair(
        &mut self,
        victim: &mut Victim,
        plan: &Plan,
        round: usize,
        shots: Vec<Shot>,
        task: &mut ui::Task,
    ) -> Result<Pair> {
        let streams = open_running_streams(victim, plan, 2 * round)?;
        task.progress("undisturbed");
        let (before, cost_before) = cost(victim, &streams, plan.calm)?;
        let undisturbed = streams.gaps(before);

        let attack = Attack::start(victim.port(), plan.clients, shots, plan.calm);
        let started_at = Instant::now();
        watch(victim, &streams, || {
            task.progress(&attack.progress());
            attack.is_finished() || started_at.elapsed() >= plan.attack_max
        })?;
        self.tally.add(&attack.end());
        let attacked = Window {
            from: started_at,
            to: Instant::now(),
        };
        task.progress("after the attack");
        watch(victim, &streams, || {
            streams.all_received_since(attacked.to) || attacked.to.elapsed() >= SILENCE_MAX
        })?;
        let longest_attacked = streams.longest_gap(attacked);

        watch(victim, &streams, || attacked.to.elapsed() >= plan.grace)?;
        // The cost of a token grows with the number of tokens before it. New streams give the
        // tokens after the attack as many predecessors as those before it had.
        drop(streams);
        let streams = open_running_streams(victim, plan, 2 * round + 1)?;
        let (_, cost_after) = cost(victim, &streams, plan.calm)?;
        if undisturbed.is_empty() {
            bail!("no stream had two tokens within {:?}", plan.calm);
        }
        drop(streams);
        Ok(Pair {
            step: median(&undisturbed),
            longest_undisturbed: range(&undisturbed).1,
            longest_attacked,
            cost_before,
            cost_after,
            came_to_rest: victim.comes_to_rest(REST_TIME_MAX)?,
        })
    }
}

impl Pair {
    /// The longest gap beside the attack, in undisturbed steps.
    fn longest_in_steps(&self) -> f64 {
        self.longest_attacked / self.step
    }

    fn line(&self) -> String {
        format!(
            "step {:.1} ms; longest gap {:.0} ms undisturbed, {:.0} ms beside the attack; a token \
             costs {:.2} ms of a processor before, {:.2} ms after{}",
            self.step / MILLISECOND,
            self.longest_undisturbed / MILLISECOND,
            self.longest_attacked / MILLISECOND,
            self.cost_before / MILLISECOND,
            self.cost_after / MILLISECOND,
            if self.came_to_rest {
                ""
            } else {
                "; it goes on computing"
            }
        )
    }
}

/// Opens streams and waits until all run. None begins like a stream of another `round` of this
/// server.
fn open_running_streams(victim: &mut Victim, plan: &Plan, round: usize) -> Result<Streams> {
    let streams = Streams::open(victim.port(), plan.streams, plan.stream_tokens, round);
    let opened = Instant::now();
    watch(victim, &streams, || {
        streams.tokens_least() >= RUNNING_TOKENS || opened.elapsed() > SILENCE_MAX
    })?;
    if streams.tokens_least() < RUNNING_TOKENS {
        bail!("the streams do not start within {SILENCE_MAX:?}");
    }
    Ok(streams)
}

/// Processor time for each token of a stretch that begins now. A stretch without a token counts
/// as one with one token.
fn cost(victim: &mut Victim, streams: &Streams, time: Duration) -> Result<(Window, f64)> {
    let from = Instant::now();
    let before = victim.process().processor_seconds()?;
    watch(victim, streams, || from.elapsed() >= time)?;
    let spent = victim.process().processor_seconds()? - before;
    let to = Instant::now();
    let window = Window { from, to };
    Ok((window, spent / streams.tokens(window).max(1) as f64))
}

/// Watches the server and the streams until `is_finished` returns true.
fn watch(
    victim: &mut Victim,
    streams: &Streams,
    mut is_finished: impl FnMut() -> bool,
) -> Result<()> {
    let mut failure = None;
    let watch_outcome = victim.watch(|| {
        failure = streams.failure();
        failure.is_some() || is_finished()
    })?;
    if watch_outcome == WatchOutcome::TooLarge {
        bail!("our server grew by more than 4 GiB and was ended");
    }
    match failure {
        Some(failure) => bail!("an honest stream ended: {failure}"),
        None => Ok(()),
    }
}
