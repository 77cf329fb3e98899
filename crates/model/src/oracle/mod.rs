//! The oracle: a deterministic model in pure Rust, for tests and for measuring
//! schedulers. It is no language model.
//!
//! Its next token is a hash of the whole visible prefix *as read back from the
//! cached state*. A wrong segment, a wrong order, a wrong position, a missing or
//! doubled token, a stale tail: each gives another hash, so other tokens from
//! there on. SGLang tests its scheduler with such a stub.
//!
//! It cannot tell equal state apart: one tenant's state of the same tokens as
//! another's gives the same tokens. Whether the two shared it shows in
//! [`OracleCounts::tokens_evaluated`].
//!
//! Each layer turns its input `x` for the token at one position into an *entry*
//! `hash(layer, x, past)`, where `past` is a fold of the entries that its kind
//! lets it see; the entry is cached and is what the next layer is given. The
//! last layer's entry decides the token. What a sequence must produce is
//! reckoned by [`OracleConfig::solo`], without any cache.
//!
//! ```
//! use motet_model::oracle::{Oracle, OracleConfig};
//! use motet_model::sampling::{Draw, Sampling};
//! use motet_model::{Model, Readout, Span, Want};
//!
//! let config = OracleConfig::default();
//! let mut oracle = Oracle::new(config.clone())?;
//! let mut tail = oracle.tail(&[], 0)?;
//! let mut spans = [Span {
//!     tokens: (&[3, 1, 4]).into(),
//!     path: &[],
//!     tail: &mut tail,
//!     want: Want::Token(Draw { sampling: Sampling::GREEDY, index: 0 }),
//! }];
//! let truth = config.solo(&[3, 1, 4], 1, Sampling::GREEDY);
//! assert_eq!(oracle.step(&mut spans)?, [Readout::Token(truth[0])]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod counters;
mod faults;
mod flight;
mod hash;
mod solo;
mod state;
mod transfer;
mod vocabulary;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

pub use config::{OracleConfig, OracleConfigError, StepCost};
pub use counters::{OracleCounters, OracleCounts};
pub use faults::{FaultCounts, Faults, StepFault};
pub use flight::OracleFlight;
pub use solo::{ShiftRule, Soloist};
pub use state::{OracleSegment, OracleTail};
pub use transfer::{OraclePacker, OracleParcel};

use super::sampling::Drawing;
use super::{Feed, MemoryLeft, Model, Segment, Span, Tail, legal};
use flight::{Answer, Ready};
use motet_core::TokenId;
use motet_core::protocol::{DeviceMemory, Extent, ModelError, ModelSpec, Readout, Want};
use state::{RangeState, Sealed, cached_tokens, entries_read};
use vocabulary::Vocabulary;

/// A deterministic model whose tokens tell whether its cached state was mixed up.
#[derive(Debug)]
pub struct Oracle {
    config: OracleConfig,
    spec: ModelSpec,
    vocabulary: Vocabulary,
    /// When the last flight is ready.
    busy_until: Ready,
}

/// What a step has to do.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    tokens: usize,
    cached_tokens: usize,
}

impl Oracle {
    /// An oracle of this configuration.
    ///
    /// # Errors
    ///
    /// [`OracleConfigError`] when a field makes no sense.
    pub fn new(config: OracleConfig) -> Result<Oracle, OracleConfigError> {
        config.validate()?;
        Ok(Oracle {
            spec: config.spec(),
            vocabulary: config.vocabulary(),
            busy_until: Ready::default(),
            config,
        })
    }

