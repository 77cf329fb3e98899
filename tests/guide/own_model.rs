use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use motet::TokenId;
use motet_model::sampling::{SampleInputs, prompt_logprobs};
use motet_model::{
    DeviceMemory, Model, ModelError, ModelSpec, NoPacker, OutputKind, Segment, SegmentSize, Span,
    SpanOutput, Tail, TokenSource, preconditions,
};

/// Reads one token a line. Errors of other libraries become `ModelError::Other`.
fn load(spec: ModelSpec, file: &Path) -> Result<Table, ModelError> {
    let text = std::fs::read_to_string(file).map_err(ModelError::other)?;
    let successors: Result<_, _> = text.lines().map(str::parse).collect();
    let successors = successors.map_err(ModelError::other)?;
    Ok(Table { spec, successors })
}

/// Predicts for each token the one that follows it in a table.
struct Table {
    spec: ModelSpec,
    successors: Vec<TokenId>,
}

impl Table {
    fn logits(&self, token: TokenId) -> Vec<f32> {
        let mut logits = vec![0.0; self.spec.vocab_size];
        logits[self.successors[token as usize] as usize] = 1.0;
        logits
    }
}

/// Cached state: the tokens themselves, 4 bytes each. A real model has keys and values.
struct Cached {
    tokens: Vec<TokenId>,
    /// Tokens that followed them when the state was taken.
    state_lag: usize,
}

impl Segment for Cached {
    fn segment_size(&self) -> SegmentSize {
        let (tokens, state_lag) = (self.tokens.len(), self.state_lag);
        SegmentSize { tokens, state_lag }
    }

    fn bytes(&self) -> usize {
        4 * self.tokens.len()
    }
}

impl Tail for Cached {
    fn tokens(&self) -> usize {
        self.tokens.len()
    }

    fn bytes(&self) -> usize {
        4 * self.tokens.len()
    }
}

#[derive(Debug, Default)]
struct InFlight {
    outputs: Vec<SpanOutput>,
    /// Spans that want a token, with their last rows.
    to_sample: Vec<(usize, Vec<f32>)>,
}

impl Model for Table {
    type Segment = Cached;
    type Tail = Cached;
    type InFlightStep = InFlight;
    type Packer = NoPacker; // no offload: `export` and `import` stay as they are

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn tail(&mut self, _path: &[Rc<Cached>], _tokens: usize) -> Result<Cached, ModelError> {
        let (tokens, state_lag) = (Vec::new(), 0);
        Ok(Cached { tokens, state_lag })
    }

