//! Random batches, cuts, removals and round trips against the reference.

use std::rc::Rc;

use motet_model::oracle::{Oracle, OracleConfig, OracleSegment, OracleTail, ReferenceRun};
use motet_model::{
    LayerKind, Model, OutputKind, Packer, Segment, SegmentSize, Span, SpanOutput, Tail, TokenSource,
};
use motet_protocol::TokenId;
use proptest::collection::vec;
use proptest::prelude::*;

use super::window;

const SLOTS_MAX: usize = 6;
const CONTEXT_TOKENS_MAX: usize = 120;

/// An operation on the slots. Numbers select among the existing ones.
#[derive(Clone, Debug)]
enum Op {
    OpenSlot,
    /// One step: the tokens of each slot's span, if there are any.
    Step(Vec<Vec<TokenId>>),
    Seal(usize, usize),
    Split(usize, usize, usize),
    /// Merges a segment of a path with the one after it.
    Merge(usize, usize),
    /// Removes this many tokens from an offset on; the last number selects how many segments
    /// stay.
    Remove(usize, usize, usize, usize),
    /// Opens a slot on the first segments of another's path.
    Share(usize, usize),
    /// Copies a segment of a path to the host and back.
    RoundTrip(usize, usize),
    Drop(usize),
}

struct Slot {
    reference_run: ReferenceRun,
    path: Vec<Rc<OracleSegment>>,
    tail: OracleTail,
}

struct OracleHarness {
    oracle: Oracle,
    config: OracleConfig,
    slots: Vec<Slot>,
    tokens_evaluated: u64,
}

impl OracleHarness {
    fn new(config: OracleConfig) -> OracleHarness {
        OracleHarness {
            oracle: Oracle::new(config.clone()).expect("a valid configuration"),
            config,
            slots: Vec::new(),
            tokens_evaluated: 0,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::OpenSlot => self.open_slot(ReferenceRun::new(&self.config), Vec::new()),
            Op::Step(tokens) => self.step(&tokens),
            Op::Seal(slot, at) => self.seal(slot, at),
            Op::Split(slot, segment, at) => self.split(slot, segment, at),
            Op::Merge(slot, segment) => self.merge(slot, segment),
            Op::Remove(slot, from, count, retained) => self.remove(slot, from, count, retained),
            Op::Share(slot, segments) => self.share(slot, segments),
            Op::RoundTrip(slot, segment) => self.round_trip(slot, segment),
            Op::Drop(slot) => {
                if !self.slots.is_empty() {
                    self.slots.remove(slot % self.slots.len());
                }
            }
        }
    }

    fn open_slot(&mut self, reference_run: ReferenceRun, path: Vec<Rc<OracleSegment>>) {
        if self.slots.len() < SLOTS_MAX {
            let tail = self.oracle.tail(&path, 0).expect("memory");
            self.slots.push(Slot {
                reference_run,
                path,
                tail,
            });
        }
    }

    /// Opens the slot if that part of the path is resumable.
    fn share(&mut self, slot: usize, segments: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get(slot % slots) {
            let path = slot.path[..segments % (slot.path.len() + 1)].to_vec();
            let segment_sizes: Vec<SegmentSize> =
                path.iter().map(|segment| segment.segment_size()).collect();
            if self.oracle.spec().can_resume(&segment_sizes) {
                let held = tokens(&path);
                let mut reference_run = slot.reference_run.clone();
                reference_run.remove(held..reference_run.tokens().len());
                self.open_slot(reference_run, path);
            }
        }
    }

    fn step(&mut self, tokens: &[Vec<TokenId>]) {
        let vocab_size = self.config.vocab_size as TokenId;
        let mut spans = Vec::new();
        let mut expected = Vec::new();
        let tokens: Vec<Vec<TokenId>> = tokens
            .iter()
            .map(|span| span.iter().map(|token| token % vocab_size).collect())
            .collect();
        for (slot, tokens) in self.slots.iter_mut().zip(&tokens) {
            let from = slot.reference_run.tokens().len();
            if tokens.is_empty() || from + tokens.len() > CONTEXT_TOKENS_MAX {
                continue;
            }
            let mut rows = Vec::new();
            for &token in tokens {
                slot.reference_run.evaluate(token);
                slot.reference_run.push_logits(&mut rows);
            }
            expected.push(SpanOutput::Logits(rows));
            self.tokens_evaluated += tokens.len() as u64;
            spans.push(Span {
                tokens: TokenSource::Known(tokens),
                path: &slot.path,
                tail: &mut slot.tail,
                output_kind: OutputKind::Logits,
            });
        }
        let span_outputs = self.oracle.step(&mut spans).expect("a step");
        assert_eq!(span_outputs, expected);
    }

