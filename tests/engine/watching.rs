//! Events and snapshots for watchers of an engine.

use std::time::{Duration, Instant};

use motet::cache::PrefixKey;
use motet::config::{CacheConfig, EngineConfig};
use motet::model::oracle::{Oracle, OracleConfig};
use motet::model::{LayerKind, Model, SegmentSize};
use motet::monitor::{EngineEvent, Events, StepView, Tier, TrieNode};
use motet::request::FinishReason;
use motet::{Engine, Request, SequenceId, Shutdown, UserId};
use motet_core::cache::{CacheCore, Message, OpenSlot};
use motet_core::snapshot::{SchedulerSnapshot, TrieView};

async fn engine(config: EngineConfig) -> Engine {
    let oracle = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
    let engine = Engine::builder(oracle).config(config).start().await;
    engine.expect("it starts")
}

#[tokio::test]
async fn events_count_each_token_once() {
    let engine = engine(EngineConfig::default()).await;
    let mut events = engine.events();
    let prompt: Vec<u32> = (1..40).collect();
    let request = Request::tokens(prompt.clone()).output_tokens_max(12);
    let stream = engine
        .submit(request.ignore_end_tokens())
        .await
        .expect("it is accepted");
    let own = stream.sequence();
    let finish = stream.collect().await.expect("it ends").finish;
    engine.shutdown(Shutdown::Finish).await;
    let (mut evaluated, mut in_spans, mut story) = (0, 0, Vec::new());
    while let Some(event) = events.next().await {
        match event {
            EngineEvent::Step(step) => {
                assert!(!step.failed);
                evaluated += step.decode_tokens + step.prefill_tokens;
                in_spans += step.spans.iter().map(|span| span.tokens).sum::<usize>();
                assert!(step.spans.iter().all(|span| span.sequence == own));
            }
            EngineEvent::Started {
                sequence,
                prompt_tokens,
                cached_tokens,
                ..
            } => {
                assert_eq!(
                    (sequence, prompt_tokens, cached_tokens),
                    (own, prompt.len(), 0)
                );
                story.push("started");
            }
            EngineEvent::FirstToken { sequence, .. } => {
                assert_eq!(sequence, own);
                story.push("first token");
            }
            EngineEvent::Finished {
                sequence,
                reason,
                output_tokens,
                decoded,
                ..
            } => {
                assert_eq!((sequence, output_tokens), (own, finish.usage.output_tokens));
                assert_eq!(reason, FinishReason::Length);
                assert!(decoded.is_some());
                story.push("finished");
            }
            other => panic!("nothing else has happened: {other:?}"),
        }
    }
    assert_eq!(story, ["started", "first token", "finished"]);
    assert_eq!(events.missed(), 0);
    // The last token is sampled but not evaluated.
    assert_eq!(evaluated, prompt.len() + finish.usage.output_tokens - 1);
    assert_eq!(in_spans, evaluated);
}

#[tokio::test]
async fn slow_listener_misses_the_oldest_events_and_blocks_nothing() {
    let engine = engine(EngineConfig::default()).await;
    let mut events = engine.events();
    for round in 0..Events::WAITING_MAX as u32 / 2 {
        let request = Request::tokens([round, 1]).output_tokens_max(1);
        engine
            .submit(request)
            .await
            .expect("it is accepted")
            .collect()
            .await
            .expect("it ends");
    }
    let steps = engine.stats().steps;
    let mut last = 0;
    let mut taken = 0;
    while let Some(event) = events.try_next() {
        taken += 1;
        if let EngineEvent::Step(step) = event {
            last = step.number;
        }
    }
    assert!(events.missed() > 0);
    assert_eq!(taken, Events::WAITING_MAX);
    assert_eq!(last, steps, "the newest steps are there");
}

#[tokio::test]
async fn snapshot_shows_sequences_users_and_cached_nodes() {
    let engine = engine(EngineConfig::default()).await;
    let mut snapshots = engine.snapshots();
    let prompt: Vec<u32> = (0..100).map(|token| token % 50).collect();
    let mut stream = {
        let request = Request::tokens(prompt).output_tokens_max(2000).user("ada");
        engine
            .submit(request.ignore_end_tokens())
            .await
            .expect("it is accepted")
    };
    for salt in ["a", "b"] {
        let other = Request::tokens([7; 20]).cache_salt(salt);
        engine.warm(other).await.expect("it is computed");
    }
    stream.next().await.expect("it goes on").expect("well");
    let snapshot = loop {
        let snapshot = snapshots.next().await.expect("the engine is there");
        if snapshot.stats.finished == 2 && snapshot.scheduler.sequences.len() == 1 {
            break snapshot;
        }
    };
    let one = &snapshot.scheduler.sequences[0];
    assert_eq!(
        (one.sequence, one.user),
        (stream.sequence(), UserId::of("ada"))
    );
    assert_eq!((one.prompt_tokens, one.output_tokens_max), (100, 2000));
    assert_eq!(snapshot.scheduler.users.len(), 1);
    assert_eq!(snapshot.scheduler.users[0].running, 1);
    assert_eq!(snapshot.trie.nodes.len(), snapshot.stats.cache.segments);
    let salts: std::collections::BTreeSet<usize> =
        snapshot.trie.nodes.iter().map(|node| node.salt).collect();
    assert_eq!(salts.len(), 2);
    assert!(
        snapshot
            .trie
            .nodes
            .iter()
            .all(|node| node.tier == Tier::Device)
    );
    engine.shutdown(Shutdown::Abort).await;
    while snapshots.next().await.is_some() {}
}

