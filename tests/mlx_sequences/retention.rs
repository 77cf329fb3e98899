//! What is pinned or held stays, and everything else goes when room is needed.

use motet::Engine;
use motet::config::EvictionPolicy;
use motet::request::{Miss, MissReason};

use crate::reference_output::reference_output;
use crate::setup::{config, end, engine, letter, read, request, run, submit};

/// Tokens of a letter that were in the cache, and why not more. The answer is as alone.
async fn cached(engine: &Engine, number: usize) -> (usize, Option<Miss>) {
    let prompt = letter(number);
    let output = run(engine, request(&prompt, 4)).await;
    assert_eq!(
        output.tokens,
        reference_output(&prompt, 4),
        "letter {number}"
    );
    let usage = output.finish.usage;
    (usage.cached_tokens, usage.miss)
}

/// More letters than the device has room for, one after the other.
async fn fill(engine: &Engine) {
    for number in 1..5 {
        cached(engine, number).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pins_and_live_sequences_survive_eviction() {
    const OUTPUT: usize = 24;
    // A pin, one cached letter and the sequence that runs; or two that run.
    let mut config = config(2, 64, 320);
    config.cache.eviction = EvictionPolicy::Lru;
    config.scheduler.unread_tokens_max = 4;
    let engine = engine(config).await;
    let pinned = letter(0);
    let pin = engine.pin(request(&pinned, 1), None).await.expect("room");
    assert_eq!(engine.stats().cache.pins, 1);
    fill(&engine).await;
    let before = engine.stats().cache.evicted_segments;
    assert!(before > 0, "the device is too small for five letters");
    assert_eq!(cached(&engine, 0).await, (pinned.len() - 1, None));
    let (found, miss) = cached(&engine, 1).await;
    assert_eq!(found, 0, "a letter that nothing holds is gone");
    assert_eq!(miss.map(|miss| miss.reason), Some(MissReason::Evicted));

    engine.unpin(pin).await.expect("it is pinned");
    assert_eq!(engine.stats().cache.pins, 0);
    fill(&engine).await;
    let (found, miss) = cached(&engine, 0).await;
    assert_eq!(found, 0, "what was unpinned goes like all else");
    assert_eq!(miss.map(|miss| miss.reason), Some(MissReason::Evicted));

    // One that is paused with its slot, while others come and go.
    let held = letter(5);
    let mut live = submit(&engine, request(&held, OUTPUT)).await;
    let mut received = read(&mut live, 2).await;
    let before = engine.stats().cache.evicted_segments;
    fill(&engine).await;
    assert!(engine.stats().cache.evicted_segments > before);
    assert_eq!(cached(&engine, 5).await.0, held.len() - 1, "it is held");
    received.extend(live.collect().await.expect("it ends well").tokens);
    assert_eq!(received, reference_output(&held, OUTPUT));
    assert_eq!(engine.stats().preempted, 0, "there was room for both");
    end(engine).await;
}
