//! The spans of a sequence.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use motet::error::GenerateError;
use motet::request::{Finish, FinishReason, SequenceTimes, Usage};
use motet::{Request, SequenceHandle};
use opentelemetry::trace::{Span, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};

use super::{Recorded, Recorder};

/// The finish reason of a sequence whose client has gone.
const CANCELLED: &str = "cancelled";

/// The common part of the spans of a request's sequences; nothing if they are not recorded.
#[derive(Clone, Debug)]
pub(crate) struct Generation(Option<Arc<Common>>);

struct Common {
    recorder: Arc<Recorder>,
    request: SpanContext,
    name: String,
    attributes: Vec<KeyValue>,
}

/// A sequence whose spans are recorded when it is dropped: with its stream, and so at its end.
#[derive(Debug)]
pub(crate) struct SequenceSpan(Option<Sequence>);

#[derive(Debug)]
struct Sequence {
    common: Arc<Common>,
    handle: SequenceHandle,
    /// Tokens that its stream has given so far.
    output_tokens: usize,
    end: End,
}

/// How a sequence ended, as far as its stream has said.
#[derive(Debug)]
enum End {
    /// Its stream is dropped first: the client has gone.
    Abandoned,
    Finished(Finish),
    /// It failed, for this reason.
    Failed(&'static str),
}

impl Generation {
    pub(super) fn new(recorded: Option<&Recorded>, request: &Request) -> Self {
        Self(recorded.map(|recorded| {
            let (recorder, operation) = (&recorded.recorder, recorded.operation);
            Arc::new(Common {
                recorder: Arc::clone(recorder),
                request: recorded.span.span_context().clone(),
                name: format!("{operation} {}", recorder.model),
                attributes: request_attributes(operation, &recorder.model, request),
            })
        }))
    }

    /// A sequence of the request.
    pub(crate) fn sequence(&self, handle: SequenceHandle) -> SequenceSpan {
        SequenceSpan(self.0.as_ref().map(|common| Sequence {
            common: Arc::clone(common),
            handle,
            output_tokens: 0,
            end: End::Abandoned,
        }))
    }
}

impl SequenceSpan {
    /// Counts a token.
    pub(crate) fn token(&mut self) {
        if let Some(sequence) = &mut self.0 {
            sequence.output_tokens += 1;
        }
    }

    pub(crate) fn finished(&mut self, finish: &Finish) {
        if let Some(sequence) = &mut self.0 {
            sequence.end = End::Finished(*finish);
        }
    }

    pub(crate) fn failed(&mut self, error: &GenerateError) {
        if let Some(sequence) = &mut self.0 {
            sequence.end = End::Failed(error.label());
        }
    }
}

impl Drop for SequenceSpan {
    fn drop(&mut self) {
        if let Some(sequence) = self.0.take() {
            sequence.record(SystemTime::now());
        }
    }
}

impl Sequence {
    fn record(self, now: SystemTime) {
        let times = self.handle.times();
        let submitted = now.checked_sub(times.since_submit).unwrap_or(now);
        let at = |time: Duration| submitted.checked_add(time).unwrap_or(now);
        let tracer = &self.common.recorder.tracer;
        let start = |name: String, from: Duration, parent: &SpanContext| {
            let builder = tracer.span_builder(name);
            let builder = builder
                .with_kind(SpanKind::Internal)
                .with_start_time(at(from));
            let parent = Context::new().with_remote_span_context(parent.clone());
            builder.start_with_context(tracer, &parent)
        };
        let name = self.common.name.clone();
        let mut whole = start(name, Duration::ZERO, &self.common.request);
        whole.set_attributes(self.common.attributes.iter().cloned());
        whole.set_attributes(self.end_attributes());
        if let End::Failed(_) = self.end {
            whole.set_status(Status::error(""));
        }
        for (name, from, to) in stages(&times) {
            let mut stage = start(name.to_owned(), from, whole.span_context());
            stage.end_with_timestamp(at(to));
        }
        whole.end_with_timestamp(at(end(&times)));
    }

