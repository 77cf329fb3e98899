//! From the engine's pieces to messages.

use std::collections::VecDeque;
use std::mem;

use axum::http::StatusCode;
use motet::error::GenerateError;
use motet::request::{Finish, FinishReason, Piece, TokenLogprobs};
use motet::{Request, SequenceHandle, TokenId};
use tonic::Status;
use vllm_proto::candidate_token_info::TokenInfo;
use vllm_proto::finish_info::{FinishReason as SentReason, StopReason};
use vllm_proto::{
    CandidateTokenInfo, FinishInfo, GenerateResponse, PromptInfo, ResponseOptions, SequenceOutput,
};

use super::running::RunningRequest;
use crate::app::App;
use crate::error::ApiError;
use crate::generate::{OutputStreams, UntilSent};

/// The parts of an answer that its request asks for.
#[derive(Clone, Debug)]
pub(super) struct AnswerParts {
    has_text: bool,
    has_tokens: bool,
    has_prompt_tokens: bool,
    has_logprobs: bool,
    /// Whether tokens wait for their text.
    waits_for_text: bool,
    /// The prompt's tokens, for its answer and for the ranks of its log probabilities.
    prompt_tokens: Vec<TokenId>,
    /// Why an output stops, where its request or its model leaves one choice.
    stop_string: Option<String>,
    stop_token: Option<TokenId>,
    end_token: Option<TokenId>,
}

/// Pieces of one request's outputs as messages. Dropping it cancels the outputs.
#[derive(Debug)]
pub(super) struct Answer {
    streams: OutputStreams,
    parts: AnswerParts,
    grammar_field: &'static str,
    outputs: Vec<Output>,
    /// The facts about the prompt, until they are sent.
    prompt: Option<PromptInfo>,
    _running: Option<RunningRequest>,
}

/// An output whose tokens go out with all of their text and their log probabilities. Those that
/// wait when the output is handed over are computed again elsewhere.
#[derive(Debug, Default)]
struct Output {
    waiting: VecDeque<TokenId>,
    text: String,
    logprobs: Vec<TokenLogprobs>,
    sent_tokens: usize,
}

impl AnswerParts {
    pub(super) fn new(
        app: &App,
        request: &Request,
        response: &ResponseOptions,
        prompt_tokens: Vec<TokenId>,
    ) -> Self {
        let model = app.engine.model();
        let has_text = response.output_text.unwrap_or(true) && app.engine.text().is_some();
        Self {
            has_text,
            waits_for_text: has_text || !request.stop_strings.is_empty(),
            has_tokens: response.output_token_ids,
            has_prompt_tokens: response.prompt_token_ids,
            has_logprobs: request.logprobs.is_some(),
            prompt_tokens,
            stop_string: only(&request.stop_strings).cloned(),
            stop_token: only(&request.stop_tokens).copied(),
            end_token: only(&model.end_tokens).copied(),
        }
    }
}

/// The element of a list of one.
fn only<T>(list: &[T]) -> Option<&T> {
    match list {
        [one] => Some(one),
        _ => None,
    }
}

impl Answer {
    pub(super) fn new(
        streams: OutputStreams,
        parts: AnswerParts,
        grammar_field: &'static str,
        running: Option<RunningRequest>,
    ) -> Self {
        if let Some(running) = &running {
            running.submitted(streams.handles().to_vec());
        }
        let outputs = (0..streams.count()).map(|_| Output::default());
        let prompt = PromptInfo {
            num_prompt_tokens: count(streams.prompt_tokens()),
            token_ids: if parts.has_prompt_tokens {
                parts.prompt_tokens.clone()
            } else {
                Vec::new()
            },
            ..PromptInfo::default()
        };
        Self {
            outputs: outputs.collect(),
            streams,
            parts,
            grammar_field,
            prompt: Some(prompt),
            _running: running,
        }
    }

    /// The next message; `None` when all outputs have ended. An error is the last.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a piece is either returned or stays for the next call.
    pub(super) async fn next(&mut self) -> Option<Result<GenerateResponse, Status>> {
        loop {
            let (number, piece) = self.streams.next().await?;
            let message = match piece {
                Ok(piece) => self.message(number, piece),
                Err(error) => Err(self.error(number, error)),
            };
            if let Some(message) = message.transpose() {
                return Some(message);
            }
        }
    }

    /// The status of an output that fails.
    fn error(&self, number: usize, error: GenerateError) -> Status {
        let error = match error {
            GenerateError::HandedOver { .. } => GenerateError::HandedOver {
                output_tokens: self.outputs[number].sent_tokens,
            },
            error => error,
        };
        let error = ApiError::generate(error, self.grammar_field);
        self.streams.failed(error.status);
        error.into()
    }

