//! What is cached, told to routers as vLLM does: a ZeroMQ publisher of numbered batches,
//! and a socket at which those are had again that a router has missed.
//!
//! A batch is three frames: the topic, its number as eight bytes, big end first, and the
//! events (see `wire.rs`). Who asks the second socket with the first number that it wants
//! gets number and events of each, and at last the number of all ones.
//!
//! No reader holds the server up. One that is slow misses batches, as their numbers say.
//! If it is this server that was slow, numbers are left out too, and all that is cached is
//! told anew.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use axum::body::Bytes;
use motet::{BlockBatch, BlockEvents};
use tokio::time::timeout;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

use super::wire;
use crate::app::App;
use crate::arguments::FleetSettings;

/// Bytes of batches that can be had again; the oldest go first.
const REPLAY_BYTES_MAX: usize = 64 << 20;
/// Who has not read what it asked for by then does not get the rest.
const REPLAY_PATIENCE: Duration = Duration::from_secs(10);
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
    sent: Option<Arc<Mutex<Sent>>>,
    /// Where it publishes.
    pub address: String,
    /// Where batches can be had again.
    pub replay_address: Option<String>,
}

/// Batches that can be had again.
#[derive(Debug, Default)]
struct Sent {
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
        let Some(wanted) = &settings.kv_events else {
            return Ok(None);
        };
        let mut publisher = PubSocket::new();
        let address = publisher.bind(wanted).await;
        let address = address.with_context(|| format!("--kv-events {wanted}"))?;
        let mut events = Self {
            publisher,
            topic: settings.kv_events_topic.clone().into(),
            block_tokens: settings.kv_events_block_size,
            next: 0,
            sent: None,
            address: address.to_string(),
            replay_address: None,
        };
        if let Some(wanted) = &settings.kv_events_replay {
            let mut asked = RouterSocket::new();
            let address = asked.bind(wanted).await;
            let address = address.with_context(|| format!("--kv-events-replay {wanted}"))?;
            let sent = Arc::default();
            tokio::spawn(replay(asked, Arc::clone(&sent)));
            events.sent = Some(sent);
            events.replay_address = Some(address.to_string());
        }
        Ok(Some(events))
    }

    /// Publishes what is cached until there is no engine any more.
    pub async fn tell(mut self, app: Weak<App>) {
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
        let Some(payload) = payload.map(Bytes::from) else {
            return;
        };
        let number = Bytes::copy_from_slice(&self.next.to_be_bytes());
        let message = message([self.topic.clone(), number, payload.clone()]);
        if let Err(error) = self.publisher.send(message).await {
            tracing::warn!(%error, "KV events were not sent");
        }
        if let Some(sent) = &self.sent {
            locked(sent).keep(self.next, payload);
        }
        self.next += 1;
    }
}

impl Sent {
    fn keep(&mut self, number: u64, payload: Bytes) {
        self.bytes += payload.len();
        self.batches.push_back((number, payload));
        while self.bytes > REPLAY_BYTES_MAX
            && let Some((_, oldest)) = self.batches.pop_front()
        {
            self.bytes -= oldest.len();
        }
    }

    fn since(&self, first: u64) -> Vec<(u64, Bytes)> {
        let wanted = self.batches.iter().filter(|(number, _)| *number >= first);
        wanted.cloned().collect()
    }
}

/// Answers those who have missed batches, one after another.
async fn replay(mut asked: RouterSocket, sent: Arc<Mutex<Sent>>) {
    loop {
        let question = match asked.recv().await {
            Ok(question) => question,
            Err(error) => {
                tracing::warn!(%error, "no KV events can be had again");
                return;
            }
        };
        let answered = timeout(REPLAY_PATIENCE, answer(&mut asked, question, &sent)).await;
        match answered {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "KV events were not sent again"),
            Err(_) => tracing::debug!("who asked for KV events does not read them"),
        }
    }
}

async fn answer(
    asked: &mut RouterSocket,
    question: ZmqMessage,
    sent: &Mutex<Sent>,
) -> Result<(), ZmqError> {
    let frames = question.into_vec();
    let [identity, _, first] = &frames[..] else {
        tracing::debug!("expected two frames, the second a number");
        return Ok(());
    };
    let Ok(first) = <[u8; 8]>::try_from(&first[..]) else {
        tracing::debug!("expected a number of eight bytes");
        return Ok(());
    };
    let wanted = locked(sent).since(u64::from_be_bytes(first));
    let numbered = wanted
        .into_iter()
        .map(|(number, payload)| (number.to_be_bytes(), payload));
    for (number, payload) in numbered.chain([(REPLAY_END, Bytes::new())]) {
        let number = Bytes::copy_from_slice(&number);
        let frames = [identity.clone(), Bytes::new(), number, payload];
        asked.send(message(frames)).await?;
    }
    Ok(())
}

fn locked(sent: &Mutex<Sent>) -> MutexGuard<'_, Sent> {
    sent.lock().expect("nobody panics while it holds this")
}

fn message<const N: usize>(frames: [Bytes; N]) -> ZmqMessage {
    ZmqMessage::try_from(Vec::from(frames)).expect("there are frames")
}
