//! A response as it is written, from the events of its answer to its own.

use std::sync::Arc;

use motet::chat::{AnswerEnd, ChatEvent};

use super::events::{EventLog, ResponseEvent};
use super::items::ItemStatus;
use super::response::{End, ResponseBody, Status};
use super::writer::OutputWriter;
use crate::app::now;
use crate::error::ApiError;

/// A response that is being written.
#[derive(Debug)]
pub(super) struct Progress {
    /// The response without output.
    begun: ResponseBody,
    writer: OutputWriter,
    log: EventLog,
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Ended(Arc<ResponseBody>),
    Failed(ApiError),
}

impl Progress {
    /// Begins the response. Its events are made if `is_streamed`.
    pub(super) fn new(begun: ResponseBody, writer: OutputWriter, is_streamed: bool) -> Self {
        let mut log = EventLog::new(is_streamed);
        log.push(|sequence_number| ResponseEvent::Created {
            sequence_number,
            response: Arc::new(begun.clone()),
        });
        log.push(|sequence_number| ResponseEvent::InProgress {
            sequence_number,
            response: Arc::new(begun.clone()),
        });
        Self { begun, writer, log }
    }

    /// The next event.
    pub(super) fn pop(&mut self) -> Option<ResponseEvent> {
        self.log.pop()
    }

    /// Adds more of the answer.
    pub(super) fn push(&mut self, event: ChatEvent) {
        if let ChatEvent::Delta { delta, logprobs } = event {
            self.writer.push(delta, logprobs, &mut self.log);
        }
    }

    /// Completes the items of an answer that ends so, and returns the whole response.
    pub(super) fn complete(
        &mut self,
        end: AnswerEnd,
        usage: motet::request::Usage,
        is_cancelled: bool,
    ) -> Arc<ResponseBody> {
        let status = match end {
            _ if is_cancelled => Status::Cancelled,
            AnswerEnd::Length => Status::Incomplete,
            AnswerEnd::Stop | AnswerEnd::StopString | AnswerEnd::Calls => Status::Completed,
        };
        self.ended(&End {
            status,
            usage: usage.into(),
            at: now(),
        })
    }

    /// Completes the items of an answer that has ended so, and returns the whole response.
    pub(super) fn ended(&mut self, end: &End) -> Arc<ResponseBody> {
        self.finish_items(end.status);
        let output = self.writer.take_items();
        Arc::new(self.begun.ended(end, output))
    }

    /// Completes the items of an answer whose whole response is known.
    pub(super) fn completed(&mut self, response: &ResponseBody) {
        self.finish_items(response.status());
    }

    fn finish_items(&mut self, status: Status) {
        let status = match status {
            Status::Completed => ItemStatus::Completed,
            _ => ItemStatus::Incomplete,
        };
        self.writer.finish(status, &mut self.log);
    }

    /// Adds the last events.
    pub(super) fn end(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Ended(response) => {
                let response = Arc::clone(response);
                let is_complete = response.status() == Status::Completed;
                self.log.push(|sequence_number| {
                    if is_complete {
                        ResponseEvent::Completed {
                            sequence_number,
                            response,
                        }
                    } else {
                        ResponseEvent::Incomplete {
                            sequence_number,
                            response,
                        }
                    }
                });
            }
            Outcome::Failed(error) => self.fail(error),
        }
    }

    /// The status of the stream was already sent, so events report the error.
    fn fail(&mut self, error: &ApiError) {
        let failed = self.failed(error);
        self.log.push(|sequence_number| ResponseEvent::Error {
            sequence_number,
            code: error.code(),
            message: error.message().to_owned(),
            param: error.param().map(str::to_owned),
        });
        self.log.push(|sequence_number| ResponseEvent::Failed {
            sequence_number,
            response: Arc::new(failed),
        });
    }

    /// The response with its items so far and this error.
    pub(super) fn failed(&self, error: &ApiError) -> ResponseBody {
        self.begun.failed(self.writer.items().to_vec(), error)
    }
}
