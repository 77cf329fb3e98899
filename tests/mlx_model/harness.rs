//! Steps a model by hand: one sequence at a time, or a batch of them.

use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use motet::TokenId;
use motet::model::mlx::{MlxModel, MlxSegment, MlxTail};
use motet::model::{Model, SegmentSize};
use motet::request::Sampling;
use motet_model::sampling::TokenSampling;
use motet_model::{OutputKind, Segment, Span, SpanOutput, Tail, TokenSource};
use motet_testkit::logits::difference_of_rows;

/// Tests that load a model run one after another: MLX's memory counters belong to the process,
/// and two steps at once would share its cores.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A live sequence: its path and its tail.
pub(crate) struct Slot {
    pub(crate) path: Vec<Rc<MlxSegment>>,
    pub(crate) tail: MlxTail,
}

impl Slot {
    pub(crate) fn new(model: &mut MlxModel, path: &[Rc<MlxSegment>]) -> Self {
        Self {
            path: path.to_vec(),
            tail: model.tail(path, 0).expect("an empty tail"),
        }
    }

    pub(crate) fn tokens(&self) -> usize {
        self.path.iter().map(|s| s.tokens()).sum::<usize>() + self.tail.tokens()
    }

    /// Evaluates `tokens` in a step without other slots.
    pub(crate) fn step(
        &mut self,
        model: &mut MlxModel,
        tokens: &[TokenId],
        output_kind: OutputKind,
    ) -> SpanOutput {
        step(model, &mut [(self, tokens, output_kind)]).remove(0)
    }

    /// Logits of every row.
    pub(crate) fn logits(&mut self, model: &mut MlxModel, tokens: &[TokenId]) -> Vec<Vec<f32>> {
        rows(self.step(model, tokens, OutputKind::Logits), tokens.len())
    }

    /// Seals the first `tokens` of the tail onto the path.
    pub(crate) fn seal(&mut self, model: &mut MlxModel, tokens: usize) {
        let state_lag = self.tail.tokens() - tokens;
        let segment = model.seal(&mut self.tail, tokens).expect("sealed");
        let segment_size = SegmentSize { tokens, state_lag };
        assert_eq!(segment.segment_size(), segment_size);
        assert_eq!(segment.bytes(), model.spec().segment_bytes(segment_size));
        self.path.push(Rc::new(segment));
    }
}

/// One step over several slots.
pub(crate) fn step(
    model: &mut MlxModel,
    slots: &mut [(&mut Slot, &[TokenId], OutputKind)],
) -> Vec<SpanOutput> {
    let mut spans: Vec<Span<'_, MlxModel>> = slots
        .iter_mut()
        .map(|(slot, tokens, output_kind)| Span {
            tokens: TokenSource::Known(tokens),
            path: &slot.path,
            tail: &mut slot.tail,
            output_kind: output_kind.clone(),
        })
        .collect();
    let span_outputs = model.step(&mut spans).expect("a step");
    assert_eq!(span_outputs.len(), slots.len());
    span_outputs
}

pub(crate) fn greedy() -> OutputKind {
    sampled(Sampling::GREEDY, 0)
}

pub(crate) fn sampled(sampling: Sampling, position: u64) -> OutputKind {
    OutputKind::Token(TokenSampling { sampling, position })
}

pub(crate) fn token(span_output: SpanOutput) -> TokenId {
    match span_output {
        SpanOutput::Token(token) => token,
        other => panic!("expected a token, got {other:?}"),
    }
}

pub(crate) fn rows(span_output: SpanOutput, count: usize) -> Vec<Vec<f32>> {
    match span_output {
        SpanOutput::Logits(logits) => {
            let width = logits.len() / count;
            assert_eq!(logits.len(), count * width);
            logits.chunks(width).map(<[f32]>::to_vec).collect()
        }
        other => panic!("expected logits, got {other:?}"),
    }
}

#[track_caller]
pub(crate) fn assert_close(found: &[Vec<f32>], expected: &[Vec<f32>], tolerance: f32, what: &str) {
    let largest = difference_of_rows(found, expected).largest;
    assert!(largest <= tolerance, "{what}: logits differ by {largest}");
}
