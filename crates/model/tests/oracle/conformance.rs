//! The conformance checks pass on the oracle, and fail on each injected bug.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, ThreadId};

use motet_model::oracle::{
    Oracle, OracleConfig, OracleDetachedState, OracleInFlightStep, OraclePacker, OracleSegment,
    OracleTail,
};
use motet_model::sampling::{SampleInputs, Sampling, TokenSampling, sample_row};
use motet_model::{
    DeviceMemory, Floats, LayerKind, Model, ModelError, ModelSpec, OutputKind, Packer, Segment,
    SegmentSize, Span, SpanOutput, Tail, TokenSource, conformance,
};
use motet_protocol::TokenId;

use super::{LAYERS, window};

fn prompts(vocab_size: u32) -> Vec<Vec<TokenId>> {
    let prompt = |seed: u32, tokens: u32| -> Vec<TokenId> {
        (0..tokens)
            .map(|i| (seed + i * i * 7 + i / 3) % vocab_size)
            .collect()
    };
    vec![prompt(1, 13), prompt(0, 6), prompt(4, 22)]
}

fn check<M: Model>(model: &mut M) {
    let vocab_size = model.spec().vocab_size as u32;
    conformance::check(model, &prompts(vocab_size), |found, expected| {
        found == expected
    });
}

#[test]
fn the_oracle_conforms_with_all_layer_kinds() {
    for layers in LAYERS {
        for (vocab_size, verify, can_shift) in [(2, true, true), (40, false, false)] {
            let config = OracleConfig {
                vocab_size,
                verify,
                can_shift,
                end_one_in: 4,
                ..OracleConfig::with_layers(layers)
            };
            let counters = config.counters.clone();
            check(&mut Oracle::new(config).expect("a valid configuration"));
            let counts = counters.now();
            let alive = counts.segments_alive + counts.tails_alive + counts.bytes_alive;
            assert_eq!(alive, 0, "{layers:?}: {counts:?}");
        }
    }
}

/// Bug of a [`Broken`] model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    SwapsSpanOutputs,
    MisreadsFives,
    MixesBatches,
    ForgetsOldestSegment,
    SealKeepsState,
    SealTakesAll,
    SealsFrontInPlace,
    SealsAnyRangeInPlace,
    SwapsHalves,
    SplitMovesCut,
    MergeForgetsLower,
    MergesAnything,
    StripKeepsState,
    StripForgetsWindow,
    TruncatesLate,
    ShiftCutsTheEnd,
    RemovesAnything,
    ImportsAnother,
    UnpacksAnyLength,
    PacksCurrentState,
    PacksOnDeviceThreadOnly,
    ExportsOnlyWhenIdle,
    SplitsAnywhere,
    SealsAnyLength,
    ReadsFirstRow,
    ReadsTokenOfAnotherSpan,
    SwapsSamples,
    SplitsStall,
    KeepsOneDraftToken,
    DropsOneTokenMore,
    KeepsDrafts,
    KeepsStateOfDrafts,
    ForgetsAcceptedDrafts,
    SamplesLastRowOfDrafts,
    SamplesNextRowOfDrafts,
    SamplesFirstRowAlone,
    DraftsAfterAnotherSpan,
    DraftsMoveOtherSpans,
}

/// An oracle with one injected bug.
struct Broken {
    oracle: Oracle,
    bug: Bug,
    has_step_in_flight: bool,
    submitted_steps: Arc<AtomicU64>,
}

/// The packer of an oracle with one injected bug.
#[derive(Clone)]
struct BrokenPacker {
    packer: OraclePacker,
    bug: Bug,
    submitted_steps: Arc<AtomicU64>,
    device_thread: ThreadId,
}

struct BrokenDetachedState {
    inner: OracleDetachedState,
    /// Steps that were submitted before the export.
    submitted_steps: u64,
}

impl Packer for BrokenPacker {
    type DetachedState = BrokenDetachedState;

    fn identity(&self) -> u64 {
        self.packer.identity()
    }

    fn packed_bytes(&self, segment_size: SegmentSize) -> usize {
        self.packer.packed_bytes(segment_size)
    }

    fn pack(
        &self,
        detached_state: &BrokenDetachedState,
        into: &mut [u8],
    ) -> Result<(), ModelError> {
        if self.bug == Bug::PacksOnDeviceThreadOnly && thread::current().id() != self.device_thread
        {
            return Err(ModelError::Device("only on the device's thread".to_owned()));
        }
        self.packer.pack(&detached_state.inner, into)?;
        let stale = self.submitted_steps.load(SeqCst) != detached_state.submitted_steps;
        into[0] ^= u8::from(self.bug == Bug::PacksCurrentState && stale);
        Ok(())
    }

