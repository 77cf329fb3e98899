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
use schemars::JsonSchema;
use serde::Serialize;

use super::parameters::Delivery;
use crate::app::{App, now};
use crate::error::ApiError;
use crate::generate::{ApiFinishReason, Event, OutputStreams};
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

    /// The fields of a complete output.
    type Whole: Serialize + JsonSchema;
    /// The fields of a part of an output.
    type Part: Serialize + JsonSchema;
    /// Log probabilities of tokens.
    type Logprobs;

    /// The first part of an output's stream, if the endpoint has one.
    fn first(&self, number: usize) -> Option<Self::Part>;
    /// A part with more text.
    fn part(&self, text: &str, logprobs: Option<Self::Logprobs>) -> Self::Part;
    /// The last part, without text.
    fn last(&self) -> Self::Part;
    /// The complete output.
    fn whole(&self, number: usize, text: &str, logprobs: Option<Self::Logprobs>) -> Self::Whole;
    /// Log probabilities of tokens; `after` is the number of output characters before them.
    fn logprobs(
        &self,
        text: &TextCodec,
        sent: &[(TokenId, TokenLogprobs)],
        after: usize,
    ) -> Self::Logprobs;
}

/// A complete answer.
#[derive(Serialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(bound = "", rename = "Completion")]
pub(crate) struct Completion<'a, S: Shape> {
    #[serde(flatten)]
    head: Head<'a>,
    #[schemars(extend("const" = S::WHOLE))]
    object: &'static str,
    choices: Vec<Choice<S::Whole>>,
    usage: ApiUsage,
}

/// A part of a streamed answer.
#[derive(Serialize, JsonSchema)]
#[serde(bound = "")]
#[schemars(bound = "", rename = "CompletionPart")]
pub(crate) struct CompletionPart<'a, S: Shape> {
    #[serde(flatten)]
    head: Head<'a>,
    #[schemars(extend("const" = S::PART))]
    object: &'static str,
    choices: Vec<Choice<S::Part>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ApiUsage")]
    usage: Option<ApiUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PromptProgress")]
    prompt_progress: Option<PromptProgress>,
}

/// The common fields of all parts of an answer.
#[derive(Debug, Serialize, JsonSchema)]
struct Head<'a> {
    id: &'a str,
    /// Seconds since 1970
    created: u64,
    model: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Choice<C> {
    index: usize,
    #[serde(flatten)]
    content: C,
    finish_reason: Option<ApiFinishReason>,
}

impl<C> Choice<C> {
    fn new(index: usize, content: C, ended: Option<FinishReason>) -> Self {
        Self {
            index,
            content,
            finish_reason: ended.map(ApiFinishReason::from),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Usage")]
struct ApiUsage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl From<Usage> for ApiUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.output_tokens,
            total_tokens: usage.prompt_tokens + usage.output_tokens,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: usage.cached_tokens,
            },
        }
    }
}

/// The progress of a prompt, for streams that ask for it.
#[derive(Debug, Serialize, JsonSchema)]
struct PromptProgress {
    index: usize,
    total: usize,
    cache: usize,
    processed: usize,
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

/// The answer that a request gets, as a whole or in parts.
#[derive(Debug)]
struct Reply {
    app: Arc<App>,
    id: String,
    created: u64,
    has_logprobs: bool,
}

impl Reply {
    fn new<S: Shape>(app: Arc<App>, has_logprobs: bool) -> Self {
        Self {
            id: app.name(S::PREFIX),
            created: now(),
            app,
            has_logprobs,
        }
    }

    fn head(&self) -> Head<'_> {
        Head {
            id: &self.id,
            created: self.created,
            model: &self.app.model,
        }
    }

    fn completion<S: Shape>(
        &self,
        choices: Vec<Choice<S::Whole>>,
        usage: Usage,
    ) -> Completion<'_, S> {
        Completion {
            head: self.head(),
            object: S::WHOLE,
            choices,
            usage: usage.into(),
        }
    }

    fn part<S: Shape>(&self, choices: Vec<Choice<S::Part>>) -> CompletionPart<'_, S> {
        CompletionPart {
            head: self.head(),
            object: S::PART,
            choices,
            usage: None,
            prompt_progress: None,
        }
    }

    fn logprobs<S: Shape>(
        &self,
        shape: &S,
        sent: &[(TokenId, TokenLogprobs)],
        after: usize,
    ) -> Option<S::Logprobs> {
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
    let reply = Reply::new::<S>(app, has_logprobs);
    if delivery.is_streamed {
        Ok(streamed(
            reply,
            shape,
            output_streams,
            delivery.include_usage,
        ))
    } else {
        whole(reply, shape, output_streams, chosen).await
    }
}

/// The complete answer with these outputs, which have all they need already.
pub(crate) fn whole_of<S: Shape>(
    app: Arc<App>,
    outputs: Vec<(S::Whole, FinishReason)>,
    usage: Usage,
) -> Response {
    let outputs = outputs.into_iter().enumerate();
    let choices =
        outputs.map(|(number, (content, reason))| Choice::new(number, content, Some(reason)));
    let reply = Reply::new::<S>(app, false);
    Json(reply.completion::<S>(choices.collect(), usage)).into_response()
}

/// Waits for all outputs.
async fn whole<S: Shape>(
    reply: Reply,
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
        let logprobs = reply.logprobs(&shape, &output.logprobs, 0);
        let content = shape.whole(number, &output.text, logprobs);
        Choice::new(number, content, output.ended)
    });
    let body = reply.completion::<S>(choices.collect(), output_streams.usage());
    Ok(Json(body).into_response())
}

/// Streams each piece as it comes. When the client disconnects, the stream and its outputs are
/// dropped. A client that reads slowly pauses them.
fn streamed<S: Shape>(
    reply: Reply,
    shape: S,
    output_streams: OutputStreams,
    include_usage: bool,
) -> Response {
    let mut outputs: Vec<Output> = Vec::new();
    outputs.resize_with(output_streams.count(), Output::default);
    let streaming = Streaming {
        reply,
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
    reply: Reply,
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
                    let mut part = self.reply.part::<S>(Vec::new());
                    part.usage = Some(self.output_streams.usage().into());
                    return Some(event(&part));
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
                let logprobs = self.reply.logprobs(&self.shape, &logprobs, after);
                Some(self.part(number, self.shape.part(&text, logprobs), None))
            }
            Event::Prefilled(prefill) => {
                let mut part = self.reply.part::<S>(Vec::new());
                part.prompt_progress = Some(PromptProgress {
                    index: number,
                    total: prefill.prompt_tokens,
                    cache: prefill.cached_tokens,
                    processed: prefill.computed_tokens,
                });
                Some(event(&part))
            }
            Event::Ended(reason) => Some(self.part(number, self.shape.last(), Some(reason))),
            // The status was already sent, so the error is the last event.
            Event::Failed(error) => {
                self.stage = Stage::Finished;
                Some(event(&ApiError::from(error).body()))
            }
        }
    }

    fn part(&self, number: usize, content: S::Part, ended: Option<FinishReason>) -> sse::Event {
        let choices = vec![Choice::new(number, content, ended)];
        event(&self.reply.part::<S>(choices))
    }
}

fn event(body: &impl Serialize) -> sse::Event {
    let data = serde_json::to_string(body).expect("its keys are strings");
    sse::Event::default().data(data)
}
