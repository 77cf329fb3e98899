//! A model whose samples a script replaces.

use std::sync::{Arc, Mutex, PoisonError};

use motet::TokenId;
use motet_model::sampling::SampleInputs;
use motet_model::{Model, Span, TokenSource};
use motet_protocol::{
    DeviceMemory, ModelError, ModelSpec, SampledToken, SpanOutput, TokenSampling,
};

use super::Script;

/// The scripts of the sequences, by their seeds.
#[derive(Clone, Debug, Default)]
pub(super) struct Scripts(Arc<Mutex<Vec<Script>>>);

/// A model that computes everything, and then says the script's tokens.
pub(super) struct Scripted<M> {
    model: M,
    scripts: Scripts,
}

/// A step of such a model, with the tokens that it says for each span.
#[derive(Debug)]
pub(super) struct ScriptedStep<S> {
    step: S,
    said: Vec<Vec<TokenId>>,
}

impl Scripts {
    /// Replaces the scripts. A sequence with seed `n` follows the script with index `n`.
    pub(super) fn set(&self, scripts: Vec<Script>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = scripts;
    }

    /// The token at a position of a sequence; any token after the end of its script.
    fn token(&self, sample: TokenSampling) -> TokenId {
        let scripts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let script = scripts.get(sample.sampling.seed as usize);
        let token = script.and_then(|script| {
            let index = (sample.position as usize).checked_sub(script.prompt.len())?;
            script.output.get(index)
        });
        token.copied().unwrap_or(1)
    }
}

impl<M> Scripted<M> {
    pub(super) fn new(model: M, scripts: Scripts) -> Self {
        Self { model, scripts }
    }
}

impl<M: Model> Model for Scripted<M> {
    type Segment = M::Segment;
    type Tail = M::Tail;
    type InFlightStep = ScriptedStep<M::InFlightStep>;
    type Packer = M::Packer;

    fn spec(&self) -> &ModelSpec {
        self.model.spec()
    }

    motet_testkit::forward_state!();

    fn submit(&mut self, spans: &mut [Span<'_, Self>]) -> Result<Self::InFlightStep, ModelError> {
        let said = spans.iter().map(|span| {
            let samples = span.samples();
            samples.map(|sample| self.scripts.token(sample)).collect()
        });
        let said: Vec<Vec<TokenId>> = said.collect();
        // The token of the step in flight is the script's, so the device does not have it.
        let tokens: Vec<Vec<TokenId>> = spans.iter().map(|span| known(&span.tokens)).collect();
        let mut inner: Vec<Span<'_, M>> = spans
            .iter_mut()
            .zip(&tokens)
            .map(|(span, tokens)| Span {
                tokens: TokenSource::Known(tokens),
                path: span.path,
                tail: &mut *span.tail,
                output_kind: span.output_kind.clone(),
            })
            .collect();
        let step = self.model.submit(&mut inner)?;
        Ok(ScriptedStep { step, said })
    }

    fn sample(
        &mut self,
        in_flight: &mut Self::InFlightStep,
        inputs: Vec<SampleInputs>,
    ) -> Result<(), ModelError> {
        self.model.sample(&mut in_flight.step, inputs)
    }

    fn is_ready(&self, in_flight: &Self::InFlightStep) -> bool {
        self.model.is_ready(&in_flight.step)
    }

    fn finish(&mut self, in_flight: Self::InFlightStep) -> Result<Vec<SpanOutput>, ModelError> {
        let mut outputs = self.model.finish(in_flight.step)?;
        for (output, said) in outputs.iter_mut().zip(in_flight.said) {
            match output {
                SpanOutput::Token(token) => *token = said[0],
                SpanOutput::Verified(sampled) => {
                    let said = said.into_iter().map(|token| SampledToken {
                        token,
                        logprobs: None,
                    });
                    *sampled = said.collect();
                }
                _ => {}
            }
        }
        Ok(outputs)
    }

    fn memory(&self) -> DeviceMemory {
        self.model.memory()
    }
}

/// The tokens of a span, of which the script of the step in flight may say the first.
fn known<M: Model>(tokens: &TokenSource<'_, Scripted<M>>) -> Vec<TokenId> {
    match *tokens {
        TokenSource::Known(tokens) => tokens.to_vec(),
        TokenSource::Sampled(in_flight, span, draft) => {
            [&in_flight.said[span][..1], draft].concat()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet::model::oracle::{Oracle, OracleConfig};
    use motet_protocol::{OutputKind, Sampling};

    #[test]
    fn sampled_tokens_are_those_of_the_script() {
        let scripts = Scripts::default();
        let script = |output: &[TokenId]| Script {
            prompt: vec![1],
            output: output.to_vec(),
        };
        scripts.set(vec![script(&[5, 6, 7]), script(&[8, 9])]);
        let oracle = Oracle::new(OracleConfig::default()).unwrap();
        let mut model = Scripted::new(oracle, scripts);
        let mut tail = model.tail(&[], 8).unwrap();
        let sampling = |seed| Sampling {
            seed,
            ..Sampling::GREEDY
        };
        let mut step = |tokens: &[TokenId], output_kind| {
            let mut spans = [Span {
                tokens: tokens.into(),
                path: &[],
                tail: &mut tail,
                output_kind,
            }];
            model.step(&mut spans).unwrap().remove(0)
        };
        // The prompt has one token.
        let first = |seed, index: u64| TokenSampling {
            sampling: sampling(seed),
            position: 1 + index,
        };
        assert_eq!(
            step(&[1, 2], OutputKind::Token(first(1, 1))),
            SpanOutput::Token(9)
        );
        let verified = step(&[9, 3], OutputKind::Verify(first(0, 1)));
        assert_eq!(verified.tokens().collect::<Vec<_>>(), [6, 7]);
    }
}
