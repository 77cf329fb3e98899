//! Random batches, cuts, removals and journeys against the truth.

use std::rc::Rc;

use motet::TokenId;
use motet::model::oracle::{Oracle, OracleConfig, OracleSegment, OracleTail, Soloist};
use motet::model::{Extent, Feed, LayerKind, Model, Packer, Readout, Segment, Span, Tail, Want};
use proptest::collection::vec;
use proptest::prelude::*;

use super::window;

const SLOTS_MAX: usize = 6;
const CONTEXT_TOKENS_MAX: usize = 120;

/// Something done to the slots. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Op {
    Begin,
    /// One step: per slot the tokens of its span, where there are any.
    Step(Vec<Vec<TokenId>>),
    Seal(usize, usize),
    Split(usize, usize, usize),
    /// A segment of a path and the one after it become one.
    Merge(usize, usize),
    /// Tokens from an offset on, so many; and how many segments stay.
    Remove(usize, usize, usize, usize),
    /// A new slot on the first segments of another's path.
    Share(usize, usize),
    /// A segment of a path goes to the host and comes back.
    Travel(usize, usize),
    Drop(usize),
}

struct Slot {
    truth: Soloist,
    path: Vec<Rc<OracleSegment>>,
    tail: OracleTail,
}

struct House {
    oracle: Oracle,
    config: OracleConfig,
    slots: Vec<Slot>,
    tokens_evaluated: u64,
}

impl House {
    fn new(config: OracleConfig) -> House {
        House {
            oracle: Oracle::new(config.clone()).expect("a valid configuration"),
            config,
            slots: Vec::new(),
            tokens_evaluated: 0,
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Begin => self.admit(Soloist::new(&self.config), Vec::new()),
            Op::Step(tokens) => self.step(&tokens),
            Op::Seal(slot, at) => self.seal(slot, at),
            Op::Split(slot, segment, at) => self.split(slot, segment, at),
            Op::Merge(slot, segment) => self.merge(slot, segment),
            Op::Remove(slot, from, count, kept) => self.remove(slot, from, count, kept),
            Op::Share(slot, segments) => self.share(slot, segments),
            Op::Travel(slot, segment) => self.travel(slot, segment),
            Op::Drop(slot) => {
                if !self.slots.is_empty() {
                    self.slots.remove(slot % self.slots.len());
                }
            }
        }
    }

    fn admit(&mut self, truth: Soloist, path: Vec<Rc<OracleSegment>>) {
        if self.slots.len() < SLOTS_MAX {
            let tail = self.oracle.tail(&path, 0).expect("memory");
            self.slots.push(Slot { truth, path, tail });
        }
    }

    /// Where the path's part is resumable.
    fn share(&mut self, slot: usize, segments: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get(slot % slots) {
            let path = slot.path[..segments % (slot.path.len() + 1)].to_vec();
            let extents: Vec<Extent> = path.iter().map(|segment| segment.extent()).collect();
            if self.oracle.spec().can_resume(&extents) {
                let held = tokens(&path);
                let mut truth = slot.truth.clone();
                truth.remove(held..truth.tokens().len());
                self.admit(truth, path);
            }
        }
    }

    fn step(&mut self, tokens: &[Vec<TokenId>]) {
        let vocab_size = self.config.vocab_size as TokenId;
        let mut spans = Vec::new();
        let mut truths = Vec::new();
        let tokens: Vec<Vec<TokenId>> = tokens
            .iter()
            .map(|span| span.iter().map(|token| token % vocab_size).collect())
            .collect();
        for (slot, tokens) in self.slots.iter_mut().zip(&tokens) {
            let from = slot.truth.tokens().len();
            if tokens.is_empty() || from + tokens.len() > CONTEXT_TOKENS_MAX {
                continue;
            }
            let mut rows = Vec::new();
            for &token in tokens {
                slot.truth.evaluate(token);
                slot.truth.push_logits(&mut rows);
            }
            truths.push(Readout::Logits(rows));
            self.tokens_evaluated += tokens.len() as u64;
            spans.push(Span {
                tokens: Feed::Known(tokens),
                path: &slot.path,
                tail: &mut slot.tail,
                want: Want::Logits,
            });
        }
        let readouts = self.oracle.step(&mut spans).expect("a step");
        assert_eq!(readouts, truths);
    }

