//! A caller leaves, in each phase that a sequence has: it ends, its neighbours notice nothing,
//! and what it had computed is whole.

use std::time::Duration;

use motet::monitor::{EngineEvent, Events};
use motet::request::FinishReason;
use motet::{Engine, SequenceId, TokenId, TokenStream};

use crate::reference_output::reference_output;
use crate::setup::{config, end, engine, letter, letters, read, request, run, submit, until};

/// Tokens that a sequence may be ahead of its reader.
const UNREAD: usize = 8;
/// Longer than any caller here waits for.
const LONG: usize = 40;

/// How a sequence that was cancelled has ended.
struct CancelledSequence {
    has_started: bool,
    output_tokens: usize,
}

/// Drops the stream and waits until its sequence has ended for that.
async fn cancel(stream: TokenStream, events: &mut Events) -> CancelledSequence {
    let name = stream.sequence();
    drop(stream);
    let ended = tokio::time::timeout(Duration::from_secs(100), ended(name, events));
    let cancelled = ended.await.expect("it ends");
    assert_eq!(events.missed(), 0);
    cancelled
}

async fn ended(name: SequenceId, events: &mut Events) -> CancelledSequence {
    let mut has_started = false;
    loop {
        match events.next().await.expect("the engine is there") {
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

/// What comes after a prompt that begins with what a cancelled sequence computed: at least
/// `computed` tokens are reused, and they are whole.
async fn check_reuse(engine: &Engine, prompt: &[TokenId], computed: usize) {
    let output = run(engine, request(prompt, 4)).await;
    let cached = output.finish.usage.cached_tokens;
    assert!(cached >= computed, "{cached} cached, {computed} computed");
    assert_eq!(output.tokens, reference_output(prompt, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_in_the_queue_and_during_prefill() {
    // Small steps: the long prompt takes fifty of them.
    let mut config = config(1, 16, 1536);
    config.context_tokens_max = Some(1024);
    let engine = engine(config).await;
    let mut events = engine.events();
    let long = letters(0..9);
    let mut stream = submit(&engine, request(&long, LONG).report_prefill_progress()).await;
    let computed = loop {
        let piece = stream.next().await.expect("more to come").expect("a piece");
        let prefill = piece.prefill.expect("its prompt is not computed yet");
        if prefill.computed_tokens > 0 {
            break prefill.computed_tokens;
        }
    };
    assert!(computed < long.len());

    let queued = submit(&engine, request(&letter(9), LONG)).await;
    until("it is queued", || engine.stats().waiting == 1).await;
    assert_eq!(
        queued.queue_position().await.map(|place| place.position),
        Some(0)
    );
    let cancelled = cancel(queued, &mut events).await;
    assert!(!cancelled.has_started, "it never had a slot");
    assert_eq!(cancelled.output_tokens, 0);
    until("its place is free", || engine.stats().waiting == 0).await;

    // The other one is within its prompt still.
    let cancelled = cancel(stream, &mut events).await;
    assert_eq!(cancelled.output_tokens, 0, "its prompt was never whole");
    until("its slot is free", || engine.stats().running == 0).await;
    let evaluated = engine.stats().evaluated_tokens as usize;
    assert!((computed..long.len()).contains(&evaluated), "{evaluated}");
    check_reuse(&engine, &long[..computed + 8], computed).await;
    check_reuse(&engine, &letter(9), 0).await;
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_while_waiting_for_a_shared_prefix() {
    // The prompt is one long step, and the next two steps have room for all three.
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
    until("both wait", || engine.stats().awaiting_prefix == 2).await;
    let cancelled = cancel(cancelled_request, &mut events).await;
    assert!(!cancelled.has_started, "it waited for its slot");
    // And then the one that computes: the other goes on from what is there.
    drop(leader);
    let output = remaining_request.collect().await.expect("it ends well");
    let prompt = [&beginning[..], &letter(7)[..8]].concat();
    assert_eq!(output.tokens, reference_output(&prompt, 6));
    let stats = engine.stats();
    assert_eq!((stats.awaiting_prefix, stats.failed), (0, 0));
    let all = beginning.len() + 2 * 8 + 7;
    let evaluated = stats.evaluated_tokens as usize;
    assert!(
        evaluated <= all,
        "{evaluated}: the beginning once, of {all}"
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
    // What was under way when it was to pause still comes.
    assert!((3..=3 + UNREAD + 2).contains(&cancelled.output_tokens));
    // All that it has read, but for the last token's own state.
    let emitted = mine.len() + 3;
    check_reuse(&engine, &whole[..emitted + 1], emitted - 1).await;

    let paused = letter(10);
    let stream = submit(&engine, request(&paused, LONG)).await;
    until("it pauses", || engine.stats().paused == 1).await;
    let cancelled = cancel(stream, &mut events).await;
    assert!((UNREAD..=UNREAD + 2).contains(&cancelled.output_tokens));
    let emitted = [&paused[..], &reference_output(&paused, UNREAD)].concat();
    check_reuse(&engine, &emitted, emitted.len() - 1).await;

    let neighbour = neighbour.await.expect("no panic").expect("it ends well");
    assert_eq!(neighbour.tokens, reference_output(&near, 24));
    until("their slots are free", || engine.stats().running == 0).await;
    assert_eq!((engine.stats().paused, engine.stats().preempted), (0, 0));
    end(engine).await;
}
