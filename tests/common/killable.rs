//! A model whose device thread can be ended, whose steps can be made slower or fail, and that counts
//! its steps in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use motet::model::{DeviceMemory, Model, ModelError, ModelSpec};
use motet_model::sampling::SampleInputs;
use motet_model::{Span, SpanOutput, TokenSource};

/// Ends the thread of a [`Killable`] model. Clones are of the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kill {
    is_armed: Arc<AtomicBool>,
    token_micros: Arc<AtomicU64>,
    step_micros: Arc<AtomicU64>,
    failures: Arc<AtomicUsize>,
    steps: Arc<Steps>,
}

/// Steps of a [`Killable`] model.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) submitted: AtomicUsize,
    pub(crate) in_flight: AtomicUsize,
    /// The largest number of steps in flight.
    pub(crate) in_flight_max: AtomicUsize,
    /// Steps with tokens that the step ahead had yet to sample.
    pub(crate) ahead: AtomicUsize,
    /// Those of them that were submitted while the device computed the step ahead.
    pub(crate) overlapping: AtomicUsize,
}

impl Kill {
    /// Makes the model panic when the next step has finished: no step is to blame.
    pub(crate) fn arm(&self) {
        self.is_armed.store(true, Ordering::Relaxed);
    }

    /// Makes each token of a step take so much longer.
    #[allow(dead_code, reason = "each test takes what it needs")]
    pub(crate) fn slow_down(&self, token_micros: u64) {
        self.token_micros.store(token_micros, Ordering::Relaxed);
    }

    /// Makes each step finish so much later.
    #[allow(dead_code, reason = "each test takes what it needs")]
    pub(crate) fn slow_down_steps(&self, step_micros: u64) {
        self.step_micros.store(step_micros, Ordering::Relaxed);
    }

    /// Makes so many of the next steps fail as on a device without memory.
    #[allow(dead_code, reason = "each test takes what it needs")]
    pub(crate) fn run_out_of_memory(&self, steps: usize) {
        self.failures.store(steps, Ordering::Relaxed);
    }

    /// Failures that are still to come.
    #[allow(dead_code, reason = "each test takes what it needs")]
    pub(crate) fn failures_left(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    #[allow(dead_code, reason = "each test takes what it needs")]
    pub(crate) fn steps(&self) -> &Steps {
        &self.steps
    }
}

impl Steps {
    fn on_submit<M: Model>(&self, model: &M, spans: &[Span<'_, M>]) {
        let ahead = spans.iter().filter_map(|span| match span.tokens {
            TokenSource::Known(_) => None,
            TokenSource::Sampled(in_flight, ..) => Some(model.is_ready(in_flight)),
        });
        let ahead: Vec<bool> = ahead.collect();
        let count = |counter: &AtomicUsize, is_counted: bool| {
            counter.fetch_add(usize::from(is_counted), Ordering::Relaxed);
        };
        count(&self.submitted, true);
        count(&self.ahead, !ahead.is_empty());
        count(&self.overlapping, ahead.contains(&false));
        let in_flight = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.in_flight_max.fetch_max(in_flight, Ordering::Relaxed);
    }
}

/// The model itself, until it is killed.
pub(crate) struct Killable<M> {
    pub(crate) model: M,
    pub(crate) kill: Kill,
}

/// The same token source, of the model itself.
fn source<'a, M: Model>(source: TokenSource<'a, Killable<M>>) -> TokenSource<'a, M> {
    match source {
        TokenSource::Known(tokens) => TokenSource::Known(tokens),
        TokenSource::Sampled(in_flight, span, draft) => {
            TokenSource::Sampled(in_flight, span, draft)
        }
    }
}

impl<M: Model> Model for Killable<M> {
    type Segment = M::Segment;
    type Tail = M::Tail;
    type InFlightStep = M::InFlightStep;
    type Packer = M::Packer;

    fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    motet_testkit::forward_state!();

    fn submit(&mut self, spans: &mut [Span<'_, Self>]) -> Result<M::InFlightStep, ModelError> {
        let micros = self.kill.token_micros.load(Ordering::Relaxed);
        let tokens: usize = spans.iter().map(|span| span.tokens.count()).sum();
        std::thread::sleep(Duration::from_micros(micros * tokens as u64));
        let fails = |left: usize| left.checked_sub(1);
        let failures = &self.kill.failures;
        if failures
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails)
            .is_ok()
        {
            return Err(ModelError::Device("out of memory (injected)".to_owned()));
        }
        let spans = spans.iter_mut().map(|span| Span {
            tokens: source(span.tokens),
            path: span.path,
            tail: &mut *span.tail,
            output_kind: span.output_kind.clone(),
        });
        let mut spans: Vec<Span<'_, M>> = spans.collect();
        self.kill.steps.on_submit(&self.model, &spans);
        self.model.submit(&mut spans)
    }

    fn sample(
        &mut self,
        in_flight: &mut M::InFlightStep,
        inputs: Vec<SampleInputs>,
    ) -> Result<(), ModelError> {
        self.model.sample(in_flight, inputs)
    }

    fn is_ready(&self, in_flight: &M::InFlightStep) -> bool {
        self.model.is_ready(in_flight)
    }

    fn finish(&mut self, in_flight: M::InFlightStep) -> Result<Vec<SpanOutput>, ModelError> {
        let step_micros = self.kill.step_micros.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_micros(step_micros));
        self.kill.steps.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.model.finish(in_flight)
    }

    fn memory(&self) -> DeviceMemory {
        let is_killed = self.kill.is_armed.swap(false, Ordering::Relaxed);
        assert!(!is_killed, "the device thread is killed (injected)");
        self.model.memory()
    }
}
