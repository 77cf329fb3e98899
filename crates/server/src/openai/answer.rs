//! Answers, complete or as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use motet::chat::{AnswerEnd, ChatEvent, Delta};
use motet::request::Usage;
use motet::text::TextCodec;
use schemars::JsonSchema;
use serde::Serialize;

use super::offsets::TextOffsets;
use super::parameters::Delivery;
use crate::api::KEEP_ALIVE;
use crate::app::{App, now};
use crate::conversation::{
    AnswerEvent, Answers, ScoredToken, WholeAnswer, rejected_prediction_tokens,
};
use crate::error::ApiError;
use crate::generate::UntilSent;
use crate::pieces::{self, Deferred};

/// The form of an endpoint's answers.
pub(crate) trait Shape: Send + Sync + 'static {
    /// The prefix of the answer's id.
    const PREFIX: &'static str;
    /// The `object` of a whole answer.
    const WHOLE: &'static str;
    /// The `object` of a part.
    const PART: &'static str;

    /// The fields of a complete output.
    type Whole: Serialize + JsonSchema + 'static;
    /// The fields of a part of an output.
    type Part: Serialize + JsonSchema;
    /// Log probabilities of tokens, made when they are written.
    type Logprobs;

    /// The first part of an output's stream, if the endpoint has one.
    fn first(&self, number: usize) -> Option<Self::Part>;
    /// A part with more of the output.
    fn part(&self, delta: Delta, logprobs: Option<Self::Logprobs>) -> Self::Part;
    /// The last part, without text.
    fn last(&self) -> Self::Part;
    /// The complete output.
    fn whole(
        &self,
        number: usize,
        answer: &WholeAnswer,
        logprobs: Option<Self::Logprobs>,
    ) -> Self::Whole;
    /// Log probabilities of the output's next tokens.
    fn logprobs(
        &self,
        text: &TextCodec,
        sent: &Arc<Vec<ScoredToken>>,
        offsets: &mut TextOffsets,
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
    choices: Deferred<Vec<Choice<S::Whole>>>,
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
pub(crate) struct Choice<C> {
    index: usize,
    #[serde(flatten)]
    content: C,
    finish_reason: Option<ApiFinishReason>,
}

impl<C> Choice<C> {
    pub(super) fn new(index: usize, content: C, end: Option<AnswerEnd>) -> Self {
        Self {
            index,
            content,
            finish_reason: end.map(ApiFinishReason::from),
        }
    }
}

/// The API's finish reason.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum ApiFinishReason {
    Stop,
    Length,
    ToolCalls,
}

