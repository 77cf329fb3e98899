//! Responses that are answered in the background: they go on when their clients are gone, and any number
//! of readers gets their events, from any one on.
//!
//! The events of the answer are recorded, and each reader writes the response's events from them: these have
//! the same numbers each time, and the recording takes little more than the text. It counts in the
//! budget for results, and is dropped some time after the end; the response is then read from the store.
//! Its [journal](super::journal) is removed with it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use motet::SequenceHandle;
use motet::chat::ChatEvent;
use motet::error::GenerateError;
use motet::text::TextCodec;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use super::events::{EventSource, HandedOver, ResponseEvent};
use super::ids::Ids;
use super::journal::JournalFile;
use super::progress::{Outcome, Progress};
use super::request::PreparedAnswer;
use super::response::ResponseBody;
use super::store::Owner;
use super::writer::OutputWriter;
use crate::app::App;
use crate::error::ApiError;
use crate::kept::KeptResults;
use crate::keys::Caller;

/// Bytes that an event of an answer takes beside its text.
pub(super) const EVENT_BYTES: usize = 128;
/// Bytes of a recording without events.
pub(super) const RECORDING_BYTES: usize = 4 << 10;
/// Most recordings of one key whose answers have ended.
const ENDED_MAX: usize = 32;
/// Events that a reader passes over before others have their turn.
const SKIPPED_AT_ONCE: u64 = 256;

/// The responses that are answered, or were until lately, by key and id.
#[derive(Debug, Default)]
pub(super) struct BackgroundResponses(Mutex<HashMap<(Owner, String), Arc<Recording>>>);

/// The parts from which a response's events are written.
#[derive(Clone, Debug)]
pub(super) struct Script {
    /// The response without output.
    pub(super) begun: ResponseBody,
    pub(super) ids: Ids,
    pub(super) has_summary: bool,
    pub(super) spelling: Option<TextCodec>,
}

/// An answer's events so far.
#[derive(Debug)]
pub(super) struct Recording {
    script: Script,
    /// The file from which a restart continues the answer.
    journal: Option<Arc<JournalFile>>,
    state: Mutex<State>,
    /// Changes with the state.
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The sequences that answer, once they are submitted.
    sequences: Vec<SequenceHandle>,
    events: Vec<ChatEvent>,
    ended: Option<Ended>,
    /// Whether the server ends, and the next one goes on with the answer.
    is_handed_over: bool,
    /// Whether the client has ended the answer.
    is_cancelled: bool,
    /// Whether the client has deleted the response.
    is_deleted: bool,
    /// Bytes of the events, with their log probabilities.
    bytes: usize,
}

/// The end of a recording.
#[derive(Debug)]
struct Ended {
    outcome: Outcome,
    /// The response at its end.
    response: Arc<ResponseBody>,
    /// The reservation of the events; none if it was lost.
    kept: Option<KeptResults>,
    at: Instant,
}

/// Reads a recording from its beginning, and writes the events after a number.
#[derive(Debug)]
pub(super) struct Reader {
    recording: Arc<Recording>,
    changes: watch::Receiver<()>,
    progress: Progress,
    /// Events of the recording that are read.
    read: usize,
    /// Events of the response that are written.
    written: u64,
    /// The first event that is sent.
    from: u64,
    is_ended: bool,
    /// The request and its reservation, while its events are sent.
    _held: Option<(Caller, KeptResults)>,
}

impl Script {
    /// The parts of a response that begins so.
    pub(super) fn new(begun: ResponseBody, ids: Ids, answer: &PreparedAnswer, app: &App) -> Self {
        let has_logprobs = answer.settings.logprobs.is_some();
        Self {
            begun,
            ids,
            has_summary: answer.has_summary,
            spelling: app.engine.text().filter(|_| has_logprobs).cloned(),
        }
    }

    /// Begins to write the response. Its events are made if `is_streamed`.
    pub(super) fn progress(&self, is_streamed: bool) -> Progress {
        let ids = self.ids.clone();
        let writer = OutputWriter::new(ids, self.has_summary, self.spelling.clone());
        Progress::new(self.begun.clone(), writer, is_streamed)
    }
}

impl BackgroundResponses {
    /// Adds a response that is being answered.
    pub(super) fn insert(&self, owner: &Owner, recording: &Arc<Recording>) {
        let key = (owner.clone(), recording.script.begun.id().to_owned());
        self.locked().insert(key, Arc::clone(recording));
    }

