//! Texts that are too long, and texts that take long: their own results, and the effect on others
//! beside them.

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

use crate::common::{bytes, engine_with_text, small};
use motet::config::EngineConfig;
use motet::error::{QueueLimit, SubmitError};
use motet::model::oracle::OracleConfig;
use motet::request::Prompt;
use motet::text::{Chat, ChatTemplate, Message, TextCodec, Tokenizer};
use motet::{Engine, Request};
use motet_text::GgufVocabulary;

const CONTEXT: usize = 8192;
/// The longest token of `bytes`: its end token.
const TOKEN_BYTES: usize = "<end>".len();

async fn engine(text: TextCodec, config: EngineConfig) -> Engine {
    let oracle = OracleConfig {
        vocab_size: text.tokenizer().vocab_size(),
        context_tokens_max: CONTEXT,
        verify: false,
        ..OracleConfig::default()
    };
    engine_with_text(&oracle, text, config).await
}

fn chat_codec() -> TextCodec {
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let template = ChatTemplate::new(source, []).expect("it compiles");
    TextCodec::new(bytes().tokenizer().clone(), Some(template))
}

/// The rejected field, the value found and the values expected.
async fn rejection(engine: &Engine, request: Request) -> [String; 3] {
    match engine.submit(request).await {
        Err(SubmitError::PromptTooLong {
            field,
            found,
            expected,
            tokens_min,
            tokens_max,
        }) => {
            assert!(tokens_min > tokens_max && tokens_max >= CONTEXT - 1);
            [field.into(), found, expected]
        }
        other => panic!("expected a rejection, got {other:?}"),
    }
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test]
async fn oversized_text_is_rejected_by_its_bytes() {
    let engine = engine(chat_codec(), small()).await;
    let bytes_max = CONTEXT * TOKEN_BYTES;
    let long = "x".repeat(bytes_max + 1);
    let [field, found, expected] = rejection(&engine, Request::text(&*long)).await;
    assert_eq!(field, "prompt.text");
    assert_eq!(found, format!("{} bytes long", bytes_max + 1));
    assert!(
        expected.contains(&format!("at most {bytes_max} bytes")),
        "{expected}"
    );

    let chat = Request::chat([Message::user(&*long)]);
    let [field, found, _] = rejection(&engine, chat).await;
    assert_eq!(field, "prompt.chat");
    assert_eq!(
        found,
        format!("more than {bytes_max} bytes long in its template")
    );

    let many = vec![Message::user(""); CONTEXT + 1];
    let [field, found, _] = rejection(&engine, Request::chat(many)).await;
    assert_eq!((&*field, &*found), ("prompt.chat", "8193 messages long"));

    // A text that would fit by its bytes is rejected by its tokens, as always.
    let [field, found, _] = rejection(&engine, Request::text("x".repeat(CONTEXT))).await;
    assert_eq!((&*field, &*found), ("prompt", "8192 tokens long"));

    let counted = engine.tokenize(Prompt::Text(long), true, None).await;
    assert!(matches!(
        counted,
        Err(SubmitError::PromptTooLong {
            field: "prompt.text",
            ..
        })
    ));
    let spelled = engine.detokenize(vec![1; 4 * CONTEXT + 1], None).await;
    assert!(matches!(
        spelled,
        Err(SubmitError::Field {
            field: "prompt",
            ..
        })
    ));
}

#[tokio::test]
async fn shiftable_prompt_may_have_several_contexts_of_text() {
    let mut config = small();
    config.text.shift_contexts_max = 2;
    let engine = engine(bytes(), config).await;
    let request = |bytes| {
        Request::text("x".repeat(bytes))
            .shift(1)
            .output_tokens_max(1)
    };
    let stream = engine.submit(request(2 * CONTEXT)).await.expect("taken in");
    assert!(stream.prompt_tokens() < CONTEXT);
    stream.collect().await.expect("a token");
    let [field, _, expected] = rejection(&engine, request(2 * CONTEXT * TOKEN_BYTES + 1)).await;
    assert_eq!(field, "prompt.text");
    assert!(
        expected.contains("`text.shift_contexts_max` = 2"),
        "{expected}"
    );

    let tokens = |count| {
        Request::tokens(vec![1; count])
            .shift(1)
            .output_tokens_max(1)
    };
    let stream = engine.submit(tokens(2 * CONTEXT)).await.expect("taken in");
    assert!(stream.prompt_tokens() < CONTEXT);
    let [field, found, expected] = rejection(&engine, tokens(2 * CONTEXT + 1)).await;
    assert_eq!(
        (&*field, &*found),
        ("prompt", "16385 tokens long"),
        "{expected}"
    );
    assert!(
        expected.contains("`text.shift_contexts_max` = 2"),
        "{expected}"
    );
}