impl From<AnswerEnd> for ApiFinishReason {
    fn from(end: AnswerEnd) -> Self {
        match end {
            AnswerEnd::Length => Self::Length,
            AnswerEnd::Calls => Self::ToolCalls,
            AnswerEnd::Stop | AnswerEnd::StopString => Self::Stop,
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
    completion_tokens_details: CompletionTokensDetails,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct CompletionTokensDetails {
    /// Tokens of the reasoning; `completion_tokens` counts them too
    reasoning_tokens: usize,
    /// Tokens of the answer that `prediction` had; `completion_tokens` counts them too
    accepted_prediction_tokens: usize,
    /// The other tokens of `prediction`. They cost nothing, and `completion_tokens` does not count them
    rejected_prediction_tokens: usize,
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
            completion_tokens_details: CompletionTokensDetails {
                reasoning_tokens: usage.reasoning_tokens,
                accepted_prediction_tokens: usage.accepted_prediction_tokens,
                rejected_prediction_tokens: rejected_prediction_tokens(&usage),
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

/// The number of outputs of each prompt, and of those that are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BestOf {
    pub(crate) n: usize,
    pub(crate) candidates_per_prompt: usize,
}

impl BestOf {
    /// The outputs with the highest mean log probability per token, the best first.
    fn best(self, outputs: Vec<WholeAnswer>) -> Vec<WholeAnswer> {
        let mut outputs = outputs.into_iter();
        let mut chosen = Vec::new();
        while outputs.len() > 0 {
            let mut candidates: Vec<WholeAnswer> =
                outputs.by_ref().take(self.candidates_per_prompt).collect();
            candidates.sort_by(|a, b| mean_logprob(b).total_cmp(&mean_logprob(a)));
            candidates.truncate(self.n);
            chosen.extend(candidates);
        }
        chosen
    }
}

/// The lowest value if there are no tokens.
fn mean_logprob(output: &WholeAnswer) -> f64 {
    output.mean_logprob.get().unwrap_or(f64::NEG_INFINITY)
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
        choices: Deferred<Vec<Choice<S::Whole>>>,
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
        sent: &Arc<Vec<ScoredToken>>,
        offsets: Option<&mut TextOffsets>,
    ) -> Option<S::Logprobs> {
        let text = self.app.engine.text()?;
        Some(shape.logprobs(text, sent, offsets?))
    }

    /// Counts the offsets of an output's tokens, where these have log probabilities.
    fn offsets(&self) -> Option<TextOffsets> {
        let text = self.app.engine.text().filter(|_| self.has_logprobs)?;
        Some(TextOffsets::of_output(text, 0))
    }
}

/// How an endpoint delivers its answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) delivery: Delivery,
    /// Whether the answers have log probabilities.
    pub(crate) has_logprobs: bool,
    /// Which of the outputs are kept; all if there is none.
    pub(crate) chosen: Option<BestOf>,
}

/// Answers completely or as a stream.
pub(crate) async fn answer<S: Shape>(
    app: Arc<App>,
    shape: S,
    answers: Answers,
    terms: Terms,
) -> Result<Response, ApiError> {
    let reply = Reply::new::<S>(app, terms.has_logprobs);
    if terms.delivery.is_streamed {
        let include_usage = terms.delivery.include_usage;
        Ok(streamed(reply, shape, answers, include_usage))
    } else {
        whole(reply, shape, answers, terms.chosen).await
    }
}

/// The complete answer of so many outputs, each of which `choice` makes when it is written.
/// `until_sent` is dropped afterwards.
pub(crate) fn written<S: Shape>(
    app: Arc<App>,
    outputs: usize,
    choice: impl Fn(usize) -> Choice<S::Whole> + Send + Sync + 'static,
    usage: Usage,
    until_sent: UntilSent,
) -> Response {
    let reply = Reply::new::<S>(app, false);
    let choices = Deferred::indexed(outputs, choice);
    let pieces = pieces::pieces(&reply.completion::<S>(choices, usage));
    pieces::json_response(pieces, until_sent)
}

/// Waits for all outputs.
async fn whole<S: Shape>(
    reply: Reply,
    shape: S,
    mut answers: Answers,
    chosen: Option<BestOf>,
) -> Result<Response, ApiError> {
    let mut outputs = answers.whole(reply.has_logprobs).await?;
    if let Some(chosen) = chosen {
        outputs = chosen.best(outputs);
    }
    let usage = answers.usage();
    let count = outputs.len();
    let app = Arc::clone(&reply.app);
    let made = Arc::new((reply, shape, outputs));
    let choice = move |number: usize| {
        let (reply, shape, outputs) = &*made;
        let output = &outputs[number];
        let mut offsets = reply.offsets();
        let logprobs = reply.logprobs(shape, &output.logprobs, offsets.as_mut());
        Choice::new(
            number,
            shape.whole(number, output, logprobs),
            output.answer.end,
        )
    };
    let until_sent = answers.until_sent();
    Ok(written::<S>(app, count, choice, usage, until_sent))
}

/// Streams each piece as it comes. When the client disconnects, the stream and its outputs are
/// dropped. A client that reads slowly pauses them.
fn streamed<S: Shape>(reply: Reply, shape: S, answers: Answers, include_usage: bool) -> Response {
    let offsets = (0..answers.count()).map(|_| reply.offsets()).collect();
    let streaming = Streaming {
        reply,
        shape,
        include_usage,
        outputs_started: 0,
        offsets,
        answers,
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
    answers: Answers,
    include_usage: bool,
    /// For each output, the offsets of the tokens whose log probabilities are sent next.
    offsets: Vec<Option<TextOffsets>>,
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
                Stage::OpeningOutputs if self.outputs_started < self.answers.count() => {
                    let number = self.outputs_started;
                    self.outputs_started += 1;
                    if let Some(first) = self.shape.first(number) {
                        return Some(self.part(number, first, None));
                    }
                }
                Stage::OpeningOutputs => self.stage = Stage::StreamingOutputs,
                Stage::StreamingOutputs => match self.answers.next().await {
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
                    part.usage = Some(self.answers.usage().into());
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

    /// Returns `None` if there is nothing to send: the API does not say where a call ends.
    fn spell(&mut self, number: usize, answer_event: AnswerEvent) -> Option<sse::Event> {
        match answer_event {
            Ok(ChatEvent::Delta {
                delta: Delta::CallEnded { .. },
                logprobs,
            }) if logprobs.is_empty() => None,
            Ok(ChatEvent::Delta { delta, logprobs }) => {
                let offsets = self.offsets[number].as_mut();
                let logprobs = self
                    .reply
                    .logprobs(&self.shape, &Arc::new(logprobs), offsets);
                Some(self.part(number, self.shape.part(delta, logprobs), None))
            }
            Ok(ChatEvent::Prefilled(prefill)) => {
                let mut part = self.reply.part::<S>(Vec::new());
                part.prompt_progress = Some(PromptProgress {
                    index: number,
                    total: prefill.prompt_tokens,
                    cache: prefill.cached_tokens,
                    processed: prefill.computed_tokens,
                });
                Some(event(&part))
            }
            Ok(ChatEvent::Ended { end, .. }) => {
                Some(self.part(number, self.shape.last(), Some(end)))
            }
            // The status was already sent, so the error is the last event.
            Err(error) => {
                self.stage = Stage::Finished;
                Some(event(&error.body()))
            }
        }
    }

    fn part(&self, number: usize, content: S::Part, end: Option<AnswerEnd>) -> sse::Event {
        let choices = vec![Choice::new(number, content, end)];
        event(&self.reply.part::<S>(choices))
    }
}

fn event(body: &impl Serialize) -> sse::Event {
    let data = pieces::whole(body);
    sse::Event::default().data(str::from_utf8(&data).expect("JSON is text"))
}
