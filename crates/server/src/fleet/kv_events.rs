//! Publishes the cache's contents to routers in vLLM's form: a ZeroMQ publisher of numbered
//! batches, and a socket that replays missed ones.
//!
//! A batch is three frames: the topic, its number as eight bytes in big-endian order, and the
//! events (see `wire.rs`). A reader sends the second socket the first number that it wants. It
//! gets the number and the events of each batch, and at last the number of all ones.
//!
//! Several readers may ask at once, each with one question at a time. `gate.rs` limits readers; both
//! addresses should still be open to routers only, as the events show the tokens of requests.
//!
//! No reader delays the server. A slow reader misses batches, which it sees by their numbers.
//! If this server was slow, numbers are skipped too, and all cached blocks are published again.
//!
//! When the kept batches take much of their memory, a snapshot replaces them: a batch that removes all blocks
//! and stores those that are cached. It has the number of the last batch that it replaces, and is kept
//! for replay only. A reader that asks for older batches gets it, and those after it.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use axum::body::Bytes;
use futures_util::FutureExt;
use motet::{BlockBatch, BlockEvents};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use super::gate::{self, Gate};
use super::wire::EventForm;
use crate::app::App;
use crate::arguments::FleetSettings;

/// Overhead of a kept batch: its slot in a queue whose capacity may be twice its length, the
/// allocator's, and that of the reference count.
const BATCH_OVERHEAD_BYTES: usize = 2 * size_of::<(u64, Bytes)>() + 64;
/// Questions that are answered at once; further ones wait in the socket.
const REPLAYS_MAX: usize = 16;
/// A reader that has not read its replay by then does not get the rest.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a send to a full reader is retried.
const ANSWER_RETRY: Duration = Duration::from_millis(10);
/// Bytes of all subscriptions of one reader.
const SUBSCRIPTION_BYTES_MAX: u64 = 64 << 10;
/// The number that ends a replay.
const REPLAY_END: [u8; 8] = [0xFF; 8];

/// The publisher.
#[expect(missing_debug_implementations, reason = "sockets have none")]
pub struct KvEvents {
    publisher: PubSocket,
    topic: Bytes,
    form: EventForm,
    /// The number of the next batch.
    next: u64,
    sent: Option<Arc<Mutex<SentBatches>>>,
    /// The publisher's address.
    pub address: String,
    /// The replay socket's address.
    pub replay_address: Option<String>,
    gates: Vec<Gate>,
}

/// Batches kept for replay.
#[derive(Debug)]
struct SentBatches {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
    /// Most bytes, with their overhead; the oldest are dropped first.
    bytes_max: usize,
    /// Bytes of the first batch, if it is a snapshot.
    snapshot_bytes: usize,
    /// Whether a snapshot is on its way.
    is_snapshot_asked: bool,
}

impl KvEvents {
    /// Opens the sockets, if they are configured.
    ///
    /// # Errors
    ///
    /// The error names the address that it cannot listen at.
    pub async fn bind(settings: &FleetSettings) -> Result<Option<Self>> {
        let Some(requested) = &settings.kv_events else {
            return Ok(None);
        };
        let mut publisher = PubSocket::new();
        let gate = gate::open(requested, &mut publisher, SUBSCRIPTION_BYTES_MAX).await;
        let gate = gate.with_context(|| format!("--kv-events {requested}"))?;
        let mut events = Self {
            publisher,
            topic: settings.kv_events_topic.clone().into(),
            form: EventForm::of(settings),
            next: 0,
            sent: None,
            address: gate.address.clone(),
            replay_address: None,
            gates: vec![gate],
        };
        if let Some(requested) = &settings.kv_events_replay {
            let mut questions = RouterSocket::new();
            let gate = gate::open(requested, &mut questions, u64::MAX).await;
            let gate = gate.with_context(|| format!("--kv-events-replay {requested}"))?;
            let bytes_max = settings.kv_events_replay_mib as usize * (1 << 20);
            let sent = Arc::new(Mutex::new(SentBatches::new(bytes_max)));
            let (answers, questions) = questions.split();
            tokio::spawn(replay(questions, answers, Arc::clone(&sent)));
            events.sent = Some(sent);
            events.replay_address = Some(gate.address.clone());
            events.gates.push(gate);
        }
        Ok(Some(events))
    }

