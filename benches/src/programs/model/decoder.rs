//! Prefill and decode through the `Model` trait, as the device thread does it.

use std::rc::Rc;
use std::time::Instant;

use motet::TokenId;
use motet::model::Model;
use motet::request::Sampling;
use motet_model::sampling::{SampleInputs, TokenSampling};
use motet_model::{OutputKind, Span, SpanOutput, TokenSource};

use crate::programs::Result;
use crate::protocol::Prefix;

/// Longest span of an untimed prefill: keeps the scores of a long prompt small.
const CHUNK_TOKENS: usize = 512;

/// Sequences that are decoded together.
pub(crate) struct Batch<M: Model> {
    slots: Vec<Slot<M>>,
}

struct Slot<M: Model> {
    path: Vec<Rc<M::Segment>>,
    tail: M::Tail,
    /// The last sampled token, which is evaluated next.
    last: TokenId,
    /// Number of sampled tokens.
    sampled_tokens: u64,
}

/// The time from a prompt to its first token, all in one step, and that token.
pub(crate) fn prefill<M: Model>(model: &mut M, prompt: &[TokenId]) -> Result<(f64, TokenId)> {
    let started = Instant::now();
    let mut slot = Slot::open(model, Vec::new())?;
    let span_outputs = model.step(&mut [slot.span(prompt, true)])?;
    let seconds = started.elapsed().as_secs_f64();
    Ok((seconds, token(&span_outputs[0])?))
}

/// The mean negative log-likelihood of each token of a text after those before it, evaluated in
/// chunks.
pub(crate) fn loss<M: Model>(model: &mut M, text: &[TokenId]) -> Result<f64> {
    let (_, before) = text.split_last().ok_or("no tokens to expect")?;
    let mut slot = Slot::open(model, Vec::new())?;
    let (mut sum, mut next) = (0.0, text[1..].iter());
    for chunk in before.chunks(CHUNK_TOKENS / 4) {
        let mut span = slot.span(chunk, false);
        span.output_kind = OutputKind::Logits;
        let Some(SpanOutput::Logits(logits)) = model.step(&mut [span])?.pop() else {
            return Err("expected logits".into());
        };
        let rows = logits.chunks_exact(logits.len() / chunk.len());
        for (row, next) in rows.zip(&mut next) {
            let expected = f64::from(row[*next as usize]);
            let all: f64 = row.iter().map(|x| (f64::from(*x) - expected).exp()).sum();
            sum += all.ln();
        }
    }
    Ok(sum / before.len() as f64)
}

impl<M: Model> Batch<M> {
    /// Prefills all prompts and samples each sequence's first token.
    pub(crate) fn open(
        model: &mut M,
        prefix: Option<&Prefix>,
        prompts: &[Vec<TokenId>],
    ) -> Result<Self> {
        let mut slots = match prefix {
            None => open_empty(model, prompts.len())?,
            Some(prefix) => open_on_prefix(model, prefix, prompts.len())?,
        };
        for (slot, prompt) in slots.iter_mut().zip(prompts) {
            slot.evaluate(model, prompt)?;
        }
        Ok(Self { slots })
    }

    /// Each sequence's last sampled token.
    pub(crate) fn last_tokens(&self) -> Vec<TokenId> {
        self.slots.iter().map(|slot| slot.last).collect()
    }

    /// Runs decode steps of all sequences. Each is submitted while the one before is computed, as the
    /// device thread does it. Returns their time, and the tokens of each step.
    pub(crate) fn run(&mut self, model: &mut M, steps: usize) -> Result<(f64, Vec<Vec<TokenId>>)> {
        let mut tokens = Vec::with_capacity(steps);
        let started = Instant::now();
        let mut in_flight: Option<M::InFlightStep> = None;
        for _ in 0..steps {
            let mut next = self.submit(model, in_flight.as_ref())?;
            if let Some(before) = in_flight.take() {
                tokens.push(self.finish(model, before)?);
            }
            let inputs = self.slots.iter_mut().map(Slot::next_sampling);
            model.sample(&mut next, inputs.map(SampleInputs::plain).collect())?;
            in_flight = Some(next);
        }
        if let Some(last) = in_flight {
            tokens.push(self.finish(model, last)?);
        }
        Ok((started.elapsed().as_secs_f64(), tokens))
    }

