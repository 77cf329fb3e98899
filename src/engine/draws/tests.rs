use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::task::Poll;

use super::*;
use crate::UserId;
use crate::text::{GgufVocabulary, Tokenizer};

/// Tokens that spell a byte each, and an end.
fn codec() -> TextCodec {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let moved = (256..).zip((0..=255).filter(|byte| !printable(byte)));
    let alphabet = (0..=255)
        .filter(printable)
        .chain(moved.map(|(spelled, _)| spelled));
    let mut tokens: Vec<String> = alphabet
        .filter_map(char::from_u32)
        .map(String::from)
        .collect();
    tokens.push("<end>".into());
    let mut token_types = vec![1; tokens.len() - 1];
    token_types.push(3);
    let vocabulary = GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        token_types,
        end: Some(256),
        ..GgufVocabulary::default()
    };
    TextCodec::new(Tokenizer::from_gguf(&vocabulary).expect("whole"), None)
}

fn grammars(limit: Duration) -> Arc<Grammars> {
    Arc::new(Grammars::new(GrammarLimits {
        compilations_max: 1,
        compile_time_max: limit,
        ..GrammarLimits::default()
    }))
}

fn source() -> GrammarSource {
    GrammarSource::Regex("a+".into())
}

fn user() -> UserId {
    UserId::of("somebody")
}

async fn is_pending<T>(mut future: Pin<&mut impl Future<Output = T>>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Keeps whatever compiles from going on, until what it returns is dropped.
fn stuck(grammars: &Arc<Grammars>) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let (entered, is_entered) = mpsc::channel();
    let held = Arc::clone(grammars);
    std::thread::spawn(move || {
        held.vocabulary.get_or_init(|| {
            entered.send(()).expect("it is waited for");
            released.recv().ok();
            GrammarVocabulary::new(codec().tokenizer())
        });
    });
    is_entered.recv().expect("it is entered");
    release
}

#[tokio::test]
async fn a_turn_stays_taken_until_the_work_is_over() {
    let grammars = grammars(Duration::from_secs(600));
    let release = stuck(&grammars);
    let turn = grammars.turns.turn(user()).await.expect("it is free");
    let mut caller = Box::pin(grammars.compile_in_turn(turn, source(), codec()));
    assert!(is_pending(caller.as_mut()).await);
    while grammars.begun.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    // The caller leaves, and the work goes on.
    drop(caller);
    let mut next = pin!(grammars.turns.turn(user()));
    for _ in 0..100 {
        assert!(is_pending(next.as_mut()).await, "the work holds the turn");
        tokio::task::yield_now().await;
    }
    drop(release);
    next.await.expect("its turn comes when the work is over");
}

#[tokio::test]
async fn a_compilation_has_a_time_limit_and_keeps_its_turn_beyond_it() {
    let limit = Duration::from_millis(1);
    let grammars = grammars(limit);
    let release = stuck(&grammars);
    let turn = grammars.turns.turn(user()).await.expect("it is free");
    let compiled = grammars.compile_in_turn(turn, source(), codec()).await;
    let kind = source().kind();
    assert_eq!(compiled.err(), Some(GrammarError::TooSlow { kind, limit }));
    let mut next = pin!(grammars.turns.turn(user()));
    let was_begun = grammars.begun.load(Ordering::Relaxed) > 0;
    assert!(is_pending(next.as_mut()).await || !was_begun);
    drop(release);
    next.await.expect("its turn comes when the work is over");
}

#[test]
fn a_caller_who_has_left_costs_no_compilation() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .max_blocking_threads(1)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let grammars = grammars(Duration::from_secs(600));
        // The only thread for blocking work is busy, so that the compilation waits for it.
        let (release, released) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || released.recv().ok());
        let turn = grammars.turns.turn(user()).await.expect("it is free");
        let mut caller = Box::pin(grammars.compile_in_turn(turn, source(), codec()));
        assert!(is_pending(caller.as_mut()).await);
        drop(caller);
        drop(release);
        let turn = grammars.turns.turn(user()).await.expect("it is given back");
        assert_eq!(grammars.begun.load(Ordering::Relaxed), 0);
        // One who stays gets what it wants.
        let compiled = grammars.compile_in_turn(turn, source(), codec()).await;
        assert!(compiled.is_ok());
        assert_eq!(grammars.begun.load(Ordering::Relaxed), 1);
    });
}
