//! SmolLM2, engines on it, and prompts for it.

use std::sync::OnceLock;
use std::time::Duration;

use motet::config::EngineConfig;
use motet::model::ModelSpec;
use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet::request::Completion;
use motet::text::TextCodec;
use motet::{Engine, Request, Shutdown, TokenId, TokenStream};

use crate::model::model;

const NAMES: [&str; 12] = [
    "Anna",
    "Maria",
    "Elizabeth",
    "Ruth",
    "Clara",
    "Helen",
    "Sarah",
    "Jane",
    "Emma",
    "Laura",
    "Alice",
    "Martha",
];
const TOWNS: [&str; 5] = ["Dover", "Bergen", "Lisbon", "Salem", "Genoa"];
const ANIMALS: [&str; 7] = ["goat", "mule", "pig", "horse", "cow", "dog", "goose"];

/// Opened once for all engines, so that the weights are hashed only once.
pub(crate) fn files() -> &'static ModelFiles {
    static FILES: OnceLock<ModelFiles> = OnceLock::new();
    FILES.get_or_init(|| ModelFiles::open(&model()).expect("a complete model"))
}

pub(crate) fn options() -> MlxOptions {
    MlxOptions {
        device: Some(MlxDevice::Cpu),
        deterministic: true,
        ..MlxOptions::default()
    }
}

pub(crate) fn spec() -> ModelSpec {
    MlxModel::outline(files(), &options()).expect("a CPU")
}

/// An engine on SmolLM2.
pub(crate) async fn engine(config: EngineConfig) -> Engine {
    let builder = Engine::builder(|| MlxModel::load(files(), options()));
    let started = builder.outline(spec()).config(config).start().await;
    started.expect("the engine starts")
}

/// A device for the given number of sequences and tokens in a step. Contexts have 192 tokens,
/// and the memory fits the tails of `device_tokens` tokens.
pub(crate) fn config(
    sequences_max: usize,
    step_tokens: usize,
    device_tokens: usize,
) -> EngineConfig {
    let mut config = EngineConfig {
        context_tokens_max: Some(192),
        ..EngineConfig::default()
    };
    config.scheduler.sequences_max = sequences_max;
    config.scheduler.chunking.step_tokens_max = step_tokens;
    let spec = spec();
    config.cache.device_bytes_max = spec.tail_bytes(device_tokens) + config.scratch_bytes(&spec);
    config
}

/// The tokens of a text that continues another.
pub(crate) fn words(text: &str) -> Vec<TokenId> {
    codec().encode_continuation(text).expect("any text")
}

/// A letter of some 90 tokens. Letters with different numbers below 12 begin with different
/// tokens.
pub(crate) fn letter(number: usize) -> Vec<TokenId> {
    let name = NAMES[number % NAMES.len()];
    let town = TOWNS[number % TOWNS.len()];
    let animal = ANIMALS[number % ANIMALS.len()];
    let (year, pounds) = (1790 + 7 * number, 3 + number);
    let text = format!(
        "{name} wrote to her sister from {town} in the spring of {year}. The {animal} had broken \
         the fence again, and the baker, who owed them {pounds} pounds of flour, would not come \
         before Sunday. It had rained for days, so that the road to the mill was under water and \
         the children stayed at home. In the evening, when the lamp was lit, she asked the old \
         {animal} what it had seen on the mountain. It said:"
    );
    let tokens = codec().encode_prompt(&text).expect("any text");
    assert!((80..120).contains(&tokens.len()), "{}", tokens.len());
    tokens
}

/// Several letters as one prompt.
pub(crate) fn letters(numbers: std::ops::Range<usize>) -> Vec<TokenId> {
    numbers.flat_map(letter).collect()
}

fn codec() -> &'static TextCodec {
    static CODEC: OnceLock<TextCodec> = OnceLock::new();
    CODEC.get_or_init(|| Engine::text_of(files()).expect("a tokenizer"))
}

/// A request for this many tokens after this prompt.
pub(crate) fn request(prompt: &[TokenId], output_tokens: usize) -> Request {
    Request::tokens(prompt)
        .output_tokens_max(output_tokens)
        .ignore_end_tokens()
}

pub(crate) async fn submit(engine: &Engine, request: Request) -> TokenStream {
    engine
        .submit(request)
        .await
        .expect("the request is admitted")
}

pub(crate) async fn run(engine: &Engine, request: Request) -> Completion {
    let stream = submit(engine, request).await;
    stream.collect().await.expect("the sequence finishes")
}

/// Reads this many tokens of a stream.
pub(crate) async fn read(stream: &mut TokenStream, count: usize) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    while tokens.len() < count {
        let piece = stream
            .next()
            .await
            .expect("the stream continues")
            .expect("a piece");
        tokens.extend(piece.token);
    }
    tokens
}

/// Waits until `done`. A real model on a busy machine takes its time.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(100), async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{what}"));
}

/// Shuts down an engine whose sequences have finished. Checks that everything cached can be
/// evicted and nothing is in use.
pub(crate) async fn end(engine: Engine) {
    engine.drain().await;
    until("all slots are closed", || {
        let stats = engine.stats();
        stats.running == 0 && stats.cache.reserved_bytes == 0
    })
    .await;
    engine
        .clear_all_caches()
        .await
        .expect("the engine is consistent");
    let cache = engine.stats().cache;
    assert_eq!((cache.segments, cache.sealed_bytes), (0, 0), "{cache:?}");
    assert_eq!((cache.protected_bytes, cache.pins), (0, 0), "{cache:?}");
    engine.shutdown(Shutdown::Finish).await;
}