    fn seal(&mut self, slot: usize, at: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots)
            && slot.tail.tokens() > 0
        {
            let at = 1 + at % slot.tail.tokens();
            let segment = self.oracle.seal(&mut slot.tail, at).expect("inside");
            let spec = self.oracle.spec();
            assert_eq!(segment.bytes(), spec.segment_bytes(segment.segment_size()));
            slot.path.push(Rc::new(segment));
        }
    }

    fn split(&mut self, slot: usize, segment: usize, at: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots)
            && !slot.path.is_empty()
        {
            let index = segment % slot.path.len();
            let whole = &slot.path[index];
            let at = at % (whole.tokens() + 1);
            match self.oracle.split(whole, at) {
                Ok((upper, lower)) => {
                    assert_eq!(
                        (upper.segment_size(), lower.segment_size()),
                        whole.segment_size().cut(at)
                    );
                    let parts = [Rc::new(upper), Rc::new(lower)];
                    slot.path.splice(index..=index, parts);
                }
                Err(error) => assert!(at == 0 || at == whole.tokens(), "{error}"),
            }
        }
    }

    fn merge(&mut self, slot: usize, segment: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots)
            && slot.path.len() > 1
        {
            let index = segment % (slot.path.len() - 1);
            let (upper, lower) = (&slot.path[index], &slot.path[index + 1]);
            let (above, below) = (upper.segment_size(), lower.segment_size());
            match self.oracle.merge(upper, lower) {
                Ok(merged) => {
                    assert_eq!(merged.segment_size(), above.merged(below));
                    slot.path.splice(index..index + 2, [Rc::new(merged)]);
                }
                Err(error) => assert!(above.state_lag > below.tokens + below.state_lag, "{error}"),
            }
        }
    }

    fn remove(&mut self, slot: usize, from: usize, count: usize, retained: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots) {
            let held = slot.reference_run.tokens().len();
            let from = from % (held + 1);
            let removed = from..held.min(from + count % 30);
            let retained = retained % (slot.path.len() + 1);
            let is_path_outside = tokens(&slot.path[..retained]) <= from;
            let shifts = !removed.is_empty() && removed.end < held;
            let spec = self.oracle.spec();
            let is_allowed =
                is_path_outside && spec.resumes_anywhere() && (spec.can_shift || !shifts);
            match (self.oracle).remove(&slot.path, retained, &mut slot.tail, removed.clone()) {
                Ok(()) => {
                    assert!(is_allowed);
                    slot.path.truncate(retained);
                    slot.reference_run.remove(removed);
                }
                Err(error) => assert!(!is_allowed, "{error}"),
            }
        }
    }

    fn round_trip(&mut self, slot: usize, segment: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots)
            && !slot.path.is_empty()
        {
            let index = segment % slot.path.len();
            let segment = &slot.path[index];
            let packer = self.oracle.packer();
            let detached_state = self.oracle.export(segment).expect("detached state");
            let mut bytes = vec![0; packer.packed_bytes(segment.segment_size())];
            packer.pack(&detached_state, &mut bytes).expect("it packs");
            let detached_state = packer.unpack(segment.segment_size(), &bytes);
            let imported = self.oracle.import(detached_state.expect("whole bytes"));
            slot.path[index] = Rc::new(imported.expect("memory"));
        }
    }
}

fn tokens(path: &[Rc<OracleSegment>]) -> usize {
    path.iter().map(|segment| segment.tokens()).sum()
}

fn op() -> impl Strategy<Value = Op> {
    let pick = || 0..1_000usize;
    let span = prop_oneof![
        2 => vec(0..1_000u32, 1..=1),
        2 => vec(0..1_000u32, 0..12),
    ];
    prop_oneof![
        2 => Just(Op::OpenSlot),
        8 => vec(span, 1..SLOTS_MAX).prop_map(Op::Step),
        3 => (pick(), pick()).prop_map(|(slot, at)| Op::Seal(slot, at)),
        2 => (pick(), pick(), pick()).prop_map(|(slot, segment, at)| Op::Split(slot, segment, at)),
        2 => (pick(), pick()).prop_map(|(slot, segment)| Op::Merge(slot, segment)),
        2 => (pick(), pick(), pick(), pick())
            .prop_map(|(slot, from, count, retained)| Op::Remove(slot, from, count, retained)),
        2 => (pick(), pick()).prop_map(|(slot, segments)| Op::Share(slot, segments)),
        2 => (pick(), pick()).prop_map(|(slot, segment)| Op::RoundTrip(slot, segment)),
        1 => pick().prop_map(Op::Drop),
    ]
}

fn config() -> impl Strategy<Value = OracleConfig> {
    let kind = prop_oneof![
        3 => Just(LayerKind::Full),
        1 => (1..8usize).prop_map(window),
        1 => Just(LayerKind::Recurrent),
    ];
    let layers = prop_oneof![vec(Just(LayerKind::Full), 1..3), vec(kind, 1..4)];
    (layers, 2..5usize, any::<bool>(), any::<bool>(), 0..4u64).prop_map(
        |(layers, vocab_size, verify, can_shift, end_one_in)| OracleConfig {
            can_shift,
            vocab_size,
            verify,
            end_one_in,
            context_tokens_max: CONTEXT_TOKENS_MAX,
            tail_block_tokens: 4,
            ..OracleConfig::with_layers(&layers)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn any_operations_give_the_reference_logits(config in config(), ops in vec(op(), 1..60)) {
        let counters = config.counters.clone();
        let mut harness = OracleHarness::new(config);
        for op in ops {
            harness.apply(op);
        }
        let spec = harness.oracle.spec().clone();
        for slot in &harness.slots {
            prop_assert_eq!(slot.tail.bytes(), spec.tail_bytes(slot.tail.tokens()));
        }
        prop_assert_eq!(counters.now().tokens_evaluated, harness.tokens_evaluated);
        prop_assert_eq!(counters.now().tails_alive, harness.slots.len());
        drop(harness);
        let counts = counters.now();
        prop_assert_eq!(counts.segments_alive + counts.tails_alive + counts.bytes_alive, 0);
    }
}