    /// Publishes the cache's contents until the engine is gone.
    pub async fn run(mut self, app: Weak<App>) {
        while let Some(app) = app.upgrade() {
            let followed = app.engine.follow_blocks().await;
            drop(app);
            match followed {
                Ok(events) => self.publish_all(events).await,
                Err(error) => {
                    tracing::warn!(%error, "KV events end");
                    return;
                }
            }
        }
    }

    /// Publishes events until some were missed or the stream ends.
    async fn publish_all(&mut self, mut events: BlockEvents) {
        while let Some(batch) = events.next().await {
            if batch.missed > 0 {
                tracing::warn!(
                    missed = batch.missed,
                    "KV events were missed: all blocks are published again"
                );
                self.next += batch.missed;
                return;
            }
            let Some(payload) = self.payload(&batch) else {
                continue;
            };
            if batch.lists_all && batch.number > 0 {
                // Subscribers have these blocks.
                self.keep(self.next - 1, payload, true);
                continue;
            }
            self.publish(payload, batch.lists_all).await;
            if self.needs_snapshot()
                && let Err(error) = events.request_all().await
            {
                tracing::debug!(%error, "KV events end");
                return;
            }
        }
    }

    /// The batch as it is sent; `None` if nothing in it may be published.
    fn payload(&self, batch: &BlockBatch) -> Option<Bytes> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let payload = self.form.encode(&batch.events, now.unwrap_or_default());
        // A boxed slice, as a vector's capacity may be twice its length.
        payload.map(|payload| Bytes::from(payload.into_boxed_slice()))
    }

    /// Keeps a batch for replay. It replaces all others if it lists all blocks.
    fn keep(&self, number: u64, payload: Bytes, lists_all: bool) {
        let Some(sent) = &self.sent else { return };
        if lists_all {
            locked(sent).replace_all(number, payload);
        } else {
            locked(sent).push(number, payload);
        }
    }

    /// Whether to ask for a snapshot. Returns true once for each.
    fn needs_snapshot(&self) -> bool {
        let sent = self.sent.as_ref();
        sent.is_some_and(|sent| locked(sent).needs_snapshot())
    }

    async fn publish(&mut self, payload: Bytes, lists_all: bool) {
        let number = Bytes::copy_from_slice(&self.next.to_be_bytes());
        let message = message([self.topic.clone(), number, payload.clone()]);
        if let Err(error) = self.publisher.send(message).await {
            tracing::warn!(%error, "KV events were not sent");
        }
        self.keep(self.next, payload, lists_all);
        self.next += 1;
    }
}

