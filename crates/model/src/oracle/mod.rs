//! The oracle: a deterministic model in pure Rust, for tests and for measuring
//! schedulers. It is no language model.
//!
//! Its next token is a hash of the whole visible prefix *as read back from the cached state*. A
//! wrong segment, a wrong order, a wrong position, a missing or doubled token, a stale tail: each
//! gives another hash, and therefore other tokens from there on. SGLang tests its scheduler with
//! such a stub.
//!
//! It cannot tell equal state apart: state of the same tokens gives the same tokens, whichever
//! tenant computed it. Whether two tenants shared state shows in
//! [`OracleCounts::tokens_evaluated`].
//!
//! Each layer turns its input `x` for the token at one position into an *entry* `hash(layer, x,
//! past)`. Here `past` is a fold of the entries that the layer's kind lets it see. The entry is
//! cached, and is the input of the next layer. The last layer's entry decides the token.
//! [`OracleConfig::reference_tokens`] computes the tokens that a sequence must produce, without
//! any cache.
//!
//! ```
//! use motet_model::oracle::{Oracle, OracleConfig};
//! use motet_model::sampling::{TokenSampling, Sampling};
//! use motet_model::{Model, SpanOutput, Span, OutputKind};
//!
//! let config = OracleConfig::default();
//! let mut oracle = Oracle::new(config.clone())?;
//! let mut tail = oracle.tail(&[], 0)?;
//! let mut spans = [Span {
//!     tokens: (&[3, 1, 4]).into(),
//!     path: &[],
//!     tail: &mut tail,
//!     output_kind: OutputKind::Token(TokenSampling { sampling: Sampling::GREEDY, position: 0 }),
//! }];
//! let expected = config.reference_tokens(&[3, 1, 4], 1, Sampling::GREEDY);
//! assert_eq!(oracle.step(&mut spans)?, [SpanOutput::Token(expected[0])]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod counters;
mod faults;
mod hash;
mod in_flight;
mod reference;
mod row_outputs;
mod state;
mod transfer;
mod vocabulary;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

pub use config::{LayerBytes, OracleConfig, OracleConfigError, StepCost};
pub use counters::{OracleCounters, OracleCounts};
pub use faults::{FaultCounts, Faults, StepFault};
pub use in_flight::OracleInFlightStep;
pub use reference::{ReferenceRun, ShiftRule};
pub use state::{OracleSegment, OracleTail};
pub use transfer::{OracleDetachedState, OraclePacker};

use super::sampling::SampleInputs;
use super::{MemoryLeft, Model, Segment, Span, Tail, TokenSource, preconditions};
use in_flight::{Ready, SpanResult};
use motet_protocol::TokenId;
use motet_protocol::{DeviceMemory, ModelError, ModelSpec, OutputKind, SegmentSize, SpanOutput};
use row_outputs::RowOutputs;
use state::{RangeState, Sealed, cached_tokens, entries_read};
use vocabulary::Vocabulary;

/// A deterministic model whose tokens show whether its cached state was mixed up.
#[derive(Debug)]
pub struct Oracle {
    config: OracleConfig,
    spec: ModelSpec,
    vocabulary: Vocabulary,
    /// Time at which the last submitted step is ready.
    busy_until: Ready,
}

/// Tokens that a step evaluates and reads.
#[derive(Clone, Copy, Debug, Default)]
struct StepLoad {
    tokens: usize,
    cached_tokens: usize,
}

impl Oracle {
    /// An oracle of this configuration.
    ///
    /// # Errors
    ///
    /// [`OracleConfigError`] when a field is invalid.
    pub fn new(config: OracleConfig) -> Result<Oracle, OracleConfigError> {
        config.validate()?;
        Ok(Oracle {
            spec: config.spec(),
            vocabulary: config.vocabulary(),
            busy_until: Ready::default(),
            config,
        })
    }

