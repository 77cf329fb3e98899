//! Recovery under the load of many sequences: the device thread dies and hangs, and the actors
//! panic. The failed part is rebuilt, and callers notice only a pause. Each output equals its
//! reference run, with each token once. A breaker opens when failures are too frequent.
#![cfg(motet_injected)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::{engine, until};
use motet::cache::{BlockEvent, BlockHash};
use motet::config::{DiskConfig, EngineConfig};
use motet::error::{CacheCommandError, GenerateError, SubmitError};
use motet::failpoint::Failpoints;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::model::{LayerKind, ModelError};
use motet::request::FinishReason;
use motet::request::Sampling;
use motet::{BlockBatch, Engine, HealthState, Request, SequenceId, Shutdown, TokenId, TokenStream};
use motet_model::oracle::StepFault;
use motet_testkit::folder::Folder;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const FULL: &[LayerKind] = &[LayerKind::Full];
const MIXED: &[LayerKind] = &[LayerKind::Full, LayerKind::Window { tokens: 8 }];

/// A device is taken for stalled after this time. A busy machine delays a healthy step for less.
const DEVICE_TIMEOUT: Duration = Duration::from_millis(300);
/// A stalled step takes longer than that.
const STALL: Duration = Duration::from_millis(700);

fn oracle(layers: &[LayerKind]) -> OracleConfig {
    let mut oracle = OracleConfig {
        context_tokens_max: 256,
        end_one_in: 0,
        tail_block_tokens: 16,
        ..OracleConfig::with_layers(layers)
    };
    oracle.cost.base = Duration::from_micros(300);
    oracle
}

fn config() -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = 12;
    config.scheduler.chunking.step_tokens_max = 48;
    config.recovery.rebuilds_max = 1000;
    config
}

/// The same with so little memory that sequences are preempted, and segments are offloaded and
/// loaded again.
fn low_memory(oracle: &OracleConfig) -> EngineConfig {
    let (mut config, spec) = (config(), oracle.spec());
    config.cache.device_bytes_max = spec.tail_bytes(256) * 3 + config.scratch_bytes(&spec);
    config.pager.host_bytes_max = spec.tail_bytes(256) * 64 + (64 << 10);
    config.pager.label_bytes_max = Some(64 << 10);
    // Live segments get backups, too.
    config.pager.backup_tokens = 16;
    config
}

async fn with_failpoints(oracle: &OracleConfig, config: EngineConfig) -> (Engine, Failpoints) {
    let (oracle, failpoints) = (oracle.clone(), Failpoints::default());
    let engine = Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("valid")))
        .config(config)
        .failpoints(failpoints.clone())
        .start()
        .await
        .expect("the engine starts");
    (engine, failpoints)
}

/// A caller, and the output of its reference run.
struct Caller {
    stream: TokenStream,
    expected: Vec<TokenId>,
}

/// Callers with a common prompt prefix. Half of them sample at random.
async fn callers(engine: &Engine, oracle: &OracleConfig, seed: u64, count: u64) -> Vec<Caller> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut callers = Vec::new();
    for caller in 0..count {
        let shared = [0, 40, 90][rng.random_range(0..3)];
        let mut prompt: Vec<TokenId> = (1..=shared).collect();
        prompt.extend((0..rng.random_range(1..20)).map(|_| rng.random_range(1..900)));
        let sampling = Sampling {
            temperature: (caller % 2) as f32,
            seed: caller,
            ..Sampling::GREEDY
        };
        let output = rng.random_range(20..100);
        let request = Request::tokens(prompt.clone())
            .output_tokens_max(output)
            .sampling(sampling);
        callers.push(Caller {
            stream: engine.submit(request).await.expect("it is accepted"),
            expected: oracle.reference_tokens(&prompt, output, sampling),
        });
    }
    callers
}

/// Reads all outputs, then shuts the engine down and checks that nothing is left.
async fn check_all(engine: Engine, oracle: &OracleConfig, callers: Vec<Caller>) {
    read_all(callers).await;
    check_empty(engine, oracle).await;
}

/// Checks that each output equals its reference run.
async fn read_all(callers: Vec<Caller>) {
    for (index, caller) in callers.into_iter().enumerate() {
        let completion = caller.stream.collect().await;
        let completion = completion.unwrap_or_else(|error| panic!("caller {index}: {error}"));
        assert_eq!(completion.tokens, caller.expected, "caller {index}");
        assert_eq!(completion.finish.reason, FinishReason::Length);
        let usage = completion.finish.usage;
        assert_eq!(usage.output_tokens, caller.expected.len());
    }
}