    fn end_attributes(&self) -> Vec<KeyValue> {
        let output = |tokens| count("gen_ai.usage.output_tokens", tokens);
        match &self.end {
            End::Finished(finish) => {
                let mut attributes = vec![reasons(finish_reason(finish.reason))];
                attributes.extend(usage_attributes(&finish.usage));
                if finish.usage.reasoning_tokens > 0 {
                    let name = "gen_ai.usage.reasoning.output_tokens";
                    attributes.push(count(name, finish.usage.reasoning_tokens));
                }
                attributes
            }
            End::Failed(label) => vec![
                KeyValue::new("error.type", *label),
                output(self.output_tokens),
            ],
            End::Abandoned => vec![reasons(CANCELLED), output(self.output_tokens)],
        }
    }
}

impl fmt::Debug for Common {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Common")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// When the sequence ended, since its submission.
fn end(times: &SequenceTimes) -> Duration {
    times.ended.unwrap_or(times.since_submit)
}

/// The stages that a sequence reached, each with its beginning and its end since the submission.
fn stages(times: &SequenceTimes) -> Vec<(&'static str, Duration, Duration)> {
    let begins = [Some(Duration::ZERO), times.started, times.first_token];
    let names = ["queue", "prefill", "decode"];
    let mut stages = Vec::new();
    for (at, (name, from)) in names.into_iter().zip(begins).enumerate() {
        let Some(from) = from else { continue };
        // A sequence that ends in a stage reaches none of the later ones.
        let next = begins[at + 1..].iter().find_map(|next| *next);
        stages.push((name, from, next.unwrap_or(end(times)).max(from)));
    }
    stages
}

fn request_attributes(operation: &'static str, model: &str, request: &Request) -> Vec<KeyValue> {
    let sampling = &request.sampling;
    let number = |name: &'static str, value: f32| KeyValue::new(name, f64::from(value));
    let mut attributes = vec![
        KeyValue::new("gen_ai.operation.name", operation),
        KeyValue::new("gen_ai.provider.name", "motet"),
        KeyValue::new("gen_ai.request.model", model.to_owned()),
        KeyValue::new("gen_ai.response.model", model.to_owned()),
        count("gen_ai.request.max_tokens", request.output_tokens_max),
        count("gen_ai.request.choice.count", request.n),
        number("gen_ai.request.temperature", sampling.temperature),
        number("gen_ai.request.top_p", sampling.top_p),
    ];
    if sampling.top_k > 0 {
        // A double in the conventions.
        let top_k = f64::from(sampling.top_k);
        attributes.push(KeyValue::new("gen_ai.request.top_k", top_k));
    }
    for (name, penalty) in [
        ("gen_ai.request.presence_penalty", sampling.presence_penalty),
        (
            "gen_ai.request.frequency_penalty",
            sampling.frequency_penalty,
        ),
    ] {
        if penalty != 0.0 {
            attributes.push(number(name, penalty));
        }
    }
    attributes
}

fn usage_attributes(usage: &Usage) -> [KeyValue; 3] {
    [
        count("gen_ai.usage.input_tokens", usage.prompt_tokens),
        count("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
        count("gen_ai.usage.output_tokens", usage.output_tokens),
    ]
}

/// The reason in the API's words. The engine does not know of tool calls.
fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length | FinishReason::Deadline => "length",
        FinishReason::Cancelled => CANCELLED,
        _ => "stop",
    }
}

fn count(name: &'static str, tokens: usize) -> KeyValue {
    KeyValue::new(name, i64::try_from(tokens).unwrap_or(i64::MAX))
}

fn reasons(reason: &'static str) -> KeyValue {
    let reasons = Array::String(vec![StringValue::from(reason)]);
    KeyValue::new("gen_ai.response.finish_reasons", Value::Array(reasons))
}
