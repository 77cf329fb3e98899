//! The conformance checks: they pass on the oracle and can fail.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::{self, ThreadId};

use motet::TokenId;
use motet::model::oracle::{
    Oracle, OracleConfig, OracleFlight, OraclePacker, OracleParcel, OracleSegment, OracleTail,
};
use motet::model::sampling::{Draw, Drawing, Sampling, sample_row};
use motet::model::{
    DeviceMemory, Extent, Feed, Floats, LayerKind, Model, ModelError, ModelSpec, Packer, Readout,
    Segment, Span, Tail, Want, conformance,
};

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
    conformance::check(model, &prompts(vocab_size), |found, truth| found == truth);
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

/// What is wrong with a [`Broken`] model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    SwapsReadouts,
    MisreadsFives,
    MixesBatches,
    ForgetsOldestSegment,
    SealKeepsState,
    SealTakesAll,
    RetiresTheFront,
    RetiresAnything,
    SwapsHalves,
    SplitMovesCut,
    MergeForgetsLower,
    MergesAnything,
    TruncatesLate,
    ShiftCutsTheEnd,
    RemovesAnything,
    TakesInAnother,
    TakesAnyLength,
    PacksWhatIsThere,
    PacksAtHome,
    HandsOverWhenIdle,
    SplitsAnywhere,
    SealsNothing,
    ReadsFirstRow,
    FeedsAnother,
    SwapsDraws,
    SplitsStall,
}

/// An oracle with one planted bug.
struct Broken {
    oracle: Oracle,
    bug: Bug,
    in_flight: bool,
    launches: Arc<AtomicU64>,
}

/// The packer of an oracle with one planted bug.
#[derive(Clone)]
struct BrokenPacker {
    packer: OraclePacker,
    bug: Bug,
    launches: Arc<AtomicU64>,
    home: ThreadId,
}

struct BrokenParcel {
    inner: OracleParcel,
    /// Steps that were launched before it was handed over.
    launches: u64,
}

impl Packer for BrokenPacker {
    type Parcel = BrokenParcel;

    fn packed_bytes(&self, extent: Extent) -> usize {
        self.packer.packed_bytes(extent)
    }

    fn pack(&self, parcel: &BrokenParcel, into: &mut [u8]) -> Result<(), ModelError> {
        if self.bug == Bug::PacksAtHome && thread::current().id() != self.home {
            return Err(ModelError::Device("only on the device's thread".to_owned()));
        }
        self.packer.pack(&parcel.inner, into)?;
        let stale = self.launches.load(SeqCst) != parcel.launches;
        into[0] ^= u8::from(self.bug == Bug::PacksWhatIsThere && stale);
        Ok(())
    }

    fn unpack(&self, extent: Extent, bytes: &[u8]) -> Result<BrokenParcel, ModelError> {
        let inner = match (self.bug, self.packer.unpack(extent, bytes)) {
            (Bug::TakesAnyLength, Err(_)) => {
                let one = Extent::whole(1);
                let bytes = vec![0; self.packer.packed_bytes(one)];
                self.packer.unpack(one, &bytes)
            }
            (_, unpacked) => unpacked,
        };
        Ok(BrokenParcel {
            inner: inner?,
            launches: self.launches.load(SeqCst),
        })
    }

    fn floats(&self, extent: Extent) -> Option<Floats> {
        self.packer.floats(extent)
    }
}

#[derive(Debug)]
struct BrokenFlight {
    inner: OracleFlight,
    wants: Vec<Want>,
}

impl Model for Broken {
    type Segment = OracleSegment;
    type Tail = OracleTail;
    type Flight = BrokenFlight;
    type Packer = BrokenPacker;

    fn spec(&self) -> &ModelSpec {
        self.oracle.spec()
    }

    fn tail(&mut self, path: &[Rc<OracleSegment>], room: usize) -> Result<OracleTail, ModelError> {
        self.oracle.tail(path, room)
    }