    /// Computes the step's load and rejects spans that break the trait's contract.
    fn check_spans(&self, spans: &[Span<'_, Oracle>]) -> Result<StepLoad, ModelError> {
        let mut load = StepLoad::default();
        for (index, span) in spans.iter().enumerate() {
            let cached = cached_tokens(span.path, span.tail);
            let total = cached + span.tokens.count();
            let vocab = self.config.vocab_size;
            let mut known = span.tokens.known().iter();
            let misuse = if known.any(|token| *token as usize >= vocab) {
                format!("a token is outside the vocabulary of {vocab}")
            } else if span.tokens.count() == 0 {
                "there are no tokens to evaluate".to_owned()
            } else if total > self.config.context_tokens_max {
                let most = self.config.context_tokens_max;
                format!("{total} tokens exceed the context of {most}")
            } else {
                load.tokens += span.tokens.count();
                load.cached_tokens += cached;
                continue;
            };
            return Err(ModelError::Device(format!("span {index}: {misuse}")));
        }
        Ok(load)
    }

    /// Runs one span and appends its entries to its tail.
    fn evaluate(&self, span: &mut Span<'_, Oracle>) -> SpanResult {
        let kinds = &self.config.layers;
        if self.config.verify {
            state::verify(span.path, span.tail, kinds);
        }
        let mismatch = state::mismatch(span.path, span.tail);
        let start = cached_tokens(span.path, span.tail) as u64;
        let mut outputs = RowOutputs::new(span.output_kind.clone());
        let verifies = matches!(span.output_kind, OutputKind::Verify(_));
        span.tail.undo.clear();
        for (position, token) in (start..).zip(span_tokens(&span.tokens)) {
            let mut row = hash::embed(self.config.seed, token, position);
            let grown = SegmentSize::whole(span.tail.tokens() + 1);
            for (layer, &kind) in kinds.iter().enumerate() {
                let past = state::read(span.path, span.tail, layer, entries_read(kind));
                row = hash::entry(layer, row, past ^ mismatch);
                let retained = state::retained_entries(kind, grown);
                let dropped = span.tail.range.layers[layer].write(row, retained);
                if verifies {
                    span.tail.undo.push(dropped);
                }
            }
            span.tail.range.push(token);
            outputs.push(row, &self.vocabulary);
        }
        span.tail.resize(&self.spec);
        outputs.finish()
    }

    fn allocate(&self) -> Result<(), ModelError> {
        if self.config.faults.fails_allocation() {
            return Err(ModelError::Device("out of memory (injected)".to_owned()));
        }
        Ok(())
    }

    fn new_segment(&self, range: RangeState) -> OracleSegment {
        OracleSegment::new(range, &self.spec, &self.config.counters)
    }

    fn new_tail(&self, range: RangeState) -> OracleTail {
        OracleTail::new(range, &self.spec, &self.config.counters)
    }
}

impl Model for Oracle {
    type Segment = OracleSegment;
    type Tail = OracleTail;
    type InFlightStep = OracleInFlightStep;
    type Packer = OraclePacker;

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn tail(
        &mut self,
        path: &[Rc<OracleSegment>],
        _expected_tokens: usize,
    ) -> Result<OracleTail, ModelError> {
        self.allocate()?;
        Ok(self.new_tail(RangeState::following(path, self.config.layers.len())))
    }

