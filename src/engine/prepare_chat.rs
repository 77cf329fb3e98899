//! Conversations become tokens before they are submitted, for callers that read the answers.

use std::mem;

use super::Engine;
use super::admission::{RESTORE_POINTS_MAX, check_point_count};
use super::tokenize_prompt::TokenizeMode;
use crate::error::SubmitError;
use crate::request::{Prompt, Request};

impl Engine {
    /// Replaces the conversation of a request by its tokens, and returns the end of the prompt's
    /// text. The request is then as good as it was: it has the conversation's restore points, the last
    /// of them where its own leave no space for all.
    ///
    /// [`submit`](Engine::submit) renders a conversation by itself. A caller that parses the
    /// answer has to know how the prompt ends, as a template may open the reasoning, and a grammar
    /// of tools depends on that: [`AnswerFormat`](motet_text::AnswerFormat) reads the end. Here
    /// the conversation is rendered once for both, on the threads of long texts if it is long. A
    /// prompt that is no conversation stays as it is, and has an empty end.
    ///
    /// # Errors
    ///
    /// [`SubmitError`] as for [`submit`](Engine::submit). A full queue rejects the request before
    /// its conversation is rendered. The request keeps no place in the queue, which may be full when it
    /// is submitted.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future removes a conversation that waits; the request may be without its
    /// prompt then.
    pub async fn prepare_chat(&self, request: &mut Request) -> Result<String, SubmitError> {
        let prepared = Box::pin(self.prepared_end(request)).await;
        prepared.inspect_err(|error| self.inner.telemetry.rejected(error))
    }

    async fn prepared_end(&self, request: &mut Request) -> Result<String, SubmitError> {
        let Prompt::Chat(_) = &request.prompt else {
            return Ok(String::new());
        };
        self.check_not_broken()?;
        self.check_request(request)?;
        check_point_count(&request.restore_points)?;
        let _inside = match self.admission_guard(request) {
            Ok(guard) => guard,
            Err(error) => {
                let request = mem::replace(request, Request::tokens([]));
                return Err(self.admission_error(error, request));
            }
        };
        let mode = TokenizeMode::Prompt {
            with_restore_points: !self.inner.spec.resumes_anywhere(),
        };
        let mut prepared = self.tokenize_prompt(request, mode).await?;
        // The last offset is where the conversation's next turn begins.
        let turn_end = prepared.restore_points.pop().filter(|at| *at > 0);
        request.turn_end = request.turn_end.or(turn_end);
        let own = &mut request.restore_points;
        let excess = (own.len() + prepared.restore_points.len()).saturating_sub(RESTORE_POINTS_MAX);
        own.extend(prepared.restore_points.drain(..).skip(excess));
        request.prompt = Prompt::Tokens(prepared.tokens);
        Ok(prepared.end)
    }
}