    fn launch(&mut self, spans: &mut [Span<'_, Broken>]) -> Result<BrokenFlight, ModelError> {
        let first_path = spans[0].path;
        let wants = spans.iter().map(|span| span.want.clone()).collect();
        let mut inner: Vec<Span<'_, Oracle>> = Vec::new();
        for span in spans.iter_mut() {
            let path = match self.bug {
                Bug::ForgetsOldestSegment if span.path.len() > 2 => &span.path[1..],
                Bug::MixesBatches if first_path.len() == span.path.len() => first_path,
                _ => span.path,
            };
            let want = match (self.bug, &span.want) {
                (Bug::ReadsFirstRow, Want::Token(_)) => Want::Logits,
                (_, want) => want.clone(),
            };
            let tokens = match (self.bug, span.tokens) {
                (Bug::MisreadsFives, Feed::Known(tokens)) if tokens.len() == 5 => {
                    Feed::Known(&[0; 5])
                }
                (Bug::FeedsAnother, Feed::Drawn(flight, _)) => Feed::Drawn(&flight.inner, 0),
                (_, Feed::Drawn(flight, span)) => Feed::Drawn(&flight.inner, span),
                (_, Feed::Known(tokens)) => Feed::Known(tokens),
            };
            inner.push(Span {
                tokens,
                path,
                tail: &mut *span.tail,
                want,
            });
        }
        let inner = self.oracle.launch(&mut inner)?;
        self.in_flight = true;
        self.launches.fetch_add(1, SeqCst);
        Ok(BrokenFlight { inner, wants })
    }

    fn draw(
        &mut self,
        flight: &mut BrokenFlight,
        mut drawings: Vec<Drawing>,
    ) -> Result<(), ModelError> {
        if self.bug == Bug::ReadsFirstRow {
            drawings.clear();
        }
        self.oracle.draw(&mut flight.inner, drawings)
    }

    fn is_ready(&self, flight: &BrokenFlight) -> bool {
        self.oracle.is_ready(&flight.inner)
    }

    fn land(&mut self, flight: BrokenFlight) -> Result<Vec<Readout>, ModelError> {
        let mut readouts = self.oracle.land(flight.inner)?;
        self.in_flight = false;
        let batched = readouts.len() > 1;
        if self.bug == Bug::SwapsReadouts && batched {
            readouts.swap(0, 1);
        }
        if self.bug == Bug::SwapsDraws && batched && readouts[0].token().is_some() {
            readouts.swap(0, 1);
        }
        for (readout, want) in readouts.iter_mut().zip(&flight.wants) {
            if let (Want::Token(draw), Readout::Logits(logits)) = (want, &*readout) {
                let first = sample_row(draw, &logits[..self.oracle.spec().vocab_size]);
                *readout = Readout::Token(first);
            }
        }
        Ok(readouts)
    }

    fn seal(&mut self, tail: &mut OracleTail, tokens: usize) -> Result<OracleSegment, ModelError> {
        match self.bug {
            Bug::SealKeepsState => {
                let sealed = self.oracle.seal(tail, tokens)?;
                let copy = self.oracle.hand_over(&sealed)?;
                let path = [Rc::new(sealed)];
                *tail = self.oracle.tail(&path, 0)?;
                self.oracle.remove(&path, 0, tail, tokens..tokens)?;
                self.oracle.take_in(copy)
            }
            Bug::SealTakesAll => self.oracle.seal(tail, tail.tokens()),
            Bug::SealsNothing => self.oracle.seal(tail, tokens.max(1)),
            _ => self.oracle.seal(tail, tokens),
        }
    }

    fn retire(
        &mut self,
        tail: OracleTail,
        tokens: Range<usize>,
    ) -> Result<OracleSegment, ModelError> {
        let tokens = match self.bug {
            Bug::RetiresTheFront => 0..tokens.len(),
            Bug::RetiresAnything => {
                let end = tokens.end.clamp(1, tail.tokens());
                tokens.start.min(end - 1)..end
            }
            _ => tokens,
        };
        self.oracle.retire(tail, tokens)
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
            Bug::SplitsStall if self.in_flight => {
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
                let copy = self.oracle.hand_over(upper)?;
                self.oracle.take_in(copy)
            }
            Bug::MergesAnything => match self.oracle.merge(upper, lower) {
                Err(_) => self.oracle.merge(lower, upper),
                merged => merged,
            },
            _ => self.oracle.merge(upper, lower),
        }
    }

    fn remove(
        &mut self,
        path: &[Rc<OracleSegment>],
        kept: usize,
        tail: &mut OracleTail,
        removed: Range<usize>,
    ) -> Result<(), ModelError> {
        let sealed: usize = path.iter().map(|segment| segment.tokens()).sum();
        let tokens = sealed + tail.tokens();
        match self.bug {
            Bug::TruncatesLate if removed.end == tokens && removed.len() > 1 => {
                let late = removed.start + 1..removed.end;
                self.oracle.remove(path, kept, tail, late)
            }
            // Cuts as many tokens off the end instead, so that nothing moves.
            Bug::ShiftCutsTheEnd if sealed > 0 && removed.end < tokens => {
                let end = tokens - removed.len()..tokens;
                self.oracle.remove(path, kept, tail, end)
            }
            Bug::RemovesAnything => {
                let end = removed.end.min(tokens);
                let kept = kept.min(path.len());
                let most: usize = path[..kept].iter().map(|segment| segment.tokens()).sum();
                let start = removed.start.clamp(most, end.max(most));
                self.oracle.remove(path, kept, tail, start..end.max(start))
            }
            _ => self.oracle.remove(path, kept, tail, removed),
        }
    }