    /// As the trait says. Invalid spans fail as the device's errors do: no tokens, a token
    /// outside the vocabulary, more tokens than the context holds.
    ///
    /// # Panics
    ///
    /// When [`Faults`] ask for it.
    fn submit(&mut self, spans: &mut [Span<'_, Oracle>]) -> Result<OracleInFlightStep, ModelError> {
        let number = self.config.counters.begin_step();
        let load = self.check_spans(spans).inspect_err(|_| invalidate(spans))?;
        let tokens = spans.iter().flat_map(|span| span_tokens(&span.tokens));
        let failed = || ModelError::Device(format!("step {number} (injected)"));
        let mut fault = None;
        for struck in self.config.faults.strike(number, tokens) {
            match struck {
                StepFault::Stall(longer) => thread::sleep(longer),
                StepFault::FailFinish => fault = Some(failed()),
                StepFault::Fail => {
                    invalidate(spans);
                    return Err(failed());
                }
                StepFault::Panic => {
                    invalidate(spans);
                    panic!("step {number} (injected)");
                }
            }
        }
        let cost = self.config.cost.of(load.tokens, load.cached_tokens);
        self.busy_until = self.busy_until.and(cost);
        let span_results = spans.iter_mut().map(|span| self.evaluate(span)).collect();
        self.config.counters.end_step(spans.len(), load.tokens);
        Ok(OracleInFlightStep {
            span_results,
            ready: self.busy_until,
            fault,
        })
    }

    fn sample(
        &mut self,
        in_flight: &mut OracleInFlightStep,
        inputs: Vec<SampleInputs>,
    ) -> Result<(), ModelError> {
        in_flight.sample(&self.vocabulary, inputs);
        Ok(())
    }

    fn is_ready(&self, in_flight: &OracleInFlightStep) -> bool {
        in_flight.ready.is_now()
    }

    fn finish(&mut self, in_flight: OracleInFlightStep) -> Result<Vec<SpanOutput>, ModelError> {
        in_flight.ready.wait();
        match in_flight.fault {
            Some(error) => Err(error),
            None => Ok(in_flight.span_outputs()),
        }
    }

    /// # Panics
    ///
    /// When a token is dropped that the tail's last step was not asked to verify.
    fn truncate(&mut self, tail: &mut OracleTail, tokens: usize) -> Result<(), ModelError> {
        while tail.range.tokens() > tokens {
            tail.drop_last();
        }
        tail.resize(&self.spec);
        Ok(())
    }

    fn seal(&mut self, tail: &mut OracleTail, tokens: usize) -> Result<OracleSegment, ModelError> {
        preconditions::seal(tail.tokens(), tokens)?;
        self.allocate()?;
        let front = tail.range.take_front(tokens, &self.config.layers);
        tail.resize(&self.spec);
        Ok(self.new_segment(front))
    }

    fn seal_in_place(
        &mut self,
        mut tail: OracleTail,
        tokens: Range<usize>,
    ) -> Result<OracleSegment, ModelError> {
        preconditions::seal_in_place(tail.tokens(), &tokens)?;
        self.allocate()?;
        let kinds = &self.config.layers;
        if tokens.start > 0 {
            tail.range.take_front(tokens.start, kinds);
        }
        let sealed = tail.range.take_front(tokens.len(), kinds);
        // The tail's memory becomes the segment's.
        drop(tail);
        Ok(self.new_segment(sealed))
    }

    fn split(
        &mut self,
        segment: &OracleSegment,
        at: usize,
    ) -> Result<(OracleSegment, OracleSegment), ModelError> {
        preconditions::split(segment.tokens(), at)?;
        self.allocate()?;
        let mut rest = segment.range().clone();
        let front = rest.take_front(at, &self.config.layers);
        Ok((self.new_segment(front), self.new_segment(rest)))
    }

    fn merge(
        &mut self,
        upper: &OracleSegment,
        lower: &OracleSegment,
    ) -> Result<OracleSegment, ModelError> {
        preconditions::merge(&self.spec, upper.segment_size(), lower.segment_size())?;
        self.allocate()?;
        let merged = upper.range().merged(lower.range(), &self.config.layers);
        Ok(self.new_segment(merged))
    }

    fn strip(
        &mut self,
        segment: &OracleSegment,
        below: &OracleSegment,
    ) -> Result<OracleSegment, ModelError> {
        let (size, below) = (segment.segment_size(), below.segment_size());
        preconditions::merge(&self.spec, size, below)?;
        self.allocate()?;
        let stripped = segment
            .range()
            .stripped(size.stripped(below), &self.config.layers);
        Ok(self.new_segment(stripped))
    }

    fn remove(
        &mut self,
        path: &[Rc<OracleSegment>],
        retained: usize,
        tail: &mut OracleTail,
        removed: Range<usize>,
    ) -> Result<(), ModelError> {
        let tokens: Vec<usize> = path.iter().map(|segment| segment.tokens()).collect();
        preconditions::remove(&self.spec, &tokens, retained, tail.tokens(), &removed)?;
        self.allocate().inspect_err(|_| tail.invalidate())?;
        let kinds = &self.config.layers;
        let start = RangeState::following(&path[..retained], kinds.len());
        let unsealed = path[retained..].iter().map(|segment| segment.range());
        let held = unsealed
            .chain([&tail.range])
            .fold(start, |held, part| held.merged(part, kinds));
        let retained_tokens: usize = tokens[..retained].iter().sum();
        tail.range = held.without(removed.start - retained_tokens..removed.end - retained_tokens);
        tail.resize(&self.spec);
        Ok(())
    }

    fn packer(&self) -> OraclePacker {
        OraclePacker::new(&self.config, &self.spec)
    }

    fn export(&mut self, segment: &OracleSegment) -> Result<OracleDetachedState, ModelError> {
        if self.config.faults.fails_export() {
            return Err(ModelError::Device("not exported (injected)".to_owned()));
        }
        Ok(OracleDetachedState {
            sealed: Arc::clone(segment.sealed()),
            stall: self.config.faults.export_stall(),
        })
    }

    fn copy_out(
        &mut self,
        tail: &mut OracleTail,
        tokens: Range<usize>,
    ) -> Result<Option<OracleDetachedState>, ModelError> {
        preconditions::seal_in_place(tail.tokens(), &tokens)?;
        if !self.spec.resumes_anywhere() {
            return Ok(None);
        }
        if self.config.faults.fails_export() {
            return Err(ModelError::Device("not exported (injected)".to_owned()));
        }
        let kinds = &self.config.layers;
        let mut rest = tail.range.clone();
        if tokens.start > 0 {
            rest.take_front(tokens.start, kinds);
        }
        let mut copied = rest.take_front(tokens.len(), kinds);
        copied.state_lag = 0;
        let sealed = Sealed::new(copied, &self.spec, &self.config.counters);
        Ok(Some(OracleDetachedState {
            sealed: Arc::new(sealed),
            stall: self.config.faults.export_stall(),
        }))
    }

    fn import(&mut self, detached_state: OracleDetachedState) -> Result<OracleSegment, ModelError> {
        self.allocate()?;
        // The state may have been counted for another device, which was lost meanwhile.
        detached_state.sealed.count_in(&self.config.counters);
        Ok(OracleSegment::of(detached_state.sealed))
    }

    fn memory_left(&self) -> Option<MemoryLeft> {
        let bytes = self.config.device_bytes?;
        Some(MemoryLeft {
            bytes,
            is_host: false,
            mapped_bytes: 0,
        })
    }

    fn trim(&mut self) {
        self.config.counters.count_trim();
    }

    fn try_memory(&mut self, bytes: usize) -> Result<usize, ModelError> {
        Ok(bytes.min(self.config.device_bytes.unwrap_or(usize::MAX)))
    }

    fn memory(&self) -> DeviceMemory {
        assert!(
            !self.config.faults.ends_thread(),
            "the oracle ends its thread (injected)"
        );
        self.config.counters.memory()
    }
}

/// The tokens of a span, which the simulated device and the host both know.
fn span_tokens<'a>(tokens: &TokenSource<'a, Oracle>) -> impl Iterator<Item = TokenId> + use<'a> {
    let sampled = match *tokens {
        TokenSource::Known(_) => None,
        TokenSource::Sampled(in_flight, span, _) => Some(in_flight.token(span)),
    };
    sampled.into_iter().chain(tokens.known().iter().copied())
}

/// Makes the spans' tails useless, as a failed step may.
fn invalidate(spans: &mut [Span<'_, Oracle>]) {
    for span in spans {
        span.tail.invalidate();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates three tokens, corrupts an entry and evaluates one more.
    fn step_on_damage(verify: bool) {
        let config = OracleConfig {
            verify,
            ..OracleConfig::default()
        };
        let mut oracle = Oracle::new(config).expect("a valid configuration");
        let mut tail = oracle.tail(&[], 0).expect("memory");
        for tokens in [&[1, 2, 3][..], &[4]] {
            let mut spans = [Span {
                tokens: tokens.into(),
                path: &[],
                tail: &mut tail,
                output_kind: OutputKind::Nothing,
            }];
            oracle.step(&mut spans).expect("a step");
            tail.range.layers[0].entries[1] ^= 1;
        }
    }

    #[test]
    #[should_panic(expected = "that of the entries")]
    fn verifying_reads_every_entry() {
        step_on_damage(true);
    }

    #[test]
    fn folds_are_trusted_without_verification() {
        step_on_damage(false);
    }
}
