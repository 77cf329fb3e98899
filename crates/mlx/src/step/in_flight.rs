//! In-flight steps.

use std::ops::Range;
use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream, transforms};

use super::prompt_logprobs::PromptLogprobs;
use super::sample::{self, Tokens};
use crate::device::bridge::{self, Failures};
use crate::device::profile::{self, Op};
use crate::error::MlxError;
use crate::state::batch_rows::BatchRows;
use motet_model::sampling::SampleInputs;
use motet_protocol::{ModelError, OutputKind, SpanOutput};

/// A step in flight on the device.
#[derive(Debug)]
pub struct MlxInFlightStep {
    spans: Vec<OutputRows>,
    results: StepResults,
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

/// The results of a step's last rows, but for the sampled tokens.
#[derive(Debug, Default)]
pub(crate) struct StepResults {
    /// `[output rows, vocab]`, where any logits are needed. None once tokens are sampled from
    /// all of them.
    pub(crate) logits: Option<Array>,
    /// Log probabilities of all targets.
    pub(crate) prompt_logprobs: Option<PromptLogprobs>,
    /// `[hidden rows, hidden]`, in single precision.
    pub(crate) hidden: Option<Array>,
    /// The factor of these hidden states.
    pub(crate) state_scale: f32,
}

/// The output that a span needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputRows {
    Nothing,
    /// A token sampled from this row of the logits.
    Token(usize),
    /// A token sampled from each of so many rows of the logits, from this one on.
    Verify(usize, usize),
    /// A first row of the logits and a number of rows.
    Rows(usize, usize),
    /// Log probabilities of so many targets, and a token sampled from this row of the logits.
    Scored(usize, Option<usize>),
    /// The sum of so many hidden rows.
    Hidden(usize),
}

impl OutputRows {
    /// The rows of the logits that tokens are sampled from.
    fn sampled(&self) -> Range<usize> {
        match *self {
            Self::Token(row) | Self::Scored(_, Some(row)) => row..row + 1,
            Self::Verify(row, rows) => row..row + rows,
            Self::Nothing | Self::Rows(..) | Self::Scored(_, None) | Self::Hidden(_) => 0..0,
        }
    }
}

