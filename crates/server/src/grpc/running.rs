//! Requests that can be aborted by their ids.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use motet::SequenceHandle;

use crate::api::NAME_BYTES_MAX;
use crate::error::ApiError;

/// The key's name, the request's id, and a number of its own: a client that retries may have two
/// requests with one id for a while.
type RequestKey = (Option<Arc<str>>, String, u64);

/// The requests that run, with the ids that their callers gave them. A key cannot abort those of
/// another.
#[derive(Debug, Default)]
pub(super) struct RunningRequests(Mutex<Running>);

#[derive(Debug, Default)]
struct Running {
    requests: BTreeMap<RequestKey, Sequences>,
    begun: u64,
}

/// A request's sequences; none until it is submitted.
#[derive(Debug, Default)]
struct Sequences {
    handles: Vec<SequenceHandle>,
    is_aborted: bool,
}

/// A request's place among the running ones, until it is dropped.
#[derive(Debug)]
pub(super) struct RunningRequest {
    running: Arc<RunningRequests>,
    key: RequestKey,
}

impl RunningRequests {
    /// Takes a place for a request that is about to be submitted; none for one without an id.
    ///
    /// # Errors
    ///
    /// When the id is too long.
    pub(super) fn begin(
        self: &Arc<Self>,
        caller: Option<&Arc<str>>,
        id: &str,
    ) -> Result<Option<RunningRequest>, ApiError> {
        if id.is_empty() {
            return Ok(None);
        }
        if id.len() > NAME_BYTES_MAX {
            let message = format!(
                "`request_id` has {} bytes; expected at most {NAME_BYTES_MAX}",
                id.len()
            );
            return Err(ApiError::field("request_id", message));
        }
        let mut running = self.locked();
        running.begun += 1;
        let key = (caller.cloned(), id.to_owned(), running.begun);
        running.requests.insert(key.clone(), Sequences::default());
        Ok(Some(RunningRequest {
            running: Arc::clone(self),
            key,
        }))
    }

    /// Ends a caller's requests with this id, if there are any: their streams end as aborted.
    pub(super) fn abort(&self, caller: Option<&Arc<str>>, id: &str) {
        let key = |number| (caller.cloned(), id.to_owned(), number);
        let mut running = self.locked();
        for (_, sequences) in running.requests.range_mut(key(0)..=key(u64::MAX)) {
            sequences.is_aborted = true;
            cancel(&sequences.handles);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Running> {
        self.0
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl RunningRequest {
    /// Names the request's sequences, once it is submitted.
    pub(super) fn submitted(&self, handles: Vec<SequenceHandle>) {
        let mut running = self.running.locked();
        let sequences = running.requests.entry(self.key.clone()).or_default();
        if sequences.is_aborted {
            cancel(&handles);
        }
        sequences.handles = handles;
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.running.locked().requests.remove(&self.key);
    }
}

/// Cancels those that have not ended.
fn cancel(sequences: &[SequenceHandle]) {
    for sequence in sequences {
        sequence.cancel();
    }
}
