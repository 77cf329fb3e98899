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
            // Events are arrays, or maps where they have salts.
            let at = |place: usize, name: &str| event.get(name).unwrap_or(&event[place]);
            let hashes = || at(1, "block_hashes").as_array().expect("hashes").iter();
            let hashes = || hashes().map(|hash| hash.as_u64().expect("a hash"));
            match at(0, "type").as_str().expect("a name") {
                "BlockStored" => {
                    let tokens = at(3, "token_ids").as_array().expect("tokens").len();
                    let size = at(4, "block_size");
                    assert_eq!((tokens, size), (4 * hashes().count(), &Value::from(4)));
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

/// Publishes the events of an engine with these settings until the app is dropped.
async fn publishing(more: &str) -> (Arc<App>, DealerSocket) {
    let words = format!("{ARGUMENTS} {more}");
    let arguments = Arguments::parse_from(words.split_whitespace());
    let engine = start::engine(&arguments).await.expect("the oracle starts");
    let app = App::new(engine, "oracle".into(), Keys::default(), arguments.access);
    let app = Arc::new(app);
    let events = KvEvents::bind(&arguments.fleet).await.expect("free ports");
    let events = events.expect("they are asked for");
    let replay = events.replay_address.clone().expect("it is asked for");
    tokio::spawn(events.run(Arc::downgrade(&app)));
    let mut asks = DealerSocket::new();
    asks.connect(&replay).await.expect("it listens");
    (app, asks)
}

/// All blocks that the engine has.
async fn held(app: &App) -> KnownBlocks {
    let events = app.engine().follow_blocks().await;
    let all = events.expect("another may follow").next().await;
    KnownBlocks::of(&all.expect("all cached blocks"))
}

/// Replays from this number on until the reader knows what the engine has. Returns the numbers.
async fn replayed(asks: &mut DealerSocket, app: &App, first: u64) -> Vec<u64> {
    let replayed = async {
        loop {
            let question = Bytes::copy_from_slice(&first.to_be_bytes());
            let question = ZmqMessage::try_from(vec![Bytes::new(), question]);
            let question = question.expect("two frames");
            asks.send(question).await.expect("it is sent");
            let (mut known, mut numbers) = (KnownBlocks::default(), Vec::new());
            loop {
                let batch = frames(asks).await;
                if batch[1][..] == [0xFF; 8] {
                    break;
                }
                numbers.push(number(&batch[1]));
                known.apply(&batch[2]);
            }
            if known == held(app).await {
                return numbers;
            }
        }
    };
    timeout(6 * TIMEOUT, replayed)
        .await
        .expect("the same is known")
}

/// Batches are dropped, and a reader that begins then knows all blocks, and each later change.
#[tokio::test]
async fn late_reader_gets_a_snapshot_in_place_of_dropped_batches() {
    let (app, mut asks) = publishing("--kv-events-replay-mib 1 --cache-mib 1").await;
    let mut first = 0;
    for round in 0..3 {
        for number in 0..120_u32 {
            let tokens = (0..2_000).map(|at| (at * 7 + number + 120 * round) % 250);
            let request = Request::tokens(Vec::from_iter(tokens));
            app.engine().warm(request).await.expect("it is computed");
        }
        let numbers = replayed(&mut asks, &app, 0).await;
        assert!(
            numbers[0] > first,
            "older batches were dropped: {numbers:?}"
        );
        assert!(
            numbers.windows(2).all(|pair| pair[1] == pair[0] + 1),
            "no gap: {numbers:?}"
        );
        first = numbers[0];
    }
}

#[tokio::test]
async fn salted_blocks_are_published_where_the_operator_asks() {
    let request = |salt: Option<&str>| Request {
        cache_salt: salt.map(str::to_owned),
        ..Request::tokens(Vec::from_iter(0..9_u32))
    };
    for (more, blocks) in [("", 2), ("--kv-events-salts", 4)] {
        let (app, mut asks) = publishing(more).await;
        for salt in [None, Some("a tenant")] {
            app.engine()
                .warm(request(salt))
                .await
                .expect("it is computed");
        }
        assert_eq!(held(&app).await.0.len(), 4, "two for each");
        let known = async {
            while replay_all(&mut asks).await.0.0.len() < blocks {}
            replay_all(&mut asks).await.0.0.len()
        };
        let known = timeout(TIMEOUT, known).await.expect("they are published");
        assert_eq!(known, blocks, "{more}");
    }
}

#[test]
fn block_longer_than_the_context_is_rejected() {
    let fleet = |tokens: usize| {
        let words = ARGUMENTS.replace("size 4", &format!("size {tokens}"));
        Arguments::parse_from(words.split_whitespace()).fleet
    };
    fleet(8192).check(8192).expect("one block");
    let error = fleet(8193).check(8192).expect_err("none").to_string();
    assert!(error.contains("--kv-events-block-size is 8193"), "{error}");
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
