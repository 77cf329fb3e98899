//! Restore points of a model with sliding windows: where another prompt branched off, where the
//! caller asks for one, at intervals, and where a conversation will continue.

use motet::text::{Chat, Message};
use motet::{Engine, Request, TokenId};

use crate::mistral::{Mistral, config, tokens};
use crate::setup::{end, request, run};

const OUTPUT: usize = 24;

/// Tokens of the request's prompt that were in the cache. Checks that the answer equals the
/// reference.
async fn cached(engine: &Engine, mistral: &Mistral, request: Request, prompt: &[TokenId]) -> usize {
    let output = run(
        engine,
        request.output_tokens_max(OUTPUT).ignore_end_tokens(),
    )
    .await;
    assert_eq!(output.tokens, mistral.reference_output(prompt, OUTPUT));
    let usage = output.finish.usage;
    assert_eq!(usage.prompt_tokens, prompt.len());
    usage.cached_tokens
}

/// `shared` tokens of the first prompt, then others.
fn branch(shared: usize, number: usize) -> Vec<TokenId> {
    let mut prompt = tokens(8, 120);
    let first = prompt[shared];
    prompt.truncate(shared);
    prompt.push((first + 1 + number as TokenId) % 90);
    prompt.extend(tokens(20 + number, 10));
    prompt
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_can_be_resumed_at_its_restore_points_only() {
    let mistral = Mistral::new();
    let engine = mistral.engine(config(4, 32)).await;
    let prompt = tokens(8, 120);
    let ask =
        async |prompt: &[TokenId]| cached(&engine, &mistral, request(prompt, OUTPUT), prompt).await;
    assert_eq!(ask(&prompt).await, 0);
    assert_eq!(ask(&prompt).await, 0, "its second visit");
    assert_eq!(ask(&prompt).await, 119, "before its last token");
    assert_eq!(ask(&branch(70, 1)).await, 0, "no window was retained there");
    assert_eq!(
        ask(&branch(70, 2)).await,
        70,
        "where another prompt branched off"
    );
    assert_eq!(ask(&branch(90, 3)).await, 70);
    let asked = [&tokens(9, 80)[..], &tokens(5, 30)].concat();
    let first = request(&asked, OUTPUT).restore_point(80);
    assert_eq!(cached(&engine, &mistral, first, &asked).await, 0);
    let other = [&asked[..80], &tokens(11, 20)].concat();
    assert_eq!(ask(&other).await, 80, "where the caller asked for one");
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_can_be_resumed_at_every_interval() {
    let mistral = Mistral::new();
    let mut config = config(4, 64);
    config.cache.restore_interval_tokens = 50;
    let engine = mistral.engine(config).await;
    let prompt = tokens(8, 120);
    assert_eq!(
        cached(&engine, &mistral, request(&prompt, OUTPUT), &prompt).await,
        0
    );
    let tree = engine
        .cache_tree(None)
        .await
        .expect("the cache is consistent");
    let resumable = tree.nodes.iter().filter(|node| node.resumable);
    let ends: Vec<usize> = resumable
        .map(|node| node.tokens_before + node.tokens.len())
        .collect();
    // At the first end of a chunk from 50 to 75.
    assert_eq!(ends, [64, 120 + OUTPUT - 1]);
    // A position near a restore point is not enough. The first to branch off leaves state there.
    // Between that and the next point, both together hold a whole window.
    let branches = [(49, 0), (60, 60), (99, 64), (110, 99)];
    for (number, (shared, expected)) in branches.iter().enumerate() {
        let prompt = branch(*shared, number);
        let found = cached(&engine, &mistral, request(&prompt, OUTPUT), &prompt).await;
        assert_eq!(found, *expected, "{shared} shared");
    }
    end(engine).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversation_resumes_before_the_generation_prompt() {
    let mistral = Mistral::new();
    let engine = mistral.engine(config(4, 32)).await;
    let mut messages = vec![
        Message::system("You keep an island's garden."),
        Message::user("When does it open in spring?"),
    ];
    let mut known = 0;
    for turn in 0..3 {
        let chat = Chat::from(messages.clone());
        let codec = engine.text().expect("the engine has a tokenizer");
        let prompt = codec.encode_chat(&chat).expect("plain text");
        let so_far = codec.encode_conversation(&chat).expect("plain text");
        assert!(so_far.len() < prompt.len() && prompt.starts_with(&so_far));
        let found = cached(&engine, &mistral, Request::chat(chat), &prompt).await;
        assert_eq!(found, known, "turn {turn}");
        known = so_far.len();
        messages.push(Message::assistant(format!("At {turn}, by the wall.")));
        messages.push(Message::user(format!("And what grows in bed {turn}?")));
    }
    // The same tokens, without being marked as a conversation.
    let plain = Chat::from(messages[..2].to_vec());
    let codec = engine.text().expect("the engine has a tokenizer");
    let first = codec.encode_chat(&plain).expect("plain text");
    let second = codec
        .encode_chat(&messages[..4].to_vec().into())
        .expect("plain text");
    for prompt in [first, second] {
        let request = request(&prompt, OUTPUT).cache_salt("no conversation");
        assert_eq!(cached(&engine, &mistral, request, &prompt).await, 0);
    }
    end(engine).await;
}
