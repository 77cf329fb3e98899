//! Steps under way.

use std::rc::Rc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream, transforms};

use super::batch::Batch;
use super::bridge::{self, Failures};
use super::profile::{self, Op};
use super::sample::{self, Tokens};
use crate::error::MlxError;
use motet_core::protocol::{ModelError, Readout, Want};
use motet_model::sampling::Drawing;

/// A step that the device computes.
#[derive(Debug)]
pub struct MlxFlight {
    spans: Vec<Wanted>,
    /// `[wanted rows, vocab]`, where any is wanted. None once all are drawn from.
    logits: Option<Array>,
    /// What writes the tails.
    pending: Vec<Array>,
    tokens: Option<Tokens>,
    /// Whether the device has not been told of it yet.
    waits: bool,
    /// What had failed before it was launched.
    failures: Failures,
    /// Held by each flight.
    _in_air: Rc<()>,
}

/// What a span wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Nothing,
    /// A token drawn from this row of the logits.
    Token(usize),
    /// So many rows of the logits from this one on.
    Rows(usize, usize),
}

impl MlxFlight {
    /// A flight of `batch`, not drawn.
    pub(super) fn new(
        batch: &Batch,
        wants: &[Want],
        logits: Option<Array>,
        pending: Vec<Array>,
        failures: Failures,
        in_air: Rc<()>,
    ) -> Self {
        let mut row = 0;
        let mut wanted = |(want, rows): (&Want, usize)| {
            let first = row;
            match want {
                Want::Nothing => Wanted::Nothing,
                Want::Token(_) => {
                    row += 1;
                    Wanted::Token(first)
                }
                Want::Logits => {
                    row += rows;
                    Wanted::Rows(first, rows)
                }
            }
        };
        let spans = batch.spans.iter().map(|span| span.rows.len());
        Self {
            spans: wants.iter().zip(spans).map(&mut wanted).collect(),
            logits,
            pending,
            tokens: None,
            waits: true,
            failures,
            _in_air: in_air,
        }
    }

    /// Tells the device of all that is to be computed by now, without waiting for it.
    pub(super) fn start(&mut self) -> Result<(), Exception> {
        self.waits = false;
        transforms::async_eval(self.arrays())
    }

    /// Whether the device has been told of it.
    pub(super) fn is_started(&self) -> bool {
        !self.waits
    }

    /// Has tokens drawn, by the kernel where there is a stream for it.
    pub(super) fn draw(
        &mut self,
        drawings: Vec<Drawing>,
        kernels: Option<&Stream>,
    ) -> Result<(), Exception> {
        let rows = self.spans.iter().filter_map(|span| match span {
            Wanted::Token(row) => Some(*row as u32),
            Wanted::Nothing | Wanted::Rows(..) => None,
        });
        let rows: Vec<u32> = rows.collect();
        assert_eq!(
            rows.len(),
            drawings.len(),
            "a drawing for each wanted token"
        );
        if let (Some(logits), false) = (&self.logits, rows.is_empty()) {
            let draws = rows.into_iter().zip(drawings).collect();
            let tokens = profile::op(Op::Draw, &[logits], || sample::draw(logits, draws, kernels))?;
            self.tokens = Some(tokens);
        }
        if !self
            .spans
            .iter()
            .any(|span| matches!(span, Wanted::Rows(..)))
        {
            self.logits = None;
        }
        self.start()
    }

    /// The tokens that are drawn, and where among them is that of this span.
    ///
    /// # Panics
    ///
    /// When it draws none: the caller's mistake.
    pub(super) fn token(&self, span: usize) -> (&Array, usize) {
        let is_token = |span: &&Wanted| matches!(span, Wanted::Token(_));
        let draw = self.spans[..span].iter().filter(is_token).count();
        let tokens = self
            .tokens
            .as_ref()
            .filter(|_| is_token(&&self.spans[span]));
        let tokens = tokens.expect("a span is fed by one that has drawn");
        (&tokens.tokens, tokens.places[draw])
    }

    pub(super) fn is_ready(&self) -> bool {
        // One stream computes all, and this last.
        let tokens = self.tokens.as_ref().map(|tokens| &tokens.tokens);
        let last = tokens.or(self.logits.as_ref()).or(self.pending.last());
        last.is_none_or(|last| self.is_started() && bridge::is_available(last))
    }

    /// Waits, and reads what was wanted.
    pub(super) fn land(self, stream: &Stream) -> Result<Vec<Readout>, MlxError> {
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
        let readout = |span: &Wanted| match *span {
            Wanted::Nothing => Readout::Nothing,
            Wanted::Token(_) => tokens.next().expect("every wanted token was drawn"),
            Wanted::Rows(row, rows) => {
                Readout::Logits(logits[row * width..(row + rows) * width].to_vec())
            }
        };
        Ok(self.spans.iter().map(readout).collect())
    }

    /// All that is to be computed by now.
    fn arrays(&self) -> impl Iterator<Item = &Array> {
        let tokens = self.tokens.as_ref().map(|tokens| &tokens.tokens);
        self.pending.iter().chain(&self.logits).chain(tokens)
    }
}
