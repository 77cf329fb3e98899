use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::time::Duration;

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

/// Compiles what is wanted next, and says whether it has begun.
fn next(grammars: &Arc<Grammars>) -> (Arc<AtomicBool>, impl Future<Output = ()>) {
    let begun = Arc::new(AtomicBool::new(false));
    let threads = grammars.threads.clone();
    let work = {
        let begun = Arc::clone(&begun);
        move || begun.store(true, Ordering::SeqCst)
    };
    (begun, async move {
        threads.run(user(), 0, work).await.expect("its turn comes");
    })
}

/// Waits until the work in front is on its thread.
async fn begun(grammars: &Grammars) {
    while grammars.threads.waiting() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_thread_stays_taken_when_the_caller_leaves() {
    let grammars = grammars(Duration::from_secs(600));
    let release = stuck(&grammars);
    let mut caller = Box::pin(grammars.compile_in_turn(user(), source(), codec()));
    assert!(is_pending(caller.as_mut()).await);
    begun(&grammars).await;
    drop(caller);
    let (has_begun, next) = next(&grammars);
    let mut next = pin!(next);
    for _ in 0..100 {
        assert!(is_pending(next.as_mut()).await, "the work holds the thread");
        tokio::task::yield_now().await;
    }
    assert!(!has_begun.load(Ordering::SeqCst));
    drop(release);
    next.await;
}

#[tokio::test]
async fn a_compilation_has_a_time_limit_and_keeps_its_thread_beyond_it() {
    let limit = Duration::from_millis(1);
    let grammars = grammars(limit);
    let release = stuck(&grammars);
    let compiled = grammars.compile_in_turn(user(), source(), codec()).await;
    let kind = source().kind();
    let too_slow = Ok(Some(GrammarError::TooSlow { kind, limit }));
    assert_eq!(compiled.map(Result::err), too_slow);
    let (has_begun, next) = next(&grammars);
    let mut next = pin!(next);
    assert!(is_pending(next.as_mut()).await);
    assert!(!has_begun.load(Ordering::SeqCst));
    drop(release);
    next.await;
}

#[test]
fn a_caller_who_has_left_costs_no_compilation() {
    let grammars = grammars(Duration::from_secs(600));
    let compiled = grammars.compile(&source(), &codec(), || false);
    assert_eq!(compiled.err(), Some(GrammarError::Unwanted));
    assert!(grammars.vocabulary.get().is_none(), "nothing was begun");
    assert!(grammars.compile(&source(), &codec(), || true).is_ok());
}