    fn seal(&mut self, slot: usize, at: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots)
            && slot.tail.tokens() > 0
        {
            let at = 1 + at % slot.tail.tokens();
            let segment = self.oracle.seal(&mut slot.tail, at).expect("inside");
            let spec = self.oracle.spec();
            assert_eq!(segment.bytes(), spec.segment_bytes(segment.extent()));
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
                    assert_eq!((upper.extent(), lower.extent()), whole.extent().cut(at));
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
            let (above, below) = (upper.extent(), lower.extent());
            match self.oracle.merge(upper, lower) {
                Ok(merged) => {
                    assert_eq!(merged.extent(), above.merged(below));
                    slot.path.splice(index..index + 2, [Rc::new(merged)]);
                }
                Err(error) => assert!(above.beyond > below.tokens + below.beyond, "{error}"),
            }
        }
    }

    fn remove(&mut self, slot: usize, from: usize, count: usize, kept: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots) {
            let held = slot.truth.tokens().len();
            let from = from % (held + 1);
            let removed = from..held.min(from + count % 30);
            let kept = kept % (slot.path.len() + 1);
            let fits = tokens(&slot.path[..kept]) <= from;
            let shifts = !removed.is_empty() && removed.end < held;
            let spec = self.oracle.spec();
            let legal = fits && spec.resumes_anywhere() && (spec.can_shift || !shifts);
            match (self.oracle).remove(&slot.path, kept, &mut slot.tail, removed.clone()) {
                Ok(()) => {
                    assert!(legal);
                    slot.path.truncate(kept);
                    slot.truth.remove(removed);
                }
                Err(error) => assert!(!legal, "{error}"),
            }
        }
    }

    fn travel(&mut self, slot: usize, segment: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots)
            && !slot.path.is_empty()
        {
            let index = segment % slot.path.len();
            let segment = &slot.path[index];
            let packer = self.oracle.packer();
            let parcel = self.oracle.hand_over(segment).expect("a parcel");
            let mut bytes = vec![0; packer.packed_bytes(segment.extent())];
            packer.pack(&parcel, &mut bytes).expect("room");
            let parcel = packer.unpack(segment.extent(), &bytes);
            let back = self.oracle.take_in(parcel.expect("whole bytes"));
            slot.path[index] = Rc::new(back.expect("memory"));
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
        2 => Just(Op::Begin),
        8 => vec(span, 1..SLOTS_MAX).prop_map(Op::Step),
        3 => (pick(), pick()).prop_map(|(slot, at)| Op::Seal(slot, at)),
        2 => (pick(), pick(), pick()).prop_map(|(slot, segment, at)| Op::Split(slot, segment, at)),
        2 => (pick(), pick()).prop_map(|(slot, segment)| Op::Merge(slot, segment)),
        2 => (pick(), pick(), pick(), pick())
            .prop_map(|(slot, from, count, kept)| Op::Remove(slot, from, count, kept)),
        2 => (pick(), pick()).prop_map(|(slot, segments)| Op::Share(slot, segments)),
        2 => (pick(), pick()).prop_map(|(slot, segment)| Op::Travel(slot, segment)),
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
    fn whatever_is_done_the_logits_are_the_truth(config in config(), ops in vec(op(), 1..60)) {
        let counters = config.counters.clone();
        let mut house = House::new(config);
        for op in ops {
            house.apply(op);
        }
        let spec = house.oracle.spec().clone();
        for slot in &house.slots {
            prop_assert_eq!(slot.tail.bytes(), spec.tail_bytes(slot.tail.tokens()));
        }
        prop_assert_eq!(counters.now().tokens_evaluated, house.tokens_evaluated);
        prop_assert_eq!(counters.now().tails_alive, house.slots.len());
        drop(house);
        let counts = counters.now();
        prop_assert_eq!(counts.segments_alive + counts.tails_alive + counts.bytes_alive, 0);
    }
}