/// A token that spells many bytes lets long texts pass the byte limit: their tokens are counted
/// before they are tokenised.
#[tokio::test]
async fn text_of_short_tokens_is_rejected_when_it_has_too_many() {
    let letters = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let mut tokens: Vec<String> = letters.iter().map(char::to_string).collect();
    tokens.push("=".repeat(64));
    let vocabulary = GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        ..GgufVocabulary::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocabulary).expect("whole");
    let engine = engine(TextCodec::new(tokenizer, None), small()).await;
    let [field, found, _] = rejection(&engine, Request::text("x ".repeat(200_000))).await;
    let found = (&*field, &*found);
    assert_eq!(found, ("prompt.text", "more than 8192 tokens long"));
}

/// The template's output would fit, but rendering so much text has a cost.
#[tokio::test]
async fn oversized_conversation_is_rejected_before_its_template_is_rendered() {
    let source = "{% for m in messages %}{{ m.content[:1] }}{% endfor %}";
    let template = ChatTemplate::new(source, []).expect("it compiles");
    let text = TextCodec::new(bytes().tokenizer().clone(), Some(template));
    let engine = engine(text, small()).await;
    let bytes_max = 4 * CONTEXT * TOKEN_BYTES;
    let content = "x".repeat(bytes_max - "user".len());
    let fits = Prompt::Chat([Message::user(&*content)].into());
    let tokens = engine.tokenize(fits, true, None).await.expect("it fits");
    assert_eq!(tokens.len(), 1, "its template leaves the rest out");

    let mut message = Message::user(&*content);
    message.more.insert("a".into(), serde_json::Value::Null);
    let [field, found, expected] = rejection(&engine, Request::chat([message])).await;
    assert_eq!(field, "prompt.chat");
    assert_eq!(found, format!("{} bytes long", bytes_max + 2));
    assert!(
        expected.contains(&format!("at most {bytes_max} bytes")),
        "{expected}"
    );
}

#[tokio::test]
async fn conversation_of_too_many_tokens_is_reported_as_one() {
    let letters = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let mut tokens: Vec<String> = letters.iter().map(char::to_string).collect();
    tokens.push("=".repeat(64));
    let vocabulary = GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        ..GgufVocabulary::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocabulary).expect("whole");
    let text = TextCodec::new(tokenizer, chat_codec().template().cloned());
    let engine = engine(text, small()).await;
    let chat = Request::chat([Message::user("x ".repeat(200_000))]);
    let [field, found, _] = rejection(&engine, chat).await;
    let found = (&*field, &*found);
    assert_eq!(found, ("prompt.chat", "more than 8192 tokens long"));
}

#[test]
fn long_texts_are_tokenised_off_the_actors_and_short_ones_inline() {
    let (runtime, open) = blocked_runtime();
    runtime.block_on(async {
        let engine = engine(chat_codec(), small()).await;
        let prompts = |bytes| {
            let text = "x".repeat(bytes);
            [
                Prompt::Text(text.clone()),
                Prompt::Chat([Message::user(text)].into()),
            ]
        };
        for prompt in prompts(1000) {
            let mut short = pin!(engine.tokenize(prompt, true, None));
            match poll_once(short.as_mut()) {
                Poll::Ready(tokens) => assert_eq!(tokens.expect("spelled").len(), 1000),
                Poll::Pending => panic!("a short text does not wait"),
            }
        }
        // No thread for blocking work is free: only work on the caller's own thread gets done.
        let mut long = prompts(5000).map(|prompt| Box::pin(engine.tokenize(prompt, true, None)));
        for long in &mut long {
            assert!(poll_once(long.as_mut()).is_pending());
        }
        let mut spelled = pin!(engine.detokenize(vec![88; 20_000], None));
        assert!(poll_once(spelled.as_mut()).is_pending());
        drop(open);
        for long in long {
            assert_eq!(long.await.expect("spelled").len(), 5000);
        }
        assert_eq!(spelled.await.expect("known").len(), 20_000);
    });
}

/// A runtime whose one thread for blocking work is busy until the sender is dropped.
fn blocked_runtime() -> (tokio::runtime::Runtime, mpsc::Sender<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .expect("a runtime");
    let (open, gate) = mpsc::channel();
    runtime.spawn_blocking(move || gate.recv().ok());
    (runtime, open)
}

