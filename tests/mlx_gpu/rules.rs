//! The engine's rules about its device: the budget, a device out of memory, state that is moved, and two
//! steps in flight.

use std::future::Future;
use std::sync::atomic::Ordering;
use std::time::Duration;

use motet::config::EngineConfig;
use motet::error::StartError;
use motet::model::ModelSpec;
use motet::model::mlx::{MlxModel, mlx_rs::memory};
use motet::request::Completion;
use motet::{Engine, Request, Shutdown, TokenId};

use crate::gpu::{gpu_options, has_gpu};
use crate::harness::one_at_a_time;
use crate::killable::{Kill, Killable};
use crate::{files, prompts};

const CONTEXT_TOKENS: usize = 768;
/// Tokens that the budgets here hold.
const DEVICE_TOKENS: usize = 2_048;
/// MLX compiles kernels for a GPU when a step first needs them.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(300);

fn run(test: impl Future<Output = ()>) {
    let _serial = one_at_a_time();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(test);
}

fn spec() -> ModelSpec {
    MlxModel::outline(&files(), &gpu_options(&files())).expect("a device")
}

/// A budget for [`DEVICE_TOKENS`], and host memory for all copies.
fn config() -> EngineConfig {
    let mut config = EngineConfig {
        context_tokens_max: Some(CONTEXT_TOKENS),
        ..EngineConfig::default()
    };
    let spec = spec();
    config.scheduler.device_timeout = DEVICE_TIMEOUT;
    config.cache.device_bytes_max = spec.tail_bytes(DEVICE_TOKENS) + config.scratch_bytes(&spec);
    config.pager.host_bytes_max = 512 << 20;
    config
}

async fn start(config: EngineConfig, kill: &Kill) -> Result<Engine, StartError> {
    let (files, kill) = (files(), kill.clone());
    let load = move || {
        let model = MlxModel::load(&files, gpu_options(&files))?;
        let kill = kill.clone();
        Ok(Killable { model, kill })
    };
    Engine::builder(load).config(config).start().await
}

/// Prompts of several hundred tokens, no two of which begin alike.
fn prompt(index: usize) -> Vec<TokenId> {
    let mut prompt = prompts().pop().expect("prompts");
    let tokens = prompt.len();
    prompt.rotate_left(index * 17 % tokens);
    prompt
}

async fn ask(engine: &Engine, prompt: Vec<TokenId>, output_tokens: usize) -> Completion {
    let request = Request::tokens(prompt)
        .output_tokens_max(output_tokens)
        .ignore_end_tokens();
    let stream = engine.submit(request).await.expect("it is valid");
    let completion = stream.collect().await.expect("no sequence fails");
    assert_eq!(completion.tokens.len(), output_tokens);
    completion
}

/// Answers to all prompts at once.
async fn ask_all(
    engine: &Engine,
    prompts: &[Vec<TokenId>],
    output_tokens: usize,
) -> Vec<Vec<TokenId>> {
    let answers = prompts.iter().cloned().map(|prompt| {
        let engine = engine.clone();
        tokio::spawn(async move { ask(&engine, prompt, output_tokens).await.tokens })
    });
    let answers: Vec<_> = answers.collect();
    let mut tokens = Vec::new();
    for answer in answers {
        tokens.push(answer.await.expect("an answer"));
    }
    tokens
}

/// More sequences than fit take turns, and the device's peak stays within weights and budget.
#[test]
#[ignore = "it takes half a minute without a GPU"]
fn the_budget_bounds_the_memory_of_the_device() {
    run(async {
        let (config, spec) = (config(), spec());
        let prompts: Vec<Vec<TokenId>> = (0..16).map(prompt).collect();
        let needed = prompts.len() * spec.tail_bytes(prompts[0].len());
        let budget = config.cache.device_bytes_max;
        assert!(needed > budget, "the load does not reach the budget");
        let engine = start(config, &Kill::default()).await.expect("it starts");
        ask(&engine, vec![1], 1).await;
        memory::clear_cache().expect("MLX's memory");
        let weights = memory::active_memory().expect("MLX's memory");
        memory::reset_peak_memory().expect("MLX's memory");
        ask_all(&engine, &prompts, 4).await;
        let peak = memory::peak_memory().expect("MLX's memory") - weights;
        let cached = engine.stats().cache.sealed_bytes;
        let mib = |bytes: usize| bytes >> 20;
        println!(
            "{} MiB needed at once, budget {} MiB; peak {} MiB, of which {} MiB are cached in the end",
            mib(needed),
            mib(budget),
            mib(peak),
            mib(cached)
        );
        assert!(peak <= budget && cached <= budget);
        engine.shutdown(Shutdown::Abort).await;
    });
}

