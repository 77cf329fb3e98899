//! The whole engine on the real model: text in, text out, common prefixes computed once, and
//! the same answers in a batch as alone.
#![cfg(feature = "mlx")]

#[path = "common/model.rs"]
mod model;
#[path = "common/scratch.rs"]
mod scratch;

use std::path::PathBuf;

use model::model;
use motet::model::mlx::{Arithmetic, MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet::model::{CacheKind, ModelSpec};
use motet::request::{Completion, FinishReason};
use motet::text::{Message, TextCodec};
use motet::{Engine, Request, Shutdown, TokenId};
use scratch::Scratch;
use serde::Deserialize;

#[derive(Deserialize)]
struct References {
    models: Vec<ReferenceModel>,
}

#[derive(Deserialize)]
struct ReferenceModel {
    model: String,
    cases: Vec<Reference>,
}

#[derive(Deserialize)]
struct Reference {
    prompt: Prompt,
    ids: Vec<TokenId>,
    greedy: Vec<TokenId>,
    greedy_margin: Vec<f32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Text(String),
    Chat(Vec<Message>),
}

/// The margin between the two best logits above which greedy tokens must agree.
const MARGIN: f32 = 0.01;

fn references() -> Vec<Reference> {
    let text = include_str!("data/reference_generations.json");
    let references: References = serde_json::from_str(text).expect("well-formed references");
    let ours = |model: &ReferenceModel| model.model.starts_with("SmolLM2-135M-Instruct");
    let found = references.models.into_iter().find(ours);
    found.expect("references for this model").cases
}

fn encode(codec: &TextCodec, prompt: &Prompt) -> Vec<TokenId> {
    match prompt {
        Prompt::Text(text) => codec.encode_prompt(text),
        Prompt::Chat(messages) => codec.encode_chat(&messages.clone().into()),
    }
    .expect("the tokenizer takes any text")
}

#[test]
fn missing_gpu_is_rejected_and_the_best_device_is_named() {
    let files = ModelFiles::open(&model()).unwrap();
    let outline = |device| {
        let options = MlxOptions {
            device,
            ..MlxOptions::default()
        };
        MlxModel::outline(&files, &options)
    };
    let bytes = |spec: ModelSpec| spec.tail_bytes(1);
    let cpu = bytes(outline(Some(MlxDevice::Cpu)).expect("a CPU is available"));
    let best = bytes(outline(None).expect("a device is available"));
    match outline(Some(MlxDevice::Gpu)) {
        // A cached token takes half as many bytes.
        Ok(gpu) => assert_eq!((bytes(gpu), 2 * best), (best, cpu)),
        Err(error) => {
            let message = error.to_string();
            for part in ["`device` is a GPU", "built for the CPU", "MlxDevice::Cpu"] {
                assert!(message.contains(part), "{message}");
            }
            assert_eq!(best, cpu);
        }
    }
}

/// The model's file with other end tokens in its metadata: converters often write them wrongly.
fn with_end_token(scratch: &Scratch, end: u32) -> PathBuf {
    let mut bytes = std::fs::read(model()).expect("the model is there");
    let key = b"tokenizer.ggml.eos_token_id";
    let header = &bytes[..8 << 20];
    let at = header.windows(key.len()).position(|window| window == key);
    // The value's type stands before it.
    let value = at.expect("the file names one") + key.len() + 4;
    bytes[value..value + 4].copy_from_slice(&end.to_le_bytes());
    scratch.write("model.gguf", bytes)
}

#[test]
fn draft_model_with_another_token_is_an_error_that_names_both() {
    let mut bytes = std::fs::read(model()).expect("the model is there");
    let (token, other) = (b"<jupyter_text>", b"<jupyter_test>");
    let header = &bytes[..8 << 20];
    let at = header
        .windows(token.len())
        .position(|window| window == token);
    let at = at.expect("the file has this token");
    bytes[at..at + token.len()].copy_from_slice(other);
    let scratch = Scratch::new();
    let draft = scratch.write("draft.gguf", bytes);
    let builder = || Engine::open(model()).expect("a model");
    let opened = builder().open_draft_model(draft, MlxOptions::default());
    let error = opened.expect_err("a token differs").to_string();
    let names = error.matches("Smollm2").count();
    assert!(names == 2 && error.contains("<jupyter_test>"), "{error}");
    let opened = builder().open_draft_model(model(), MlxOptions::default());
    opened.expect("a model may draft for itself");
}

#[tokio::test]
async fn an_answer_ends_though_the_file_names_another_end_token() {
    let scratch = Scratch::new();
    let engine = Engine::open(with_end_token(&scratch, 0)).expect("a model");
    let engine = engine.start().await.expect("the engine starts");
    let question = Message::user("What is 2+2?");
    let request = Request::chat([question]).output_tokens_max(40);
    let stream = engine.submit(request).await.expect("it is valid");
    let output = stream.collect().await.expect("it ends");
    assert_eq!(
        output.finish.reason,
        FinishReason::EndToken,
        "{}",
        output.text
    );
    assert!(output.text.contains('4'), "{}", output.text);
    engine.shutdown(Shutdown::Abort).await;
}

#[test]
fn text_and_chat_template_give_the_reference_ids() {
    let codec = Engine::text_of(&ModelFiles::open(&model()).unwrap()).unwrap();
    for case in references() {
        assert_eq!(encode(&codec, &case.prompt), case.ids);
    }
}

/// Both greedy outputs agree up to the first near tie in the reference.
fn check_greedy(case: &Reference, completion: &Completion) {
    for (at, (found, expected)) in completion.tokens.iter().zip(&case.greedy).enumerate() {
        if case.greedy_margin[at] <= MARGIN {
            return;
        }
        assert_eq!(found, expected, "token {at} of {:?}", completion.text);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn together_and_warm_give_the_reference_tokens() {
    let options = MlxOptions {
        arithmetic: Some(Arithmetic::Exact),
        ..MlxOptions::default()
    };
    let engine = Engine::open_with(model(), options).unwrap();
    let engine = engine.start().await.unwrap();
    let references = references();
    // In the second round every prompt is in the cache.
    for round in ["cold", "warm"] {
        let mut streams = Vec::new();
        for case in &references {
            let request = Request::tokens(case.ids.clone())
                .output_tokens_max(case.greedy.len())
                .ignore_end_tokens();
            streams.push(engine.submit(request).await.unwrap());
        }
        for (stream, case) in streams.into_iter().zip(&references) {
            let completion = stream.collect().await.unwrap();
            check_greedy(case, &completion);
            if round == "warm" {
                assert_eq!(completion.finish.usage.cached_tokens, case.ids.len() - 1);
            }
        }
    }
    engine.shutdown(Shutdown::Abort).await;
}

/// A budget that is not set follows from the machine's memory, and fits the worst case.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_is_chosen_from_the_machines_memory() {
    let engine = Engine::open(model()).unwrap().start().await.unwrap();
    let budget = engine.device_budget();
    let left = budget.chosen_from.expect("Linux reports its free memory");
    let spec = engine.model();
    let worst = spec.tail_bytes(spec.context_tokens_max) + budget.scratch_bytes;
    assert_eq!(budget.proven_bytes, worst);
    let most = (left / 2).max(worst);
    assert!(
        (most - (1 << 20)..=most).contains(&budget.bytes),
        "{budget:?}"
    );
    engine.shutdown(Shutdown::Abort).await;
}

/// The budget is counted in bytes of the type of cached state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_in_fewer_bits_takes_less_of_the_budget() {
    let mut bytes = Vec::new();
    let kinds = [CacheKind::F32, CacheKind::Bf16, CacheKind::Int8];
    for kind in kinds {
        let options = MlxOptions {
            cache_dtype: Some(kind),
            ..MlxOptions::default()
        };
        let builder = Engine::open_with(model(), options).unwrap();
        let engine = builder.start().await.unwrap();
        for case in references() {
            let request = Request::tokens(case.ids).output_tokens_max(1);
            let stream = engine.submit(request).await.unwrap();
            stream.collect().await.unwrap();
        }
        // The cache closes a sequence's slot after the caller sees its end.
        while engine.stats().running > 0 || engine.stats().cache.reserved_bytes > 0 {
            tokio::task::yield_now().await;
        }
        bytes.push(engine.stats().cache.sealed_bytes);
        engine.shutdown(Shutdown::Abort).await;
    }
    // Heads have 64 numbers.
    let rows = bytes[0] / CacheKind::F32.row_bytes(64);
    assert!(rows > 0);
    assert_eq!(bytes, kinds.map(|kind| rows * kind.row_bytes(64)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_users_compute_their_system_prompt_once_and_speak() {
    let engine = Engine::open(model()).unwrap().start().await.unwrap();
    let system = Message::system(
        "You are the guide of a small botanical garden on an island. The garden opens at nine, \
         closes at six, and is proud of its blue orchids, its fern house and its old fig tree. \
         Answer in one short sentence.",
    );
    let codec = engine.text().unwrap();
    let shared = codec.encode_chat(&[system.clone()].into()).unwrap().len();
    let mut streams = Vec::new();
    for user in 0..16 {
        let question = Message::user(format!("I am visitor number {user}. When do you open?"));
        let request = Request::chat([system.clone(), question]).output_tokens_max(4);
        streams.push(engine.submit(request).await.unwrap());
    }
    let mut own = 0;
    for stream in streams {
        let prompt_tokens = stream.prompt_tokens();
        let completion = stream.collect().await.unwrap();
        assert!(
            !completion.text.trim().is_empty(),
            "the answer is not empty"
        );
        own += prompt_tokens + completion.tokens.len();
    }
    // Each user's own tokens, and the common prefix once instead of 16 times. The template ends
    // the system message alone with a few tokens more than are shared.
    let evaluated = engine.stats().evaluated_tokens as usize;
    let most = own - 15 * (shared - 8);
    assert!(
        evaluated <= most,
        "{evaluated} tokens evaluated, at most {most} needed"
    );
    engine.shutdown(Shutdown::Abort).await;
}
