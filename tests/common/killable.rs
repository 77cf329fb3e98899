//! A model whose device thread can be ended, and whose steps can be made slower.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use motet::model::{DeviceMemory, Model, ModelError, ModelSpec};
use motet_model::sampling::SampleInputs;
use motet_model::{DetachedState, MemoryLeft, Span, SpanOutput, TokenSource};

/// Ends the thread of a [`Killable`] model. Clones are of the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kill {
    is_armed: Arc<AtomicBool>,
    token_micros: Arc<AtomicU64>,
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
        TokenSource::Sampled(in_flight, span) => TokenSource::Sampled(in_flight, span),
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

    fn tail(&mut self, path: &[Rc<M::Segment>], tokens: usize) -> Result<M::Tail, ModelError> {
        self.model.tail(path, tokens)
    }

    fn submit(&mut self, spans: &mut [Span<'_, Self>]) -> Result<M::InFlightStep, ModelError> {
        let micros = self.kill.token_micros.load(Ordering::Relaxed);
        let tokens: usize = spans.iter().map(|span| span.tokens.count()).sum();
        std::thread::sleep(Duration::from_micros(micros * tokens as u64));
        let spans = spans.iter_mut().map(|span| Span {
            tokens: source(span.tokens),
            path: span.path,
            tail: &mut *span.tail,
            output_kind: span.output_kind.clone(),
        });
        self.model.submit(&mut spans.collect::<Vec<Span<'_, M>>>())
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
        self.model.finish(in_flight)
    }

    fn seal(&mut self, tail: &mut M::Tail, tokens: usize) -> Result<M::Segment, ModelError> {
        self.model.seal(tail, tokens)
    }

    fn seal_in_place(
        &mut self,
        tail: M::Tail,
        tokens: Range<usize>,
    ) -> Result<M::Segment, ModelError> {
        self.model.seal_in_place(tail, tokens)
    }

    fn split(
        &mut self,
        segment: &M::Segment,
        at: usize,
    ) -> Result<(M::Segment, M::Segment), ModelError> {
        self.model.split(segment, at)
    }

    fn merge(&mut self, upper: &M::Segment, lower: &M::Segment) -> Result<M::Segment, ModelError> {
        self.model.merge(upper, lower)
    }

    fn strip(
        &mut self,
        segment: &M::Segment,
        below: &M::Segment,
    ) -> Result<M::Segment, ModelError> {
        self.model.strip(segment, below)
    }

    fn remove(
        &mut self,
        path: &[Rc<M::Segment>],
        retained: usize,
        tail: &mut M::Tail,
        removed: Range<usize>,
    ) -> Result<(), ModelError> {
        self.model.remove(path, retained, tail, removed)
    }

    fn trim(&mut self) {
        self.model.trim();
    }

    fn packer(&self) -> M::Packer {
        self.model.packer()
    }

    fn export(&mut self, segment: &M::Segment) -> Result<DetachedState<Self>, ModelError> {
        self.model.export(segment)
    }

    fn copy_out(
        &mut self,
        tail: &mut M::Tail,
        tokens: Range<usize>,
    ) -> Result<Option<DetachedState<Self>>, ModelError> {
        self.model.copy_out(tail, tokens)
    }

    fn import(&mut self, detached_state: DetachedState<Self>) -> Result<M::Segment, ModelError> {
        self.model.import(detached_state)
    }

    fn memory(&self) -> DeviceMemory {
        let is_killed = self.kill.is_armed.swap(false, Ordering::Relaxed);
        assert!(!is_killed, "the device thread is killed (injected)");
        self.model.memory()
    }

    fn memory_left(&self) -> Option<MemoryLeft> {
        self.model.memory_left()
    }

    fn try_memory(&mut self, bytes: usize) -> Result<usize, ModelError> {
        self.model.try_memory(bytes)
    }
}
