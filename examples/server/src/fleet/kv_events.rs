//! What is cached, told to routers as vLLM does: a ZeroMQ publisher of numbered batches,
//! and a socket at which those are had again that a router has missed.
//!
//! A batch is three frames: the topic, its number as eight bytes, big end first, and the
//! events (see `wire.rs`). Who asks the second socket with the first number that it wants
//! gets number and events of each, and at last the number of all ones.
//!
//! Several may ask at once, each with one question at a time. A socket holds what was sent to a
//! reader until it is read: keep both addresses to routers.
//!
//! No reader holds the server up. One that is slow misses batches, as their numbers say.
//! If it is this server that was slow, numbers are left out too, and all that is cached is
//! told anew.

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

use super::wire;
use crate::app::App;
use crate::arguments::FleetSettings;

/// Bytes of batches that can be had again, with what keeping them takes; the oldest go first.
const REPLAY_BYTES_MAX: usize = 64 << 20;
/// Memory that a kept batch takes beside its payload: its place in a queue that may be twice as
/// long as it need be, and what the allocator and the shared count add.
const BATCH_OVERHEAD_BYTES: usize = 2 * size_of::<(u64, Bytes)>() + 64;
/// Questions that are answered at once; the next wait in the socket.
const REPLAYS_MAX: usize = 16;
/// A reader that has not taken what it asked for by then does not get the rest.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(5);
/// A reader that had no room is tried again after so long.
const ANSWER_RETRY: Duration = Duration::from_millis(10);
/// After the last batch that was asked for.
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
    /// Where it publishes.
    pub address: String,
    /// Where batches can be had again.
    pub replay_address: Option<String>,
}

/// Batches that can be had again.
#[derive(Debug, Default)]
struct SentBatches {
    batches: VecDeque<(u64, Bytes)>,
    bytes: usize,
}

impl KvEvents {
    /// Opens the sockets, if there are to be any.
    ///
    /// # Errors
    ///
    /// Names the address that it cannot listen at.
    pub async fn bind(settings: &FleetSettings) -> Result<Option<Self>> {
        let Some(requested) = &settings.kv_events else {
            return Ok(None);
        };
        let mut publisher = PubSocket::new();
        let address = publisher.bind(requested).await;
        let address = address.with_context(|| format!("--kv-events {requested}"))?;
        let mut events = Self {
            publisher,
            topic: settings.kv_events_topic.clone().into(),
            block_tokens: settings.kv_events_block_size,
            next: 0,
            sent: None,
            address: address.to_string(),
            replay_address: None,
        };
        if let Some(requested) = &settings.kv_events_replay {
            let mut questions = RouterSocket::new();
            let address = questions.bind(requested).await;
            let address = address.with_context(|| format!("--kv-events-replay {requested}"))?;
            let sent = Arc::default();
            let (answers, questions) = questions.split();
            tokio::spawn(replay(questions, answers, Arc::clone(&sent)));
            events.sent = Some(sent);
            events.replay_address = Some(address.to_string());
        }
        Ok(Some(events))
    }

    /// Publishes what is cached until there is no engine any more.
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

    /// Publishes until some were missed, or there are no more.
    async fn publish_all(&mut self, mut events: BlockEvents) {
        let mut due = 0;
        while let Some(batch) = events.next().await {
            let missed = batch.number - due;
            if missed > 0 {
                tracing::warn!(missed, "KV events were missed: all is told anew");
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
        // Boxed, as a vector may have room for twice as much.
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
        // Many small batches need a longer queue than the few large ones that follow them.
        if self.batches.capacity() > 4 * self.batches.len() {
            self.batches.shrink_to(2 * self.batches.len());
        }
    }

    /// The first batch of these numbers that is still there.
    fn first(&self, numbers: Range<u64>) -> Option<(u64, Bytes)> {
        let before = |held: &(u64, Bytes)| held.0 < numbers.start;
        let at = self.batches.partition_point(before);
        let found = self.batches.get(at);
        found.filter(|(number, _)| *number < numbers.end).cloned()
    }

    /// The number after the last.
    fn end(&self) -> u64 {
        self.batches.back().map_or(0, |(number, _)| number + 1)
    }
}

fn batch_bytes(payload: &Bytes) -> usize {
    payload.len() + BATCH_OVERHEAD_BYTES
}

/// Answers those who have missed batches, several at once: one that does not read is waited
/// for beside the others.
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
                    tracing::warn!(%error, "no KV events can be had again");
                    return;
                }
            }
        }
    }
}

/// Whose a question is, and the first number that it wants.
fn parse_question(question: ZmqMessage) -> Option<(Bytes, u64)> {
    let frames = question.into_vec();
    let [identity, _, first] = &frames[..] else {
        return None;
    };
    let first = <[u8; 8]>::try_from(&first[..]).ok()?;
    Some((identity.clone(), u64::from_be_bytes(first)))
}

/// Answers one question, as far as the reader takes it in time; returns whose it was.
async fn answer(
    mut answers: impl SocketSend,
    identity: Bytes,
    first: u64,
    sent: Arc<Mutex<SentBatches>>,
) -> Bytes {
    let all = send_since(&mut answers, &identity, first, &sent);
    match timeout(REPLAY_TIMEOUT, all).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "KV events were not sent again"),
        Err(_) => tracing::debug!("a reader asked for KV events and does not read them"),
    }
    identity
}

/// Sends what there was when it was asked for, and then the end. A batch that has gone meanwhile is
/// a gap in the numbers.
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
        // While the socket waits for a reader it holds a lock that others want, and that blocks
        // the thread of one who leaves: it never waits here.
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
    sent.lock().expect("nobody panics while it holds this")
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

    /// Questions as they come, without a socket.
    struct Questions(mpsc::UnboundedReceiver<ZmqMessage>);

    impl SocketRecv for Questions {
        fn recv<'a, 'b>(&'a mut self) -> Sending<'b, ZmqMessage>
        where
            'a: 'b,
        {
            Box::pin(async { self.0.recv().await.ok_or(ZmqError::NoMessage) })
        }
    }

    /// Answers by reader. One whose name begins with `stuck` takes none.
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

    /// All that is kept is counted: the queue's places and each payload's own allocation.
    #[test]
    fn small_batches_are_charged_their_overhead() {
        let mut sent = SentBatches::default();
        let boxed = |bytes| Bytes::from(vec![0; bytes].into_boxed_slice());
        let taken = |sent: &SentBatches| {
            let slots = sent.batches.capacity() * size_of::<(u64, Bytes)>();
            let payloads: usize = sent.batches.iter().map(|(_, held)| held.len()).sum();
            // An allocation is at least 32 bytes, and a payload that is shared has two.
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
            // A second question of one reader takes no other's turn.
            ask(&format!("stuck {number}"), 0);
        }
        ask("reads", 6);
        for expected in [6u64.to_be_bytes(), 7u64.to_be_bytes(), REPLAY_END] {
            let (identity, number) = received.recv().await.expect("it is told");
            assert_eq!((&identity[..], &number[..]), (&b"reads"[..], &expected[..]));
        }
        assert_eq!(
            started_at.elapsed(),
            Duration::ZERO,
            "nobody was waited for"
        );
        // When all turns are taken, the next comes when the first has had its time.
        ask("stuck last", 0);
        ask("later", 8);
        let (identity, number) = received.recv().await.expect("it is told");
        assert_eq!(
            (&identity[..], &number[..]),
            (&b"later"[..], &REPLAY_END[..])
        );
        assert_eq!(started_at.elapsed(), REPLAY_TIMEOUT);
        replaying.abort();
    }
}
