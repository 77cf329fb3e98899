//! A subscriber at a real socket gets the cache's events, and replays of missed ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use clap::Parser;
use motet::cache::BlockEvent;
use motet::{BlockBatch, Request};
use motet_server::app::App;
use motet_server::arguments::Arguments;
use motet_server::fleet::kv_events::KvEvents;
use motet_server::keys::Keys;
use motet_server::start;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

const ARGUMENTS: &str = "server --oracle --kv-events tcp://127.0.0.1:0 --kv-events-topic kv \
    --kv-events-replay tcp://127.0.0.1:0 --kv-events-block-size 4";

/// A message that takes longer never comes.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The blocks that a reader knows.
#[derive(Debug, Default, PartialEq)]
struct KnownBlocks(BTreeSet<u64>);

impl KnownBlocks {
    /// Applies a batch from the wire.
    fn apply(&mut self, payload: &Bytes) {
        let batch: Value = rmp_serde::from_slice(payload).expect("MessagePack");
        for event in batch[1].as_array().expect("events") {
            let hashes = || event[1].as_array().expect("hashes").iter();
            let hashes = || hashes().map(|hash| hash.as_u64().expect("a hash"));
            match event[0].as_str().expect("a name") {
                "BlockStored" => {
                    let tokens = event[3].as_array().expect("tokens").len();
                    assert_eq!((tokens, &event[4]), (4 * hashes().count(), &Value::from(4)));
                    self.0.extend(hashes());
                }
                "BlockRemoved" => hashes().for_each(|hash| assert!(self.0.remove(&hash))),
                "AllBlocksCleared" => self.0.clear(),
                other => panic!("{other} is not an event"),
            }
        }
    }

    /// The blocks of a batch of the library.
    fn of(batch: &BlockBatch) -> Self {
        let stored = batch.events.iter().flat_map(|event| match event {
            BlockEvent::Stored { hashes, .. } => &hashes[..],
            _ => &[],
        });
        Self(stored.map(|hash| hash.0).collect())
    }
}

fn number(frame: &Bytes) -> u64 {
    u64::from_be_bytes(frame[..].try_into().expect("eight bytes"))
}

async fn frames(socket: &mut impl SocketRecv) -> Vec<Bytes> {
    let message = timeout(TIMEOUT, socket.recv()).await;
    message
        .expect("it comes")
        .expect("it is complete")
        .into_vec()
}

/// Replays all batches. Returns the known blocks and the number of batches.
async fn replay_all(asks: &mut DealerSocket) -> (KnownBlocks, u64) {
    let first = Bytes::copy_from_slice(&0u64.to_be_bytes());
    let question = ZmqMessage::try_from(vec![Bytes::new(), first]);
    let question = question.expect("two frames");
    asks.send(question).await.expect("it is sent");
    let mut known = KnownBlocks::default();
    for due in 0.. {
        let batch = frames(asks).await;
        if batch[1][..] == [0xFF; 8] {
            return (known, due);
        }
        assert_eq!(number(&batch[1]), due, "each batch is replayed, in order");
        known.apply(&batch[2]);
    }
    unreachable!("the numbers do not end")
}

#[tokio::test]
async fn late_subscriber_can_replay_the_gap() {
    let arguments = Arguments::parse_from(ARGUMENTS.split_whitespace());
    let engine = start::engine(&arguments).await.expect("the oracle starts");
    let app = App::new(engine, "oracle".into(), Keys::default(), arguments.access);
    let app = Arc::new(app);
    let events = KvEvents::bind(&arguments.fleet).await.expect("free ports");
    let events = events.expect("they are asked for");
    let (address, replay) = (events.address.clone(), events.replay_address.clone());
    let publishing = tokio::spawn(events.run(Arc::downgrade(&app)));
    let mut asks = DealerSocket::new();
    let replay = replay.expect("it is asked for");
    asks.connect(&replay).await.expect("it listens");
    let started = async { while replay_all(&mut asks).await.1 == 0 {} };
    timeout(TIMEOUT, started).await.expect("it has begun");

    let mut subscriber = SubSocket::new();
    subscriber.connect(&address).await.expect("it listens");
    subscriber.subscribe("kv").await.expect("a topic");

    // Events before the subscription takes effect are missed.
    let mut prompts = (0..200u32).map(|first| Request::tokens(Vec::from_iter(first..first + 9)));
    let warm = |request| async { app.engine().warm(request).await.expect("it is computed") };
    let first = loop {
        warm(prompts.next().expect("the subscription gets there")).await;
        let soon = timeout(Duration::from_millis(50), subscriber.recv()).await;
        if let Ok(message) = soon {
            break message.expect("it is complete").into_vec();
        }
    };
    let [topic, seen, _] = &first[..] else {
        panic!("expected topic, number and events: {first:?}");
    };
    assert_eq!((&topic[..], number(seen) > 0), (&b"kv"[..], true), "a gap");
    app.engine()
        .clear_all_caches()
        .await
        .expect("the engine works");
    warm(prompts.next().expect("a few are left")).await;
    let mut all = app
        .engine()
        .follow_blocks()
        .await
        .expect("another may follow");
    let all = KnownBlocks::of(&all.next().await.expect("all cached blocks"));
    assert_eq!(all.0.len(), 2, "two whole blocks");

    let received = async {
        loop {
            let (known, batches) = replay_all(&mut asks).await;
            // The last batch may still be on its way.
            if known == all {
                return batches;
            }
        }
    };
    let batches = timeout(TIMEOUT, received).await.expect("the same is known");
    assert!(number(seen) < batches);
    while number(&frames(&mut subscriber).await[1]) + 1 < batches {}

    drop(app);
    timeout(TIMEOUT, publishing)
        .await
        .expect("it ends")
        .expect("well");
}

/// A reader that introduces itself by hand, and announces a frame of 16 TiB.
#[tokio::test]
async fn reader_that_announces_too_much_is_disconnected() {
    let arguments = Arguments::parse_from(ARGUMENTS.split_whitespace());
    let events = KvEvents::bind(&arguments.fleet).await.expect("free ports");
    let events = events.expect("they are asked for");
    let replay = events.replay_address.clone().expect("it is asked for");
    for (address, kind) in [(&events.address, "SUB"), (&replay, "DEALER")] {
        let address = address.strip_prefix("tcp://").expect("it is TCP");
        let mut reader = TcpStream::connect(address).await.expect("it listens");
        let mut greeting = [0; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xFF, 0x7F, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        let kind_bytes = (kind.len() as u32).to_be_bytes();
        let ready = [
            b"\x05READY\x0bSocket-Type",
            &kind_bytes[..],
            kind.as_bytes(),
        ]
        .concat();
        let announced = [&[2][..], &(1_u64 << 44).to_be_bytes()].concat();
        let sent = [&greeting[..], &[4, ready.len() as u8], &ready, &announced].concat();
        reader.write_all(&sent).await.expect("it reads");
        let mut rest = Vec::new();
        let ended = timeout(TIMEOUT, reader.read_to_end(&mut rest)).await;
        ended.expect("it is closed").ok();
    }
}
