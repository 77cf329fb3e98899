//! Random batches, cuts, forks and journeys against the truth.

use std::rc::Rc;

use motet::TokenId;
use motet::model::oracle::{Oracle, OracleConfig, OracleSegment, OracleTail};
use motet::model::{LayerKind, Model, Readout, Segment, Span, Tail, Want};
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
    Fork(usize, usize),
    /// A new slot on the first segments of another's path.
    Share(usize, usize),
    /// A segment of a path goes to the host and comes back.
    Travel(usize, usize),
    Drop(usize),
}

struct Slot {
    tokens: Vec<TokenId>,
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
            Op::Begin => self.admit(Vec::new(), Vec::new()),
            Op::Step(tokens) => self.step(&tokens),
            Op::Seal(slot, at) => self.seal(slot, at),
            Op::Split(slot, segment, at) => self.split(slot, segment, at),
            Op::Fork(slot, at) => self.fork(slot, at),
            Op::Share(slot, segments) => {
                if let Some(slot) = self.slot(slot) {
                    let path = slot.path[..segments % (slot.path.len() + 1)].to_vec();
                    let held: usize = path.iter().map(|segment| segment.tokens()).sum();
                    let tokens = slot.tokens[..held].to_vec();
                    self.admit(tokens, path);
                }
            }
            Op::Travel(slot, segment) => self.travel(slot, segment),
            Op::Drop(slot) => {
                if !self.slots.is_empty() {
                    self.slots.remove(slot % self.slots.len());
                }
            }
        }
    }

    fn slot(&mut self, slot: usize) -> Option<&mut Slot> {
        let slots = self.slots.len();
        (slots > 0).then(|| &mut self.slots[slot % slots])
    }

    fn admit(&mut self, tokens: Vec<TokenId>, path: Vec<Rc<OracleSegment>>) {
        if self.slots.len() < SLOTS_MAX {
            let tail = self.oracle.tail(&path).expect("memory");
            self.slots.push(Slot { tokens, path, tail });
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
            let from = slot.tokens.len();
            if tokens.is_empty() || from + tokens.len() > CONTEXT_TOKENS_MAX {
                continue;
            }
            slot.tokens.extend(tokens);
            let logits = self.config.solo_logits(&slot.tokens);
            let rows = logits[from * self.config.vocab_size..].to_vec();
            truths.push(Readout::Logits(rows));
            self.tokens_evaluated += tokens.len() as u64;
            spans.push(Span {
                tokens,
                path: &slot.path,
                tail: &mut slot.tail,
                want: Want::Logits,
            });
        }
        let readouts = self.oracle.step(&mut spans).expect("a step");
        assert_eq!(readouts, truths);
    }

    /// Seals at a legal offset near the one given, if there is any.
    fn seal(&mut self, slot: usize, at: usize) {
        let anywhere = self.oracle.spec().resumes_anywhere();
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots)
            && slot.tail.tokens() > 0
        {
            let tokens = slot.tail.tokens();
            let at = if anywhere { 1 + at % tokens } else { tokens };
            let segment = self.oracle.seal(&mut slot.tail, at);
            slot.path.push(Rc::new(segment.expect("a legal offset")));
        }
    }

    fn split(&mut self, slot: usize, segment: usize, at: usize) {
        let anywhere = self.oracle.spec().resumes_anywhere();
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots)
            && !slot.path.is_empty()
        {
            let index = segment % slot.path.len();
            let at = at % (slot.path[index].tokens() + 1);
            let inside = at > 0 && at < slot.path[index].tokens();
            match self.oracle.split(&slot.path[index], at) {
                Ok((left, right)) => {
                    assert!(anywhere && inside);
                    let parts = [Rc::new(left), Rc::new(right)];
                    slot.path.splice(index..=index, parts);
                }
                Err(error) => assert!(!(anywhere && inside), "{error}"),
            }
        }
    }

    fn fork(&mut self, slot: usize, at: usize) {
        let anywhere = self.oracle.spec().resumes_anywhere();
        let slots = self.slots.len().max(1);
        if self.slots.len() < SLOTS_MAX
            && let Some(slot) = self.slots.get(slot % slots)
        {
            let tokens = slot.tail.tokens();
            let at = if anywhere { at % (tokens + 1) } else { tokens };
            let tail = self.oracle.fork(&slot.tail, at).expect("a legal offset");
            let held = slot.tokens.len() - tokens + at;
            let fork = Slot {
                tokens: slot.tokens[..held].to_vec(),
                path: slot.path.clone(),
                tail,
            };
            self.slots.push(fork);
        }
    }

    fn travel(&mut self, slot: usize, segment: usize) {
        let slots = self.slots.len().max(1);
        if let Some(slot) = self.slots.get_mut(slot % slots)
            && !slot.path.is_empty()
        {
            let index = segment % slot.path.len();
            let bytes = self.oracle.export(&slot.path[index]).expect("an export");
            slot.path[index] = Rc::new(self.oracle.import(&bytes).expect("whole bytes"));
        }
    }
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
        2 => (pick(), pick()).prop_map(|(slot, at)| Op::Fork(slot, at)),
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
    (vec(kind, 1..4), 2..5usize, any::<bool>(), 0..4u64).prop_map(
        |(layers, vocab_size, verify, end_one_in)| OracleConfig {
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
