//! Restore points on the oracle, for models that cannot resume after every token: at intervals
//! of a prompt, and in a chat before the generation prompt.

use crate::common::{byte_vocabulary, small};
use motet::config::EngineConfig;
use motet::error::SubmitError;
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::Sampling;
use motet::text::{Chat, Message, TextCodec};
use motet::{Engine, Request, Shutdown, TokenId};
use motet_text::GgufVocabulary;

const OUTPUT: usize = 5;
const KINDS: [&[LayerKind]; 3] = [
    &[LayerKind::Recurrent],
    &[LayerKind::Full, LayerKind::Window { tokens: 6 }],
    &[
        LayerKind::Full,
        LayerKind::Window { tokens: 6 },
        LayerKind::Recurrent,
    ],
];
/// The generation prompt differs from the spelling of answers in the history.
const TEMPLATE: &str = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n\
                        {% endfor %}{% if add_generation_prompt %}(think) {% endif %}";
/// Thoughts stand in the turns after the last question only, as in templates of thinking models.
const REWRITING: &str = "{% set ns = namespace(last=0) %}\
    {% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}\
    {% for m in messages %}[{{ m.role }}] \
    {% if m.thought and loop.index0 > ns.last %}({{ m.thought }}) {% endif %}{{ m.content }}\n\
    {% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";

fn oracle(layers: &[LayerKind]) -> OracleConfig {
    OracleConfig {
        context_tokens_max: 512,
        vocab_size: 257,
        end_tokens: vec![256],
        tail_block_tokens: 16,
        ..OracleConfig::with_layers(layers)
    }
}

fn codec() -> TextCodec {
    codec_with(TEMPLATE)
}

fn codec_with(template: &str) -> TextCodec {
    let vocabulary = GgufVocabulary {
        chat_template: Some(template.into()),
        ..byte_vocabulary()
    };
    TextCodec::from_gguf(&vocabulary).expect("a vocabulary")
}

async fn engine(oracle: &OracleConfig, config: EngineConfig) -> Engine {
    engine_with(oracle, config, codec()).await
}

async fn engine_with(oracle: &OracleConfig, config: EngineConfig, codec: TextCodec) -> Engine {
    let oracle = oracle.clone();
    let build = move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle"));
    let started = Engine::builder(build).text(codec).config(config).start();
    started.await.expect("the engine starts")
}

/// Restore points at intervals of 16 tokens.
fn intervals() -> EngineConfig {
    let mut config = small();
    config.cache.restore_interval_tokens = 16;
    config
}

/// The first `shared` tokens of a common prefix, then twenty tokens of its own.
fn prompt(shared: TokenId, number: TokenId) -> Vec<TokenId> {
    (1..=shared)
        .chain((0..20).map(|i| 150 + number * 20 + i))
        .collect()
}

/// Returns the number of prompt tokens that were in the cache. Checks that the output equals the
/// reference run, and that only the other tokens were computed.
async fn cached(
    engine: &Engine,
    oracle: &OracleConfig,
    request: Request,
    prompt: &[TokenId],
) -> usize {
    let before = engine.stats().evaluated_tokens;
    let request = request.output_tokens_max(OUTPUT).ignore_end_tokens();
    let stream = engine.submit(request).await.expect("it is accepted");
    let output = stream.collect().await.expect("it ends well");
    assert_eq!(
        output.tokens,
        oracle.reference_tokens(prompt, OUTPUT, Sampling::GREEDY)
    );
    let usage = output.finish.usage;
    assert_eq!(usage.prompt_tokens, prompt.len());
    let evaluated = (engine.stats().evaluated_tokens - before) as usize;
    assert_eq!(evaluated, prompt.len() - usage.cached_tokens + OUTPUT - 1);
    usage.cached_tokens
}

/// Offsets below `most` at which a sequence can start.
async fn resumable(engine: &Engine, most: usize) -> Vec<usize> {
    let tree = engine.cache_tree(None).await.expect("the engine works");
    let nodes = tree.nodes.iter().filter(|node| node.resumable);
    let ends = nodes.map(|node| node.tokens_before + node.tokens.len());
    let mut ends: Vec<usize> = ends.filter(|end| *end < most).collect();
    ends.sort_unstable();
    ends
}

