//! Tests of cached state in groups: full attention, sliding windows and recurrent layers in one
//! model, on a tiny network whose layers are real attention and running sums.

mod bytes;
mod edits;
mod network;
mod whole;

use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{MlxModel, MlxSegment, MlxTail};
use motet_model::{Model, Packer, Segment, Span};
use motet_protocol::TokenId;
use motet_protocol::{ModelError, OutputKind, SpanOutput};
use motet_weights::Mixer;

/// MLX's counters are those of the process: tests that read them or allocate run in turn.
pub(super) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tokens(seed: usize, count: usize) -> Vec<TokenId> {
    let token = |index: usize| ((index * 7 + seed * 5 + index * index) % 29) as TokenId;
    (0..count).map(token).collect()
}

/// One sequence, built by hand.
struct Slot {
    path: Vec<Rc<MlxSegment>>,
    tail: MlxTail,
}

impl Slot {
    fn new(model: &mut MlxModel, path: &[Rc<MlxSegment>]) -> Self {
        Self {
            path: path.to_vec(),
            tail: model.tail(path, 0).expect("a tail"),
        }
    }

    fn try_step(
        &mut self,
        model: &mut MlxModel,
        tokens: &[TokenId],
    ) -> Result<Vec<f32>, ModelError> {
        let mut spans = [Span {
            tokens: tokens.into(),
            path: &self.path,
            tail: &mut self.tail,
            output_kind: OutputKind::Logits,
        }];
        let outputs = model.step(&mut spans)?;
        match outputs.into_iter().next() {
            Some(SpanOutput::Logits(logits)) => Ok(logits),
            other => panic!("expected logits, found {other:?}"),
        }
    }

    fn step(&mut self, model: &mut MlxModel, tokens: &[TokenId]) -> Vec<f32> {
        self.try_step(model, tokens).expect("a step")
    }

    fn seal(&mut self, model: &mut MlxModel, tokens: usize) {
        let segment = model.seal(&mut self.tail, tokens).expect("a segment");
        self.path.push(Rc::new(segment));
    }
}

fn packed(model: &mut MlxModel, segment: &MlxSegment) -> Vec<u8> {
    let packer = model.packer();
    let mut bytes = vec![0; packer.packed_bytes(segment.segment_size())];
    let detached_state = model.export(segment).expect("a detached state");
    packer.pack(&detached_state, &mut bytes).expect("packed");
    bytes
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        let error = (found - expected).abs();
        assert!(error <= tolerance, "{what}: {found} for {expected}");
    }
}

/// Each mix of groups that the models people run have, and some more.
fn mixes() -> Vec<(&'static str, Vec<Mixer>)> {
    let full = || network::attention(None, true);
    let unturned = || network::attention(None, false);
    let window = || network::attention(Some(5), true);
    let wide = || network::wide_attention(Some(3));
    let conv = || Mixer::ShortConv(network::CONV);
    let delta = || Mixer::DeltaNet(network::DELTA);
    vec![
        ("full", vec![full(), unturned(), full()]),
        ("recurrent", vec![conv(), delta()]),
        ("full and recurrent", vec![conv(), conv(), full(), conv()]),
        (
            "full and window",
            vec![window(), full(), unturned(), window()],
        ),
        (
            "two windows",
            vec![window(), wide(), network::wide_attention(None)],
        ),
        (
            "all kinds",
            vec![
                full(),
                conv(),
                window(),
                delta(),
                wide(),
                delta(),
                unturned(),
            ],
        ),
    ]
}
