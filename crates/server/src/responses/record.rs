//! Answers without a client, which are recorded for readers and journalled for a restart.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use motet::chat::ChatEvent;
use motet::error::GenerateError;
use tokio::time::Instant;

use super::Responses;
use super::answer::Creation;
use super::background::{BackgroundResponses, EVENT_BYTES, RECORDING_BYTES, Recording, Script};
use super::journal::Journal;
use super::progress::Outcome;
use super::store::Owner;
use crate::conversation::AnswerEvent;
use crate::error::ErrorCode;

/// The part of the memory for results that a key's recordings of ended answers may take.
const ENDED_SHARE: usize = 8;

/// How long the recording of an ended answer is kept.
#[derive(Debug)]
pub(super) struct Retention {
    responses: Arc<BackgroundResponses>,
    time: Duration,
    bytes_max: usize,
    key: (Owner, String),
}

/// How the recording of an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    Ended,
    /// The server ends, and its journal has the answer so far.
    HandedOver,
}

impl Retention {
    pub(super) fn new(responses: &Responses, owner: &Owner, script: &Script) -> Self {
        let app = &responses.app;
        let results = &app.engine.config().scheduler.admission;
        Self {
            responses: Arc::clone(&responses.background),
            time: app.store_settings.background_time(),
            bytes_max: results.results_bytes_max / ENDED_SHARE,
            key: (owner.clone(), script.begun.id().to_owned()),
        }
    }

    /// Waits until the recording of an answer that ended so long ago is dropped.
    pub(super) async fn wait(self, since: Duration) {
        let time = self.time.saturating_sub(since);
        self.responses
            .remove_after(time, self.bytes_max, self.key)
            .await;
    }
}

impl Creation {
    /// Answers without a client, and records the answer's events for readers.
    pub(super) fn in_background(
        self,
        responses: Responses,
        script: Script,
        journal: Option<Journal>,
    ) -> Arc<Recording> {
        let recording = Arc::new(Recording::new(script, journal.as_ref().map(Journal::file)));
        responses.background.insert(&self.owner, &recording);
        tokio::spawn(self.answer(responses, Arc::clone(&recording), journal));
        recording
    }

    /// Answers, and drops the recording some time after the end.
    pub(super) async fn answer(
        self,
        responses: Responses,
        recording: Arc<Recording>,
        journal: Option<Journal>,
    ) {
        recording.answered_by(self.answers.sequences());
        let retention = Retention::new(&responses, &self.owner, recording.script());
        let recorded = AssertUnwindSafe(self.record(&recording, journal));
        let recorded = recorded.catch_unwind().await;
        // The end of the server waits for the journals.
        drop(responses);
        match recorded {
            Ok(Recorded::HandedOver) => return,
            Ok(Recorded::Ended) => {}
            Err(_) => recording.end_lost(),
        }
        drop(recording);
        retention.wait(Duration::ZERO).await;
    }

    /// Records the answer to its end. The key has its place again then.
    async fn record(mut self, recording: &Recording, mut journal: Option<Journal>) -> Recorded {
        if let Some(journal) = &mut journal {
            journal.answered();
            self.answers.collect_tokens();
        }
        let outcome = loop {
            let event = match self.answers.next().await {
                Some((_, event)) => event,
                None => Err(GenerateError::Lost.into()),
            };
            if let Some(outcome) = self.record_event(event, recording, journal.as_mut()) {
                break outcome;
            }
            if let Some(journal) = &mut journal
                && let Some(tokens) = self.answers.take_tokens()
            {
                journal.push_tokens(tokens);
            }
        };
        if let Some(journal) = &mut journal
            && is_draining(&outcome)
            && !recording.is_cancelled()
        {
            journal.flush().await;
            if journal.is_kept() {
                recording.hand_over();
                return Recorded::HandedOver;
            }
        }
        let response = match &outcome {
            Outcome::Ended(response) => {
                // It says for the log that the answer is whole.
                while self.answers.next().await.is_some() {}
                Arc::clone(response)
            }
            Outcome::Failed(error) => {
                self.answers.failed(error.status);
                Arc::new(self.progress.failed(error))
            }
        };
        let mut kept = self.answers.until_sent().kept;
        kept.only_recorded(response.bytes() + RECORDING_BYTES);
        let end = response.end();
        recording.end(outcome, response, Some(kept), Instant::now());
        if let (Some(mut journal), Some(end)) = (journal, end) {
            journal.end(end).await;
        }
        Recorded::Ended
    }

    /// Records an event of the answer. The last one has an outcome.
    pub(super) fn record_event(
        &mut self,
        event: AnswerEvent,
        recording: &Recording,
        journal: Option<&mut Journal>,
    ) -> Option<Outcome> {
        let recorded = event.as_ref().ok().cloned();
        if let Some(outcome) = self.read(event, Some(recording)) {
            return Some(outcome);
        }
        let event = recorded?;
        let ChatEvent::Delta { delta, logprobs } = &event else {
            return None;
        };
        let (text_bytes, rows) = (delta.bytes(), logprobs.len());
        let bytes = match self.answers.kept().add_recorded(EVENT_BYTES, rows) {
            Ok(bytes) => bytes,
            Err(error) => return Some(Outcome::Failed(error)),
        };
        if let Some(journal) = journal {
            journal.push(&event);
        }
        recording.push(event, text_bytes + bytes);
        None
    }
}

/// Whether the server ends, and the answer has not.
fn is_draining(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Failed(error) if error.code() == Some(ErrorCode::Draining))
}