impl MlxInFlightStep {
    /// An in-flight step of `batch`, not sampled yet.
    pub(crate) fn new(
        batch: &BatchRows,
        output_kinds: &[OutputKind],
        results: StepResults,
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
                OutputKind::Verify(_) => {
                    row += rows;
                    OutputRows::Verify(first, rows)
                }
                OutputKind::Logits => {
                    row += rows;
                    OutputRows::Rows(first, rows)
                }
                OutputKind::PromptLogprobs(scored) => {
                    row += usize::from(scored.token.is_some());
                    OutputRows::Scored(scored.targets.len(), scored.token.map(|_| first))
                }
                OutputKind::HiddenSum(hidden) => OutputRows::Hidden(hidden.len()),
            }
        };
        let spans = batch.spans.iter().map(|span| span.rows.len());
        Self {
            spans: output_kinds
                .iter()
                .zip(spans)
                .map(&mut output_rows)
                .collect(),
            results,
            pending,
            tokens: None,
            is_pending: true,
            failures,
            _steps_in_flight: steps_in_flight,
        }
    }

    /// Submits everything that is built so far to the device, without waiting for it.
    pub(crate) fn start(&mut self) -> Result<(), Exception> {
        self.is_pending = false;
        transforms::async_eval(self.arrays())
    }

    /// Whether the step has been submitted to the device.
    pub(crate) fn is_started(&self) -> bool {
        !self.is_pending
    }

    /// Samples tokens, by the kernel if there is a stream for it.
    pub(crate) fn sample(
        &mut self,
        inputs: Vec<SampleInputs>,
        kernels: Option<&Stream>,
    ) -> Result<(), Exception> {
        let rows = self.spans.iter().flat_map(OutputRows::sampled);
        let rows: Vec<u32> = rows.map(|row| row as u32).collect();
        assert_eq!(
            rows.len(),
            inputs.len(),
            "sample inputs for each token to sample"
        );
        if let (Some(logits), false) = (&self.results.logits, rows.is_empty()) {
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
            self.results.logits = None;
        }
        self.start()
    }

    /// The sampled tokens, and the index of this span's token among them.
    ///
    /// # Panics
    ///
    /// When the step samples no token for the span, which is the caller's error.
    pub(crate) fn token(&self, span: usize) -> (&Array, usize) {
        let sampled = self.spans[..span].iter().map(OutputRows::sampled);
        let index = sampled.map(|rows| rows.len()).sum::<usize>();
        let is_token = self.spans[span].sampled().len() == 1;
        let tokens = self.tokens.as_ref().filter(|_| is_token);
        let tokens = tokens.expect("the source span has sampled a token");
        (&tokens.tokens, tokens.token_indices[index])
    }

    pub(crate) fn is_ready(&self) -> bool {
        // One stream computes everything, and one of these arrays last.
        let mut arrays = self.arrays().peekable();
        arrays.peek().is_none() || self.is_started() && arrays.all(bridge::is_available)
    }

    /// Waits for the step and reads its outputs.
    pub(crate) fn finish(self, stream: &Stream) -> Result<Vec<SpanOutput>, MlxError> {
        transforms::eval(self.arrays())?;
        let failures = bridge::failures(stream)?;
        if failures != self.failures {
            return Err(ModelError::Device(failures.last).into());
        }
        let tokens = self.tokens.map_or(Ok(Vec::new()), Tokens::read)?;
        let mut tokens = tokens.into_iter();
        let mut sampled = || tokens.next().expect("every requested token was sampled");
        let results = self.results;
        let scored = results.prompt_logprobs;
        let scored = scored.map_or(Ok(Vec::new()), PromptLogprobs::read)?;
        let mut scored = scored.into_iter();
        let mut hidden = HiddenRows::new(results.hidden.as_ref(), results.state_scale)?;
        let logits = results.logits.as_ref();
        let width = logits.map_or(0, |logits| logits.dim(1) as usize);
        let logits = logits.map_or(Ok(&[][..]), |logits| logits.try_as_slice::<f32>())?;
        let span_output = |span: &OutputRows| match *span {
            OutputRows::Nothing => SpanOutput::Nothing,
            OutputRows::Token(_) => sampled().into(),
            OutputRows::Verify(_, rows) => {
                SpanOutput::Verified((0..rows).map(|_| sampled().into()).collect())
            }
            OutputRows::Rows(row, rows) => {
                SpanOutput::Logits(logits[row * width..(row + rows) * width].to_vec())
            }
            OutputRows::Scored(targets, token) => {
                let logprobs = scored.by_ref().take(targets).collect();
                SpanOutput::PromptLogprobs(logprobs, token.map(|_| Box::new(sampled().into())))
            }
            OutputRows::Hidden(rows) => SpanOutput::HiddenSum(hidden.sum(rows)),
        };
        Ok(self.spans.iter().map(span_output).collect())
    }

    /// All arrays that are built so far.
    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let tokens = self.tokens.as_ref().map(|tokens| &tokens.tokens);
        let results = &self.results;
        let scored = results.prompt_logprobs.iter();
        let scored = scored.flat_map(PromptLogprobs::arrays);
        let in_order = self.pending.iter().chain(&results.logits).chain(scored);
        in_order.chain(&results.hidden).chain(tokens)
    }
}

/// Hidden rows on the host, of which each span takes its own in turn.
struct HiddenRows<'a> {
    rows: std::slice::ChunksExact<'a, f32>,
    width: usize,
    scale: f64,
}

impl<'a> HiddenRows<'a> {
    fn new(hidden: Option<&'a Array>, scale: f32) -> Result<Self, MlxError> {
        let width = hidden.map_or(1, |hidden| hidden.dim(1) as usize);
        let numbers = hidden.map_or(Ok(&[][..]), |hidden| hidden.try_as_slice::<f32>())?;
        Ok(Self {
            rows: numbers.chunks_exact(width),
            width,
            scale: f64::from(scale),
        })
    }

    /// The sum of the next rows, in their order and in double precision.
    fn sum(&mut self, rows: usize) -> Vec<f64> {
        let mut sums = vec![0.0; self.width];
        for row in self.rows.by_ref().take(rows) {
            for (sum, number) in sums.iter_mut().zip(row) {
                *sum += f64::from(*number) / self.scale;
            }
        }
        sums
    }
}
