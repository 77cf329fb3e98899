//! The virtual house: the cores and the device's table without actors or threads.
//!
//! Messages between the cores take no time. Works take the time that a cost says, one
//! after the other, two under way at once, as on the device thread; or, on a real
//! model, the time they take.

mod callers;
mod device;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use motet::SequenceId;
use motet::config::{CacheConfig, SchedulerConfig};
use motet::model::{Model, ModelSpec};
use motet_core::cache::{self, CacheCore};
use motet_core::scheduler::{Effect, Event, SchedulerCore};

use crate::arrivals::Arrival;
pub(crate) use callers::{Callers, Waits};
use device::VirtualDevice;
pub(crate) use device::{LARGE_DEVICE, Pace, SMALL_DEVICE, Step};

/// The cores, the device and all callers.
pub(crate) struct House<M: Model> {
    pub(crate) scheduler: SchedulerCore,
    pub(crate) cache: CacheCore,
    pub(crate) callers: Callers,
    device: VirtualDevice<M>,
    now: Duration,
    /// Whether what sequences leave behind is kept.
    keeps: bool,
    /// What each step had to do.
    pub(crate) steps: Vec<Step>,
    /// The cores' own time.
    cores: CoreTime,
}

/// Time that the host has spent, by part.
#[derive(Clone, Copy, Debug, Default)]
struct CoreTime {
    scheduler: Duration,
    cache: Duration,
}

impl<M: Model> House<M> {
    pub(crate) fn new(
        spec: &ModelSpec,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        pace: Pace,
    ) -> Self {
        Self {
            scheduler: SchedulerCore::new(spec.clone(), scheduler),
            cache: CacheCore::new(spec.clone(), cache),
            callers: Callers::default(),
            device: VirtualDevice::new(pace),
            now: Duration::ZERO,
            keeps: true,
            steps: Vec::new(),
            cores: CoreTime::default(),
        }
    }

    /// Keeps nothing of what sequences leave behind: there is no cache.
    pub(crate) fn without_cache(mut self) -> Self {
        self.keeps = false;
        self
    }

    /// The time in the house.
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// Time that the host has spent in the scheduler's core, in the cache's, and with the
    /// device's table and the model.
    pub(crate) fn host_time(&self) -> [Duration; 3] {
        [self.cores.scheduler, self.cores.cache, self.device.host]
    }

    /// Serves these requests, which are in order, until all are over.
    pub(crate) fn serve(&mut self, model: &mut M, arrivals: Vec<Arrival>) {
        let mut arrivals: VecDeque<Arrival> = arrivals.into();
        while self.happen(model, &mut arrivals) {}
    }

    /// The same, while `inside` more are always inside: whenever one of them is over the
    /// next comes, until the last of `arrivals` has come.
    pub(crate) fn serve_beside(
        &mut self,
        model: &mut M,
        arrivals: Vec<Arrival>,
        mut more: impl Iterator<Item = Arrival>,
        inside: usize,
    ) {
        let mut arrivals: VecDeque<Arrival> = arrivals.into();
        let mut sent: Vec<usize> = Vec::new();
        loop {
            sent.retain(|caller| self.callers.all[*caller].ended_at.is_none());
            while sent.len() < inside
                && !arrivals.is_empty()
                && let Some(mut arrival) = more.next()
            {
                arrival.at = self.now;
                sent.push(self.callers.all.len());
                self.submit(model, arrival);
            }
            if !self.happen(model, &mut arrivals) {
                return;
            }
        }
    }

    /// Lets the next thing happen. False when nothing is left to happen.
    fn happen(&mut self, model: &mut M, arrivals: &mut VecDeque<Arrival>) -> bool {
        let arrives_at = arrivals.front().map(|arrival| arrival.at);
        let lands_at = self.device.lands_at(self.now);
        let wakes_at = self.scheduler.wakes_at();
        let Some(at) = [arrives_at, lands_at, wakes_at].into_iter().flatten().min() else {
            return false;
        };
        self.now = self.now.max(at);
        if lands_at == Some(at) {
            let outcome = self.device.land(model, &mut self.now);
            self.feed(model, Event::Outcome(outcome));
        } else if arrives_at == Some(at) {
            let arrival = arrivals.pop_front().expect("its time was just read");
            self.submit(model, arrival);
        } else {
            self.feed(model, Event::Tick);
        }
        true
    }

    fn submit(&mut self, model: &mut M, arrival: Arrival) {
        let submission = self.callers.admit(arrival, self.now);
        self.feed(model, Event::Submit(submission));
    }

    /// Tells the scheduler, and everybody else what follows, until nothing does.
    fn feed(&mut self, model: &mut M, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let begun = Instant::now();
            let effects = self.scheduler.handle(self.now, event);
            self.cores.scheduler += begun.elapsed();
            for effect in effects {
                match effect {
                    Effect::Cache(message) => {
                        let message = self.kept(message);
                        let begun = Instant::now();
                        let answer = self.cache.handle(self.now, message);
                        self.cores.cache += begun.elapsed();
                        self.device.hear(answer.as_ref().map_or(&[], Vec::as_slice));
                        events.push_back(Event::Cache(answer));
                    }
                    Effect::Work(work) => {
                        let step = self
                            .device
                            .launch(model, work, &mut self.now, &self.callers);
                        self.steps.extend(step);
                    }
                    other => self.callers.tell(other, self.now),
                }
            }
        }
    }

    /// Without a cache, what is closed is thrown away.
    fn kept(&self, message: cache::Message) -> cache::Message {
        match message {
            cache::Message::Close { sequence, .. } if !self.keeps => {
                cache::Message::Discard { sequence }
            }
            other => other,
        }
    }
}

/// Sequences are named after their places among the callers.
fn index(sequence: SequenceId) -> usize {
    sequence.0 as usize - 1
}
