use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::Poll;

use super::*;
use motet_core::UserId;
use motet_text::{GgufVocabulary, Tokenizer};

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
        held.pool.get_or_init(|| {
            entered.send(()).expect("it is waited for");
            released.recv().ok();
            MaskPool::start(1).map_err(|error| error.to_string())
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
    let source = source();
    let mut caller = Box::pin(grammars.compile_in_turn(user(), &source, codec()));
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
    let source = source();
    let compiled = grammars.compile_in_turn(user(), &source, codec()).await;
    let kind = source.kind();
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
    let begin = || unreachable!("nothing begins");
    let compiled = grammars.compile(&source(), &codec(), begin, || false);
    assert_eq!(compiled.err(), Some(GrammarError::Unwanted));
    assert!(grammars.vocabulary.get().is_none(), "nothing was begun");
    assert!(
        grammars
            .compile(&source(), &codec(), || (), || true)
            .is_ok()
    );
}

#[test]
fn the_time_of_a_compilation_begins_when_the_vocabulary_is_made() {
    let grammars = grammars(Duration::from_secs(600));
    let begin = || assert!(grammars.vocabulary.get().is_some(), "it is all requests'");
    assert!(
        grammars
            .compile(&source(), &codec(), begin, || true)
            .is_ok()
    );
}

#[tokio::test]
async fn a_source_that_is_too_long_does_not_wait() {
    let grammars = grammars(Duration::from_secs(600));
    let release = stuck(&grammars);
    let source = source();
    let mut first = Box::pin(grammars.compile_in_turn(user(), &source, codec()));
    assert!(is_pending(first.as_mut()).await);
    for (long, limit) in [
        (
            GrammarSource::JsonSchema(" ".repeat(1 << 20)),
            GrammarSource::SCHEMA_BYTES_MAX,
        ),
        (
            GrammarSource::Lark(" ".repeat(1 << 20)),
            GrammarSource::LARK_BYTES_MAX,
        ),
        (
            GrammarSource::Regex("a".repeat(1 << 20)),
            GrammarSource::EXPRESSION_BYTES_MAX,
        ),
    ] {
        let mut refused = pin!(grammars.compile_in_turn(user(), &long, codec()));
        let refused = poll_fn(|cx| Poll::Ready(refused.as_mut().poll(cx))).await;
        match refused {
            Poll::Ready(Ok(Err(GrammarError::TooDear { bound, .. }))) => {
                assert_eq!((bound.limit, bound.found), (limit as u64, 1 << 20));
            }
            other => panic!("expected a refusal at once, got {other:?}"),
        }
    }
    drop(release);
    assert!(first.await.expect("it is done").is_ok());
}

#[tokio::test]
async fn a_compiler_that_panics_says_that_it_did() {
    let grammars = grammars(Duration::from_secs(600));
    let work = || -> Result<Grammar, GrammarError> { panic!("planted") };
    let done = grammars.threads.run(user(), 0, work).await;
    let error = told(source().kind(), done)
        .expect("it is told")
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "regular expression does not compile: the compiler of grammars panicked"
    );
}