    fn packer(&self) -> BrokenPacker {
        BrokenPacker {
            packer: self.oracle.packer(),
            bug: self.bug,
            launches: Arc::clone(&self.launches),
            home: thread::current().id(),
        }
    }

    fn hand_over(&mut self, segment: &OracleSegment) -> Result<BrokenParcel, ModelError> {
        if self.bug == Bug::HandsOverWhenIdle && self.in_flight {
            return Err(ModelError::Device("a step is under way".to_owned()));
        }
        Ok(BrokenParcel {
            inner: self.oracle.hand_over(segment)?,
            launches: self.launches.load(SeqCst),
        })
    }

    fn take_in(&mut self, parcel: BrokenParcel) -> Result<OracleSegment, ModelError> {
        let segment = self.oracle.take_in(parcel.inner)?;
        match self.bug {
            Bug::TakesInAnother => other_segment(&mut self.oracle, segment.tokens()),
            _ => Ok(segment),
        }
    }

    fn memory(&self) -> DeviceMemory {
        self.oracle.memory()
    }
}

/// A segment of `tokens` zeroes.
fn other_segment(oracle: &mut Oracle, tokens: usize) -> Result<OracleSegment, ModelError> {
    let mut tail = oracle.tail(&[], 0)?;
    oracle.step(&mut [Span {
        tokens: Feed::Known(&vec![0; tokens]),
        path: &[],
        tail: &mut tail,
        want: Want::Nothing,
    }])?;
    oracle.seal(&mut tail, tokens)
}

#[test]
fn each_planted_bug_fails_the_check_that_looks_for_it() {
    let windowed = &[LayerKind::Full, window(5)][..];
    let full = &[LayerKind::Full][..];
    let cases = [
        (full, Bug::SwapsReadouts, "batched = solo"),
        (full, Bug::MisreadsFives, "any chunking gives the same"),
        (full, Bug::ForgetsOldestSegment, "warm = cold"),
        (full, Bug::SealKeepsState, "warm = cold"),
        (full, Bug::SealTakesAll, "seal at any offset"),
        (windowed, Bug::SealTakesAll, "seal at any offset"),
        (full, Bug::RetiresTheFront, "retire with any part of a tail"),
        (full, Bug::RetiresAnything, "illegal cuts change nothing"),
        (full, Bug::SwapsHalves, "split at any offset"),
        (windowed, Bug::SplitMovesCut, "split at any offset"),
        (
            full,
            Bug::MergeForgetsLower,
            "merge of what follows each other",
        ),
        (
            windowed,
            Bug::MergesAnything,
            "merge of what follows each other",
        ),
        (full, Bug::TruncatesLate, "removal of the end"),
        (full, Bug::ShiftCutsTheEnd, "removal of a middle"),
        (full, Bug::TakesInAnother, "copied out and in"),
        (
            full,
            Bug::PacksWhatIsThere,
            "copies outlive what they are of",
        ),
        (full, Bug::TakesAnyLength, "what is no copy is refused"),
        (full, Bug::PacksAtHome, "copies while steps are under way"),
        (
            full,
            Bug::HandsOverWhenIdle,
            "copies while steps are under way",
        ),
        (
            full,
            Bug::MixesBatches,
            "spans share segments, or have their own",
        ),
        (full, Bug::SealsNothing, "illegal cuts change nothing"),
        (full, Bug::SplitsAnywhere, "illegal cuts change nothing"),
        (
            full,
            Bug::RemovesAnything,
            "illegal removals change nothing",
        ),
        (full, Bug::ReadsFirstRow, "wants"),
        (full, Bug::SwapsDraws, "two flights at once"),
        (full, Bug::FeedsAnother, "two flights at once"),
        (full, Bug::SplitsStall, "edits while a step is under way"),
    ];
    for (layers, bug, name) in cases {
        let oracle = Oracle::new(OracleConfig::with_layers(layers));
        let oracle = oracle.expect("a valid configuration");
        let mut broken = Broken {
            oracle,
            bug,
            in_flight: false,
            launches: Arc::default(),
        };
        let caught = catch_unwind(AssertUnwindSafe(|| check(&mut broken)));
        let payload = caught.expect_err("the checks find the bug");
        let message = payload.downcast_ref::<String>().expect("a message");
        let expected = format!("conformance, {name}: ");
        assert!(message.starts_with(&expected), "{bug:?} gave: {message}");
    }
}

#[test]
fn sampled_tokens_are_those_of_the_logits() {
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
    let truth = config.solo(&[token], 20, sampling);
    for (index, expected) in (0..).zip(truth) {
        let mut spans = [Span {
            tokens: Feed::Known(&[token]),
            path: &[],
            tail: &mut tail,
            want: Want::Token(Draw { sampling, index }),
        }];
        let readouts = oracle.step(&mut spans).expect("a step");
        assert_eq!(readouts, [Readout::Token(expected)]);
        token = expected;
    }
}
