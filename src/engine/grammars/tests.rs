use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::Poll;

use super::*;
use motet_protocol::UserId;
use motet_text::{GgufVocabulary, Tokenizer};

/// A codec with a token for each byte, and an end token.
fn codec() -> TextCodec {
    let printable = |byte: &u32| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let moved = (256..).zip((0..=255).filter(|byte| !printable(byte)));
    let alphabet = (0..=255)
        .filter(printable)
        .chain(moved.map(|(code, _)| code));
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
    let limits = GrammarLimits {
        compilations_max: 1,
        compile_time_max: limit,
        ..GrammarLimits::default()
    };
    Arc::new(Grammars::new(limits, &[256]))
}

fn source() -> GrammarSource {
    GrammarSource::Regex("a+".into())
}

fn user() -> UserId {
    UserId::of("user")
}

async fn is_pending<T>(mut future: Pin<&mut impl Future<Output = T>>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Blocks all compilation until the returned sender is dropped.
fn block_mask_pool(grammars: &Arc<Grammars>) -> mpsc::Sender<()> {
    let (release, released) = mpsc::channel::<()>();
    let (entered, is_entered) = mpsc::channel();
    let held = Arc::clone(grammars);
    std::thread::spawn(move || {
        held.pool.get_or_init(|| {
            entered.send(()).expect("the caller waits");
            released.recv().ok();
            MaskPool::start(1).map_err(|error| error.to_string())
        });
    });
    is_entered.recv().expect("the pool is being created");
    release
}

/// Queues the next work, and returns whether it has started.
fn next(grammars: &Arc<Grammars>) -> (Arc<AtomicBool>, impl Future<Output = ()>) {
    let wait_until_started = Arc::new(AtomicBool::new(false));
    let threads = grammars.threads.clone();
    let work = {
        let wait_until_started = Arc::clone(&wait_until_started);
        move || wait_until_started.store(true, Ordering::SeqCst)
    };
    (wait_until_started, async move {
        threads.run(user(), 0, work).await.expect("the work runs");
    })
}

/// Waits until the first work is on its thread.
async fn wait_until_started(grammars: &Grammars) {
    while grammars.threads.waiting() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn thread_stays_busy_after_the_caller_cancels() {
    let grammars = grammars(Duration::from_secs(600));
    let release = block_mask_pool(&grammars);
    let source = source();
    let mut caller = Box::pin(grammars.compile_queued(user(), &source, codec(), true));
    assert!(is_pending(caller.as_mut()).await);
    wait_until_started(&grammars).await;
    drop(caller);
    let (has_started, next) = next(&grammars);
    let mut next = pin!(next);
    for _ in 0..100 {
        assert!(is_pending(next.as_mut()).await, "the work holds the thread");
        tokio::task::yield_now().await;
    }
    assert!(!has_started.load(Ordering::SeqCst));
    drop(release);
    next.await;
}

#[tokio::test]
async fn compilation_has_a_time_limit_and_keeps_its_thread_after_it() {
    let limit = Duration::from_millis(1);
    let grammars = grammars(limit);
    let release = block_mask_pool(&grammars);
    let source = source();
    let compiled = grammars
        .compile_queued(user(), &source, codec(), true)
        .await;
    let kind = source.kind();
    let too_slow = Ok(Some(GrammarError::TooSlow { kind, limit }));
    assert_eq!(compiled.map(Result::err), too_slow);
    let (has_started, next) = next(&grammars);
    let mut next = pin!(next);
    assert!(is_pending(next.as_mut()).await);
    assert!(!has_started.load(Ordering::SeqCst));
    drop(release);
    next.await;
}

#[test]
fn cancelled_request_is_not_compiled() {
    let grammars = grammars(Duration::from_secs(600));
    let on_start = || unreachable!("no compilation starts");
    let compiled = grammars.compile(&source(), &codec(), true, on_start, || false);
    assert_eq!(compiled.err(), Some(GrammarError::Unwanted));
    assert!(
        grammars.vocabulary.get().is_none(),
        "the vocabulary was not built"
    );
    assert!(
        grammars
            .compile(&source(), &codec(), true, || (), || true)
            .is_ok()
    );
}

#[test]
fn compile_time_starts_after_the_vocabulary_is_built() {
    let grammars = grammars(Duration::from_secs(600));
    let on_start = || {
        assert!(
            grammars.vocabulary.get().is_some(),
            "the vocabulary is built first"
        )
    };
    assert!(
        grammars
            .compile(&source(), &codec(), true, on_start, || true)
            .is_ok()
    );
}

#[tokio::test]
async fn oversized_source_is_rejected_at_once() {
    let grammars = grammars(Duration::from_secs(600));
    let release = block_mask_pool(&grammars);
    let source = source();
    let mut first = Box::pin(grammars.compile_queued(user(), &source, codec(), true));
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
        let mut rejected = pin!(grammars.compile_queued(user(), &long, codec(), true));
        let rejected = poll_fn(|cx| Poll::Ready(rejected.as_mut().poll(cx))).await;
        match rejected {
            Poll::Ready(Ok(Err(GrammarError::TooExpensive { bound, .. }))) => {
                assert_eq!((bound.limit, bound.found), (limit as u64, 1 << 20));
            }
            other => panic!("expected a rejection at once, got {other:?}"),
        }
    }
    drop(release);
    assert!(first.await.expect("the compilation is done").is_ok());
}

#[tokio::test]
async fn compiler_panic_is_reported() {
    let grammars = grammars(Duration::from_secs(600));
    let work = || -> Result<Grammar, GrammarError> { panic!("injected") };
    let done = grammars.threads.run(user(), 0, work).await;
    let error = caller_result(source().kind(), done)
        .expect("the caller gets the error")
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "regular expression does not compile: the grammar compiler panicked"
    );
}