    fn unpack(
        &self,
        segment_size: SegmentSize,
        bytes: &[u8],
    ) -> Result<BrokenDetachedState, ModelError> {
        let inner = match (self.bug, self.packer.unpack(segment_size, bytes)) {
            (Bug::UnpacksAnyLength, Err(_)) => {
                let one = SegmentSize::whole(1);
                let bytes = vec![0; self.packer.packed_bytes(one)];
                self.packer.unpack(one, &bytes)
            }
            (_, unpacked) => unpacked,
        };
        Ok(BrokenDetachedState {
            inner: inner?,
            submitted_steps: self.submitted_steps.load(SeqCst),
        })
    }

    fn floats(&self, segment_size: SegmentSize) -> Vec<Floats> {
        self.packer.floats(segment_size)
    }
}

#[derive(Debug)]
struct BrokenInFlightStep {
    inner: OracleInFlightStep,
    output_kinds: Vec<OutputKind>,
}

impl Model for Broken {
    type Segment = OracleSegment;
    type Tail = OracleTail;
    type InFlightStep = BrokenInFlightStep;
    type Packer = BrokenPacker;

    fn spec(&self) -> &ModelSpec {
        self.oracle.spec()
    }

    fn tail(
        &mut self,
        path: &[Rc<OracleSegment>],
        expected_tokens: usize,
    ) -> Result<OracleTail, ModelError> {
        self.oracle.tail(path, expected_tokens)
    }

