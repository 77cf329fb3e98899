//! The fleet on a virtual clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use motet_protocol::SequenceId;

use crate::Result;
use crate::router::Router;
use crate::setting::{Losses, Setting};
use crate::tier::SharedTier;
use crate::trace::{Outputs, Trace};
use crate::worker::{Prefilled, Report, Sequence, Worker};

/// The result of a simulation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Tokens of all prompts.
    pub(crate) prompt_tokens: usize,
    /// Part of them that no worker computed.
    pub(crate) reused_tokens: usize,
    /// Tokens written to the shared tier.
    pub(crate) written_tokens: usize,
    /// Part of `reused_tokens` that came from there.
    pub(crate) loaded_tokens: usize,
    /// Tokens of the lost workers' sequences whose state other workers have computed again.
    pub(crate) again_tokens: usize,
    /// From arrivals to first tokens.
    pub(crate) first_token_seconds: Vec<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Loss,
    Arrival(usize),
    StepEnd(usize),
}

struct Fleet<'a> {
    trace: &'a Trace,
    setting: &'a Setting,
    router: Router,
    /// `None` for a lost one.
    workers: Vec<Option<Worker>>,
    /// The worker that is lost next: the oldest.
    next_lost: usize,
    tier: Option<SharedTier>,
    /// Events by time and, at one time, in the order in which they were added.
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    added: u64,
    sequences: u64,
    outputs: Outputs,
    outcome: Outcome,
}

impl Outcome {
    pub(crate) fn reuse_percent(&self) -> f64 {
        100.0 * self.reused_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

/// Replays the trace.
pub(crate) fn run(trace: &Trace, setting: &Setting) -> Result<Outcome> {
    let workers = (0..setting.workers).map(|_| Some(Worker::new(setting)));
    let mut fleet = Fleet {
        trace,
        setting,
        router: Router::new(setting),
        workers: workers.collect(),
        next_lost: 0,
        tier: setting.tier.map(SharedTier::new),
        events: BinaryHeap::new(),
        added: 0,
        sequences: 0,
        outputs: Outputs::default(),
        outcome: Outcome::default(),
    };
    for request in 0..trace.requests.len() {
        fleet.add(fleet.arrival(request), Event::Arrival(request));
    }
    let end = fleet.arrival(trace.requests.len() - 1);
    let moments = setting.losses.map_or(0, |losses| losses.moments as u32);
    for moment in 1..=moments {
        fleet.add(end * moment / (moments + 1), Event::Loss);
    }
    while let Some(Reverse((now, _, event))) = fleet.events.pop() {
        match event {
            Event::Arrival(request) => fleet.arrive(now, request)?,
            Event::StepEnd(worker) => fleet.end_step(now, worker)?,
            Event::Loss => {
                if let Some(losses) = setting.losses {
                    fleet.lose(now, losses)?;
                }
            }
        }
    }
    let left = fleet.workers.iter().flatten();
    left.for_each(Worker::check_integrity);
    fleet.outcome.written_tokens = fleet.tier.map_or(0, |tier| tier.written_tokens());
    Ok(fleet.outcome)
}

impl Fleet<'_> {
    fn add(&mut self, at: Duration, event: Event) {
        self.added += 1;
        self.events.push(Reverse((at, self.added, event)));
    }

    fn arrival(&self, request: usize) -> Duration {
        let at = self.trace.requests[request].at;
        at.div_f64(self.setting.speed_up)
    }

    fn arrive(&mut self, now: Duration, request: usize) -> Result<()> {
        let asked = &self.trace.requests[request];
        self.outcome.prompt_tokens += asked.prompt_tokens;
        let sequence = Sequence {
            id: SequenceId(0),
            tokens: asked.prompt().into(),
            output_tokens: asked.output_tokens,
            request,
            lost: None,
        };
        self.start(now, sequence)
    }

    /// Starts a sequence, under an id of its own, on the worker that the router chooses.
    fn start(&mut self, now: Duration, sequence: Sequence) -> Result<()> {
        self.sequences += 1;
        let id = SequenceId(self.sequences);
        let sequence = Sequence { id, ..sequence };
        let at = self.router.route(now, &sequence)?;
        let worker = self.workers[at].as_mut();
        worker.expect("a lost worker is not chosen").push(sequence);
        self.begin_step(now, at)
    }

    fn begin_step(&mut self, now: Duration, at: usize) -> Result<()> {
        let worker = self.workers[at].as_mut().expect("it is not lost");
        let end = worker.begin(now, self.tier.as_mut());
        let blocks = worker.block_events();
        self.router.blocks_changed(at, &blocks)?;
        if let Some(end) = end {
            self.add(end, Event::StepEnd(at));
        }
        Ok(())
    }

    fn end_step(&mut self, now: Duration, at: usize) -> Result<()> {
        let Some(worker) = &mut self.workers[at] else {
            return Ok(());
        };
        for report in worker.end(now, &mut self.outputs, self.tier.as_mut()) {
            match report {
                Report::Prefilled(prefilled) => {
                    self.router.prefilled(now, prefilled.sequence.id)?;
                    self.count(now, &prefilled);
                }
                Report::Ended(sequence) => self.router.ended(now, sequence)?,
            }
        }
        self.begin_step(now, at)
    }

    fn count(&mut self, now: Duration, prefilled: &Prefilled) {
        let sequence = &prefilled.sequence;
        let mut reused = prefilled.reused;
        if let Some(lost) = sequence.lost {
            self.outcome.again_tokens += lost.computed.saturating_sub(reused);
            if lost.is_answered {
                return;
            }
            reused = lost.reused;
        }
        self.outcome.reused_tokens += reused;
        self.outcome.loaded_tokens += prefilled.loaded;
        let waited = now.saturating_sub(self.arrival(sequence.request));
        let seconds = waited.as_secs_f64();
        self.outcome.first_token_seconds.push(seconds);
    }

    fn lose(&mut self, now: Duration, losses: Losses) -> Result<()> {
        let (mut running, mut sequences) = (Vec::new(), Vec::new());
        for _ in 0..losses.workers {
            let (lost, new) = (self.next_lost, self.workers.len());
            self.next_lost += 1;
            let worker = self.workers[lost].take().expect("it is lost once");
            let (with_slots, others) = worker.lose();
            running.extend(with_slots);
            sequences.extend(others);
            self.workers.push(Some(Worker::new(self.setting)));
            self.router.replaced(lost, new)?;
        }
        for running in running {
            if losses.hand_over
                && let Some(tier) = &mut self.tier
            {
                tier.handed_over(&running.computed_tokens());
            }
            sequences.push(running.rest());
        }
        for sequence in sequences {
            self.start(now, sequence)?;
        }
        Ok(())
    }
}
