//! Setup for tests of a whole engine.

#![allow(dead_code, unused_imports, reason = "each test uses a part of it")]

use std::time::Duration;

use motet::config::EngineConfig;
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig, StepCost};
use motet::text::TextCodec;
use motet::{Engine, TokenId, TokenStream};
use motet_text::GgufVocabulary;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// An engine on this oracle.
pub(crate) async fn engine(oracle: &OracleConfig, config: EngineConfig) -> Engine {
    let oracle = oracle.clone();
    Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")))
        .config(config)
        .start()
        .await
        .expect("the engine starts")
}

/// An engine on this oracle, whose tokens have this text.
pub(crate) async fn engine_with_text(
    oracle: &OracleConfig,
    text: TextCodec,
    config: EngineConfig,
) -> Engine {
    let oracle = oracle.clone();
    Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")))
        .text(text)
        .config(config)
        .start()
        .await
        .expect("the engine starts")
}

/// An oracle whose tokens are those of [`bytes`]. It does not end an output.
pub(crate) fn byte_oracle() -> OracleConfig {
    OracleConfig {
        vocab_size: 257,
        end_tokens: vec![256],
        end_one_in: 0,
        ..OracleConfig::with_layers(&[LayerKind::Full])
    }
}

/// An oracle whose steps take long enough for a caller to act between two of them.
pub(crate) fn slow_oracle(layers: &[LayerKind]) -> OracleConfig {
    OracleConfig {
        context_tokens_max: 128,
        tail_block_tokens: 16,
        cost: StepCost {
            base: Duration::from_millis(1),
            ..StepCost::default()
        },
        ..OracleConfig::with_layers(layers)
    }
}

/// Reads so many tokens of a stream.
pub(crate) async fn read(stream: &mut TokenStream, count: usize) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    while tokens.len() < count {
        let piece = stream.next().await.expect("more to come").expect("a piece");
        tokens.extend(piece.token);
    }
    tokens
}

/// Memory for four sequences, and steps of 32 tokens.
pub(crate) fn small() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = 4;
    config.scheduler.chunking.step_tokens_max = 32;
    config
}

/// A tokenizer whose tokens are the bytes, and an end token.
pub(crate) fn bytes() -> TextCodec {
    TextCodec::from_gguf(&byte_vocabulary()).expect("a vocabulary")
}

/// The bytes as tokens, and an end token.
pub(crate) fn byte_vocabulary() -> GgufVocabulary {
    let mut alphabet: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let mut tokens: Vec<String> = alphabet.iter().map(char::to_string).collect();
    tokens.push("<end>".into());
    let mut token_types = vec![1; 256];
    token_types.push(3);
    GgufVocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        token_types,
        end: Some(256),
        ..GgufVocabulary::default()
    }
}

/// Waits until `done` returns true, up to a time limit.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(60), async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}"));
}