    fn submit(&mut self, spans: &mut [Span<'_, Broken>]) -> Result<BrokenInFlightStep, ModelError> {
        let first_path = spans[0].path;
        let output_kinds = spans.iter().map(|span| span.output_kind.clone()).collect();
        let mut inner: Vec<Span<'_, Oracle>> = Vec::new();
        for span in spans.iter_mut() {
            let path = match self.bug {
                Bug::ForgetsOldestSegment if span.path.len() > 2 => &span.path[1..],
                Bug::MixesBatches if first_path.len() == span.path.len() => first_path,
                _ => span.path,
            };
            let output_kind = match (self.bug, &span.output_kind) {
                (Bug::ReadsFirstRow, OutputKind::Token(_)) => OutputKind::Logits,
                (_, output_kind) => output_kind.clone(),
            };
            let tokens = match (self.bug, span.tokens) {
                (Bug::MisreadsFives, TokenSource::Known(tokens)) if tokens.len() == 5 => {
                    TokenSource::Known(&[0; 5])
                }
                (Bug::ReadsTokenOfAnotherSpan, TokenSource::Sampled(in_flight, _, draft)) => {
                    TokenSource::Sampled(&in_flight.inner, 0, draft)
                }
                (Bug::DraftsAfterAnotherSpan, TokenSource::Sampled(in_flight, _, draft))
                    if !draft.is_empty() =>
                {
                    TokenSource::Sampled(&in_flight.inner, 0, draft)
                }
                (_, TokenSource::Sampled(in_flight, span, draft)) => {
                    TokenSource::Sampled(&in_flight.inner, span, draft)
                }
                (_, TokenSource::Known(tokens)) => TokenSource::Known(tokens),
            };
            inner.push(Span {
                tokens,
                path,
                tail: &mut *span.tail,
                output_kind,
            });
        }
        let inner = self.oracle.submit(&mut inner)?;
        self.has_step_in_flight = true;
        self.submitted_steps.fetch_add(1, SeqCst);
        Ok(BrokenInFlightStep {
            inner,
            output_kinds,
        })
    }

    fn sample(
        &mut self,
        in_flight: &mut BrokenInFlightStep,
        mut inputs: Vec<SampleInputs>,
    ) -> Result<(), ModelError> {
        if self.bug == Bug::ReadsFirstRow {
            inputs.clear();
        }
        self.oracle.sample(&mut in_flight.inner, inputs)
    }

    fn is_ready(&self, in_flight: &BrokenInFlightStep) -> bool {
        self.oracle.is_ready(&in_flight.inner)
    }

    fn finish(&mut self, in_flight: BrokenInFlightStep) -> Result<Vec<SpanOutput>, ModelError> {
        let mut span_outputs = self.oracle.finish(in_flight.inner)?;
        self.has_step_in_flight = false;
        let batched = span_outputs.len() > 1;
        if self.bug == Bug::SwapsSpanOutputs && batched {
            span_outputs.swap(0, 1);
        }
        if self.bug == Bug::SwapsSamples && batched && span_outputs[0].token().is_some() {
            span_outputs.swap(0, 1);
        }
        self.spoil_drafts(&mut span_outputs);
        for (span_output, output_kind) in span_outputs.iter_mut().zip(&in_flight.output_kinds) {
            if let (OutputKind::Token(token_sampling), SpanOutput::Logits(logits)) =
                (output_kind, &*span_output)
            {
                let first = sample_row(token_sampling, &logits[..self.oracle.spec().vocab_size]);
                *span_output = SpanOutput::Token(first);
            }
        }
        Ok(span_outputs)
    }

    fn truncate(&mut self, tail: &mut OracleTail, tokens: usize) -> Result<(), ModelError> {
        let dropped = tail.tokens() - tokens;
        match self.bug {
            Bug::KeepsOneDraftToken if dropped > 0 => self.oracle.truncate(tail, tokens + 1),
            Bug::DropsOneTokenMore if dropped > 0 => self.oracle.truncate(tail, tokens - 1),
            Bug::KeepsDrafts => Ok(()),
            Bug::KeepsStateOfDrafts if dropped > 0 => self.truncate_wrongly(tail, tokens),
            Bug::ForgetsAcceptedDrafts if dropped == 0 => self.truncate_wrongly(tail, tokens),
            _ => self.oracle.truncate(tail, tokens),
        }
    }

    fn seal(&mut self, tail: &mut OracleTail, tokens: usize) -> Result<OracleSegment, ModelError> {
        match self.bug {
            Bug::SealKeepsState => {
                let sealed = self.oracle.seal(tail, tokens)?;
                let copy = self.oracle.export(&sealed)?;
                let path = [Rc::new(sealed)];
                *tail = self.oracle.tail(&path, 0)?;
                self.oracle.remove(&path, 0, tail, tokens..tokens)?;
                self.oracle.import(copy)
            }
            Bug::SealTakesAll => self.oracle.seal(tail, tail.tokens()),
            Bug::SealsAnyLength => self.oracle.seal(tail, tokens.max(1)),
            _ => self.oracle.seal(tail, tokens),
        }
    }

    fn seal_in_place(
        &mut self,
        tail: OracleTail,
        tokens: Range<usize>,
    ) -> Result<OracleSegment, ModelError> {
        let tokens = match self.bug {
            Bug::SealsFrontInPlace => 0..tokens.len(),
            Bug::SealsAnyRangeInPlace => {
                let end = tokens.end.clamp(1, tail.tokens());
                tokens.start.min(end - 1)..end
            }
            _ => tokens,
        };
        self.oracle.seal_in_place(tail, tokens)
    }

    fn split(
        &mut self,
        segment: &OracleSegment,
        at: usize,
    ) -> Result<(OracleSegment, OracleSegment), ModelError> {
        match self.bug {
            Bug::SwapsHalves => {
                let (left, right) = self.oracle.split(segment, at)?;
                Ok((right, left))
            }
            Bug::SplitMovesCut if at > 3 => self.oracle.split(segment, at - 1),
            Bug::SplitsStall if self.has_step_in_flight => {
                Err(ModelError::Device("a step is under way".to_owned()))
            }
            Bug::SplitsAnywhere => self.oracle.split(segment, at.max(1)),
            _ => self.oracle.split(segment, at),
        }
    }

    fn merge(
        &mut self,
        upper: &OracleSegment,
        lower: &OracleSegment,
    ) -> Result<OracleSegment, ModelError> {
        match self.bug {
            Bug::MergeForgetsLower => {
                let copy = self.oracle.export(upper)?;
                self.oracle.import(copy)
            }
            Bug::MergesAnything => match self.oracle.merge(upper, lower) {
                Err(_) => self.oracle.merge(lower, upper),
                merged => merged,
            },
            _ => self.oracle.merge(upper, lower),
        }
    }

    fn strip(
        &mut self,
        segment: &OracleSegment,
        below: &OracleSegment,
    ) -> Result<OracleSegment, ModelError> {
        match self.bug {
            Bug::StripKeepsState => {
                let copy = self.oracle.export(segment)?;
                self.oracle.import(copy)
            }
            // As if the lower segment were as long as both.
            Bug::StripForgetsWindow => {
                let whole = self.oracle.merge(segment, below)?;
                self.oracle.strip(segment, &whole)
            }
            _ => self.oracle.strip(segment, below),
        }
    }

    fn remove(
        &mut self,
        path: &[Rc<OracleSegment>],
        retained: usize,
        tail: &mut OracleTail,
        removed: Range<usize>,
    ) -> Result<(), ModelError> {
        let sealed: usize = path.iter().map(|segment| segment.tokens()).sum();
        let tokens = sealed + tail.tokens();
        match self.bug {
            Bug::TruncatesLate if removed.end == tokens && removed.len() > 1 => {
                let late = removed.start + 1..removed.end;
                self.oracle.remove(path, retained, tail, late)
            }
            // Cuts as many tokens off the end instead, so that no token moves.
            Bug::ShiftCutsTheEnd if sealed > 0 && removed.end < tokens => {
                let end = tokens - removed.len()..tokens;
                self.oracle.remove(path, retained, tail, end)
            }
            Bug::RemovesAnything => {
                let end = removed.end.min(tokens);
                let retained = retained.min(path.len());
                let most: usize = path[..retained]
                    .iter()
                    .map(|segment| segment.tokens())
                    .sum();
                let start = removed.start.clamp(most, end.max(most));
                self.oracle
                    .remove(path, retained, tail, start..end.max(start))
            }
            _ => self.oracle.remove(path, retained, tail, removed),
        }
    }

    fn packer(&self) -> BrokenPacker {
        BrokenPacker {
            packer: self.oracle.packer(),
            bug: self.bug,
            submitted_steps: Arc::clone(&self.submitted_steps),
            device_thread: thread::current().id(),
        }
    }

    fn export(&mut self, segment: &OracleSegment) -> Result<BrokenDetachedState, ModelError> {
        if self.bug == Bug::ExportsOnlyWhenIdle && self.has_step_in_flight {
            return Err(ModelError::Device("a step is under way".to_owned()));
        }
        Ok(BrokenDetachedState {
            inner: self.oracle.export(segment)?,
            submitted_steps: self.submitted_steps.load(SeqCst),
        })
    }

    fn import(&mut self, detached_state: BrokenDetachedState) -> Result<OracleSegment, ModelError> {
        let segment = self.oracle.import(detached_state.inner)?;
        match self.bug {
            Bug::ImportsAnother => other_segment(&mut self.oracle, segment.tokens()),
            _ => Ok(segment),
        }
    }

    fn memory(&self) -> DeviceMemory {
        self.oracle.memory()
    }
}

impl Broken {
    /// Leaves a tail of so many tokens, whose state is not that of its last one.
    fn truncate_wrongly(&mut self, tail: &mut OracleTail, tokens: usize) -> Result<(), ModelError> {
        self.oracle.truncate(tail, tokens - 1)?;
        self.oracle.step(&mut [Span {
            tokens: TokenSource::Known(&[1]),
            path: &[],
            tail,
            output_kind: OutputKind::Nothing,
        }])?;
        Ok(())
    }

