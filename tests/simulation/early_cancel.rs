//! A caller that leaves before the scheduler has received its request.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use motet::config::EngineConfig;
use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::simulation::{FaultSchedule, ScheduledCopy, Simulation};
use motet::{Engine, Request, Shutdown};
use motet_core::pager::Job;
use motet_protocol::Work;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// No faults, but mailboxes hold one message.
struct OneMessage;

impl FaultSchedule for OneMessage {
    fn work(&self, _work: &Work) -> Duration {
        Duration::from_millis(1)
    }

    fn copy(&self, _job: &Job) -> ScheduledCopy {
        ScheduledCopy::default()
    }

    fn mailbox_max(&self) -> Option<usize> {
        Some(1)
    }

    fn message(&self, _core: &'static str, _message: &dyn fmt::Debug) {}
}

/// The caller's own request filled the mailbox. The scheduler did not know which caller had
/// woken it, and the sequence continued until its stream would be read (seed 524).
#[test]
fn sequence_cancelled_before_the_scheduler_knows_it_is_stopped() {
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let oracle = OracleConfig::with_layers(&[LayerKind::Full]);
        let mut config = EngineConfig::default();
        config.scheduler.unread_tokens_max = 8;
        config.scheduler.unread_timeout = None;
        let engine = Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("valid")))
            .config(config)
            .simulated(Simulation::new(Arc::new(OneMessage)))
            .start()
            .await
            .expect("the engine starts");
        let request = Request::tokens([1, 2, 3]).output_tokens_max(1_000);
        drop(engine.submit(request).await.expect("it is admitted"));
        tokio::time::sleep(Duration::from_secs(60)).await;
        let stats = engine.stats();
        assert_eq!((stats.running, stats.waiting, stats.paused), (0, 0, 0));
        assert!(
            stats.output_tokens < 8,
            "{} were sampled",
            stats.output_tokens
        );
        engine.shutdown(Shutdown::Finish).await;
    });
}