#[tokio::test]
async fn times_of_a_sequence_are_ordered_and_end_with_it() {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = 1;
    let engine = engine(config).await;
    let request = |tokens| Request::tokens([1, 2, 3]).output_tokens_max(tokens);
    let long = request(4000).ignore_end_tokens();
    let mut running = engine.submit(long).await.expect("it is accepted");
    running.next().await.expect("it goes on").expect("well");
    let waiting = engine.submit(request(3)).await.expect("it is accepted");
    let handle = waiting.handle();
    assert_eq!(handle.times().started, None, "the slot is taken");
    // Cancels the sequence that has the slot.
    let cancelled = running.handle();
    drop(running);
    waiting.collect().await.expect("it ends");
    let times = handle.times();
    let reached = [times.started, times.first_token, times.ended];
    let reached = reached.map(|time| time.expect("it was reached"));
    assert!(reached.is_sorted(), "{times:?}");
    assert!(reached[2] <= times.since_submit, "{times:?}");
    assert_eq!(handle.times().ended, times.ended);
    cancelled.finished().await.expect("a cancel is a finish");
    let times = cancelled.times();
    assert!(times.ended >= times.first_token, "{times:?}");
    assert!(times.first_token.is_some(), "{times:?}");
}

#[tokio::test]
async fn snapshot_shows_the_bytes_of_restore_points() {
    let layers = [LayerKind::Recurrent, LayerKind::Full];
    let oracle = OracleConfig::with_layers(&layers);
    let oracle = move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle"));
    let engine = Engine::builder(oracle).start().await.expect("it starts");
    let prompt: Vec<u32> = (0..200).map(|token| token % 50).collect();
    engine
        .warm(Request::tokens(prompt).restore_point(80))
        .await
        .expect("it is computed");
    let snapshot = engine
        .snapshots()
        .next()
        .await
        .expect("the engine is there");
    let restore = snapshot.stats.cache.restore.expect("a hybrid has them");
    let nodes = &snapshot.trie.nodes;
    let holding = nodes.iter().filter(|node| node.snapshot_bytes > 0);
    assert_eq!(holding.clone().count(), restore.snapshots, "{nodes:?}");
    let bytes: usize = holding.map(|node| node.snapshot_bytes).sum();
    assert_eq!(bytes, restore.snapshot_bytes);
    assert!(nodes.iter().all(|node| node.snapshot_bytes <= node.bytes));
    let named = nodes.iter().filter(|node| node.restore_point);
    let ends: Vec<usize> = named.map(|node| node.tokens_before + node.tokens).collect();
    assert_eq!(ends, [80], "{nodes:?}");
}

#[tokio::test]
async fn snapshot_is_bounded_and_counts_omissions() {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = 2 * StepView::SPANS_MAX;
    config.scheduler.admission.queue_max = 4096;
    let engine = engine(config).await;
    let mut streams = Vec::new();
    for first in 0..2 * SchedulerSnapshot::SEQUENCES_MAX as u32 {
        let request = Request::tokens([first % 200, first / 200, 3]).output_tokens_max(600);
        streams.push(
            engine
                .submit(request.ignore_end_tokens())
                .await
                .expect("it is accepted"),
        );
    }
    for first in 0..2 * TrieView::NODES_MAX as u32 {
        let request = Request::tokens([first % 200, first / 200, 4, 5]).output_tokens_max(1);
        streams.push(engine.submit(request).await.expect("it is accepted"));
    }
    let mut snapshots = engine.snapshots();
    let mut events = engine.events();
    let snapshot = snapshots.next().await.expect("the engine is there");
    assert_eq!(
        snapshot.scheduler.sequences.len(),
        SchedulerSnapshot::SEQUENCES_MAX
    );
    assert!(snapshot.scheduler.sequences_left_out > 0);
    let step = loop {
        match events.next().await {
            Some(EngineEvent::Step(step)) if step.spans_left_out > 0 => break step,
            Some(_) => {}
            None => panic!(
                "steps of more than {} sequences are run",
                StepView::SPANS_MAX
            ),
        }
    };
    assert_eq!(step.spans.len(), StepView::SPANS_MAX);
    drop(streams);
    engine.drain().await;
    let snapshot = loop {
        let snapshot = snapshots.next().await.expect("the engine is there");
        if snapshot.scheduler.sequences.is_empty() {
            break snapshot;
        }
    };
    let trie = &snapshot.trie;
    assert!(trie.nodes.len() <= TrieView::NODES_MAX);
    assert_eq!(
        trie.nodes.len() + trie.nodes_left_out,
        snapshot.stats.cache.segments
    );
    let shown: usize = trie.nodes.iter().map(|node| node.bytes).sum();
    assert_eq!(
        shown + trie.bytes_left_out,
        snapshot.stats.cache.sealed_bytes
    );
    for (index, node) in trie.nodes.iter().enumerate() {
        assert!(
            node.parent.is_none_or(|parent| parent < index),
            "parents come first"
        );
    }
}