    fn spoil_drafts(&self, span_outputs: &mut [SpanOutput]) {
        let is_draft = |output: &SpanOutput| matches!(output, SpanOutput::Verified(_));
        let has_drafts = span_outputs.iter().any(is_draft);
        for span_output in span_outputs {
            match (self.bug, span_output) {
                (Bug::SamplesLastRowOfDrafts, SpanOutput::Verified(sampled)) => {
                    let last = sampled[sampled.len() - 1].clone();
                    sampled.fill(last);
                }
                (Bug::SamplesNextRowOfDrafts, SpanOutput::Verified(sampled)) => {
                    sampled.rotate_left(1);
                }
                (Bug::SamplesFirstRowAlone, SpanOutput::Verified(sampled)) => sampled.truncate(1),
                (Bug::DraftsMoveOtherSpans, SpanOutput::Token(token)) if has_drafts => *token ^= 1,
                _ => {}
            }
        }
    }
}

/// A segment of `tokens` zeroes.
fn other_segment(oracle: &mut Oracle, tokens: usize) -> Result<OracleSegment, ModelError> {
    let mut tail = oracle.tail(&[], 0)?;
    oracle.step(&mut [Span {
        tokens: TokenSource::Known(&vec![0; tokens]),
        path: &[],
        tail: &mut tail,
        output_kind: OutputKind::Nothing,
    }])?;
    oracle.seal(&mut tail, tokens)
}

#[test]
fn each_injected_bug_fails_its_check() {
    let windowed = &[LayerKind::Full, window(5)][..];
    let full = &[LayerKind::Full][..];
    let recurrent = &[LayerKind::Full, LayerKind::Recurrent][..];
    let drafts = "drafts are verified, and go back";
    let cases = [
        (full, Bug::SwapsSpanOutputs, "batched = single"),
        (full, Bug::MisreadsFives, "any chunking gives the same"),
        (full, Bug::ForgetsOldestSegment, "warm = cold"),
        (full, Bug::SealKeepsState, "warm = cold"),
        (full, Bug::SealTakesAll, "seal at any offset"),
        (windowed, Bug::SealTakesAll, "seal at any offset"),
        (
            full,
            Bug::SealsFrontInPlace,
            "seal in place with any part of a tail",
        ),
        (
            full,
            Bug::SealsAnyRangeInPlace,
            "invalid cuts change nothing",
        ),
        (full, Bug::SwapsHalves, "split at any offset"),
        (windowed, Bug::SplitMovesCut, "split at any offset"),
        (full, Bug::MergeForgetsLower, "merge of adjacent segments"),
        (windowed, Bug::MergesAnything, "merge of adjacent segments"),
        (
            windowed,
            Bug::StripKeepsState,
            "state given up between segments",
        ),
        (
            windowed,
            Bug::StripForgetsWindow,
            "state given up between segments",
        ),
        (full, Bug::TruncatesLate, "removal of the end"),
        (full, Bug::ShiftCutsTheEnd, "removal of a middle"),
        (full, Bug::ImportsAnother, "copied out and in"),
        (full, Bug::PacksCurrentState, "copies outlive their segment"),
        (full, Bug::UnpacksAnyLength, "invalid copies are rejected"),
        (
            full,
            Bug::PacksOnDeviceThreadOnly,
            "copies while steps are under way",
        ),
        (
            full,
            Bug::ExportsOnlyWhenIdle,
            "copies while steps are under way",
        ),
        (
            full,
            Bug::MixesBatches,
            "spans share segments, or have their own",
        ),
        (full, Bug::SealsAnyLength, "invalid cuts change nothing"),
        (full, Bug::SplitsAnywhere, "invalid cuts change nothing"),
        (
            full,
            Bug::RemovesAnything,
            "invalid removals change nothing",
        ),
        (full, Bug::ReadsFirstRow, "output kinds"),
        (full, Bug::SwapsSamples, "two steps in flight"),
        (full, Bug::ReadsTokenOfAnotherSpan, "two steps in flight"),
        (full, Bug::SplitsStall, "edits while a step is under way"),
        (full, Bug::KeepsOneDraftToken, drafts),
        (full, Bug::DropsOneTokenMore, drafts),
        (full, Bug::KeepsDrafts, drafts),
        (full, Bug::KeepsStateOfDrafts, drafts),
        (windowed, Bug::KeepsStateOfDrafts, drafts),
        (recurrent, Bug::KeepsStateOfDrafts, drafts),
        (recurrent, Bug::ForgetsAcceptedDrafts, drafts),
        (full, Bug::SamplesLastRowOfDrafts, drafts),
        (full, Bug::SamplesNextRowOfDrafts, drafts),
        (full, Bug::SamplesFirstRowAlone, drafts),
        (full, Bug::DraftsAfterAnotherSpan, drafts),
        (full, Bug::DraftsMoveOtherSpans, drafts),
    ];
    for (layers, bug, name) in cases {
        let oracle = Oracle::new(OracleConfig::with_layers(layers));
        let oracle = oracle.expect("a valid configuration");
        let mut broken = Broken {
            oracle,
            bug,
            has_step_in_flight: false,
            submitted_steps: Arc::default(),
        };
        let caught = catch_unwind(AssertUnwindSafe(|| check(&mut broken)));
        let payload = caught.expect_err("the checks find the bug");
        let message = payload.downcast_ref::<String>().expect("a message");
        let expected = format!("conformance, {name}: ");
        assert!(message.starts_with(&expected), "{bug:?} gave: {message}");
    }
}

#[test]
fn sampled_tokens_follow_the_logits() {
    let config = OracleConfig::default();
    let mut oracle = Oracle::new(config.clone()).expect("a valid configuration");
    let sampling = Sampling {
        temperature: 0.8,
        top_p: 0.9,
        seed: 5,
        ..Sampling::GREEDY
    };
    let mut tail = oracle.tail(&[], 0).expect("memory");
    let mut token = 7;
    let expected = config.reference_tokens(&[token], 20, sampling);
    for (position, expected) in (1..).zip(expected) {
        let mut spans = [Span {
            tokens: TokenSource::Known(&[token]),
            path: &[],
            tail: &mut tail,
            output_kind: OutputKind::Token(TokenSampling { sampling, position }),
        }];
        let span_outputs = oracle.step(&mut spans).expect("a step");
        assert_eq!(span_outputs, [SpanOutput::Token(expected)]);
        token = expected;
    }
}
