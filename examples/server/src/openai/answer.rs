//! Answers, complete or as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use motet::request::{FinishReason, TokenLogprobs, Usage};
use motet::text::TextCodec;
use motet::{Request, TokenId};
use serde_json::{Map, Value, json};

use super::parameters::Delivery;
use crate::app::{App, now};
use crate::error::ApiError;
use crate::generate::{Event, OutputStreams, finish_reason};
use crate::keys::Caller;
use crate::log::RequestLog;

/// After this time without output, a comment keeps the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The form of an endpoint's answers.
pub(crate) trait Shape: Send + 'static {
    /// The prefix of the answer's id.
    const PREFIX: &'static str;
    /// The `object` of a whole answer.
    const WHOLE: &'static str;
    /// The `object` of a part.
    const PART: &'static str;

    /// The first part of an output's stream, if the endpoint has one.
    fn first(&self, number: usize) -> Option<Map<String, Value>>;
    /// A part with more text.
    fn part(&self, text: &str, logprobs: Option<Value>) -> Map<String, Value>;
    /// The last part, without text.
    fn last(&self) -> Map<String, Value>;
    /// The complete output.
    fn whole(&self, number: usize, text: &str, logprobs: Option<Value>) -> Map<String, Value>;
    /// Log probabilities of tokens; `after` is the number of output characters before them.
    fn logprobs(&self, text: &TextCodec, sent: &[(TokenId, TokenLogprobs)], after: usize) -> Value;
}

/// One output so far.
#[derive(Debug, Default)]
struct Output {
    text: String,
    logprobs: Vec<(TokenId, TokenLogprobs)>,
    /// Characters whose tokens' log probabilities were sent.
    sent: usize,
    ended: Option<FinishReason>,
}

/// The number of outputs of each prompt, and of those that are kept.
#[derive(Clone, Copy, Debug)]
struct BestOf {
    n: usize,
    candidates_per_prompt: usize,
}

impl BestOf {
    /// The outputs with the highest mean log probability per token, the best first.
    fn best(self, outputs: Vec<Output>) -> Vec<Output> {
        let mut outputs = outputs.into_iter();
        let mut chosen = Vec::new();
        while outputs.len() > 0 {
            let mut candidates: Vec<Output> =
                outputs.by_ref().take(self.candidates_per_prompt).collect();
            candidates.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
            candidates.truncate(self.n);
            chosen.extend(candidates);
        }
        chosen
    }
}

impl Output {
    /// The lowest value if there are no tokens.
    fn mean_logprob(&self) -> f64 {
        let logprobs = self.logprobs.iter();
        let sum: f64 = logprobs
            .map(|(_, logprobs)| f64::from(logprobs.logprob))
            .sum();
        match self.logprobs.len() {
            0 => f64::NEG_INFINITY,
            tokens => sum / tokens as f64,
        }
    }
}

/// The common fields of all parts of an answer.
#[derive(Debug)]
struct Head {
    app: Arc<App>,
    id: String,
    created: u64,
    has_logprobs: bool,
}

impl Head {
    fn new<S: Shape>(app: Arc<App>, has_logprobs: bool) -> Self {
        Self {
            id: app.name(S::PREFIX),
            created: now(),
            app,
            has_logprobs,
        }
    }

    fn body(&self, object: &str, choices: Vec<Value>, usage: Option<Usage>) -> Value {
        let mut body = json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.app.model,
            "choices": choices,
        });
        if let Some(usage) = usage {
            body["usage"] = spell_usage(usage);
        }
        body
    }

    fn logprobs<S: Shape>(
        &self,
        shape: &S,
        sent: &[(TokenId, TokenLogprobs)],
        after: usize,
    ) -> Option<Value> {
        let text = self.app.engine.text().filter(|_| self.has_logprobs)?;
        Some(shape.logprobs(text, sent, after))
    }
}

/// Submits the requests, and answers completely or as a stream.
pub(crate) async fn answer<S: Shape>(
    app: Arc<App>,
    shape: S,
    requests: Vec<Request>,
    delivery: Delivery,
    caller: Caller,
    log: RequestLog,
) -> Result<Response, ApiError> {
    let has_logprobs = requests.iter().any(|request| request.logprobs.is_some());
    let chosen = requests.first().and_then(|request| {
        let candidates_per_prompt = request.best_of?;
        Some(BestOf {
            n: request.n,
            candidates_per_prompt,
        })
    });
    let output_streams = OutputStreams::submit(&app.engine, requests, caller, log).await?;
    let head = Head::new::<S>(app, has_logprobs);
    if delivery.is_streamed {
        Ok(streamed(
            head,
            shape,
            output_streams,
            delivery.include_usage,
        ))
    } else {
        whole(head, shape, output_streams, chosen).await
    }
}