    /// Reckons the step's load and refuses spans that break the trait's contract.
    fn survey(&self, spans: &[Span<'_, Oracle>]) -> Result<Load, ModelError> {
        let mut load = Load::default();
        for (index, span) in spans.iter().enumerate() {
            let cached = cached_tokens(span.path, span.tail);
            let total = cached + span.tokens.count();
            let vocab = self.config.vocab_size;
            let mut known = span.tokens.known().into_iter().flatten();
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
    fn evaluate(&self, span: &mut Span<'_, Oracle>) -> Answer {
        let kinds = &self.config.layers;
        if self.config.verify {
            state::verify(span.path, span.tail, kinds);
        }
        let misfit = state::misfit(span.path, span.tail);
        let start = cached_tokens(span.path, span.tail) as u64;
        let mut logits = Vec::new();
        let mut row = 0;
        for (position, token) in (start..).zip(fed(&span.tokens)) {
            row = hash::embed(self.config.seed, token, position);
            let grown = Extent::whole(span.tail.tokens() + 1);
            for (layer, &kind) in kinds.iter().enumerate() {
                let past = state::read(span.path, span.tail, layer, entries_read(kind));
                row = hash::entry(layer, row, past ^ misfit);
                let kept = state::entries_kept(kind, grown);
                span.tail.range.layers[layer].write(row, kept);
            }
            span.tail.range.push(token);
            if span.want == Want::Logits {
                self.vocabulary.push_logits(row, &mut logits);
            }
        }
        span.tail.resize(&self.spec);
        match &span.want {
            Want::Nothing => Answer::Known(Readout::Nothing),
            Want::Token(_) => Answer::ToDraw(row),
            Want::Logits => Answer::Known(Readout::Logits(logits)),
        }
    }

    fn allocate(&self) -> Result<(), ModelError> {
        if self.config.faults.refuses_memory() {
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
    type Flight = OracleFlight;
    type Packer = OraclePacker;

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn tail(&mut self, path: &[Rc<OracleSegment>], _room: usize) -> Result<OracleTail, ModelError> {
        self.allocate()?;
        Ok(self.new_tail(RangeState::following(path, self.config.layers.len())))
    }

    /// As the trait says; the spans' own faults count as the device's: no tokens,
    /// a token outside the vocabulary, more tokens than the context holds.
    ///
    /// # Panics
    ///
    /// When [`Faults`] ask for it.
    fn launch(&mut self, spans: &mut [Span<'_, Oracle>]) -> Result<OracleFlight, ModelError> {
        let number = self.config.counters.begin_step();
        let load = self.survey(spans).inspect_err(|_| tear(spans))?;
        let tokens = spans.iter().flat_map(|span| fed(&span.tokens));
        let failed = || ModelError::Device(format!("step {number} (injected)"));
        let mut fault = None;
        for struck in self.config.faults.strike(number, tokens) {
            match struck {
                StepFault::Hang(longer) => thread::sleep(longer),
                StepFault::FailLanding => fault = Some(failed()),
                StepFault::Fail => {
                    tear(spans);
                    return Err(failed());
                }
                StepFault::Panic => {
                    tear(spans);
                    panic!("step {number} (injected)");
                }
            }
        }
        let cost = self.config.cost.of(load.tokens, load.cached_tokens);
        self.busy_until = self.busy_until.and(cost);
        let answers = spans.iter_mut().map(|span| self.evaluate(span)).collect();
        self.config.counters.end_step(spans.len(), load.tokens);
        Ok(OracleFlight {
            answers,
            ready: self.busy_until,
            fault,
        })
    }

    fn draw(
        &mut self,
        flight: &mut OracleFlight,
        drawings: Vec<Drawing>,
    ) -> Result<(), ModelError> {
        flight.draw(&self.vocabulary, drawings);
        Ok(())
    }

    fn is_ready(&self, flight: &OracleFlight) -> bool {
        flight.ready.is_now()
    }

    fn land(&mut self, flight: OracleFlight) -> Result<Vec<Readout>, ModelError> {
        flight.ready.wait();
        match flight.fault {
            Some(error) => Err(error),
            None => Ok(flight.readouts()),
        }
    }

    fn seal(&mut self, tail: &mut OracleTail, tokens: usize) -> Result<OracleSegment, ModelError> {
        legal::seal(tail.tokens(), tokens)?;
        self.allocate()?;
        let front = tail.range.take_front(tokens, &self.config.layers);
        tail.resize(&self.spec);
        Ok(self.new_segment(front))
    }

    fn retire(
        &mut self,
        mut tail: OracleTail,
        tokens: Range<usize>,
    ) -> Result<OracleSegment, ModelError> {
        legal::retire(tail.tokens(), &tokens)?;
        self.allocate()?;
        let kinds = &self.config.layers;
        if tokens.start > 0 {
            tail.range.take_front(tokens.start, kinds);
        }
        let sealed = tail.range.take_front(tokens.len(), kinds);
        // Its memory becomes the segment's.
        drop(tail);
        Ok(self.new_segment(sealed))
    }

    fn split(
        &mut self,
        segment: &OracleSegment,
        at: usize,
    ) -> Result<(OracleSegment, OracleSegment), ModelError> {
        legal::split(segment.tokens(), at)?;
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
        legal::merge(&self.spec, upper.extent(), lower.extent())?;
        self.allocate()?;
        let merged = upper.range().merged(lower.range(), &self.config.layers);
        Ok(self.new_segment(merged))
    }

    fn remove(
        &mut self,
        path: &[Rc<OracleSegment>],
        kept: usize,
        tail: &mut OracleTail,
        removed: Range<usize>,
    ) -> Result<(), ModelError> {
        let tokens: Vec<usize> = path.iter().map(|segment| segment.tokens()).collect();
        legal::remove(&self.spec, &tokens, kept, tail.tokens(), &removed)?;
        self.allocate().inspect_err(|_| tail.tear())?;
        let kinds = &self.config.layers;
        let start = RangeState::following(&path[..kept], kinds.len());
        let unsealed = path[kept..].iter().map(|segment| segment.range());
        let held = unsealed
            .chain([&tail.range])
            .fold(start, |held, part| held.merged(part, kinds));
        let kept_tokens: usize = tokens[..kept].iter().sum();
        tail.range = held.without(removed.start - kept_tokens..removed.end - kept_tokens);
        tail.resize(&self.spec);
        Ok(())
    }

    fn packer(&self) -> OraclePacker {
        OraclePacker::new(&self.config.layers, &self.spec, &self.config.counters)
    }

    fn hand_over(&mut self, segment: &OracleSegment) -> Result<OracleParcel, ModelError> {
        if self.config.faults.refuses_hand_over() {
            return Err(ModelError::Device("not handed over (injected)".to_owned()));
        }
        Ok(OracleParcel {
            sealed: Arc::clone(segment.sealed()),
            hang: self.config.faults.hangs_export(),
        })
    }

    fn copy_out(
        &mut self,
        tail: &mut OracleTail,
        tokens: Range<usize>,
    ) -> Result<Option<OracleParcel>, ModelError> {
        legal::retire(tail.tokens(), &tokens)?;
        if !self.spec.resumes_anywhere() {
            return Ok(None);
        }
        if self.config.faults.refuses_hand_over() {
            return Err(ModelError::Device("not handed over (injected)".to_owned()));
        }
        let kinds = &self.config.layers;
        let mut rest = tail.range.clone();
        if tokens.start > 0 {
            rest.take_front(tokens.start, kinds);
        }
        let mut copied = rest.take_front(tokens.len(), kinds);
        copied.beyond = 0;
        let sealed = Sealed::new(copied, &self.spec, &self.config.counters);
        Ok(Some(OracleParcel {
            sealed: Arc::new(sealed),
            hang: self.config.faults.hangs_export(),
        }))
    }

    fn take_in(&mut self, parcel: OracleParcel) -> Result<OracleSegment, ModelError> {
        self.allocate()?;
        // It was another device's, if that one was lost meanwhile.
        parcel.sealed.counts_in(&self.config.counters);
        Ok(OracleSegment::of(parcel.sealed))
    }

    fn memory_left(&self) -> Option<MemoryLeft> {
        let bytes = self.config.device_bytes?;
        Some(MemoryLeft {
            bytes,
            is_host: false,
        })
    }

    fn try_memory(&mut self, bytes: usize) -> Result<usize, ModelError> {
        Ok(bytes.min(self.config.device_bytes.unwrap_or(usize::MAX)))
    }

    fn memory(&self) -> DeviceMemory {
        self.config.counters.memory()
    }
}

/// The tokens of a span, which the simulated device and the host both know.
fn fed<'a>(tokens: &Feed<'a, Oracle>) -> impl Iterator<Item = TokenId> + use<'a> {
    let (known, drawn) = match *tokens {
        Feed::Known(tokens) => (tokens, None),
        Feed::Drawn(flight, span) => (&[][..], Some(flight.token(span))),
    };
    known.iter().copied().chain(drawn)
}

/// Leaves the spans' tails as a failed step may: useless.
fn tear(spans: &mut [Span<'_, Oracle>]) {
    for span in spans {
        span.tail.tear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates three tokens, damages an entry and evaluates one more.
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
                want: Want::Nothing,
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
    fn without_it_folds_are_trusted() {
        step_on_damage(false);
    }
}