#[tokio::test]
async fn offloaded_segments_stay_attached_in_the_snapshot() {
    let oracle = Oracle::new(OracleConfig::default()).expect("a valid oracle");
    let token_bytes = oracle.spec().segment_bytes(SegmentSize::whole(1));
    let mut config = EngineConfig::default();
    config.cache.device_bytes_max = token_bytes * 800;
    config.cache.full_sequences_min = 0;
    config.pager.host_bytes_max = token_bytes * 8000 + (64 << 10);
    config.pager.label_bytes_max = Some(64 << 10);
    let engine = engine(config).await;
    let shared_prefix: Vec<u32> = (0..50).collect();
    for branch in 50..90 {
        let mut prompt = shared_prefix.clone();
        prompt.extend([branch; 60]);
        let warmed = engine.warm(Request::tokens(prompt)).await;
        warmed.expect("it is computed");
    }
    let mut snapshots = engine.snapshots();
    let copies = loop {
        let snapshot = snapshots.next().await.expect("the engine is there");
        let (copies, nodes): (Vec<_>, Vec<_>) = (0..)
            .zip(&snapshot.trie.nodes)
            .partition(|(_, node)| node.tier == Tier::Host);
        if copies.is_empty() {
            continue;
        }
        assert!(!nodes.is_empty(), "some of it is on the device");
        let ends = |(_, copy): &(usize, &TrieNode)| {
            let above = copy.parent.map(|parent| &snapshot.trie.nodes[parent]);
            let end = above.map_or(0, |above| above.tokens_before + above.tokens);
            assert!(
                end <= copy.tokens_before,
                "it hangs below the node that it follows"
            );
            end == copy.tokens_before
        };
        break copies.iter().filter(|copy| ends(copy)).count();
    };
    assert!(copies > 0, "one hangs exactly where it begins");
}

/// Caches a prompt, like a sequence that samples nothing.
fn cache_prompt(core: &mut CacheCore, sequence: u64, tokens: &[u32]) {
    let sequence = SequenceId(sequence);
    let open_slot = Message::OpenSlot(OpenSlot {
        sequence,
        key: PrefixKey::default(),
        tokens: tokens.into(),
        tokens_max: tokens.len() + 1,
        keep: None,
        restore_points: Vec::new(),
        turn_end: None,
        retention: 0,
        token_time: None,
        ignore_cache: false,
        reuse_max: None,
    });
    let close = Message::Close {
        sequence,
        computed: tokens.len(),
        generated: Vec::new(),
    };
    for message in [open_slot, close] {
        core.handle(Duration::ZERO, message)
            .expect("there is memory");
    }
}

#[test]
fn snapshot_shows_the_relevant_of_a_hundred_thousand_nodes() {
    const PROMPTS: u32 = 100_000;
    let oracle = Oracle::new(OracleConfig::default()).expect("a valid oracle");
    let config = CacheConfig {
        device_bytes_max: 1 << 30,
        ..CacheConfig::default()
    };
    let mut core = CacheCore::new(oracle.spec().clone(), config);
    for number in 0..PROMPTS {
        let tokens = [number % 47, number / 47 % 47, number / 47 / 47, 1, 2];
        cache_prompt(&mut core, u64::from(number) + 1, &tokens);
    }
    let popular = [3, 4, 5, 6, 7, 8, 9];
    for again in 0..10_000 {
        cache_prompt(&mut core, u64::from(PROMPTS) + 1 + again, &popular);
    }
    let nodes = core.stats().segments;
    assert!(nodes > PROMPTS as usize);
    let started_at = Instant::now();
    let trie = core.overview(&[]);
    println!("a snapshot of {nodes} nodes: {:?}", started_at.elapsed());
    assert_eq!(trie.nodes.len(), TrieView::NODES_MAX);
    assert_eq!(trie.nodes.len() + trie.nodes_left_out, nodes);
    let is_popular = |node: &&TrieNode| {
        node.tokens_before + node.tokens + 1 >= popular.len() && node.hits > 9000
    };
    assert!(trie.nodes.iter().any(|node| is_popular(&node)));
}
