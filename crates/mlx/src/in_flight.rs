//! In-flight steps.

use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream, transforms};

use super::batch::Batch;
use super::bridge::{self, Failures};
use super::profile::{self, Op};
use super::sample::{self, Tokens};
use crate::error::MlxError;
use motet_core::protocol::{ModelError, OutputKind, SpanOutput};
use motet_model::sampling::SampleInputs;

/// A step in flight on the device.
#[derive(Debug)]
pub struct MlxInFlightStep {
    spans: Vec<OutputRows>,
    /// `[output rows, vocab]`, where any logits are needed. None once tokens are sampled from
    /// all of them.
    logits: Option<Array>,
    /// Arrays whose evaluation writes the tails.
    pending: Vec<Array>,
    tokens: Option<Tokens>,
    /// Whether the step has not been submitted to the device yet.
    is_pending: bool,
    /// Failures on the stream before the step was submitted.
    failures: Failures,
    /// Held by each in-flight step, so that the model can count them.
    _steps_in_flight: Rc<()>,
}

/// The output that a span needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputRows {
    Nothing,
    /// A token sampled from this row of the logits.
    Token(usize),
    /// A first row of the logits and a number of rows.
    Rows(usize, usize),
}

impl MlxInFlightStep {
    /// An in-flight step of `batch`, not sampled yet.
    pub(super) fn new(
        batch: &Batch,
        output_kinds: &[OutputKind],
        logits: Option<Array>,
        pending: Vec<Array>,
        failures: Failures,
        steps_in_flight: Rc<()>,
    ) -> Self {
        let mut row = 0;
        let mut output_rows = |(output_kind, rows): (&OutputKind, usize)| {
            let first = row;
            match output_kind {
                OutputKind::Nothing => OutputRows::Nothing,
                OutputKind::Token(_) => {
                    row += 1;
                    OutputRows::Token(first)
                }
                OutputKind::Logits => {
                    row += rows;
                    OutputRows::Rows(first, rows)
                }
            }
        };
        let spans = batch.spans.iter().map(|span| span.rows.len());
        Self {
            spans: output_kinds
                .iter()
                .zip(spans)
                .map(&mut output_rows)
                .collect(),
            logits,
            pending,
            tokens: None,
            is_pending: true,
            failures,
            _steps_in_flight: steps_in_flight,
        }
    }

    /// Submits everything that is built so far to the device, without waiting for it.
    pub(super) fn start(&mut self) -> Result<(), Exception> {
        self.is_pending = false;
        transforms::async_eval(self.arrays())
    }

    /// Whether the step has been submitted to the device.
    pub(super) fn is_started(&self) -> bool {
        !self.is_pending
    }

    /// Samples tokens, by the kernel if there is a stream for it.
    pub(super) fn sample(
        &mut self,
        inputs: Vec<SampleInputs>,
        kernels: Option<&Stream>,
    ) -> Result<(), Exception> {
        let rows = self.spans.iter().filter_map(|span| match span {
            OutputRows::Token(row) => Some(*row as u32),
            OutputRows::Nothing | OutputRows::Rows(..) => None,
        });
        let rows: Vec<u32> = rows.collect();
        assert_eq!(
            rows.len(),
            inputs.len(),
            "sample inputs for each span that samples a token"
        );
        if let (Some(logits), false) = (&self.logits, rows.is_empty()) {
            let rows_to_sample = rows.into_iter().zip(inputs).collect();
            let tokens = profile::op(Op::Sample, &[logits], || {
                sample::sample_tokens(logits, rows_to_sample, kernels)
            })?;
            self.tokens = Some(tokens);
        }
        if !self
            .spans
            .iter()
            .any(|span| matches!(span, OutputRows::Rows(..)))
        {
            self.logits = None;
        }
        self.start()
    }

    /// The sampled tokens, and the index of this span's token among them.
    ///
    /// # Panics
    ///
    /// When the step samples no token for the span, which is the caller's error.
    pub(super) fn token(&self, span: usize) -> (&Array, usize) {
        let is_token = |span: &&OutputRows| matches!(span, OutputRows::Token(_));
        let index = self.spans[..span].iter().filter(is_token).count();
        let tokens = self
            .tokens
            .as_ref()
            .filter(|_| is_token(&&self.spans[span]));
        let tokens = tokens.expect("the source span has sampled a token");
        (&tokens.tokens, tokens.token_indices[index])
    }

    pub(super) fn is_ready(&self) -> bool {
        // One stream computes everything, and one of these arrays last.
        let mut arrays = self.arrays().peekable();
        arrays.peek().is_none() || self.is_started() && arrays.all(bridge::is_available)
    }

    /// Waits for the step and reads its outputs.
    pub(super) fn finish(self, stream: &Stream) -> Result<Vec<SpanOutput>, MlxError> {
        transforms::eval(self.arrays())?;
        let failures = bridge::failures(stream)?;
        if failures != self.failures {
            return Err(ModelError::Device(failures.last).into());
        }
        let tokens = self.tokens.map_or(Ok(Vec::new()), Tokens::read)?;
        let mut tokens = tokens.into_iter();
        let logits = self.logits.as_ref();
        let width = logits.map_or(0, |logits| logits.dim(1) as usize);
        let logits = logits.map_or(Ok(&[][..]), |logits| logits.try_as_slice::<f32>())?;
        let span_output = |span: &OutputRows| match *span {
            OutputRows::Nothing => SpanOutput::Nothing,
            OutputRows::Token(_) => tokens.next().expect("every requested token was sampled"),
            OutputRows::Rows(row, rows) => {
                SpanOutput::Logits(logits[row * width..(row + rows) * width].to_vec())
            }
        };
        Ok(self.spans.iter().map(span_output).collect())
    }

    /// All arrays that are built so far.
    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let tokens = self.tokens.as_ref().map(|tokens| &tokens.tokens);
        self.pending.iter().chain(&self.logits).chain(tokens)
    }
}
