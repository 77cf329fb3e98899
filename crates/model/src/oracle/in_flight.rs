//! In-flight steps on a simulated device.
//!
//! A step is computed as it is submitted. Only the simulated device takes time; it works on one
//! step after another. A step is ready when its own cost has passed since its submission, or
//! since the step before it was ready, whichever came later.

use std::thread;
use std::time::{Duration, Instant};

use super::vocabulary::Vocabulary;
use crate::sampling::SampleInputs;
use motet_protocol::TokenId;
use motet_protocol::time::countable;
use motet_protocol::{ModelError, SpanOutput, TokenLogprobs};

/// Shorter waits are spun, since a sleep overshoots by about as much.
const SLEEP_MIN: Duration = Duration::from_micros(100);

/// An in-flight step of the oracle.
#[derive(Debug)]
pub struct OracleInFlightStep {
    pub(super) span_results: Vec<SpanResult>,
    pub(super) ready: Ready,
    /// The injected fault that `finish` returns.
    pub(super) fault: Option<ModelError>,
}

/// The result of a span.
#[derive(Debug)]
pub(super) enum SpanResult {
    /// The output is known since the submission.
    Known(SpanOutput),
    /// A token is to be sampled from the logits of this row, and goes with log probabilities of
    /// the prompt if there are any.
    ToSample(u64, Option<Vec<TokenLogprobs>>),
    /// A token is to be sampled from the logits of each of these rows.
    ToVerify(Vec<u64>),
}

/// Time at which a step is ready; a step without a cost always is, whatever the clock says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ready(Option<Instant>);

impl OracleInFlightStep {
    /// The token that was sampled for this span.
    ///
    /// # Panics
    ///
    /// When the span asked for no token, or the step was not sampled: the caller's mistake.
    pub(super) fn token(&self, span: usize) -> TokenId {
        let span_output = match &self.span_results[span] {
            SpanResult::Known(span_output) => span_output.token(),
            SpanResult::ToSample(..) | SpanResult::ToVerify(_) => None,
        };
        span_output.expect("the source span has a sampled token")
    }

    pub(super) fn sample(&mut self, vocabulary: &Vocabulary, inputs: Vec<SampleInputs>) {
        let mut inputs = inputs.into_iter();
        for span_result in &mut self.span_results {
            let mut sample = |row: &u64| {
                let sample_inputs = inputs.next().expect("one input for each token to sample");
                vocabulary.sample(*row, &sample_inputs)
            };
            *span_result = SpanResult::Known(match span_result {
                SpanResult::Known(_) => continue,
                SpanResult::ToSample(row, logprobs) => match logprobs.take() {
                    None => sample(row).into(),
                    Some(logprobs) => {
                        SpanOutput::PromptLogprobs(logprobs, Some(Box::new(sample(row).into())))
                    }
                },
                SpanResult::ToVerify(rows) => {
                    let sampled = rows.iter().map(|row| sample(row).into());
                    SpanOutput::Verified(sampled.collect())
                }
            });
        }
        let surplus = inputs.next();
        assert!(surplus.is_none(), "one input for each token to sample");
    }

    pub(super) fn span_outputs(self) -> Vec<SpanOutput> {
        let known = |span_result| match span_result {
            SpanResult::Known(span_output) => span_output,
            SpanResult::ToSample(..) | SpanResult::ToVerify(_) => {
                panic!("a step is sampled before it finishes")
            }
        };
        self.span_results.into_iter().map(known).collect()
    }
}

impl Ready {
    /// The time at which work of this `cost` ends, after this one.
    pub(super) fn and(self, cost: Duration) -> Ready {
        if cost.is_zero() {
            return self;
        }
        let now = Instant::now();
        let begins = self.0.map_or(now, |ready| ready.max(now));
        Ready(Some(begins.checked_add(countable(cost)).expect("a moment")))
    }

    pub(super) fn is_now(self) -> bool {
        self.0.is_none_or(|ready| ready <= Instant::now())
    }

    pub(super) fn wait(self) {
        let Some(ready) = self.0 else {
            return;
        };
        let left = ready.saturating_duration_since(Instant::now());
        if left >= SLEEP_MIN {
            thread::sleep(left);
        }
        while Instant::now() < ready {
            std::hint::spin_loop();
        }
    }
}
