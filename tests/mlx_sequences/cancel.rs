//! A caller leaves in each phase of a sequence. The sequence ends, its neighbours are not
//! affected, and its computed state stays usable.

use std::time::Duration;

use motet::monitor::{EngineEvent, Events};
use motet::request::FinishReason;
use motet::{Engine, SequenceId, TokenId, TokenStream};

use crate::reference_output::reference_output;
use crate::setup::{config, end, engine, letter, letters, read, request, run, submit, until};

/// Tokens that a sequence may be ahead of its reader.
const UNREAD: usize = 8;
/// Longer than any caller in these tests waits.
const LONG: usize = 40;

/// The end of a cancelled sequence.
struct CancelledSequence {
    has_started: bool,
    output_tokens: usize,
}

/// Drops the stream and waits until its sequence has ended as cancelled.
async fn cancel(stream: TokenStream, events: &mut Events) -> CancelledSequence {
    let name = stream.sequence();
    drop(stream);
    let ended = tokio::time::timeout(Duration::from_secs(100), ended(name, events));
    let cancelled = ended.await.expect("the sequence ends");
    assert_eq!(events.missed(), 0);
    cancelled
}

async fn ended(name: SequenceId, events: &mut Events) -> CancelledSequence {
    let mut has_started = false;
    loop {
        match events.next().await.expect("the engine is running") {
            EngineEvent::Started { sequence, .. } => has_started |= sequence == name,
            EngineEvent::Finished {
                sequence,
                reason,
                output_tokens,
                ..
            } if sequence == name => {
                assert_eq!(reason, FinishReason::Cancelled);
                return CancelledSequence {
                    has_started,
                    output_tokens,
                };
            }
            _ => {}
        }
    }
}

/// Runs a prompt that begins with a cancelled sequence's tokens. At least `computed` tokens are
/// reused, and the output matches the reference.
async fn check_reuse(engine: &Engine, prompt: &[TokenId], computed: usize) {
    let output = run(engine, request(prompt, 4)).await;
    let cached = output.finish.usage.cached_tokens;
    assert!(cached >= computed, "{cached} cached, {computed} computed");
    assert_eq!(output.tokens, reference_output(prompt, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_in_the_queue_and_during_prefill() {
    // Small steps, so that the long prompt takes fifty of them.
    let mut config = config(1, 16, 1536);
    config.context_tokens_max = Some(1024);
    let engine = engine(config).await;
    let mut events = engine.events();
    let long = letters(0..9);
    let mut stream = submit(&engine, request(&long, LONG).report_prefill_progress()).await;
    let computed = loop {
        let piece = stream
            .next()
            .await
            .expect("the stream continues")
            .expect("a piece");
        let prefill = piece.prefill.expect("its prompt is not computed yet");
        if prefill.computed_tokens > 0 {
            break prefill.computed_tokens;
        }
    };
    assert!(computed < long.len());

    let queued = submit(&engine, request(&letter(9), LONG)).await;
    until("the request is queued", || engine.stats().waiting == 1).await;
    assert_eq!(
        queued.queue_position().await.map(|place| place.position),
        Some(0)
    );
    let cancelled = cancel(queued, &mut events).await;
    assert!(!cancelled.has_started, "the sequence never had a slot");
    assert_eq!(cancelled.output_tokens, 0);
    until("the queue is empty", || engine.stats().waiting == 0).await;

    // The other sequence is still in prefill.
    let cancelled = cancel(stream, &mut events).await;
    assert_eq!(cancelled.output_tokens, 0, "its prompt was never complete");
    until("the slot is free", || engine.stats().running == 0).await;
    let evaluated = engine.stats().evaluated_tokens as usize;
    assert!((computed..long.len()).contains(&evaluated), "{evaluated}");
    check_reuse(&engine, &long[..computed + 8], computed).await;
    check_reuse(&engine, &letter(9), 0).await;
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_while_waiting_for_a_shared_prefix() {
    // The prompt is one long step, and the next two steps have capacity for all three.
    let mut config = config(4, 512, 4 * 512);
    config.context_tokens_max = Some(512);
    let engine = engine(config).await;
    let mut events = engine.events();
    let beginning = letters(0..5);
    let ask = |number: usize, output_tokens| {
        let prompt = [&beginning[..], &letter(number)[..8]].concat();
        request(&prompt, output_tokens)
    };
    let leader = submit(&engine, ask(5, 2)).await;
    let cancelled_request = submit(&engine, ask(6, LONG)).await;
    let remaining_request = submit(&engine, ask(7, 6)).await;
    until("both wait for the prefix", || {
        engine.stats().awaiting_prefix == 2
    })
    .await;
    let cancelled = cancel(cancelled_request, &mut events).await;
    assert!(!cancelled.has_started, "the sequence had no slot yet");
    // Then the computing sequence is cancelled, and the other continues from its computed
    // prefix.
    drop(leader);
    let output = remaining_request
        .collect()
        .await
        .expect("the sequence finishes");
    let prompt = [&beginning[..], &letter(7)[..8]].concat();
    assert_eq!(output.tokens, reference_output(&prompt, 6));
    let stats = engine.stats();
    assert_eq!((stats.awaiting_prefix, stats.failed), (0, 0));
    let all = beginning.len() + 2 * 8 + 7;
    let evaluated = stats.evaluated_tokens as usize;
    assert!(
        evaluated <= all,
        "{evaluated}: the prefix is computed once, of {all} tokens"
    );
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_during_decode_and_while_paused() {
    let mut config = config(2, 64, 4 * 192);
    config.scheduler.unread_tokens_max = UNREAD;
    let engine = engine(config).await;
    let mut events = engine.events();
    let (near, mine) = (letter(8), letter(9));
    let whole = [&mine[..], &reference_output(&mine, UNREAD + 4)].concat();
    let neighbour = submit(&engine, request(&near, 24)).await;
    let neighbour = tokio::spawn(neighbour.collect());
    let mut stream = submit(&engine, request(&mine, LONG)).await;
    assert_eq!(read(&mut stream, 3).await, whole[mine.len()..][..3]);
    let cancelled = cancel(stream, &mut events).await;
    assert!(cancelled.has_started);
    // Steps in flight at the pause still finish.
    assert!((3..=3 + UNREAD + 2).contains(&cancelled.output_tokens));
    // Everything that the caller has read, except the last token's own state.
    let emitted = mine.len() + 3;
    check_reuse(&engine, &whole[..emitted + 1], emitted - 1).await;

    let paused = letter(10);
    let stream = submit(&engine, request(&paused, LONG)).await;
    until("the sequence pauses", || engine.stats().paused == 1).await;
    let cancelled = cancel(stream, &mut events).await;
    assert!((UNREAD..=UNREAD + 2).contains(&cancelled.output_tokens));
    let emitted = [&paused[..], &reference_output(&paused, UNREAD)].concat();
    check_reuse(&engine, &emitted, emitted.len() - 1).await;

    let neighbour = neighbour
        .await
        .expect("no panic")
        .expect("the sequence finishes");
    assert_eq!(neighbour.tokens, reference_output(&near, 24));
    until("the slots are free", || engine.stats().running == 0).await;
    assert_eq!((engine.stats().paused, engine.stats().preempted), (0, 0));
    end(engine).await;
}
