//! `vllm.Inference`: requests, whole or streamed.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream;
use tonic::{Extensions, Request, Response, Status};
use vllm_proto::{GenerateRequest, GenerateResponse, inference_server};

use super::answer::Answer;
use super::layers::MessageMemory;
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
        let caller = extensions.remove::<Caller>().unwrap_or_default();
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
        Ok(Response::new(answer.whole().await?))
    }

    type GenerateStreamStream =
        Pin<Box<dyn Stream<Item = Result<GenerateResponse, Status>> + Send>>;

    async fn generate_stream(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<Self::GenerateStreamStream>, Status> {
        let answer = self.submit(request, true).await?;
        let messages = stream::unfold(answer, |mut answer| async {
            let message = answer.next().await?;
            Some((message, answer))
        });
        Ok(Response::new(Box::pin(messages)))
    }
}
