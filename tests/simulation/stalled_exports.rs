//! Exports that a device never computes, as a hanging device exports them.
//!
//! A copy worker polls whether exports are computed, and never waits. It meanwhile serves other
//! loads from host memory. Exports that an abandoned device owes are dropped with it.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use motet::config::EngineConfig;
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::Sampling;
use motet::simulation::{FaultSchedule, ScheduledCopy, Simulation};
use motet::{Engine, Request, Shutdown, TokenId};
use motet_core::pager::Job;
use motet_protocol::Work;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// Tokens of each prompt.
const PROMPT: TokenId = 60;
const OUTPUT: usize = 4;
/// Longer than any operation here takes, in virtual time.
const TIMEOUT: Duration = Duration::from_secs(600);

/// No faults, except a device that hangs on request.
struct StallingDevice {
    /// Makes the device's next work last forever.
    next: AtomicBool,
}

impl FaultSchedule for StallingDevice {
    fn work(&self, _work: &Work) -> Duration {
        if self.next.swap(false, Ordering::Relaxed) {
            Duration::from_secs(1 << 30)
        } else {
            Duration::from_millis(1)
        }
    }

    fn copy(&self, _job: &Job) -> ScheduledCopy {
        ScheduledCopy {
            takes: Duration::from_micros(10),
            fails: None,
        }
    }

    fn message(&self, _core: &'static str, _message: &dyn fmt::Debug) {}
}

/// An engine on one thread with a paused clock, and the operations of a test on it.
struct EngineHarness {
    engine: Engine,
    oracle: OracleConfig,
    stalling_device: Arc<StallingDevice>,
}

impl EngineHarness {
    /// Starts with device memory for so many prompts, and host memory for all.
    async fn start(prompts: usize) -> Self {
        let oracle = OracleConfig {
            context_tokens_max: 128,
            end_one_in: 0,
            tail_block_tokens: 16,
            ..OracleConfig::with_layers(&[LayerKind::Full])
        };
        let spec = oracle.spec();
        let mut config = EngineConfig::default();
        config.scheduler.sequences_max = 4;
        config.scheduler.device_timeout = Duration::from_secs(1);
        config.recovery.rebuilds_max = 1_000;
        config.cache.device_bytes_max =
            spec.tail_bytes(128) * prompts + config.scratch_bytes(&spec);
        config.pager.host_bytes_max = 64 << 20;
        config.pager.clean_part = 1.0;
        let next = AtomicBool::new(false);
        let stalling_device = Arc::new(StallingDevice { next });
        let model = oracle.clone();
        let engine = Engine::builder(move || Ok(Oracle::new(model.clone()).expect("valid")))
            .config(config)
            .simulated(Simulation::new(stalling_device.clone()))
            .start()
            .await
            .expect("the engine starts");
        Self {
            engine,
            oracle,
            stalling_device,
        }
    }

    /// A caller with prompt number `number`, which gets the output of a reference run. Returns
    /// the number of prompt tokens that were not computed for it.
    async fn ask(&self, number: TokenId) -> usize {
        self.ask_of(number, PROMPT).await
    }

    /// As [`ask`](Self::ask), with a prompt of so many tokens.
    async fn ask_of(&self, number: TokenId, tokens: TokenId) -> usize {
        let prompt: Vec<TokenId> = (0..tokens).map(|at| (number * 7 + at) % 900).collect();
        let request = Request::tokens(prompt.clone()).output_tokens_max(OUTPUT);
        let stream = self.engine.submit(request).await.expect("it is admitted");
        let output = tokio::time::timeout(TIMEOUT, stream.collect()).await;
        let output = output.expect("every call ends");
        let output = output.expect("an output");
        let expected = self
            .oracle
            .reference_tokens(&prompt, OUTPUT, Sampling::GREEDY);
        assert_eq!(output.tokens, expected, "prompt {number}");
        output.finish.usage.cached_tokens
    }

