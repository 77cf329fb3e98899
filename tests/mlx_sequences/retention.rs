//! Pinned state and state in use stay, and everything else is evicted when memory is needed.

use motet::Engine;
use motet::config::EvictionPolicy;
use motet::request::{Miss, MissReason};

use crate::reference_output::reference_output;
use crate::setup::{config, end, engine, letter, read, request, run, submit};

/// Tokens of a letter that were in the cache, and why not more. Checks that the answer equals
/// the reference.
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

/// More letters than fit on the device, one after another.
async fn fill(engine: &Engine) {
    for number in 1..5 {
        cached(engine, number).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pins_and_live_sequences_survive_eviction() {
    const OUTPUT: usize = 24;
    // Memory for a pin, one cached letter and the running sequence, or for two running ones.
    let mut config = config(2, 64, 320);
    config.cache.eviction = EvictionPolicy::Lru;
    config.scheduler.unread_tokens_max = 4;
    let engine = engine(config).await;
    let pinned = letter(0);
    let pin = engine
        .pin(request(&pinned, 1), None)
        .await
        .expect("the pin fits");
    assert_eq!(engine.stats().cache.pins, 1);
    fill(&engine).await;
    let before = engine.stats().cache.evicted_segments;
    assert!(before > 0, "the device is too small for five letters");
    assert_eq!(cached(&engine, 0).await, (pinned.len() - 1, None));
    let (found, miss) = cached(&engine, 1).await;
    assert_eq!(found, 0, "an unpinned letter is evicted");
    assert_eq!(miss.map(|miss| miss.reason), Some(MissReason::Evicted));

    engine.unpin(pin).await.expect("the pin exists");
    assert_eq!(engine.stats().cache.pins, 0);
    fill(&engine).await;
    let (found, miss) = cached(&engine, 0).await;
    assert_eq!(found, 0, "a letter is evicted after it is unpinned");
    assert_eq!(miss.map(|miss| miss.reason), Some(MissReason::Evicted));

    // A sequence that is paused with its slot, while others start and finish.
    let held = letter(5);
    let mut live = submit(&engine, request(&held, OUTPUT)).await;
    let mut received = read(&mut live, 2).await;
    let before = engine.stats().cache.evicted_segments;
    fill(&engine).await;
    assert!(engine.stats().cache.evicted_segments > before);
    assert_eq!(
        cached(&engine, 5).await.0,
        held.len() - 1,
        "the paused sequence's prefix stays"
    );
    received.extend(live.collect().await.expect("the sequence finishes").tokens);
    assert_eq!(received, reference_output(&held, OUTPUT));
    assert_eq!(engine.stats().preempted, 0, "both sequences fit");
    end(engine).await;
}
