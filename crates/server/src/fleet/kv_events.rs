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
use super::wire;
use crate::app::App;
use crate::arguments::FleetSettings;

/// Bytes of batches kept for replay, with their overhead; the oldest are dropped first.
const REPLAY_BYTES_MAX: usize = 64 << 20;
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
    block_tokens: usize,
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
#[derive(Debug, Default)]
struct SentBatches {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
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
            block_tokens: settings.kv_events_block_size,
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
            let sent = Arc::default();
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
        let mut due = 0;
        while let Some(batch) = events.next().await {
            let missed = batch.number - due;
            if missed > 0 {
                tracing::warn!(
                    missed,
                    "KV events were missed: all blocks are published again"
                );
                self.next += missed;
                return;
            }
            due += 1;
            self.publish(&batch).await;
        }
    }

    async fn publish(&mut self, batch: &BlockBatch) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let payload = wire::encode(&batch.events, self.block_tokens, now.unwrap_or_default());
        // A boxed slice, as a vector's capacity may be twice its length.
        let payload = payload.map(|payload| Bytes::from(payload.into_boxed_slice()));
        let Some(payload) = payload else {
            return;
        };
        let number = Bytes::copy_from_slice(&self.next.to_be_bytes());
        let message = message([self.topic.clone(), number, payload.clone()]);
        if let Err(error) = self.publisher.send(message).await {
            tracing::warn!(%error, "KV events were not sent");
        }
        if let Some(sent) = &self.sent {
            locked(sent).push(self.next, payload);
        }
        self.next += 1;
    }
}

impl SentBatches {
    fn push(&mut self, number: u64, payload: Bytes) {
        self.bytes += batch_bytes(&payload);
        self.batches.push_back((number, payload));
        while self.bytes > REPLAY_BYTES_MAX
            && let Some((_, oldest)) = self.batches.pop_front()
        {
            self.bytes -= batch_bytes(&oldest);
        }
        // Many small batches need a longer queue than the few large ones after them.
        if self.batches.capacity() > 4 * self.batches.len() {
            self.batches.shrink_to(2 * self.batches.len());
        }
    }

    /// The first batch in this range that is still kept.
    fn first(&self, numbers: Range<u64>) -> Option<(u64, Bytes)> {
        let before = |held: &(u64, Bytes)| held.0 < numbers.start;
        let at = self.batches.partition_point(before);
        let found = self.batches.get(at);
        found.filter(|(number, _)| *number < numbers.end).cloned()
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
        let sent: Arc<Mutex<SentBatches>> = Arc::default();
        for number in numbers {
            locked(&sent).push(number, Bytes::from_static(b"payload"));
        }
        sent
    }

    /// All kept memory is counted: the queue's slots and each payload's own allocation.
    #[test]
    fn small_batches_are_charged_their_overhead() {
        let mut sent = SentBatches::default();
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
