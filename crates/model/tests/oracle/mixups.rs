//! Each way to mix up cached state gives other tokens, with every layer kind.

use std::rc::Rc;

use motet_model::oracle::{Oracle, OracleConfig, OracleSegment, OracleTail, StepFault};
use motet_model::sampling::{Sampling, TokenSampling};
use motet_model::{Model, OutputKind, Packer, Segment, Span, SpanOutput, Tail, TokenSource};
use motet_protocol::TokenId;

use super::{LAYERS, window};

const PROMPT: [TokenId; 13] = [5, 3, 9, 1, 4, 4, 8, 2, 7, 7, 0, 6, 1];
/// `PROMPT` without its first token.
const OTHER: [TokenId; 13] = [6, 3, 9, 1, 4, 4, 8, 2, 7, 7, 0, 6, 1];
const OUTPUT: usize = 24;

type Segments = Vec<Rc<OracleSegment>>;
type Slot = (Segments, OracleTail);

/// An oracle, and the state of a slot: segments of four tokens, three of them, and a tail that
/// still lacks the prompt's last token.
struct Scene {
    oracle: Oracle,
    config: OracleConfig,
    path: Segments,
    other: Segments,
}

impl Scene {
    fn new(config: OracleConfig) -> Scene {
        let mut scene = Scene {
            oracle: Oracle::new(config.clone()).expect("a valid configuration"),
            config,
            path: Vec::new(),
            other: Vec::new(),
        };
        scene.path = scene.sealed(&PROMPT[..12]);
        scene.other = scene.sealed(&OTHER[..12]);
        scene
    }

    /// `tokens` as segments of four.
    fn sealed(&mut self, tokens: &[TokenId]) -> Segments {
        let mut path = Vec::new();
        for chunk in tokens.chunks(4) {
            let mut tail = self.tail(&path, chunk);
            let segment = self.oracle.seal(&mut tail, chunk.len());
            path.push(Rc::new(segment.expect("the tail's end is a valid offset")));
        }
        path
    }

    /// A tail on `path` that holds `tokens`.
    fn tail(&mut self, path: &[Rc<OracleSegment>], tokens: &[TokenId]) -> OracleTail {
        let mut tail = self.oracle.tail(path, 0).expect("memory");
        if !tokens.is_empty() {
            self.step(path, &mut tail, tokens, 0);
        }
        tail
    }

    fn step(
        &mut self,
        path: &[Rc<OracleSegment>],
        tail: &mut OracleTail,
        tokens: &[TokenId],
        position: u64,
    ) -> TokenId {
        let sampling = Sampling::GREEDY;
        let mut spans = [Span {
            tokens: TokenSource::Known(tokens),
            path,
            tail,
            output_kind: OutputKind::Token(TokenSampling { sampling, position }),
        }];
        match self.oracle.step(&mut spans).expect("a step")[..] {
            [SpanOutput::Token(token)] => token,
            ref span_outputs => panic!("expected one token, got {span_outputs:?}"),
        }
    }

    /// The slot's output after the prompt's last token.
    fn output(&mut self, (path, mut tail): Slot) -> Vec<TokenId> {
        let mut output = Vec::new();
        let mut last = PROMPT[12];
        for position in 0..OUTPUT as u64 {
            last = self.step(&path, &mut tail, &[last], position);
            output.push(last);
        }
        output
    }

    /// The correct path and tail, with the last `unsealed` segments in the tail.
    fn correct(&mut self, unsealed: usize) -> Slot {
        let sealed = 3 - unsealed;
        let path = self.path[..sealed].to_vec();
        let tail = self.tail(&path, &PROMPT[sealed * 4..12]);
        (path, tail)
    }

    /// These segments, with a tail that was opened on them.
    fn slot_on(&mut self, path: Segments) -> Slot {
        let tail = self.tail(&path, &[]);
        (path, tail)
    }
}