#[test]
fn waiting_texts_are_bounded_and_a_cancelled_one_frees_its_place() {
    let (runtime, open) = blocked_runtime();
    runtime.block_on(async {
        let mut config = small();
        config.text.queue_max = 4;
        let engine = engine(chat_codec(), config).await;
        let text = "x".repeat(5000);
        let ask = |user| engine.tokenize(Prompt::Text(text.clone()), true, user);
        let mut first = Box::pin(ask(Some("greedy")));
        let mut second = Box::pin(ask(Some("greedy")));
        assert!(poll_once(first.as_mut()).is_pending());
        assert!(poll_once(second.as_mut()).is_pending());

        // Two of four are taken: the user has as many as are left for others.
        let chat = Chat::from([Message::user(&*text)]);
        let request = Request::chat(chat.clone()).user("greedy");
        match engine.submit(request).await {
            Err(SubmitError::QueueFull { what, request, .. }) => {
                assert_eq!(what, QueueLimit::Text);
                assert!(
                    request.prompt == Prompt::Chat(chat),
                    "it is given back whole"
                );
            }
            other => panic!("expected a full queue, got {other:?}"),
        }
        let mut another = Box::pin(ask(Some("another")));
        assert!(
            poll_once(another.as_mut()).is_pending(),
            "other users are admitted"
        );

        drop(first);
        let mut retry = Box::pin(ask(Some("greedy")));
        assert!(
            poll_once(retry.as_mut()).is_pending(),
            "a cancelled request frees its place"
        );
        drop(open);
        assert_eq!(another.await.expect("spelled").len(), 5000);
        assert_eq!(second.await.expect("spelled").len(), 5000);
        assert_eq!(retry.await.expect("spelled").len(), 5000);
    });
}

/// Cost of one word that nothing splits: `cargo test --test engine long_texts -- --ignored --nocapture`.
#[test]
#[ignore = "prints times"]
fn print_cost_of_a_long_word() {
    let letters = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let mut tokens: Vec<String> = letters.iter().map(char::to_string).collect();
    let mut merges = Vec::new();
    for pair in ["aa", "bb", "ab", "ba"] {
        merges.push(format!("{} {}", &pair[..1], &pair[1..]));
        tokens.push(pair.into());
    }
    for doubled in 1..6 {
        let half = "a".repeat(1 << doubled);
        merges.push(format!("{half} {half}"));
        tokens.push(half.repeat(2));
    }
    let vocabulary = GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        merges,
        ..GgufVocabulary::default()
    };
    let tokenizer = Tokenizer::from_gguf(&vocabulary).expect("whole");
    for (name, word) in [("one letter", "a"), ("two letters", "aabab")] {
        for bytes in [30_000, 300_000] {
            let text = word.repeat(bytes / word.len());
            let began = std::time::Instant::now();
            let tokens = tokenizer.encode(&text, false).expect("spelled").len();
            let took = began.elapsed();
            println!("{name}, {bytes} bytes: {tokens} tokens in {took:?}");
        }
    }
}

/// A conversation that is prepared has the tokens that it has when it is submitted.
#[tokio::test]
async fn prepared_conversation_is_the_same_prompt() {
    let source = "{% for m in messages %}{{ m.content }}|{% endfor %}\
                  {% if add_generation_prompt %}A:<think>{% endif %}";
    let template = ChatTemplate::new(source, []).expect("it compiles");
    let codec = TextCodec::new(bytes().tokenizer().clone(), Some(template));
    let engine = engine(codec, small()).await;
    // One is rendered inline, the other on the threads of long texts.
    for text in ["a".to_owned(), "long ".repeat(1_000)] {
        let chat = Chat::from([Message::user(&*text)]);
        let counted = engine
            .tokenize(Prompt::Chat(chat.clone()), true, None)
            .await;
        let mut request = Request::chat(chat);
        let end = engine.prepare_chat(&mut request).await.expect("it fits");
        assert!(end.ends_with("|A:<think>"), "{end}");
        assert_eq!(request.prompt, Prompt::Tokens(counted.expect("it fits")));
        assert_eq!(
            engine.prepare_chat(&mut request).await.ok(),
            Some(String::new())
        );
    }
    let begun = [Message::user("a"), Message::assistant("b </think>")];
    let mut request = Request::chat(Chat::from(begun).continue_last());
    let end = engine.prepare_chat(&mut request).await.expect("it fits");
    assert_eq!(end, "b </think>");
    let long = Chat::from([Message::user("a".repeat(CONTEXT))]);
    let rejected = engine.prepare_chat(&mut Request::chat(long)).await;
    assert!(
        rejected.is_ok(),
        "its length is checked when it is submitted"
    );
    engine.drain().await;
    let drained = engine
        .prepare_chat(&mut Request::chat([Message::user("a")]))
        .await;
    assert!(matches!(drained, Err(SubmitError::Draining)), "{drained:?}");
}
