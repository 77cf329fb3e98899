//! `vllm.Inference`: requests, whole or streamed.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use motet::SequenceHandle;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::{Extensions, Request, Response, Status};
use vllm_proto::{GenerateRequest, GenerateResponse, inference_server};

use super::answer::Answer;
use super::layers::{MessageMemory, WholeUntilSent};
use super::request::PreparedRequest;
use super::running::RunningRequests;
use crate::app::App;
use crate::error::ApiError;
use crate::generate::{OutputStreams, UntilSent};
use crate::kept::{Keep, KeptResults};
use crate::keys::Caller;
use crate::log::RequestLog;

/// The field that errors of answers which are too long to be kept name.
const KEPT_FIELD: &str = "response.output_logprobs";

/// The service.
#[derive(Debug)]
pub(super) struct Inference {
    app: Arc<App>,
    running: Arc<RunningRequests>,
}

impl Inference {
    pub(super) fn new(app: &Arc<App>, running: &Arc<RunningRequests>) -> Self {
        Self {
            app: Arc::clone(app),
            running: Arc::clone(running),
        }
    }

    /// Submits a request.
    async fn submit(
        &self,
        request: Request<GenerateRequest>,
        is_streamed: bool,
    ) -> Result<Answer, ApiError> {
        let app = &self.app;
        let (metadata, mut extensions, message) = request.into_parts();
        let caller = layer_state::<Caller>(&extensions);
        drop(extensions.remove::<Caller>());
        let log = layer_state::<RequestLog>(&extensions);
        let running = self
            .running
            .begin(caller.name.as_ref(), &message.request_id)?;
        let prepared = PreparedRequest::read(app, &caller, metadata.as_ref(), message);
        // The message is gone, and so is its memory.
        drop(extensions.remove::<MessageMemory>());
        let PreparedRequest {
            request,
            parts,
            grammar_field,
        } = prepared?;
        if request.n > 1 && !is_streamed {
            let message = "`sampling.num_sequences` is above 1; expected it with `GenerateStream`, whose \
                           messages have the number of their output";
            return Err(ApiError::field("sampling.num_sequences", message));
        }
        let keep = Keep {
            outputs: !is_streamed,
            is_streamed,
            other_bytes: 0,
        };
        let kept = KeptResults::reserve(app, caller.name.as_deref(), keep, KEPT_FIELD)?;
        let until_sent = UntilSent {
            kept,
            _caller: caller,
        };
        let streams = OutputStreams::submit(&app.engine, vec![request], until_sent, log).await;
        let streams = streams.map_err(|error| {
            let other = |error| PreparedRequest::submit_error(grammar_field, error);
            KeptResults::submit_error(KEPT_FIELD, error, other)
        })?;
        Ok(Answer::new(streams, parts, grammar_field, running))
    }
}

/// A value that a layer has put into every request.
fn layer_state<T: Clone + Send + Sync + 'static>(extensions: &Extensions) -> T {
    let value = extensions.get::<T>();
    value.expect("a layer has put it there").clone()
}

#[tonic::async_trait]
impl inference_server::Inference for Inference {
    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<GenerateResponse>, Status> {
        let answer = self.submit(request, false).await?;
        let (whole, until_sent) = answer.whole().await?;
        let mut response = Response::new(whole);
        let until_sent = WholeUntilSent::new(until_sent);
        response.extensions_mut().insert(until_sent);
        Ok(response)
    }

    type GenerateStreamStream = ReadInTime;

    async fn generate_stream(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Self::GenerateStreamStream>, Status> {
        let answer = self.submit(request, true).await?;
        let unread_time = self.app.access.unread_time();
        Ok(Response::new(ReadInTime::new(answer, unread_time)))
    }
}

/// The messages of an answer. If its client reads none for a time once all outputs have ended, they are
/// dropped: until then the engine bounds it.
pub(super) struct ReadInTime {
    state: Arc<Mutex<ReadState>>,
    _timer: JoinSet<()>,
}

struct ReadState {
    answer: Option<Answer>,
    read_at: Instant,
}

impl ReadInTime {
    fn new(answer: Answer, unread_time: Option<Duration>) -> Self {
        let sequences = answer.sequences().to_vec();
        let state = Arc::new(Mutex::new(ReadState {
            answer: Some(answer),
            read_at: Instant::now(),
        }));
        let mut timer = JoinSet::new();
        if let Some(unread_time) = unread_time {
            timer.spawn(drop_unread(Arc::clone(&state), sequences, unread_time));
        }
        Self {
            state,
            _timer: timer,
        }
    }
}

async fn drop_unread(
    state: Arc<Mutex<ReadState>>,
    sequences: Vec<SequenceHandle>,
    unread_time: Duration,
) {
    for sequence in sequences {
        // An error is an end too.
        sequence.finished().await.ok();
    }
    let ended_at = Instant::now();
    loop {
        let left = {
            let mut state = locked(&state);
            let unread = state.read_at.max(ended_at).elapsed();
            let left = unread_time.saturating_sub(unread);
            if left.is_zero() {
                state.answer = None;
                return;
            }
            left
        };
        sleep(left).await;
    }
}

fn locked(state: &Mutex<ReadState>) -> MutexGuard<'_, ReadState> {
    state
        .lock()
        .expect("nothing panics while it holds this lock")
}

impl Stream for ReadInTime {
    type Item = Result<GenerateResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut state = locked(&self.state);
        state.read_at = Instant::now();
        match &mut state.answer {
            // It is cancel safe.
            Some(answer) => pin!(answer.next()).poll(cx),
            None => Poll::Ready(Some(Err(Status::deadline_exceeded(
                "the client has read nothing for too long",
            )))),
        }
    }
}