impl SentBatches {
    fn new(bytes_max: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            bytes: 0,
            bytes_max,
            snapshot_bytes: 0,
            is_snapshot_asked: false,
        }
    }

    /// Keeps a snapshot in place of all batches.
    fn replace_all(&mut self, number: u64, snapshot: Bytes) {
        *self = Self::new(self.bytes_max);
        self.snapshot_bytes = batch_bytes(&snapshot);
        self.push(number, snapshot);
    }

    /// Whether the batches after the last snapshot take a quarter of the memory, and all three: the next
    /// snapshot comes before the oldest must be dropped. Returns true once for each snapshot.
    fn needs_snapshot(&mut self) -> bool {
        let quarter = self.bytes_max / 4;
        let is_due = self.bytes > 3 * quarter && self.bytes - self.snapshot_bytes > quarter;
        is_due && !std::mem::replace(&mut self.is_snapshot_asked, true)
    }

    fn push(&mut self, number: u64, payload: Bytes) {
        self.bytes += batch_bytes(&payload);
        self.batches.push_back((number, payload));
        while self.bytes > self.bytes_max
            && let Some((_, oldest)) = self.batches.pop_front()
        {
            self.bytes -= batch_bytes(&oldest);
            // If there was a snapshot, it is the oldest.
            self.snapshot_bytes = 0;
        }
        // Many small batches need a longer queue than the few large ones after them.
        if self.batches.capacity() > 4 * self.batches.len() {
            self.batches.shrink_to(2 * self.batches.len());
        }
    }

    /// The first batch in this range that is still kept, or the snapshot that replaces it.
    fn first(&self, numbers: Range<u64>) -> Option<(u64, Bytes)> {
        let before = |held: &(u64, Bytes)| held.0 < numbers.start;
        let at = self.batches.partition_point(before);
        let is_snapshot = at == 0 && self.snapshot_bytes > 0 && !numbers.is_empty();
        let found = self.batches.get(at);
        found
            .filter(|(number, _)| *number < numbers.end || is_snapshot)
            .cloned()
    }

    /// The number after the last batch.
    fn end(&self) -> u64 {
        self.batches.back().map_or(0, |(number, _)| number + 1)
    }
}

fn batch_bytes(payload: &Bytes) -> usize {
    payload.len() + BATCH_OVERHEAD_BYTES
}

/// Answers readers that have missed batches, several at once. A reader that does not read does
/// not delay the others.
async fn replay(
    mut questions: impl SocketRecv,
    answers: impl SocketSend + Clone + Send + 'static,
    sent: Arc<Mutex<SentBatches>>,
) {
    let mut answering = JoinSet::new();
    let mut readers = HashSet::new();
    loop {
        tokio::select! {
            Some(answered) = answering.join_next() => {
                readers.remove(&answered.expect("an answer does not panic"));
            }
            question = questions.recv(), if answering.len() < REPLAYS_MAX => match question {
                Ok(question) => {
                    let Some((identity, first)) = parse_question(question) else {
                        tracing::debug!("expected two frames, the second a number of eight bytes");
                        continue;
                    };
                    if !readers.insert(identity.clone()) {
                        tracing::debug!("a reader asks again before it has its answer");
                        continue;
                    }
                    let (answers, sent) = (answers.clone(), Arc::clone(&sent));
                    answering.spawn(answer(answers, identity, first, sent));
                }
                Err(error) => {
                    tracing::warn!(%error, "KV events cannot be replayed");
                    return;
                }
            }
        }
    }
}

/// The reader that asks, and the first number that it wants.
fn parse_question(question: ZmqMessage) -> Option<(Bytes, u64)> {
    let frames = question.into_vec();
    let [identity, _, first] = &frames[..] else {
        return None;
    };
    let first = <[u8; 8]>::try_from(&first[..]).ok()?;
    Some((identity.clone(), u64::from_be_bytes(first)))
}

/// Answers one question, as far as the reader reads in time. Returns the reader.
async fn answer(
    mut answers: impl SocketSend,
    identity: Bytes,
    first: u64,
    sent: Arc<Mutex<SentBatches>>,
) -> Bytes {
    let all = send_since(&mut answers, &identity, first, &sent);
    match timeout(REPLAY_TIMEOUT, all).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "KV events were not replayed"),
        Err(_) => tracing::debug!("a reader asked for KV events and does not read them"),
    }
    identity
}