/// A name, whether the slot is still right, and the change to it.
type Case = (&'static str, bool, fn(&mut Scene) -> Slot);

const CASES: [Case; 28] = [
    ("nothing is wrong", true, |s| s.correct(0)),
    ("nothing is wrong, with a tail", true, |s| s.correct(1)),
    ("two segments swapped", false, |s| {
        let [a, b, c] = parts(&s.path);
        s.slot_on(vec![b, a, c])
    }),
    ("the first segment dropped", false, |s| {
        let [_, b, c] = parts(&s.path);
        s.slot_on(vec![b, c])
    }),
    ("a middle segment dropped", false, |s| {
        let [a, _, c] = parts(&s.path);
        s.slot_on(vec![a, c])
    }),
    ("the last segment dropped", false, |s| {
        let [a, b, _] = parts(&s.path);
        s.slot_on(vec![a, b])
    }),
    ("the first segment doubled", false, |s| {
        let [a, b, c] = parts(&s.path);
        s.slot_on(vec![a.clone(), a, b, c])
    }),
    ("the last segment doubled", false, |s| {
        let [a, b, c] = parts(&s.path);
        s.slot_on(vec![a, b, c.clone(), c])
    }),
    ("the first segment is another's", false, |s| {
        let [_, b, c] = parts(&s.path);
        s.slot_on(vec![Rc::clone(&s.other[0]), b, c])
    }),
    ("equal tokens under another's prefix, middle", false, |s| {
        let [a, _, c] = parts(&s.path);
        s.slot_on(vec![a, Rc::clone(&s.other[1]), c])
    }),
    ("equal tokens under another's prefix, last", false, |s| {
        let [a, b, _] = parts(&s.path);
        s.slot_on(vec![a, b, Rc::clone(&s.other[2])])
    }),
    ("the whole path is another's", false, |s| {
        s.slot_on(s.other.clone())
    }),
    ("a segment of another position", false, |s| {
        let shifted = s.sealed(&PROMPT[4..8]);
        let [a, _, c] = parts(&s.path);
        s.slot_on(vec![a, Rc::clone(&shifted[0]), c])
    }),
    ("the tail was opened on another's path", false, |s| {
        let other = s.other.clone();
        let tail = s.tail(&other, &[]);
        (s.path.clone(), tail)
    }),
    ("the tail holds another's state", false, |s| {
        let other = s.other[..2].to_vec();
        let tail = s.tail(&other, &PROMPT[8..12]);
        (s.path[..2].to_vec(), tail)
    }),
    ("the tail's path was swapped under it", false, |s| {
        let (path, tail) = s.correct(1);
        (vec![Rc::clone(&path[1]), Rc::clone(&path[0])], tail)
    }),
    ("the tail lacks its last token", false, |s| {
        let path = s.path[..2].to_vec();
        let tail = s.tail(&path, &PROMPT[8..11]);
        (path, tail)
    }),
    ("the tail holds a token twice", false, |s| {
        let path = s.path[..2].to_vec();
        let tail = s.tail(&path, &[&PROMPT[8..12], &PROMPT[11..12]].concat());
        (path, tail)
    }),
    ("sealed, but not put onto the path", false, |s| {
        let (path, mut tail) = s.correct(1);
        let tokens = tail.tokens();
        drop(s.oracle.seal(&mut tail, tokens).expect("a valid offset"));
        (path, tail)
    }),
    ("put onto the path, but not sealed", false, |s| {
        let (_, tail) = s.correct(1);
        (s.path.clone(), tail)
    }),
    ("cut, and both parts on the path", true, |s| {
        let [a, b, c] = parts(&s.path);
        let (upper, lower) = s.oracle.split(&c, 1).expect("inside");
        s.slot_on(vec![a, b, Rc::new(upper), Rc::new(lower)])
    }),
    ("merged", true, |s| {
        let [a, b, c] = parts(&s.path);
        let merged = s.oracle.merge(&b, &c).expect("whole segments");
        s.slot_on(vec![a, Rc::new(merged)])
    }),
    ("merged the wrong way round", false, |s| {
        let [a, b, c] = parts(&s.path);
        let merged = s.oracle.merge(&c, &b).expect("whole segments");
        s.slot_on(vec![a, Rc::new(merged)])
    }),
    ("merged with a segment that does not follow", false, |s| {
        let [a, b, c] = parts(&s.path);
        let merged = s.oracle.merge(&a, &c).expect("whole segments");
        s.slot_on(vec![Rc::new(merged), b])
    }),
    ("merged, and a part once more", false, |s| {
        let [a, b, c] = parts(&s.path);
        let merged = s.oracle.merge(&b, &c).expect("whole segments");
        s.slot_on(vec![a, Rc::new(merged), c])
    }),
    ("the upper part of a cut only", false, |s| {
        let [a, b, c] = parts(&s.path);
        let (upper, _) = s.oracle.split(&c, 3).expect("inside");
        s.slot_on(vec![a, b, Rc::new(upper)])
    }),
    ("the lower part of a cut only", false, |s| {
        let [a, b, c] = parts(&s.path);
        let (_, lower) = s.oracle.split(&c, 1).expect("inside");
        s.slot_on(vec![a, b, Rc::new(lower)])
    }),
    ("the tail of a failed step", false, |s| {
        let (path, mut tail) = s.correct(1);
        s.config.faults.next_steps(1, StepFault::Fail);
        let mut spans = [Span {
            tokens: TokenSource::Known(&PROMPT[12..]),
            path: &path,
            tail: &mut tail,
            output_kind: OutputKind::Nothing,
        }];
        s.oracle.step(&mut spans).expect_err("an injected fault");
        (path, tail)
    }),
];

fn parts(path: &[Rc<OracleSegment>]) -> [Rc<OracleSegment>; 3] {
    path.to_vec().try_into().expect("three segments")
}

#[test]
fn every_mixup_changes_the_tokens() {
    for layers in LAYERS {
        if layers == [window(1)] {
            // A window of one token sees no past, so equal tokens leave equal state under any
            // prefix.
            continue;
        }
        for verify in [false, true] {
            let config = OracleConfig {
                verify,
                ..OracleConfig::with_layers(layers)
            };
            let expected = config.reference_tokens(&PROMPT, OUTPUT, Sampling::GREEDY);
            for (what, correct, apply_mixup) in CASES {
                let mut scene = Scene::new(config.clone());
                let slot = apply_mixup(&mut scene);
                let output = scene.output(slot);
                let equal = output.iter().zip(&expected).filter(|(a, b)| a == b).count();
                let expected = if correct { OUTPUT..=OUTPUT } else { 0..=2 };
                assert!(
                    expected.contains(&equal),
                    "{layers:?}, {what}: {equal} of {OUTPUT} tokens are right"
                );
            }
        }
    }
}

#[test]
fn segment_sealed_from_a_failed_step_matches_no_path() {
    for layers in LAYERS {
        let config = OracleConfig::with_layers(layers);
        let mut scene = Scene::new(config.clone());
        let (_, _, fail_a_step) = CASES[CASES.len() - 1];
        let (mut path, mut tail) = fail_a_step(&mut scene);
        let tokens = tail.tokens();
        let segment = scene.oracle.seal(&mut tail, tokens);
        path.push(Rc::new(segment.expect("the tail's end is a valid offset")));
        let slot = scene.slot_on(path);
        let expected = config.reference_tokens(&PROMPT, OUTPUT, Sampling::GREEDY);
        assert_ne!(scene.output(slot), expected, "{layers:?}");
    }
}

#[test]
fn different_oracle_has_other_tokens_and_another_identity() {
    let config = OracleConfig::default();
    let identity_of = |config: &OracleConfig| {
        let oracle = Oracle::new(config.clone()).expect("a valid configuration");
        oracle.packer().identity()
    };
    let identity = identity_of(&config);
    let windowed = OracleConfig::with_layers(&[window(4)]);
    let seeded = OracleConfig {
        seed: 1,
        ..OracleConfig::default()
    };
    for other in [windowed, seeded] {
        let expected =
            |config: &OracleConfig| config.reference_tokens(&PROMPT, OUTPUT, Sampling::GREEDY);
        assert_ne!(expected(&other), expected(&config));
        assert_ne!(identity_of(&other), identity);
    }
    let faster = OracleConfig {
        can_shift: false,
        verify: false,
        ..OracleConfig::default()
    };
    assert_eq!(identity_of(&faster), identity);
}

/// State computed after the upper part of a cut is wrong if that part lacks state.
#[test]
fn path_that_is_not_resumable_changes_the_tokens() {
    for layers in LAYERS {
        let config = OracleConfig::with_layers(layers);
        let mut scene = Scene::new(config.clone());
        let expected = config.reference_tokens(&PROMPT, OUTPUT, Sampling::GREEDY);
        let (upper, _) = scene.oracle.split(&scene.path[0], 1).expect("inside");
        let resumable = scene.oracle.spec().can_resume(&[upper.segment_size()]);
        let path = vec![Rc::new(upper)];
        let tail = scene.tail(&path, &PROMPT[1..12]);
        let correct = scene.output((path, tail)) == expected;
        // A window of one token reads nothing of the past.
        assert_eq!(correct, resumable || layers == [window(1)], "{layers:?}");
    }
}