    fn submit(&mut self, spans: &mut [Span<'_, Self>]) -> Result<InFlight, ModelError> {
        let mut in_flight = InFlight::default();
        for span in spans {
            let tokens = match span.tokens {
                TokenSource::Known(tokens) => tokens.to_vec(),
                TokenSource::Sampled(step, from, _) => {
                    vec![step.outputs[from].token().expect("sampled")]
                }
            };
            if span.output_kind.token_sampling().is_some() {
                let last = *tokens.last().expect("a span has tokens");
                let sampled = (in_flight.outputs.len(), self.logits(last));
                in_flight.to_sample.push(sampled);
            }
            let rows = tokens.iter().map(|token| self.logits(*token));
            in_flight.outputs.push(match &span.output_kind {
                OutputKind::Nothing | OutputKind::Token(_) => SpanOutput::Nothing,
                OutputKind::Logits => SpanOutput::Logits(rows.flatten().collect()),
                OutputKind::PromptLogprobs(scored) => {
                    let logits: Vec<f32> = rows.skip(scored.first).flatten().collect();
                    let logprobs = prompt_logprobs(&logits, self.spec.vocab_size, scored);
                    SpanOutput::PromptLogprobs(logprobs, None)
                }
                OutputKind::HiddenSum(_) => unreachable!("`hidden_size` is 0"),
                OutputKind::Verify(_) => unreachable!("`draft_tokens_max` is 0"),
            });
            span.tail.tokens.extend(tokens);
        }
        Ok(in_flight)
    }

    fn sample(&mut self, step: &mut InFlight, inputs: Vec<SampleInputs>) -> Result<(), ModelError> {
        for ((index, row), inputs) in step.to_sample.drain(..).zip(inputs) {
            step.outputs[index].replace_token(inputs.from_logits(&row).into());
        }
        Ok(())
    }

    fn is_ready(&self, _step: &InFlight) -> bool {
        true
    }

    fn finish(&mut self, step: InFlight) -> Result<Vec<SpanOutput>, ModelError> {
        Ok(step.outputs)
    }

    fn seal(&mut self, tail: &mut Cached, tokens: usize) -> Result<Cached, ModelError> {
        preconditions::seal(tail.tokens.len(), tokens)?;
        let tokens = tail.tokens.drain(..tokens).collect();
        let state_lag = tail.tokens.len();
        Ok(Cached { tokens, state_lag })
    }

    fn seal_in_place(&mut self, tail: Cached, tokens: Range<usize>) -> Result<Cached, ModelError> {
        preconditions::seal_in_place(tail.tokens.len(), &tokens)?;
        let state_lag = tail.tokens.len() - tokens.end;
        let tokens = tail.tokens[tokens].to_vec();
        Ok(Cached { tokens, state_lag })
    }

    fn split(&mut self, segment: &Cached, at: usize) -> Result<(Cached, Cached), ModelError> {
        preconditions::split(segment.tokens.len(), at)?;
        let (upper_size, lower_size) = segment.segment_size().cut(at);
        let (upper, lower) = segment.tokens.split_at(at);
        let part = |tokens: &[TokenId], size: SegmentSize| Cached {
            tokens: tokens.to_vec(),
            state_lag: size.state_lag,
        };
        Ok((part(upper, upper_size), part(lower, lower_size)))
    }

    fn merge(&mut self, upper: &Cached, lower: &Cached) -> Result<Cached, ModelError> {
        preconditions::merge(&self.spec, upper.segment_size(), lower.segment_size())?;
        let tokens = [&upper.tokens[..], &lower.tokens].concat();
        let state_lag = lower.state_lag;
        Ok(Cached { tokens, state_lag })
    }

    fn remove(
        &mut self,
        path: &[Rc<Cached>],
        retained: usize,
        tail: &mut Cached,
        removed: Range<usize>,
    ) -> Result<(), ModelError> {
        let tokens: Vec<usize> = path.iter().map(|segment| segment.tokens.len()).collect();
        preconditions::remove(&self.spec, &tokens, retained, tail.tokens.len(), &removed)?;
        let first: usize = tokens[..retained].iter().sum();
        let unsealed = path[retained..].iter().map(|segment| &segment.tokens);
        let mut rest: Vec<TokenId> = unsealed.chain([&tail.tokens]).flatten().copied().collect();
        rest.drain(removed.start - first..removed.end - first);
        tail.tokens = rest;
        Ok(())
    }

    fn packer(&self) -> NoPacker {
        NoPacker
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory::default()
    }
}

// The guide shows what stands above.

use motet::config::EngineConfig;
use motet::error::StartError;
use motet::{Engine, Request, Shutdown};
use motet_model::{LayerGroup, LayerKind, conformance};

fn spec() -> ModelSpec {
    ModelSpec {
        name: "a table".into(),
        vocab_size: 10,
        hidden_size: 0,
        context_tokens_max: 256,
        end_tokens: Vec::new(),
        layer_groups: vec![LayerGroup {
            kind: LayerKind::Full,
            layers: 1,
            bytes: 4,
        }],
        tail_block_tokens: 1,
        can_shift: true,
        scratch_bytes_per_token: 0,
        overlap_tokens_max: 64,
        draft_tokens_max: 0,
    }
}

/// Each digit is followed by the next.
fn digits() -> Table {
    let (spec, successors) = (spec(), (0..10).map(|token| (token + 1) % 10).collect());
    Table { spec, successors }
}

#[test]
fn the_model_keeps_its_contract() {
    let prompts = [vec![3, 1, 4, 1, 5, 9], vec![2, 7, 1, 8, 2, 8, 1, 8]];
    conformance::check(&mut digits(), &prompts, |a, b| a == b);
}

#[tokio::test]
async fn an_engine_runs_the_model_and_rejects_what_it_does_not_support() {
    let engine = Engine::builder(|| Ok(digits())).start().await;
    let engine = engine.expect("it starts without offload");
    let request = Request::tokens([1, 2, 3]).output_tokens_max(4);
    let stream = engine.submit(request).await.expect("it is admitted");
    assert_eq!(
        stream.collect().await.expect("an output").tokens,
        [4, 5, 6, 7]
    );
    engine.shutdown(Shutdown::Abort).await;

    let mut config = EngineConfig::default();
    config.pager.host_bytes_max = 1 << 20;
    let builder = Engine::builder(|| Ok(digits())).config(config);
    let error = builder.start().await.expect_err("offload needs exports");
    let is_missing = matches!(error, StartError::Model(ModelError::NotSupported { .. }));
    assert!(is_missing, "{error}");
}

#[tokio::test]
async fn a_foreign_error_keeps_its_source() {
    let build = || load(spec(), Path::new("no such table"));
    let error = Engine::builder(build).start().await;
    let error = error.expect_err("there is no such file");
    let StartError::Model(ModelError::Other(cause)) = error else {
        panic!("{error}");
    };
    let cause = cause.downcast::<std::io::Error>();
    let cause = cause.expect("the error of the system");
    assert_eq!(cause.kind(), std::io::ErrorKind::NotFound);
}