    /// The owner's response with this id, if it is in the background.
    pub(super) fn get(&self, owner: &Owner, id: &str) -> Option<Arc<Recording>> {
        let key = (owner.clone(), id.to_owned());
        self.locked().get(&key).cloned()
    }

    /// Forgets the owner's response with this id, and ends it. Returns false if there is none.
    pub(super) fn remove(&self, owner: &Owner, id: &str) -> bool {
        let removed = self.locked().remove(&(owner.clone(), id.to_owned()));
        removed.is_some_and(|recording| {
            recording.delete();
            true
        })
    }

    /// Forgets a response after this time, and the oldest that the owner has ended if there are too many,
    /// or if they take more than these bytes.
    pub(super) async fn remove_after(
        &self,
        time: Duration,
        bytes_max: usize,
        (owner, id): (Owner, String),
    ) {
        self.remove_oldest(&owner, bytes_max);
        sleep(time).await;
        let removed = self.locked().remove(&(owner, id));
        removed.iter().for_each(|recording| recording.forget());
    }

    fn remove_oldest(&self, owner: &Owner, bytes_max: usize) {
        let mut all = self.locked();
        let of_owner = all.iter().filter(|((of, _), _)| of == owner);
        let mut ended: Vec<_> = of_owner
            .filter_map(|((_, id), recording)| {
                let (at, bytes) = recording.ended_at()?;
                Some((at, bytes, id.clone(), Arc::clone(recording)))
            })
            .collect();
        ended.sort_by_key(|(at, ..)| Reverse(*at));
        let mut bytes_left = bytes_max;
        for (place, (_, bytes, id, recording)) in ended.into_iter().enumerate() {
            match bytes_left.checked_sub(bytes) {
                Some(left) if place < ENDED_MAX => bytes_left = left,
                None if place < ENDED_MAX && recording.keep_error() => {}
                // Its reader, if it has one, reads on.
                _ => {
                    let removed = all.remove(&(owner.clone(), id));
                    removed.iter().for_each(|recording| recording.forget());
                }
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<(Owner, String), Arc<Recording>>> {
        self.0
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl Recording {
    /// Begins to record an answer.
    pub(super) fn new(script: Script, journal: Option<Arc<JournalFile>>) -> Self {
        Self {
            script,
            journal,
            state: Mutex::default(),
            changes: watch::Sender::new(()),
        }
    }

    /// The parts from which its events are written.
    pub(super) fn script(&self) -> &Script {
        &self.script
    }

    /// Sets the sequences that answer. They end if the client has ended the answer already.
    pub(super) fn answered_by(&self, sequences: Vec<SequenceHandle>) {
        self.locked().sequences = sequences;
        if self.is_cancelled() {
            self.cancel();
        }
    }

    /// Adds an event of the answer, which takes so many bytes.
    pub(super) fn push(&self, event: ChatEvent, bytes: usize) {
        let mut state = self.locked();
        state.events.push(event);
        state.bytes += bytes;
        drop(state);
        self.changes.send_replace(());
    }

    /// Adds the end, and holds the reservation of the events. The first end counts. One that has failed is
    /// not continued.
    pub(super) fn end(
        &self,
        outcome: Outcome,
        response: Arc<ResponseBody>,
        kept: Option<KeptResults>,
        at: Instant,
    ) {
        if let Outcome::Failed(_) = outcome {
            self.forget();
        }
        self.locked().ended.get_or_insert(Ended {
            outcome,
            response,
            kept,
            at,
        });
        self.changes.send_replace(());
    }

    /// Ends its readers' streams without an end: the next server goes on with the answer.
    pub(super) fn hand_over(&self) {
        self.locked().is_handed_over = true;
        self.changes.send_replace(());
    }

    /// Ends an answer whose task is gone without an end.
    pub(super) fn end_lost(&self) {
        self.end_failed(GenerateError::Lost.into());
    }

    /// Ends an answer that has no items.
    pub(super) fn end_failed(&self, error: ApiError) {
        let response = Arc::new(self.script.begun.failed(Vec::new(), &error));
        self.end(Outcome::Failed(error), response, None, Instant::now());
    }

    /// Has the response stored, unless the client has deleted it.
    pub(super) fn store(&self, store: impl FnOnce()) {
        let state = self.locked();
        if !state.is_deleted {
            store();
        }
    }

    fn delete(&self) {
        self.locked().is_deleted = true;
        self.forget();
        self.cancel();
    }

    /// Keeps nothing of a failed answer but its error, which is in no store. Returns false if it has not
    /// failed.
    fn keep_error(&self) -> bool {
        let mut state = self.locked();
        let Some(ended) = &mut state.ended else {
            return false;
        };
        let Outcome::Failed(error) = &ended.outcome else {
            return false;
        };
        ended.response = Arc::new(self.script.begun.failed(Vec::new(), error));
        if let Some(kept) = &mut ended.kept {
            kept.without_outputs(ended.response.bytes() + RECORDING_BYTES);
        }
        (state.events, state.bytes) = (Vec::new(), 0);
        true
    }

    /// Removes the journal.
    fn forget(&self) {
        self.journal.iter().for_each(JournalFile::remove_later);
    }

    /// Bytes of the events so far.
    pub(super) fn bytes(&self) -> usize {
        self.locked().bytes
    }

    /// When it ended, and the bytes that it keeps.
    fn ended_at(&self) -> Option<(Instant, usize)> {
        let state = self.locked();
        let ended = state.ended.as_ref()?;
        Some((ended.at, ended.kept.as_ref().map_or(0, KeptResults::bytes)))
    }

    /// Ends the answer, if it has not ended. The response says so.
    pub(super) fn cancel(&self) {
        let mut state = self.locked();
        state.is_cancelled |= state.ended.is_none();
        for sequence in &state.sequences {
            sequence.cancel();
        }
    }

    /// Whether the client has ended the answer.
    pub(super) fn is_cancelled(&self) -> bool {
        self.locked().is_cancelled
    }

    /// The response as it is: whole, or without its output.
    pub(super) fn response(&self) -> Arc<ResponseBody> {
        match &self.locked().ended {
            Some(ended) => Arc::clone(&ended.response),
            None => Arc::new(self.script.begun.clone()),
        }
    }

    /// Returns when the answer has ended, or is handed over.
    pub(super) async fn ended(&self) {
        let mut changes = self.changes.subscribe();
        while !self.locked().is_over() {
            // It fails only when the recording is dropped, which this prevents.
            changes.changed().await.ok();
        }
    }

    /// Reads the response's events from this number on.
    pub(super) fn reader(
        self: &Arc<Self>,
        from: u64,
        held: Option<(Caller, KeptResults)>,
    ) -> Reader {
        Reader {
            changes: self.changes.subscribe(),
            progress: self.script.progress(true),
            recording: Arc::clone(self),
            read: 0,
            written: 0,
            from,
            is_ended: false,
            _held: held,
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.ended.is_some() || self.is_handed_over
    }
}

impl Reader {
    /// Writes the events of the next part of the answer. Returns false if there is none yet.
    fn write_next(&mut self) -> bool {
        // Nothing is written under the lock, which the answer takes for each event.
        let state = self.recording.locked();
        let event = state.events.get(self.read).cloned();
        let ended = state.ended.as_ref().filter(|_| event.is_none());
        let outcome = ended.map(|ended| ended.outcome.clone());
        drop(state);
        if let Some(event) = event {
            self.read += 1;
            self.progress.push(event);
            return true;
        }
        let Some(outcome) = outcome else {
            return false;
        };
        if let Outcome::Ended(response) = &outcome {
            self.progress.completed(response);
        }
        self.progress.end(&outcome);
        self.is_ended = true;
        true
    }
}

impl EventSource for Reader {
    /// Cancel safe.
    async fn next(&mut self) -> Option<Result<ResponseEvent, HandedOver>> {
        loop {
            while let Some(event) = self.progress.pop() {
                self.written += 1;
                if self.written > self.from {
                    return Some(Ok(event));
                }
                if self.written.is_multiple_of(SKIPPED_AT_ONCE) {
                    yield_now().await;
                }
            }
            if self.is_ended {
                return None;
            }
            self.changes.borrow_and_update();
            if self.write_next() {
                continue;
            }
            if self.recording.locked().is_handed_over {
                self.is_ended = true;
                return Some(Err(HandedOver));
            }
            self.changes.changed().await.ok()?;
        }
    }
}