#[tokio::test]
async fn prompt_is_restorable_at_every_interval() {
    for layers in KINDS {
        let oracle = oracle(layers);
        let engine = engine(&oracle, intervals()).await;
        let ask = async |prompt: &[TokenId]| {
            cached(&engine, &oracle, Request::tokens(prompt), prompt).await
        };
        assert_eq!(ask(&prompt(100, 0)).await, 0);
        // Up to half an interval later than at multiples of 16, as steps have 32 tokens.
        let ends = resumable(&engine, 119).await;
        assert_eq!(ends, [24, 40, 56, 72, 88, 104], "{layers:?}");
        for (number, (shared, expected)) in [(15, 0), (24, 24), (39, 24), (50, 40), (97, 88)]
            .into_iter()
            .enumerate()
        {
            let found = ask(&prompt(shared, 1 + number as TokenId % 4)).await;
            assert_eq!(found, expected, "{layers:?}: {shared} tokens shared");
        }
        engine.shutdown(Shutdown::Abort).await;
    }
}

#[tokio::test]
async fn resumed_sequence_is_restorable_at_intervals_of_its_own() {
    let oracle = oracle(&[LayerKind::Recurrent]);
    let engine = engine(&oracle, intervals()).await;
    let ask =
        async |prompt: &[TokenId]| cached(&engine, &oracle, Request::tokens(prompt), prompt).await;
    assert_eq!(ask(&prompt(50, 0)).await, 0);
    assert_eq!(ask(&prompt(110, 1)).await, 40);
    assert_eq!(
        ask(&prompt(95, 2)).await,
        80,
        "an interval of the second's own"
    );
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn prompt_shorter_than_the_interval_has_no_restore_point() {
    let oracle = oracle(&[LayerKind::Recurrent]);
    let mut config = small();
    config.cache.restore_interval_tokens = 120;
    let engine = engine(&oracle, config).await;
    let ask =
        async |prompt: &[TokenId]| cached(&engine, &oracle, Request::tokens(prompt), prompt).await;
    assert_eq!(ask(&prompt(100, 0)).await, 0);
    assert_eq!(resumable(&engine, 119).await, [0; 0]);
    assert_eq!(ask(&prompt(97, 1)).await, 0);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn model_that_resumes_anywhere_needs_no_restore_points() {
    let oracle = oracle(&[LayerKind::Full]);
    let engine = engine(&oracle, intervals()).await;
    let ask =
        async |prompt: &[TokenId]| cached(&engine, &oracle, Request::tokens(prompt), prompt).await;
    assert_eq!(ask(&prompt(100, 0)).await, 0);
    assert_eq!(resumable(&engine, 119).await, [0; 0], "one node, not seven");
    assert_eq!(ask(&prompt(97, 1)).await, 97);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn chat_is_restorable_before_the_generation_prompt() {
    for layers in KINDS {
        let oracle = oracle(layers);
        let engine = engine(&oracle, small()).await;
        let codec = codec();
        let mut messages = vec![
            Message::system("You keep the garden of an island."),
            Message::user("When does it open?"),
        ];
        let mut known = 0;
        for turn in 0..4 {
            let chat = Chat::from(messages.clone());
            let prompt = codec.encode_chat(&chat).expect("plain text");
            let so_far = codec.encode_conversation(&chat).expect("plain text").len();
            assert_eq!(prompt.len(), so_far + "(think) ".len());
            for again in 0..2 {
                let found = cached(&engine, &oracle, Request::chat(chat.clone()), &prompt).await;
                let expected = if again == 0 { known } else { so_far };
                assert_eq!(found, expected, "{layers:?}: turn {turn}, {again}");
            }
            let tree = engine.cache_tree(None).await.expect("the engine works");
            let is_restore_point = |node: &&motet_core::cache::NodeView| {
                node.resumable && node.tokens_before + node.tokens.len() == so_far
            };
            assert_eq!(
                tree.nodes.iter().filter(is_restore_point).count(),
                1,
                "turn {turn}"
            );
            // The answers so far are spelled otherwise, and are dropped with the next turn.
            let is_parent = |index: usize| tree.nodes.iter().any(|node| node.parent == Some(index));
            let leaves = (0..tree.nodes.len()).filter(|index| !is_parent(*index));
            assert_eq!(leaves.count(), 1, "{layers:?}: turn {turn}\n{tree}");
            known = so_far;
            messages.push(Message::assistant(format!("At {turn}.")));
            messages.push(Message::user(format!("And what grows in bed {turn}?")));
        }
        engine.shutdown(Shutdown::Abort).await;
    }
}

/// A tool's result continues the turn, so its prompt resumes before the generation prompt. The
/// user's next message makes the template drop the turn's thought, so its prompt resumes before
/// that.
#[tokio::test]
async fn rewritten_chat_is_restorable_where_it_differs() {
    for layers in KINDS {
        let oracle = oracle(layers);
        let codec = codec_with(REWRITING);
        let engine = engine_with(&oracle, small(), codec.clone()).await;
        let mut called = Message::assistant("I call the gardener.");
        called
            .more
            .insert("thought".into(), "Who would know?".into());
        let question = Message::user("When does it open?");
        let result = Message::new("tool", "At nine.");
        let mut messages = vec![question.clone(), called, result.clone()];
        let ask = async |messages: &[Message]| {
            let chat = Chat::from(messages.to_vec());
            let prompt = codec.encode_chat(&chat).expect("plain text");
            cached(&engine, &oracle, Request::chat(chat), &prompt).await
        };
        let so_far = |messages: &[Message]| {
            let chat = Chat::from(messages.to_vec());
            codec.encode_conversation(&chat).expect("plain text").len()
        };
        let before_thought = so_far(&[question]) + "[assistant] ".len();
        assert_eq!(ask(&messages).await, 0);
        let in_turn = so_far(&messages);
        messages.push(result);
        assert_eq!(
            ask(&messages).await,
            in_turn,
            "{layers:?}: the turn goes on"
        );
        messages.push(Message::assistant("It opens at nine."));
        messages.push(Message::user("And when does it close?"));
        assert_eq!(
            ask(&messages).await,
            before_thought,
            "{layers:?}: a new turn"
        );
        engine.shutdown(Shutdown::Abort).await;
    }
}

/// A prepared conversation has its own restore points, unless its caller's leave no space for them.
#[tokio::test]
async fn prepared_chat_has_as_many_restore_points_as_a_request_may_have() {
    const MOST: usize = 64;
    let oracle = oracle(KINDS[0]);
    let engine = engine_with(&oracle, small(), codec_with(REWRITING)).await;
    let mut called = Message::assistant("I call the gardener.");
    let thought = "Who would know?".into();
    called.more.insert("thought".into(), thought);
    let question = Message::user("When does it open?");
    let chat = Chat::from([question, called, Message::new("tool", "At nine.")]);
    let prepared = async |own: usize| {
        let mut request = Request::chat(chat.clone()).output_tokens_max(1);
        request.restore_points = (1..=own).collect();
        let prepared = engine.prepare_chat(&mut request).await;
        prepared.map(|_| request)
    };
    let of_chat = prepared(0).await.expect("it fits").restore_points;
    assert_eq!(of_chat.len(), 1);
    for own in [0, MOST - 1, MOST] {
        let request = prepared(own).await.expect("it fits");
        assert_eq!(request.restore_points.len(), MOST.min(own + of_chat.len()));
        engine.submit(request).await.expect("its points fit");
    }
    match prepared(MOST + 1).await {
        Err(SubmitError::Field { field, .. }) => assert_eq!(field, "restore_points"),
        other => panic!("expected too many points, got {other:?}"),
    }
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn plain_tokens_have_no_restore_point_before_their_end() {
    let oracle = oracle(&[LayerKind::Recurrent]);
    let engine = engine(&oracle, small()).await;
    let codec = codec();
    let messages = [
        Message::user("When does it open?"),
        Message::assistant("At nine."),
        Message::user("And when does it close?"),
    ];
    for turns in [1, 3] {
        let chat = Chat::from(messages[..turns].to_vec());
        let prompt = codec.encode_chat(&chat).expect("plain text");
        let request = Request::tokens(prompt.clone());
        assert_eq!(cached(&engine, &oracle, request, &prompt).await, 0);
    }
    engine.shutdown(Shutdown::Abort).await;
}