/// Sends the batches that existed at the time of the question, and then the end. A batch that
/// was dropped meanwhile is a gap in the numbers.
async fn send_since(
    answers: &mut impl SocketSend,
    identity: &Bytes,
    first: u64,
    sent: &Mutex<SentBatches>,
) -> Result<(), ZmqError> {
    let mut numbers = first..locked(sent).end();
    loop {
        let found = locked(sent).first(numbers.clone());
        let is_last = found.is_none();
        let (number, payload) = match found {
            Some((number, payload)) => {
                numbers.start = number + 1;
                (number.to_be_bytes(), payload)
            }
            None => (REPLAY_END, Bytes::new()),
        };
        let number = Bytes::copy_from_slice(&number);
        let frames = [identity.clone(), Bytes::new(), number, payload];
        // This send never waits: a send that waits for a reader holds a lock that other sends need,
        // and that blocks the thread of a reader that disconnects.
        while answers
            .send(message(frames.clone()))
            .now_or_never()
            .transpose()?
            .is_none()
        {
            sleep(ANSWER_RETRY).await;
        }
        if is_last {
            return Ok(());
        }
    }
}

fn locked(sent: &Mutex<SentBatches>) -> MutexGuard<'_, SentBatches> {
    sent.lock()
        .expect("nothing panics while it holds this lock")
}