    /// Submits a step after the one in flight.
    fn submit(
        &mut self,
        model: &mut M,
        before: Option<&M::InFlightStep>,
    ) -> Result<M::InFlightStep> {
        let inputs = self.last_tokens();
        let pairs = self.slots.iter_mut().zip(inputs.chunks(1)).enumerate();
        let spans = pairs.map(|(index, (slot, input))| {
            let mut span = slot.span(input, true);
            if let Some(before) = before {
                span.tokens = TokenSource::Sampled(before, index, &[]);
            }
            span
        });
        Ok(model.submit(&mut spans.collect::<Vec<_>>())?)
    }

    /// Waits for a step. Returns its tokens.
    fn finish(&mut self, model: &mut M, step: M::InFlightStep) -> Result<Vec<TokenId>> {
        let span_outputs = model.finish(step)?;
        for (slot, span_output) in self.slots.iter_mut().zip(&span_outputs) {
            slot.last = token(span_output)?;
        }
        Ok(self.last_tokens())
    }
}

impl<M: Model> Slot<M> {
    fn open(model: &mut M, path: Vec<Rc<M::Segment>>) -> Result<Self> {
        let tail = model.tail(&path, 0)?;
        Ok(Self::with_tail(path, tail))
    }

    fn with_tail(path: Vec<Rc<M::Segment>>, tail: M::Tail) -> Self {
        Self {
            path,
            tail,
            last: 0,
            sampled_tokens: 0,
        }
    }

    /// How the token after the samples so far is sampled.
    fn sampling(&self) -> TokenSampling {
        TokenSampling {
            sampling: Sampling::GREEDY,
            position: self.sampled_tokens,
        }
    }

    /// The same, for a token that is a sample from now on.
    fn next_sampling(&mut self) -> TokenSampling {
        let sampling = self.sampling();
        self.sampled_tokens += 1;
        sampling
    }

    fn span<'a>(&'a mut self, tokens: &'a [TokenId], sample: bool) -> Span<'a, M> {
        let sample = sample.then_some(self.sampling());
        Span {
            tokens: TokenSource::Known(tokens),
            path: &self.path,
            tail: &mut self.tail,
            output_kind: sample.map_or(OutputKind::Nothing, OutputKind::Token),
        }
    }

    /// Evaluates the tokens and samples the next one.
    fn evaluate(&mut self, model: &mut M, tokens: &[TokenId]) -> Result<()> {
        let chunks = tokens.chunks(CHUNK_TOKENS);
        let last = chunks.len().checked_sub(1).ok_or("no tokens to evaluate")?;
        for (index, chunk) in chunks.enumerate() {
            let span_outputs = model.step(&mut [self.span(chunk, index == last)])?;
            if index == last {
                self.push_sampled(token(&span_outputs[0])?);
            }
        }
        Ok(())
    }

    fn push_sampled(&mut self, token: TokenId) {
        self.last = token;
        self.sampled_tokens += 1;
    }
}

fn open_empty<M: Model>(model: &mut M, count: usize) -> Result<Vec<Slot<M>>> {
    (0..count).map(|_| Slot::open(model, Vec::new())).collect()
}

fn open_on_prefix<M: Model>(model: &mut M, prefix: &Prefix, count: usize) -> Result<Vec<Slot<M>>> {
    let tokens = prefix.tokens.len();
    let mut first = Slot::open(model, Vec::new())?;
    first.evaluate(model, &prefix.tokens)?;
    let path = [Rc::new(model.seal(&mut first.tail, tokens)?)];
    if prefix.shared {
        return (0..count)
            .map(|_| Slot::open(model, path.to_vec()))
            .collect();
    }
    let copy = |_| {
        let mut tail = model.tail(&path, 0)?;
        // Removes nothing: the sealed state is copied into the tail.
        model.remove(&path, 0, &mut tail, tokens..tokens)?;
        Ok(Slot::with_tail(Vec::new(), tail))
    };
    (0..count).map(copy).collect()
}

fn token(span_output: &SpanOutput) -> Result<TokenId> {
    match span_output {
        SpanOutput::Token(token) => Ok(*token),
        other => Err(format!("expected a token, got {other:?}").into()),
    }
}
