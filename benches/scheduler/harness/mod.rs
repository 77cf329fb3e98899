//! The virtual engine: the cores and the device's table without actors or threads.
//!
//! Messages between the cores take no time. Works take the time of a cost model, one after the
//! other, two in flight at once, as on the device thread. On a real model they take their real
//! time.

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
pub(crate) use callers::{Callers, WaitSeconds};
use device::VirtualDevice;
pub(crate) use device::{LARGE_DEVICE, Pace, SMALL_DEVICE, Step};

/// The cores, the device and all callers.
pub(crate) struct CoreHarness<M: Model> {
    pub(crate) scheduler: SchedulerCore,
    pub(crate) cache: CacheCore,
    pub(crate) callers: Callers,
    device: VirtualDevice<M>,
    now: Duration,
    /// Whether the state of finished sequences is kept.
    retains: bool,
    /// The work of each step.
    pub(crate) steps: Vec<Step>,
    /// The cores' own time.
    cores: CoreTime,
}

/// The host's time, by part.
#[derive(Clone, Copy, Debug, Default)]
struct CoreTime {
    scheduler: Duration,
    cache: Duration,
}

impl<M: Model> CoreHarness<M> {
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
            retains: true,
            steps: Vec::new(),
            cores: CoreTime::default(),
        }
    }

    /// Keeps no state of finished sequences: there is no cache.
    pub(crate) fn without_cache(mut self) -> Self {
        self.retains = false;
        self
    }

    /// The time of the virtual engine.
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// The host's time in the scheduler's core, in the cache's, and with the device's table and
    /// the model.
    pub(crate) fn host_time(&self) -> [Duration; 3] {
        [self.cores.scheduler, self.cores.cache, self.device.host]
    }

    /// Serves these requests, which are in order, until all have finished.
    pub(crate) fn serve(&mut self, model: &mut M, arrivals: Vec<Arrival>) {
        let mut arrivals: VecDeque<Arrival> = arrivals.into();
        while self.handle_next(model, &mut arrivals) {}
    }

    /// The same, while `inside` more are always inside: whenever one of them finishes the next
    /// arrives, until the last of `arrivals` has arrived.
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
            if !self.handle_next(model, &mut arrivals) {
                return;
            }
        }
    }

    /// Handles the next event. Returns false when none is left.
    fn handle_next(&mut self, model: &mut M, arrivals: &mut VecDeque<Arrival>) -> bool {
        let next_arrival_at = arrivals.front().map(|arrival| arrival.at);
        let finishes_at = self.device.finishes_at(self.now);
        let wakes_at = self.scheduler.wakes_at();
        let Some(at) = [next_arrival_at, finishes_at, wakes_at]
            .into_iter()
            .flatten()
            .min()
        else {
            return false;
        };
        self.now = self.now.max(at);
        if finishes_at == Some(at) {
            let outcome = self.device.finish(model, &mut self.now);
            self.handle_event(model, Event::Outcome(outcome));
        } else if next_arrival_at == Some(at) {
            let arrival = arrivals.pop_front().expect("its time was just read");
            self.submit(model, arrival);
        } else {
            self.handle_event(model, Event::TimePassed);
        }
        true
    }

    fn submit(&mut self, model: &mut M, arrival: Arrival) {
        let submission = self.callers.admit(arrival, self.now);
        self.handle_event(model, Event::Submit(submission));
    }

    /// Passes an event to the scheduler, and its effects to the other parts, until none is
    /// left.
    fn handle_event(&mut self, model: &mut M, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let started_at = Instant::now();
            let effects = self.scheduler.handle(self.now, event);
            self.cores.scheduler += started_at.elapsed();
            for effect in effects {
                match effect {
                    Effect::Cache(message) => {
                        let message = self.discard_unless_cached(message);
                        let started_at = Instant::now();
                        let answer = self.cache.handle(self.now, message);
                        self.cores.cache += started_at.elapsed();
                        self.device
                            .track_slots(answer.as_ref().map_or(&[], Vec::as_slice));
                        events.push_back(Event::Cache(answer));
                    }
                    Effect::Work(work) => {
                        let step = self
                            .device
                            .submit(model, work, &mut self.now, &self.callers);
                        self.steps.extend(step);
                    }
                    other => self.callers.deliver(other, self.now),
                }
            }
        }
    }

    /// Without a cache, a close becomes a discard.
    fn discard_unless_cached(&self, message: cache::Message) -> cache::Message {
        match message {
            cache::Message::Close { sequence, .. } if !self.retains => {
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