fn message<const N: usize>(frames: [Bytes; N]) -> ZmqMessage {
    ZmqMessage::try_from(Vec::from(frames)).expect("there are frames")
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::Pin;

    use tokio::sync::mpsc;
    use zeromq::ZmqResult;

    use super::*;

    const REPLAY_BYTES_MAX: usize = 64 << 20;

    type Sending<'a, T> = Pin<Box<dyn Future<Output = ZmqResult<T>> + Send + 'a>>;

    /// A source of questions without a socket.
    struct Questions(mpsc::UnboundedReceiver<ZmqMessage>);

    impl SocketRecv for Questions {
        fn recv<'a, 'b>(&'a mut self) -> Sending<'b, ZmqMessage>
        where
            'a: 'b,
        {
            Box::pin(async { self.0.recv().await.ok_or(ZmqError::NoMessage) })
        }
    }

    /// A sink for answers. A reader whose name begins with `stuck` accepts none.
    #[derive(Clone)]
    struct Answers(mpsc::UnboundedSender<(Bytes, Bytes)>);

    impl SocketSend for Answers {
        fn send<'a, 'b>(&'a mut self, message: ZmqMessage) -> Sending<'b, ()>
        where
            'a: 'b,
        {
            Box::pin(async move {
                let frames = message.into_vec();
                if frames[0].starts_with(b"stuck") {
                    return pending().await;
                }
                let sent = self.0.send((frames[0].clone(), frames[2].clone()));
                sent.map_err(|_| ZmqError::NoMessage)
            })
        }
    }

    fn question(identity: &str, first: u64) -> ZmqMessage {
        let first = Bytes::copy_from_slice(&first.to_be_bytes());
        message([Bytes::from(identity.to_owned()), Bytes::new(), first])
    }

    fn numbered(numbers: Range<u64>) -> Arc<Mutex<SentBatches>> {
        let sent = Arc::new(Mutex::new(SentBatches::new(REPLAY_BYTES_MAX)));
        for number in numbers {
            locked(&sent).push(number, Bytes::from_static(b"payload"));
        }
        sent
    }

    /// All kept memory is counted: the queue's slots and each payload's own allocation.
    #[test]
    fn small_batches_are_charged_their_overhead() {
        let mut sent = SentBatches::new(REPLAY_BYTES_MAX);
        let boxed = |bytes| Bytes::from(vec![0; bytes].into_boxed_slice());
        let taken = |sent: &SentBatches| {
            let slots = sent.batches.capacity() * size_of::<(u64, Bytes)>();
            let payloads: usize = sent.batches.iter().map(|(_, held)| held.len()).sum();
            // An allocation has at least 32 bytes, and a shared payload has two.
            slots + payloads + 64 * sent.batches.len()
        };
        let small = 2 * REPLAY_BYTES_MAX / BATCH_OVERHEAD_BYTES;
        for number in 0..small as u64 {
            sent.push(number, boxed(8));
        }
        assert!(sent.batches.len() > small / 4, "many are kept");
        assert!(sent.batches.len() < small / 2, "and not all");
        assert!(taken(&sent) <= REPLAY_BYTES_MAX, "{}", taken(&sent));
        for number in 0..64 {
            sent.push(small as u64 + number, boxed(2 << 20));
        }
        assert!(taken(&sent) <= REPLAY_BYTES_MAX, "{}", taken(&sent));
        assert!(
            sent.batches.capacity() <= 128,
            "{}",
            sent.batches.capacity()
        );
    }

    /// The numbers that a reader gets which asks from this one on.
    fn replayed(sent: &SentBatches, first: u64) -> Vec<u64> {
        let mut numbers = first..sent.end();
        let next = || {
            let (number, _) = sent.first(numbers.clone())?;
            numbers.start = number + 1;
            Some(number)
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn snapshot_replaces_all_that_it_includes() {
        let batch = |bytes: usize| Bytes::from(vec![0; bytes - BATCH_OVERHEAD_BYTES]);
        let mut sent = SentBatches::new(10_000);
        sent.replace_all(0, batch(2_000));
        let mut asked = Vec::new();
        for number in 1..9 {
            sent.push(number, batch(1_000));
            if sent.needs_snapshot() {
                asked.push(number);
            }
        }
        // Once, before the first batch had to be dropped.
        assert_eq!(asked, [6]);
        assert_eq!(replayed(&sent, 3), [3, 4, 5, 6, 7, 8]);
        assert_eq!(replayed(&sent, 0), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let middle = 4..sent.end();
        sent.replace_all(8, batch(7_000));
        // A reader that is at 4 gets the snapshot.
        assert_eq!(sent.first(middle).map(|(number, _)| number), Some(8));
        sent.push(9, batch(1_000));
        assert!(!sent.needs_snapshot(), "it is most of the memory");
        for (first, expected) in [(0, &[8, 9][..]), (8, &[8, 9]), (9, &[9]), (10, &[])] {
            assert_eq!(replayed(&sent, first), expected, "{first}");
        }
        // A batch that does not fit is a gap.
        (10..13).for_each(|number| sent.push(number, batch(1_000)));
        assert_eq!(replayed(&sent, 0), [9, 10, 11, 12]);
        sent.replace_all(12, batch(10_001));
        assert!(replayed(&sent, 0).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn stuck_reader_does_not_delay_other_readers() {
        let (ask, questions) = mpsc::unbounded_channel();
        let (answers, mut received) = mpsc::unbounded_channel();
        let sent = numbered(5..8);
        let replaying = tokio::spawn(replay(Questions(questions), Answers(answers), sent));
        let started_at = tokio::time::Instant::now();
        let ask = |identity: &str, first| ask.send(question(identity, first)).expect("it listens");
        for number in 0..REPLAYS_MAX - 1 {
            ask(&format!("stuck {number}"), 0);
            // A second question of a reader takes no other reader's turn.
            ask(&format!("stuck {number}"), 0);
        }
        ask("reads", 6);
        for expected in [6u64.to_be_bytes(), 7u64.to_be_bytes(), REPLAY_END] {
            let (identity, number) = received.recv().await.expect("a batch is replayed");
            assert_eq!((&identity[..], &number[..]), (&b"reads"[..], &expected[..]));
        }
        assert_eq!(
            started_at.elapsed(),
            Duration::ZERO,
            "no reader was waited for"
        );
        // When all turns are taken, the next question is answered after the first one's timeout.
        ask("stuck last", 0);
        ask("later", 8);
        let (identity, number) = received.recv().await.expect("a batch is replayed");
        assert_eq!(
            (&identity[..], &number[..]),
            (&b"later"[..], &REPLAY_END[..])
        );
        assert_eq!(started_at.elapsed(), REPLAY_TIMEOUT);
        replaying.abort();
    }
}