    /// Waits until everything that can be copied is copied.
    async fn wait_for_copies(&self) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    /// Shuts it down: nothing is left, and no sequence has waited for an export that was never
    /// computed.
    async fn end(self) {
        self.engine.shutdown(Shutdown::Finish).await;
        assert_eq!(self.oracle.faults.counts().exports_waited_for, 0);
    }
}

fn simulate<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async { test().await });
}

/// The device has exported a segment that it never computes. Another prompt is in host memory,
/// and is loaded from there.
#[test]
fn host_copies_load_while_exports_stall() {
    simulate(|| async {
        let harness = EngineHarness::start(3).await;
        for number in 0..12 {
            harness.ask(number).await;
            harness.wait_for_copies().await;
        }
        let before = harness.engine.stats();
        assert!(before.pager.host_copies >= 12, "{:?}", before.pager);
        assert!(before.cache.evicted_segments > 0, "{:?}", before.cache);
        harness.oracle.faults.stall_exports(1);
        harness.ask(100).await;
        harness.wait_for_copies().await;
        assert_eq!(harness.oracle.faults.counts().exports_stalled, 1);
        let cached = harness.ask(0).await;
        assert!(cached > PROMPT as usize / 2, "{cached} tokens came");
        let after = harness.engine.stats();
        assert!(after.pager.host_hits > before.pager.host_hits);
        assert_eq!(after.rebuilds, 0);
        // The export is packed when it is computed in the end.
        harness.oracle.faults.compute_exports();
        harness.wait_for_copies().await;
        harness.wait_for_copies().await;
        let computed = harness.engine.stats();
        assert!(computed.pager.packed > after.pager.packed);
        harness.end().await;
    });
}

/// No step runs that would show that the device hangs, and all its state is leased for exports
/// that it owes. Sequences that need the memory get it when the exports are cancelled.
#[test]
fn budget_of_stalled_exports_is_released() {
    simulate(|| async {
        let harness = EngineHarness::start(1).await;
        harness.oracle.faults.stall_exports(u64::MAX);
        harness.ask(0).await;
        harness.wait_for_copies().await;
        let counts = harness.oracle.faults.counts();
        assert_eq!(counts.exports_stalled, 1, "{counts:?}");
        let stats = harness.engine.stats();
        assert_eq!(stats.pager.rejected, 0, "the export is pending: {stats:?}");
        // This prompt needs all of the memory.
        harness.ask_of(50, 120).await;
        let stats = harness.engine.stats();
        assert_eq!(stats.pager.rejected, 1, "and cancelled: {stats:?}");
        assert_eq!(stats.rebuilds, 0, "{stats:?}");
        harness.end().await;
    });
}

/// One device after another hangs, with pending exports. The next device serves the sequences
/// that wait for host memory meanwhile, and no device fails because its transfer queue is full.
#[test]
fn stalled_exports_do_not_delay_other_requests() {
    simulate(|| async {
        let harness = EngineHarness::start(24).await;
        harness.ask(0).await;
        harness.wait_for_copies().await;
        assert!(harness.engine.stats().pager.host_copies > 0);
        harness.oracle.faults.stall_exports(u64::MAX);
        let stalled = || harness.oracle.faults.counts().exports_stalled;
        let (mut rounds, mut number) = (0, 1);
        while stalled() < 100 {
            let before = stalled();
            for _ in 0..8 {
                harness.ask(number).await;
                number += 1;
            }
            harness.wait_for_copies().await;
            assert!(stalled() > before, "a segment was exported");
            harness.stalling_device.next.store(true, Ordering::Relaxed);
            rounds += 1;
            // Both are running while the device hangs, and continue on the next one.
            let (first, second) = tokio::join!(harness.ask(0), harness.ask(number));
            assert!(first > PROMPT as usize / 2, "{first} tokens came");
            assert_eq!(second, 0, "it was not computed before");
            number += 1;
            let stats = harness.engine.stats();
            assert_eq!(stats.rebuilds, rounds, "each device hung once");
            // A device that could not export would have lost everything.
            harness.wait_for_copies().await;
            let cached = harness.ask(number - 1).await;
            assert!(cached > PROMPT as usize / 2, "{cached} tokens were kept");
        }
        assert!(rounds > 8, "{rounds} devices");
        harness.end().await;
    });
}