/// Checks that no request is inside, and that nothing is held after the shutdown.
async fn check_empty(engine: Engine, oracle: &OracleConfig) {
    engine.drain().await;
    until("all resources are freed", || {
        let cache = engine.stats().cache;
        (cache.protected_bytes, cache.reserved_bytes) == (0, 0)
    })
    .await;
    engine.shutdown(Shutdown::Abort).await;
    let counters = oracle.counters.clone();
    until("nothing leaks", move || {
        let counts = counters.now();
        (counts.segments_alive, counts.tails_alive) == (0, 0)
    })
    .await;
}

/// Waits until the engine has generated this many more tokens. Faults that follow one another at once
/// may take a sequence's last attempt before its next token.
async fn generated_since(engine: &Engine, tokens: u64) {
    generated(engine, engine.stats().output_tokens + tokens).await;
}

/// Waits until the engine has generated this many tokens.
async fn generated(engine: &Engine, tokens: u64) {
    until("tokens are generated", || {
        engine.stats().output_tokens >= tokens
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_device_thread_is_replaced() {
    for layers in [FULL, MIXED] {
        let oracle = oracle(layers);
        let mut config = config();
        // A caller may be part of each failed step, and get no token in between.
        config.scheduler.step_retries_max = 6;
        let (engine, failpoints) = with_failpoints(&oracle, config).await;
        let callers = callers(&engine, &oracle, 1, 30).await;
        for fault in 1..=6 {
            generated_since(&engine, 120).await;
            failpoints.device.arm(1);
            until("the device was replaced", || {
                engine.stats().rebuilds >= fault
            })
            .await;
        }
        assert!(engine.stats().rebuilds >= 6);
        check_all(engine, &oracle, callers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_device_is_abandoned() {
    let oracle = oracle(MIXED);
    let mut config = config();
    config.scheduler.device_timeout = DEVICE_TIMEOUT;
    let engine = engine(&oracle, config).await;
    let callers = callers(&engine, &oracle, 2, 30).await;
    for stall in 1..=3 {
        generated_since(&engine, 200).await;
        // The stalled step returns while its replacement works, and is ignored.
        oracle.faults.next_steps(1, StepFault::Stall(STALL));
        until("the device was replaced", || {
            engine.stats().rebuilds >= stall
        })
        .await;
    }
    check_all(engine, &oracle, callers).await;
}

/// No copy worker waits for the exports of a device that hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_exports_delay_no_copy() {
    let mut oracle = oracle(FULL);
    // Copies are faster than computing, on a busy machine too.
    oracle.cost.per_token = Duration::from_millis(2);
    let mut config = low_memory(&oracle);
    config.scheduler.device_timeout = DEVICE_TIMEOUT;
    let engine = engine(&oracle, config).await;
    // More conversations than the device holds: some are in host memory alone.
    let round =
        async |number: u64| read_all(callers(&engine, &oracle, 50 + number % 6, 12).await).await;
    for number in 0..6 {
        round(number).await;
    }
    until("segments are offloaded", || {
        engine.stats().pager.host_copies > 0
    })
    .await;
    let hits = engine.stats().pager.host_hits;
    oracle.faults.stall_exports(u64::MAX);
    // State that is still on the device is not loaded, so several rounds may be needed.
    for number in 0..100 {
        round(number).await;
        let stalled = oracle.faults.counts().exports_stalled > 0;
        if stalled && engine.stats().pager.host_hits > hits {
            break;
        }
    }
    assert!(oracle.faults.counts().exports_stalled > 0);
    assert!(engine.stats().pager.host_hits > hits);
    oracle.faults.next_steps(1, StepFault::Stall(STALL));
    read_all(callers(&engine, &oracle, 60, 10).await).await;
    assert!(engine.stats().rebuilds > 0, "the device was replaced");
    assert_eq!(oracle.faults.counts().exports_waited_for, 0);
    check_empty(engine, &oracle).await;
}

#[tokio::test]
async fn health_distinguishes_recovering_from_busy() {
    let oracle = oracle(FULL);
    let (built, loads) = (oracle.clone(), AtomicU32::new(0));
    let slow_to_load = move || {
        if loads.fetch_add(1, Ordering::Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(150));
        }
        Ok(Oracle::new(built.clone()).expect("a valid oracle"))
    };
    let mut config = config();
    config.scheduler.device_timeout = DEVICE_TIMEOUT;
    let engine = Engine::builder(slow_to_load).config(config).start();
    let engine = engine.await.expect("the engine starts");
    assert_eq!(engine.health().state, HealthState::Ready);
    let callers = callers(&engine, &oracle, 3, 4).await;
    generated(&engine, 20).await;
    assert_eq!(engine.health().state, HealthState::Busy);
    oracle.faults.next_steps(1, StepFault::Stall(STALL));
    let recovering = |state| matches!(state, HealthState::Recovering { .. });
    until("it is being replaced", || recovering(engine.health().state)).await;
    until("no device is there", || !engine.stats().device_alive).await;
    // A request that arrives meanwhile waits.
    let late = Request::tokens([1, 2]).output_tokens_max(3);
    let late = engine.submit(late).await.expect("it is accepted");
    assert_eq!(late.collect().await.expect("it waits").tokens.len(), 3);
    assert!(engine.stats().device_alive);
    assert!(!recovering(engine.health().state));
    check_all(engine, &oracle, callers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicked_scheduler_is_rebuilt() {
    for seed in 0..4 {
        let oracle = oracle(if seed % 2 == 0 { FULL } else { MIXED });
        let (engine, failpoints) = with_failpoints(&oracle, config()).await;
        let callers = callers(&engine, &oracle, 10 + seed, 30).await;
        for panic in 1..=6 {
            generated(&engine, panic * 150).await;
            failpoints.scheduler.arm(1 + seed + panic);
            until("the failpoint tripped", || !failpoints.scheduler.is_armed()).await;
        }
        until("the core was rebuilt", || engine.stats().rebuilds >= 6).await;
        check_all(engine, &oracle, callers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicked_cache_is_rebuilt() {
    for seed in 0..4 {
        let oracle = oracle(if seed % 2 == 0 { FULL } else { MIXED });
        let (engine, failpoints) = with_failpoints(&oracle, config()).await;
        let callers = callers(&engine, &oracle, 20 + seed, 30).await;
        for panic in 1..=6 {
            generated(&engine, panic * 150).await;
            failpoints.cache.arm(1 + seed);
            until("the failpoint tripped", || !failpoints.cache.is_armed()).await;
        }
        until("the core was rebuilt", || engine.stats().rebuilds >= 6).await;
        check_all(engine, &oracle, callers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_faults_are_survived() {
    let oracle = oracle(FULL);
    let mut config = low_memory(&oracle);
    config.scheduler.device_timeout = DEVICE_TIMEOUT;
    let (engine, failpoints) = with_failpoints(&oracle, config).await;
    let callers = callers(&engine, &oracle, 30, 40).await;
    for round in 1..=12 {
        generated(&engine, round * 150).await;
        match round % 4 {
            0 => failpoints.device.arm(1),
            1 => failpoints.scheduler.arm(round),
            2 => {
                failpoints.cache.arm(round);
                failpoints.pager.arm(round);
            }
            _ => {
                oracle.faults.next_steps(1, StepFault::Stall(STALL));
                failpoints.scheduler.arm(2);
                failpoints.cache.arm(3);
            }
        }
    }
    until("some failpoints tripped", || engine.stats().rebuilds >= 6).await;
    assert!(engine.stats().pager.packed > 0, "segments are offloaded");
    check_all(engine, &oracle, callers).await;
}

/// With host memory and a disk.
fn paged(oracle: &OracleConfig, folder: &Folder) -> EngineConfig {
    let mut config = low_memory(oracle);
    config.pager.disk = Some(DiskConfig {
        folder: folder.0.clone(),
        bytes_max: 1 << 22,
    });
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicked_pager_is_rebuilt() {
    for (seed, layers) in [(40, FULL), (41, MIXED)] {
        let folder = Folder::new(&format!("recovery-pager-{seed}"));
        let mut oracle = oracle(layers);
        // Copies are faster than computing, on a busy machine too.
        oracle.cost.per_token = Duration::from_micros(500);
        let config = paged(&oracle, &folder);
        let (engine, failpoints) = with_failpoints(&oracle, config.clone()).await;
        let first = callers(&engine, &oracle, seed, 30).await;
        for panic in 1..=6 {
            generated(&engine, panic * 150).await;
            failpoints.pager.arm(panic);
            until("the failpoint tripped", || !failpoints.pager.is_armed()).await;
        }
        read_all(first).await;
        let before = engine.stats();
        assert!(before.rebuilds >= 6, "{before:?}");
        assert!(before.pager.host_copies > 0 && before.pager.packed > 0);
        // Copies in host memory and on the disk survive another panic, too.
        failpoints.pager.arm(1);
        let mut after = before.clone();
        // State that is still on the device is not loaded, so several rounds may be needed.
        for _ in 0..10 {
            let repeated = callers(&engine, &oracle, seed, 30).await;
            read_all(repeated).await;
            after = engine.stats();
            if after.pager.host_hits > before.pager.host_hits {
                break;
            }
        }
        assert!(!failpoints.pager.is_armed() && after.rebuilds > before.rebuilds);
        assert!(after.pager.host_hits > before.pager.host_hits, "{after:?}");
        assert!(after.pager.host_bytes <= config.pager.host_bytes_max);
        assert!(!engine.health().pager_lost);
        check_empty(engine, &oracle).await;
        let (engine, _) = with_failpoints(&oracle, config).await;
        assert!(engine.stats().pager.disk_copies > 0, "they are found");
        let third = callers(&engine, &oracle, seed, 30).await;
        read_all(third).await;
        let found = engine.stats().pager;
        assert!(found.read > 0 && found.unpacked > 0, "{found:?}");
        check_empty(engine, &oracle).await;
    }
}

/// Cleared copies do not come back, although the pager panics at that very message.
#[tokio::test]
async fn clear_survives_a_pager_panic() {
    let folder = Folder::new("recovery-clear");
    let oracle = oracle(FULL);
    let (engine, failpoints) = with_failpoints(&oracle, paged(&oracle, &folder)).await;
    read_all(callers(&engine, &oracle, 42, 30).await).await;
    let copies = || engine.stats().pager.host_copies + engine.stats().pager.disk_copies;
    assert!(copies() > 0);
    // Pending offloads and writes finish first.
    tokio::time::sleep(Duration::from_millis(50)).await;
    failpoints.pager.arm(1);
    engine.clear_all_caches().await.expect("it is cleared");
    until("the failpoint tripped", || !failpoints.pager.is_armed()).await;
    until("all copies are gone", || copies() == 0).await;
    check_empty(engine, &oracle).await;
}

#[tokio::test]
async fn engine_continues_without_a_pager_that_panics_too_often() {
    let folder = Folder::new("recovery-without");
    let oracle = oracle(FULL);
    let mut config = paged(&oracle, &folder);
    config.recovery.rebuilds_max = 2;
    let (engine, failpoints) = with_failpoints(&oracle, config).await;
    let callers = callers(&engine, &oracle, 43, 30).await;
    generated(&engine, 200).await;
    assert!(!engine.health().pager_lost);
    until("health says so", || {
        failpoints.pager.arm(1);
        engine.health().pager_lost
    })
    .await;
    assert_eq!(engine.stats().rebuilds, 2);
    check_all(engine, &oracle, callers).await;
}

/// A core panics at every message about one sequence. None of these panics counts.
#[tokio::test]
async fn request_that_panics_a_core_fails_alone() {
    let oracle = oracle(FULL);
    let mut config = config();
    config.recovery.rebuilds_max = 0;
    for part in ["scheduler", "cache"] {
        let (engine, failpoints) = with_failpoints(&oracle, config.clone()).await;
        let failpoint = match part {
            "cache" => &failpoints.cache,
            _ => &failpoints.scheduler,
        };
        let callers = callers(&engine, &oracle, 70, 8).await;
        for round in 1..=4 {
            generated(&engine, round * 50).await;
            let next = SequenceId(8 + round);
            failpoint.arm_for(next);
            let poison = Request::tokens([1, 2, 3]).output_tokens_max(5);
            let poison = engine.submit(poison).await.expect("it is accepted");
            assert_eq!(poison.sequence(), next);
            let failed = poison.collect().await;
            assert_eq!(failed, Err(GenerateError::Panicked { part, attempts: 3 }));
        }
        assert!(engine.stats().rebuilds >= 12);
        check_all(engine, &oracle, callers).await;
    }
}

#[tokio::test]
async fn forks_and_shifted_sequences_survive_a_rebuild() {
    for layers in [FULL, MIXED] {
        let oracle = OracleConfig {
            context_tokens_max: 48,
            ..oracle(layers)
        };
        let run = async |fails: bool| {
            let (engine, failpoints) = with_failpoints(&oracle, config()).await;
            let request = Request::tokens([1, 2, 3]).output_tokens_max(200).shift(2);
            let mut source = engine.submit(request).await.unwrap();
            let mut tokens = Vec::new();
            while tokens.len() < 20 {
                let piece = source.next().await.unwrap().unwrap();
                tokens.extend(piece.token);
            }
            if fails {
                failpoints.scheduler.arm(1);
            }
            let fork = Request::tokens([9]).output_tokens_max(60);
            let fork = engine.fork(&source, Some(18), fork).await.unwrap();
            let fork = fork.collect().await.unwrap().tokens;
            if fails {
                failpoints.scheduler.arm(1);
                failpoints.device.arm(1);
            }
            tokens.extend(source.collect().await.unwrap().tokens);
            check_empty(engine, &oracle).await;
            (tokens, fork)
        };
        let undisturbed = run(false).await;
        assert_eq!(undisturbed.0.len(), 200);
        assert_eq!(run(true).await, undisturbed);
    }
}

#[tokio::test]
async fn messages_sent_during_a_panic_still_count() {
    let oracle = oracle(FULL);
    let (engine, failpoints) = with_failpoints(&oracle, config()).await;
    let long = || Request::tokens([1, 2, 3]).output_tokens_max(200);
    let dropped = engine.submit(long()).await.unwrap();
    generated(&engine, 5).await;
    failpoints.scheduler.arm(1);
    drop(dropped);
    until("it has ended", || {
        engine.health().state == HealthState::Ready
    })
    .await;
    // Pins outlive the cache, and unanswered commands are sent again.
    failpoints.cache.arm(4);
    let pin = engine
        .pin(long(), None)
        .await
        .expect("it is computed again");
    failpoints.scheduler.arm(2);
    engine
        .clear_all_caches()
        .await
        .expect("the command is sent again");
    failpoints.cache.arm(1);
    engine.unpin(pin).await.expect("the command is sent again");
    let gone = engine.unpin(pin).await;
    assert!(matches!(gone, Err(CacheCommandError::Cache(_))), "{gone:?}");
    failpoints.scheduler.arm(3);
    let cut_off = engine.submit(long()).await.unwrap();
    engine.shutdown(Shutdown::Abort).await;
    assert_eq!(cut_off.collect().await, Err(GenerateError::Shutdown));
    assert_eq!(oracle.counters.now().tails_alive, 0);
}

/// Checks that the engine breaks when `fails` makes a part fail again and again.
async fn check_broken(engine: Engine, oracle: &OracleConfig, part: &str, mut fails: impl FnMut()) {
    let callers = callers(&engine, oracle, 50, 20).await;
    let broken = |state| matches!(state, HealthState::Broken { .. });
    until("the breaker opens", || {
        fails();
        broken(engine.health().state)
    })
    .await;
    for caller in callers {
        let error = caller
            .stream
            .collect()
            .await
            .expect_err("the engine is broken");
        match error {
            GenerateError::Broken { reason } => assert!(reason.contains(part), "{reason}"),
            // The sequence was in each of the failed steps.
            GenerateError::Device { attempts: 3, .. } => {}
            // A core panicked at the sequence's messages.
            GenerateError::Panicked { attempts: 3, .. } => {}
            other => panic!("{other}"),
        }
    }
    let rejected = engine.submit(Request::tokens([1])).await;
    let Err(SubmitError::Broken { reason }) = rejected else {
        panic!("no request is accepted any more: {rejected:?}");
    };
    assert!(reason.contains(part), "{reason}");
    assert!(!engine.stats().device_alive);
    let stopped = engine.clear_all_caches().await;
    assert!(
        matches!(stopped, Err(CacheCommandError::Stopped)),
        "{stopped:?}"
    );
    engine.drain().await;
    engine.shutdown(Shutdown::Finish).await;
    let counters = oracle.counters.clone();
    until("nothing leaks", move || counters.now().tails_alive == 0).await;
}

/// No sequence finishes before the breaker opens, on a busy machine neither.
fn slow_oracle() -> OracleConfig {
    let mut oracle = oracle(FULL);
    oracle.cost.base = Duration::from_millis(30);
    oracle
}

fn breaker_config() -> EngineConfig {
    let mut config = config();
    config.recovery.rebuilds_max = 3;
    config.recovery.reload_delay = Duration::from_millis(1);
    config
}

#[tokio::test]
async fn repeated_failures_open_the_breaker() {
    let oracle = slow_oracle();
    let (engine, failpoints) = with_failpoints(&oracle, breaker_config()).await;
    let failpoint = failpoints.device;
    check_broken(engine, &oracle, "device thread died", move || {
        failpoint.arm(1)
    })
    .await;

    let (engine, failpoints) = with_failpoints(&oracle, breaker_config()).await;
    let failpoint = failpoints.scheduler;
    check_broken(engine, &oracle, "scheduler", move || failpoint.arm(1)).await;

    let (engine, failpoints) = with_failpoints(&oracle, breaker_config()).await;
    let failpoint = failpoints.cache;
    check_broken(engine, &oracle, "cache", move || failpoint.arm(1)).await;
}

#[tokio::test]
async fn failed_reload_is_retried_a_few_times() {
    let oracle = slow_oracle();
    let (built, loads) = (oracle.clone(), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&loads);
    let once = move || match counted.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(Oracle::new(built.clone()).expect("a valid oracle")),
        1 => panic!("while loading (injected)"),
        _ => Err(ModelError::Device("no memory".into())),
    };
    let failpoints = Failpoints::default();
    let builder = Engine::builder(once).config(breaker_config());
    let engine = builder.failpoints(failpoints.clone()).start();
    let engine = engine.await.expect("the engine starts");
    failpoints.device.arm(1);
    check_broken(engine, &oracle, "cannot be loaded again", || {}).await;
    assert_eq!(loads.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn request_that_stalls_the_device_fails_alone() {
    let oracle = oracle(FULL);
    let mut config = config();
    config.scheduler.device_timeout = DEVICE_TIMEOUT;
    config.recovery.rebuilds_max = 5;
    let engine = engine(&oracle, config).await;
    let callers = callers(&engine, &oracle, 60, 12).await;
    generated(&engine, 50).await;
    let output_tokens: Vec<TokenId> = callers
        .iter()
        .flat_map(|caller| caller.expected.clone())
        .collect();
    let deadly = (900..1000).find(|token| !output_tokens.contains(token));
    let deadly = deadly.expect("a token that is unique to it");
    oracle.faults.stall_on(deadly, STALL);
    let culprit = Request::tokens([1, deadly]).output_tokens_max(5);
    let culprit = engine.submit(culprit).await.unwrap();
    let failed = culprit.collect().await;
    let is_blamed = matches!(failed, Err(GenerateError::Device { attempts: 3, .. }));
    assert!(is_blamed, "{failed:?}");
    check_all(engine, &oracle, callers).await;
}

/// The whole blocks of sixteen tokens that a reader of these batches knows.
fn known(batches: &[BlockBatch]) -> BTreeSet<BlockHash> {
    let mut known = BTreeSet::new();
    for event in batches.iter().flat_map(|batch| batch.events.iter()) {
        match event {
            BlockEvent::Stored { hashes, tokens, .. } => {
                assert_eq!(tokens.len(), 16 * hashes.len());
                known.extend(hashes);
            }
            BlockEvent::Removed { hashes, .. } => known.retain(|hash| !hashes.contains(hash)),
            _ => known.clear(),
        }
    }
    known
}

#[tokio::test]
async fn followers_are_notified_of_a_cache_rebuild() {
    let (engine, failpoints) = with_failpoints(&oracle(FULL), EngineConfig::default()).await;
    let mut early = engine
        .follow_blocks()
        .await
        .expect("there is no follower yet");
    let warm = |last| engine.warm(Request::tokens((1..last).collect::<Vec<TokenId>>()));
    warm(40).await.expect("it is accepted");
    let mut batches = vec![early.next().await.expect("all that is there")];
    batches.push(early.next().await.expect("the computed blocks"));

    failpoints.cache.arm(1);
    warm(20).await.expect("it is computed again");
    let mut late = engine.follow_blocks().await.expect("another may follow");
    let all = known(&[late.next().await.expect("all that is there")]);
    assert_eq!(all.len(), 1);
    while known(&batches) != all {
        batches.push(early.next().await.expect("what follows"));
    }
    engine.shutdown(Shutdown::Abort).await;
}