    /// The message of a piece; `None` for one without anything to send.
    fn message(&mut self, number: usize, piece: Piece) -> Result<Option<GenerateResponse>, Status> {
        if !piece.prompt_logprobs.is_empty() {
            self.add_prompt_logprobs(&piece.prompt_logprobs);
            return Ok(None);
        }
        let parts = &self.parts;
        let output = &mut self.outputs[number];
        output.waiting.extend(piece.token);
        output.logprobs.extend(piece.logprobs);
        if parts.has_text {
            output.text.push_str(&piece.text);
        }
        let is_last = piece.finish.is_some();
        if piece.has_held_text && parts.waits_for_text && !is_last {
            let held = self.outputs.iter().map(|output| output.logprobs.len());
            self.streams.kept().set_held(held.sum())?;
            return Ok(None);
        }
        let ready = if parts.has_logprobs && !is_last {
            output.logprobs.len().min(output.waiting.len())
        } else {
            // The tokens of a text that a stop string removes have none, and are sent all the same.
            output.waiting.len()
        };
        output.sent_tokens += ready;
        let tokens: Vec<TokenId> = output.waiting.drain(..ready).collect();
        let logprobs = mem::take(&mut output.logprobs);
        if parts.has_logprobs {
            let held = self.outputs.iter().map(|output| output.logprobs.len());
            self.streams.kept().set_held(held.sum())?;
        }
        let output = &mut self.outputs[number];
        let mut outputs = SequenceOutput {
            index: count(number),
            text: mem::take(&mut output.text),
            num_tokens: count(tokens.len()),
            ..SequenceOutput::default()
        };
        for (token, logprobs) in tokens.iter().zip(logprobs) {
            outputs.logprobs.push(logprobs.logprob);
            outputs.ranks.push(rank(*token, &logprobs));
            outputs.candidate_tokens.push(candidates(&logprobs));
        }
        if parts.has_tokens {
            outputs.token_ids = tokens;
        }
        if let Some(finish) = &piece.finish {
            if finish.reason == FinishReason::Deadline {
                self.streams.failed(StatusCode::GATEWAY_TIMEOUT);
                return Err(Status::deadline_exceeded("`grpc-timeout` has passed"));
            }
            outputs.finish_info = Some(self.finish_info(finish));
        }
        let is_empty =
            outputs.num_tokens == 0 && outputs.text.is_empty() && outputs.finish_info.is_none();
        Ok((!is_empty).then(|| GenerateResponse {
            prompt_info: self.prompt.take(),
            outputs: Some(outputs),
        }))
    }

    /// The log probabilities come before the first token, so the facts are not sent yet.
    fn add_prompt_logprobs(&mut self, all: &[TokenLogprobs]) {
        let Some(prompt) = &mut self.prompt else {
            return;
        };
        let tokens = mem::take(&mut self.parts.prompt_tokens);
        let first = tokens.len().saturating_sub(all.len());
        let tokens = tokens.get(first..).unwrap_or_default();
        for (index, logprobs) in all.iter().enumerate() {
            prompt.logprobs.push(logprobs.logprob);
            let rank = tokens.get(index).map_or(0, |token| rank(*token, logprobs));
            prompt.ranks.push(rank);
            prompt.candidate_tokens.push(candidates(logprobs));
        }
    }

    fn finish_info(&self, finish: &Finish) -> FinishInfo {
        let parts = &self.parts;
        let (reason, stop_reason) = match finish.reason {
            FinishReason::EndToken => {
                let token = parts.end_token.map(StopReason::EosTokenId);
                (SentReason::Stop, token)
            }
            FinishReason::StopToken => {
                let token = parts.stop_token.map(StopReason::StopTokenId);
                (SentReason::Stop, token)
            }
            FinishReason::StopString => {
                let text = parts.stop_string.clone().map(StopReason::StopString);
                (SentReason::Stop, text)
            }
            FinishReason::Length => (SentReason::Length, None),
            _ => (SentReason::Aborted, None),
        };
        FinishInfo {
            num_output_tokens: count(finish.usage.output_tokens),
            num_cached_tokens: Some(count(finish.usage.cached_tokens)),
            finish_reason: reason.into(),
            stop_reason,
            ..FinishInfo::default()
        }
    }

    /// Waits for the end of the only output, and returns all of it, with its results' reservation.
    ///
    /// # Errors
    ///
    /// The output's error, or that the answer is too long to be kept.
    pub(super) async fn whole(mut self) -> Result<(GenerateResponse, UntilSent), Status> {
        let mut all = GenerateResponse::default();
        while let Some(message) = self.next().await {
            let message = message?;
            all.prompt_info = all.prompt_info.or(message.prompt_info);
            let more = message.outputs.unwrap_or_default();
            let (text_bytes, rows) = (more.text.len(), more.logprobs.len());
            self.streams.kept().add(text_bytes, rows)?;
            match &mut all.outputs {
                None => all.outputs = Some(more),
                Some(outputs) => {
                    outputs.text.push_str(&more.text);
                    outputs.num_tokens += more.num_tokens;
                    outputs.token_ids.extend(more.token_ids);
                    outputs.logprobs.extend(more.logprobs);
                    outputs.ranks.extend(more.ranks);
                    outputs.candidate_tokens.extend(more.candidate_tokens);
                    outputs.finish_info = more.finish_info;
                }
            }
        }
        self.streams.kept().complete();
        Ok((all, self.streams.until_sent()))
    }

    /// The outputs' sequences.
    pub(super) fn sequences(&self) -> &[SequenceHandle] {
        self.streams.handles()
    }
}

/// The token's place among the likeliest, from 1 on; 0 where it is not among those that were asked for.
fn rank(token: TokenId, logprobs: &TokenLogprobs) -> u32 {
    let place = logprobs.top.iter().position(|(top, _)| *top == token);
    place.map_or(0, |place| count(place).saturating_add(1))
}

fn candidates(logprobs: &TokenLogprobs) -> CandidateTokenInfo {
    let tokens = (1..)
        .zip(&logprobs.top)
        .map(|(rank, (id, logprob))| TokenInfo {
            id: *id,
            logprob: *logprob,
            rank,
        });
    CandidateTokenInfo {
        tokens: tokens.collect(),
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