/// Waits for all outputs.
async fn whole<S: Shape>(
    head: Head,
    shape: S,
    mut output_streams: OutputStreams,
    chosen: Option<BestOf>,
) -> Result<Response, ApiError> {
    let mut outputs: Vec<Output> = Vec::new();
    outputs.resize_with(output_streams.count(), Output::default);
    while let Some((number, event)) = output_streams.next().await {
        let output = &mut outputs[number];
        match event {
            Event::Generated { text, logprobs } => {
                output.text.push_str(&text);
                output.logprobs.extend(logprobs);
            }
            // Only a stream reports the progress of prompts.
            Event::Prefilled(_) => {}
            Event::Ended(reason) => output.ended = Some(reason),
            Event::Failed(error) => return Err(error.into()),
        }
    }
    if let Some(chosen) = chosen {
        outputs = chosen.best(outputs);
    }
    let choices = (0..).zip(&outputs).map(|(number, output)| {
        let logprobs = head.logprobs(&shape, &output.logprobs, 0);
        let content = shape.whole(number, &output.text, logprobs);
        choice(number, content, output.ended)
    });
    let body = head.body(S::WHOLE, choices.collect(), Some(output_streams.usage()));
    Ok(Json(body).into_response())
}

/// Streams each piece as it comes. When the client disconnects, the stream and its outputs are
/// dropped. A client that reads slowly pauses them.
fn streamed<S: Shape>(
    head: Head,
    shape: S,
    output_streams: OutputStreams,
    include_usage: bool,
) -> Response {
    let mut outputs: Vec<Output> = Vec::new();
    outputs.resize_with(output_streams.count(), Output::default);
    let streaming = Streaming {
        head,
        shape,
        output_streams,
        include_usage,
        outputs_started: 0,
        outputs,
        stage: Stage::OpeningOutputs,
    };
    let events = stream::unfold(streaming, |mut streaming| async {
        let event = streaming.next().await?;
        Some((Ok::<_, Infallible>(event), streaming))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(events).keep_alive(keep_alive).into_response()
}

struct Streaming<S> {
    head: Head,
    shape: S,
    output_streams: OutputStreams,
    include_usage: bool,
    outputs: Vec<Output>,
    /// Outputs whose first part was sent, if they have one.
    outputs_started: usize,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    OpeningOutputs,
    StreamingOutputs,
    SendingUsage,
    SendingDone,
    Finished,
}

impl<S: Shape> Streaming<S> {
    async fn next(&mut self) -> Option<sse::Event> {
        loop {
            match self.stage {
                Stage::OpeningOutputs if self.outputs_started < self.outputs.len() => {
                    let number = self.outputs_started;
                    self.outputs_started += 1;
                    if let Some(first) = self.shape.first(number) {
                        return Some(self.part(number, first, None));
                    }
                }
                Stage::OpeningOutputs => self.stage = Stage::StreamingOutputs,
                Stage::StreamingOutputs => match self.output_streams.next().await {
                    Some((number, event)) => {
                        if let Some(event) = self.spell(number, event) {
                            return Some(event);
                        }
                    }
                    None if self.include_usage => self.stage = Stage::SendingUsage,
                    None => self.stage = Stage::SendingDone,
                },
                Stage::SendingUsage => {
                    self.stage = Stage::SendingDone;
                    let usage = Some(self.output_streams.usage());
                    return Some(event(&self.head.body(S::PART, Vec::new(), usage)));
                }
                Stage::SendingDone => {
                    self.stage = Stage::Finished;
                    return Some(sse::Event::default().data("[DONE]"));
                }
                Stage::Finished => return None,
            }
        }
    }

    /// Returns `None` if there is no new text: a token may end within a character.
    fn spell(&mut self, number: usize, output_event: Event) -> Option<sse::Event> {
        match output_event {
            Event::Generated { text, logprobs } => {
                if text.is_empty() && logprobs.is_empty() {
                    return None;
                }
                let after = self.outputs[number].sent;
                self.outputs[number].sent += text.chars().count();
                let logprobs = self.head.logprobs(&self.shape, &logprobs, after);
                Some(self.part(number, self.shape.part(&text, logprobs), None))
            }
            Event::Prefilled(prefill) => {
                let mut body = self.head.body(S::PART, Vec::new(), None);
                body["prompt_progress"] = json!({
                    "index": number,
                    "total": prefill.prompt_tokens,
                    "cache": prefill.cached_tokens,
                    "processed": prefill.computed_tokens,
                });
                Some(event(&body))
            }
            Event::Ended(reason) => Some(self.part(number, self.shape.last(), Some(reason))),
            // The status was already sent, so the error is the last event.
            Event::Failed(error) => {
                self.stage = Stage::Finished;
                Some(event(&ApiError::from(error).body()))
            }
        }
    }

    fn part(
        &self,
        number: usize,
        content: Map<String, Value>,
        ended: Option<FinishReason>,
    ) -> sse::Event {
        let choices = vec![choice(number, content, ended)];
        event(&self.head.body(S::PART, choices, None))
    }
}

fn event(body: &Value) -> sse::Event {
    sse::Event::default().data(body.to_string())
}

fn choice(number: usize, content: Map<String, Value>, ended: Option<FinishReason>) -> Value {
    let mut choice = Map::from_iter([("index".to_owned(), json!(number))]);
    choice.extend(content);
    choice.insert("finish_reason".into(), json!(ended.map(finish_reason)));
    choice.into()
}

fn spell_usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    })
}
