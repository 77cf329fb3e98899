//! A preempted sequence continues with the same tokens, from its computed state.

use motet::request::Priority;

use crate::reference_output::reference_output;
use crate::setup::{config, end, engine, letter, read, request, run, submit};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urgent_request_preempts_and_nothing_is_computed_twice() {
    const OUTPUT: usize = 40;
    let mut config = config(1, 64, 3 * 192);
    // The patient sequence cannot end before the urgent one starts.
    config.scheduler.unread_tokens_max = 12;
    let engine = engine(config).await;
    let mut events = engine.events();
    let (patient, urgent) = (letter(6), letter(7));
    let background = request(&patient, OUTPUT).priority(Priority::Background);
    let mut stream = submit(&engine, background).await;
    let name = stream.sequence();
    let mut received = read(&mut stream, 5).await;
    let output = run(&engine, request(&urgent, 6).priority(Priority::Urgent)).await;
    assert_eq!(output.tokens, reference_output(&urgent, 6));
    let finished = engine.stats().finished;
    assert_eq!(finished, 1, "the patient sequence has not finished");
    received.extend(
        stream
            .collect()
            .await
            .expect("the sequence finishes")
            .tokens,
    );
    assert_eq!(received, reference_output(&patient, OUTPUT));
    let stats = engine.stats();
    assert_eq!(stats.preempted, 1);
    let mut preempted = Vec::new();
    while let Some(event) = events.try_next() {
        if let motet::monitor::EngineEvent::Preempted { sequence, .. } = event {
            preempted.push(sequence);
        }
    }
    assert_eq!(preempted, [name]);
    // Its computed state was in the cache when it got a slot again.
    let needed = patient.len() + OUTPUT - 1 + urgent.len() + 5;
    let evaluated = stats.evaluated_tokens as usize;
    assert!(
        (needed..needed + 4).contains(&evaluated),
        "{evaluated}, {needed} needed"
    );
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preemption_under_memory_pressure_keeps_every_output() {
    const OUTPUT: usize = 72;
    // Capacity for less than three whole sequences of 112 tokens.
    let engine = engine(config(4, 64, 320)).await;
    let budget = engine.config().cache.device_bytes_max;
    let mut streams = Vec::new();
    for number in 0..3 {
        let prompt = letter(number + 8)[..40].to_vec();
        let request = request(&prompt, OUTPUT).user(format!("user {number}"));
        streams.push((submit(&engine, request).await, prompt));
    }
    for (stream, prompt) in streams {
        let output = stream.collect().await.expect("the sequence finishes");
        assert_eq!(output.tokens, reference_output(&prompt, OUTPUT));
    }
    let stats = engine.stats();
    assert!(stats.preempted > 0, "{stats:?}");
    assert!(
        stats.steps_by_sequences.len() > 1,
        "several sequences ran at once"
    );
    let cache = stats.cache;
    assert!(
        cache.sealed_bytes + cache.reserved_bytes <= budget,
        "{cache:?}"
    );
    end(engine).await;
}
