//! The virtual engine: the cores and the device's table without actors or threads.
//!
//! Messages between the cores take no time. Works take the time of a cost model, one after the
//! other, two in flight at once, as on the device thread. On a real model they take their real
//! time.

mod callers;
mod device;

use std::collections::VecDeque;
use std::time::Duration;

use motet::SequenceId;
use motet::config::{CacheConfig, SchedulerConfig};
use motet::model::{Model, ModelSpec};
use motet_core::cache::{self, CacheCore, CacheError};
use motet_core::scheduler::{Effect, Event, SchedulerCore};
use motet_testkit::core_harness::{self, CorePeer};

use crate::programs::arrivals::Arrival;
pub(crate) use callers::{Callers, WaitSeconds};
use device::VirtualDevice;
pub(crate) use device::{LARGE_DEVICE, Pace, SMALL_DEVICE, Step};

/// The cores, the device and all callers.
pub(crate) struct CoreHarness<M: Model> {
    cores: core_harness::CoreHarness,
    pub(crate) callers: Callers,
    device: VirtualDevice<M>,
    /// Whether the state of finished sequences is kept.
    retains: bool,
    /// The work of each step.
    pub(crate) steps: Vec<Step>,
}

/// The device, its model and the callers, as the cores see them.
struct Surroundings<'a, M: Model> {
    model: &'a mut M,
    device: &'a mut VirtualDevice<M>,
    callers: &'a mut Callers,
    retains: bool,
    steps: &'a mut Vec<Step>,
}

impl<M: Model> CoreHarness<M> {
    pub(crate) fn new(
        spec: &ModelSpec,
        scheduler: SchedulerConfig,
        cache: CacheConfig,
        pace: Pace,
    ) -> Self {
        let scheduler = SchedulerCore::new(spec.clone(), scheduler);
        let cache = CacheCore::new(spec.clone(), cache);
        Self {
            // The bench measures the cores without their checks.
            cores: core_harness::CoreHarness::new(scheduler, cache).unchecked(),
            callers: Callers::default(),
            device: VirtualDevice::new(pace),
            retains: true,
            steps: Vec::new(),
        }
    }

    /// Keeps no state of finished sequences: there is no cache.
    pub(crate) fn without_cache(mut self) -> Self {
        self.retains = false;
        self
    }

    /// The time of the virtual engine.
    pub(crate) fn now(&self) -> Duration {
        self.cores.now()
    }

    pub(crate) fn scheduler(&self) -> &SchedulerCore {
        self.cores.scheduler()
    }

    /// The host's time in the scheduler's core, in the cache's, and with the device's table and
    /// the model.
    pub(crate) fn host_time(&self) -> [Duration; 3] {
        let [scheduler, cache] = self.cores.times();
        [scheduler, cache, self.device.host]
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
                arrival.at = self.now();
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
        let finishes_at = self.device.finishes_at(self.now());
        let wakes_at = self.cores.scheduler().wakes_at();
        let Some(at) = [next_arrival_at, finishes_at, wakes_at]
            .into_iter()
            .flatten()
            .min()
        else {
            return false;
        };
        self.cores.pass_until(at);
        if finishes_at == Some(at) {
            let mut now = self.now();
            let outcome = self.device.finish(model, &mut now);
            self.cores.pass_until(now);
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
        let submission = self.callers.admit(arrival, self.cores.now());
        self.handle_event(model, Event::Submit(submission));
    }

    /// Passes an event to the scheduler, and its effects to the other parts, until none is
    /// left.
    fn handle_event(&mut self, model: &mut M, event: Event) {
        let mut surroundings = Surroundings {
            model,
            device: &mut self.device,
            callers: &mut self.callers,
            retains: self.retains,
            steps: &mut self.steps,
        };
        self.cores.run(event, &mut surroundings);
    }
}

impl<M: Model> CorePeer for Surroundings<'_, M> {
    fn on_effect(&mut self, effect: Effect, now: &mut Duration) -> Option<Event> {
        match effect {
            Effect::Work(work) => {
                let step = self.device.submit(self.model, work, now, self.callers);
                self.steps.extend(step);
            }
            other => self.callers.deliver(other, *now),
        }
        None
    }

    /// Without a cache, a close becomes a discard.
    fn on_message(&mut self, message: cache::Message) -> cache::Message {
        match message {
            cache::Message::Close { sequence, .. } if !self.retains => {
                cache::Message::Discard { sequence }
            }
            other => other,
        }
    }

    fn on_answer(&mut self, answer: &Result<Vec<cache::Effect>, CacheError>) {
        let effects = answer.as_ref().map_or(&[][..], Vec::as_slice);
        self.device.track_slots(effects);
    }
}

/// Sequences are named after their places among the callers.
fn index(sequence: SequenceId) -> usize {
    sequence.0 as usize - 1
}