/// A budget beyond the device is rejected, and the next engine starts. Steps without memory are tried
/// again; a device thread that ends is replaced. No stream fails or loses a token.
#[test]
#[ignore = "it takes half a minute without a GPU"]
fn streams_survive_a_device_out_of_memory() {
    run(async {
        let mut too_large = config();
        let context_bytes = spec().tail_bytes(CONTEXT_TOKENS);
        too_large.cache.device_bytes_max = 1 << 48;
        too_large.cache.full_sequences_min = (1 << 46) / context_bytes;
        let rejected = start(too_large, &Kill::default()).await;
        let rejected = rejected.expect_err("64 TiB");
        println!("{rejected}");
        assert!(
            matches!(rejected, StartError::DeviceMemory { .. }),
            "{rejected}"
        );

        let prompts: Vec<Vec<TokenId>> = (0..8).map(|index| prompt(index)[..64].to_vec()).collect();
        let kill = Kill::default();
        let engine = start(config(), &kill).await.expect("it starts");
        let undisturbed = ask_all(&engine, &prompts, 16).await;
        kill.run_out_of_memory(2);
        let after_failures = ask_all(&engine, &prompts, 16).await;
        assert_eq!(kill.failures_left(), 0, "both failures took place");
        assert_eq!(engine.stats().rebuilds, 0, "failed steps cost no device");
        kill.arm();
        let after_rebuild = ask_all(&engine, &prompts, 16).await;
        let stats = engine.stats();
        let same = |answers: &[Vec<TokenId>]| {
            let pairs = answers.iter().zip(&undisturbed);
            pairs.filter(|(found, expected)| found == expected).count()
        };
        println!(
            "of {} answers, {} are the same after failed steps, and {} after {} rebuilds",
            prompts.len(),
            same(&after_failures),
            same(&after_rebuild),
            stats.rebuilds
        );
        assert_eq!((stats.rebuilds, stats.failed), (1, 0));
        engine.shutdown(Shutdown::Abort).await;
    });
}

/// A cached prompt gives the same tokens before it leaves the device and after it came back.
#[test]
#[ignore = "it takes half a minute without a GPU"]
fn state_from_the_host_gives_the_tokens_of_state_on_the_device() {
    run(async {
        let engine = start(config(), &Kill::default()).await.expect("it starts");
        ask(&engine, prompt(0), 32).await;
        let kept = ask(&engine, prompt(0), 32).await;
        assert!(kept.finish.usage.cached_tokens > 0);
        for index in 1..8 {
            ask(&engine, prompt(index), 1).await;
        }
        let before = engine.stats().pager;
        let restored = ask(&engine, prompt(0), 32).await;
        let after = engine.stats().pager;
        println!(
            "{} copies packed, {} brought back for {} of {} tokens",
            after.packed,
            after.unpacked - before.unpacked,
            restored.finish.usage.cached_tokens,
            prompt(0).len()
        );
        assert!(after.unpacked > before.unpacked, "the prompt had left");
        assert_eq!(after.failed, 0);
        assert_eq!(
            restored.finish.usage.cached_tokens,
            kept.finish.usage.cached_tokens
        );
        assert_eq!(restored.tokens, kept.tokens);
        engine.shutdown(Shutdown::Abort).await;
    });
}

/// Decode steps are submitted with tokens that the step ahead has yet to sample.
#[test]
fn two_steps_are_in_flight() {
    run(async {
        let kill = Kill::default();
        let mut config = config();
        // No step is submitted on top of one that verifies drafts.
        config.scheduler.speculation.enabled = false;
        let engine = start(config, &kill).await.expect("it starts");
        ask(&engine, prompt(0), 48).await;
        let of = |counter: &std::sync::atomic::AtomicUsize| counter.load(Ordering::Relaxed);
        let steps = kill.steps();
        let (submitted, ahead) = (of(&steps.submitted), of(&steps.ahead));
        let (overlapping, most) = (of(&steps.overlapping), of(&steps.in_flight_max));
        println!(
            "{submitted} steps, {most} in flight at most; {ahead} submitted ahead, {overlapping} of them while the \
             device computed; GPU: {}",
            has_gpu(&files())
        );
        assert_eq!(most, 2);
        assert!(ahead * 2 > submitted && overlapping > 0);
        engine.shutdown(Shutdown::Abort).await;
    });
}
