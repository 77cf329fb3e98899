//! Settings and requests at the ends of their ranges. Each works, or is an error that names the
//! field: no number that somebody chooses ends an actor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use motet::config::{
    AdmissionConfig, CacheConfig, ChunkingConfig, DiskConfig, EngineConfig, FairnessConfig,
    InterToken, PagerConfig, RecoveryConfig, RemoteConfig, SchedulerConfig, SpeculationConfig,
    TextConfig,
};
use motet::error::{CacheCommandError, FlushError, StartError};
use motet::grammar::GrammarLimits;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::model::{LayerKind, ModelError};
use motet::request::ContextLimit;
use motet::{Engine, HealthState, Request, Shutdown, TokenId};

use crate::common::{engine, small, until};
use motet_testkit::folder::Folder;
use motet_testkit::remote::MemoryRemote;

/// An end of a field's range.
#[derive(Clone, Copy, Debug)]
enum End {
    /// 0, as a number or a time.
    Least,
    /// A sum with it fits its own type. The clock does not count so far.
    Far,
    /// The largest value of its type.
    Most,
}

const ENDS: [End; 3] = [End::Least, End::Far, End::Most];

impl End {
    fn count(self) -> usize {
        match self {
            Self::Least => 0,
            Self::Far => usize::MAX / 2,
            Self::Most => usize::MAX,
        }
    }

    fn time(self) -> Duration {
        match self {
            Self::Least => Duration::ZERO,
            Self::Far => Duration::from_secs(u64::MAX / 2 + 1),
            Self::Most => Duration::MAX,
        }
    }
}

/// A field that is set to the ends of its range.
enum Field<'a> {
    Count(&'a mut usize),
    OptionalCount(&'a mut Option<usize>),
    Retries(&'a mut u32),
    Time(&'a mut Duration),
    OptionalTime(&'a mut Option<Duration>),
    InterToken(&'a mut InterToken),
}

impl Field<'_> {
    fn set(self, end: End) {
        match self {
            Self::Count(field) => *field = end.count(),
            Self::OptionalCount(field) => *field = Some(end.count()),
            Self::Retries(field) => *field = u32::try_from(end.count()).unwrap_or(u32::MAX),
            Self::Time(field) => *field = end.time(),
            Self::OptionalTime(field) => *field = Some(end.time()),
            Self::InterToken(field) => *field = InterToken::Absolute(end.time()),
        }
    }
}

/// Every number and time of the settings, by its path. Nothing is left out by `..`, so that a new
/// setting has to be added.
#[rustfmt::skip] // a table
fn settings(config: &mut EngineConfig) -> Vec<(&'static str, Field<'_>)> {
    use Field::{Count, InterToken, OptionalCount, OptionalTime, Retries, Time};

    let EngineConfig { context_tokens_max, scheduler, cache, pager, recovery, text, grammar } = config;
    let SchedulerConfig {
        sequences_max, admission, chunking, fairness, unread_tokens_max, unread_timeout, device_timeout,
        step_retries_max, speculation,
    } = scheduler;
    let SpeculationConfig {
        enabled: _, draft_tokens_max, answer_bytes_max, prediction_tokens_max,
        draft_model_tokens_max,
    } = speculation;
    let AdmissionConfig { queue_max, queue_tokens_max, user_requests_max, user_queue_tokens_max, results_bytes_max } = admission;
    let ChunkingConfig { step_tokens_max, inter_token, prefill_wait_steps_max, prefill_tokens_min } = chunking;
    let FairnessConfig {
        prompt_token_service: _, output_token_service: _, locality_service: _, credit_service: _, ageing,
    } = fairness;
    let CacheConfig {
        device_bytes_max, share_tokens_min, eviction: _, slot_choice: _, restore_interval_tokens,
        restore_points: _, merge_tokens_max, pinned_bytes_max, full_sequences_min, block_tokens,
    } = cache;
    let PagerConfig {
        host_bytes_max, label_bytes_max, disk, precision: _, clean_part: _, backup_tokens, flush_time, disk_timeout, remote,
    } = pager;
    let DiskConfig { folder: _, bytes_max: disk_bytes_max } = disk.as_mut().expect("a disk");
    let RemoteConfig { sends: _, shares_salted: _, grid_tokens, answer_timeout, timeout } = remote.as_mut().expect("a tier");
    let RecoveryConfig { rebuilds_max, rebuilds_window, reload_delay } = recovery;
    let TextConfig { threads, queue_max: text_queue_max, queue_bytes_max, shift_contexts_max } = text;
    let GrammarLimits {
        options_allowed: _, forced_tokens: _, depth_max, enum_values_max, patterns_max, pattern_pairs_max,
        intersected_patterns_max, members_max, intersections_max, expansion_max, multiple_of_max,
        compilations_max, compilations_waiting_max, compile_time_max, sequence_bytes_max, bytes_max,
    } = grammar;
    vec![
        ("context_tokens_max", OptionalCount(context_tokens_max)),
        ("scheduler.sequences_max", Count(sequences_max)),
        ("scheduler.unread_tokens_max", Count(unread_tokens_max)),
        ("scheduler.unread_timeout", OptionalTime(unread_timeout)),
        ("scheduler.device_timeout", Time(device_timeout)),
        ("scheduler.step_retries_max", Retries(step_retries_max)),
        ("scheduler.admission.queue_max", Count(queue_max)),
        ("scheduler.admission.queue_tokens_max", Count(queue_tokens_max)),
        ("scheduler.admission.user_requests_max", OptionalCount(user_requests_max)),
        ("scheduler.admission.user_queue_tokens_max", OptionalCount(user_queue_tokens_max)),
        ("scheduler.admission.results_bytes_max", Count(results_bytes_max)),
        ("scheduler.chunking.step_tokens_max", Count(step_tokens_max)),
        ("scheduler.chunking.inter_token", InterToken(inter_token)),
        ("scheduler.chunking.prefill_wait_steps_max", Count(prefill_wait_steps_max)),
        ("scheduler.chunking.prefill_tokens_min", Count(prefill_tokens_min)),
        ("scheduler.fairness.ageing", OptionalTime(ageing)),
        ("scheduler.speculation.draft_tokens_max", Count(draft_tokens_max)),
        ("scheduler.speculation.answer_bytes_max", Count(answer_bytes_max)),
        ("scheduler.speculation.prediction_tokens_max", Count(prediction_tokens_max)),
        ("scheduler.speculation.draft_model_tokens_max", Count(draft_model_tokens_max)),
        ("cache.device_bytes_max", Count(device_bytes_max)),
        ("cache.share_tokens_min", Count(share_tokens_min)),
        ("cache.restore_interval_tokens", Count(restore_interval_tokens)),
        ("cache.merge_tokens_max", Count(merge_tokens_max)),
        ("cache.pinned_bytes_max", OptionalCount(pinned_bytes_max)),
        ("cache.full_sequences_min", Count(full_sequences_min)),
        ("cache.block_tokens", Count(block_tokens)),
        ("pager.host_bytes_max", Count(host_bytes_max)),
        ("pager.label_bytes_max", OptionalCount(label_bytes_max)),
        ("pager.disk.bytes_max", Count(disk_bytes_max)),
        ("pager.backup_tokens", Count(backup_tokens)),
        ("pager.flush_time", Time(flush_time)),
        ("pager.disk_timeout", Time(disk_timeout)),
        ("pager.remote.grid_tokens", Count(grid_tokens)),
        ("pager.remote.answer_timeout", Time(answer_timeout)),
        ("pager.remote.timeout", Time(timeout)),
        ("recovery.rebuilds_max", Count(rebuilds_max)),
        ("recovery.rebuilds_window", Time(rebuilds_window)),
        ("recovery.reload_delay", Time(reload_delay)),
        ("text.threads", Count(threads)),
        ("text.queue_max", Count(text_queue_max)),
        ("text.queue_bytes_max", Count(queue_bytes_max)),
        ("text.shift_contexts_max", Count(shift_contexts_max)),
        ("grammar.depth_max", Count(depth_max)),
        ("grammar.enum_values_max", Count(enum_values_max)),
        ("grammar.patterns_max", Count(patterns_max)),
        ("grammar.pattern_pairs_max", Count(pattern_pairs_max)),
        ("grammar.intersected_patterns_max", Count(intersected_patterns_max)),
        ("grammar.members_max", Count(members_max)),
        ("grammar.intersections_max", Count(intersections_max)),
        ("grammar.expansion_max", Count(expansion_max)),
        ("grammar.multiple_of_max", Count(multiple_of_max)),
        ("grammar.compilations_max", Count(compilations_max)),
        ("grammar.compilations_waiting_max", Count(compilations_waiting_max)),
        ("grammar.compile_time_max", Time(compile_time_max)),
        ("grammar.sequence_bytes_max", Count(sequence_bytes_max)),
        ("grammar.bytes_max", Count(bytes_max)),
    ]
}

fn oracle() -> OracleConfig {
    OracleConfig {
        context_tokens_max: 128,
        tail_block_tokens: 16,
        end_one_in: 0,
        ..OracleConfig::with_layers(&[LayerKind::Full, LayerKind::Window { tokens: 6 }])
    }
}

fn prompt(tokens: u32) -> Vec<TokenId> {
    (1..=tokens).collect()
}

/// A small engine with all tiers.
fn tiered(folder: &Folder) -> EngineConfig {
    let mut config = small();
    config.cache.device_bytes_max = 1 << 20;
    config.pager.host_bytes_max = 1 << 20;
    config.pager.disk = Some(DiskConfig {
        folder: folder.0.clone(),
        bytes_max: 1 << 20,
    });
    config.pager.remote = Some(RemoteConfig::default());
    config
}

/// Uses what settings bound: several prompts, a shift, a pin, a flush and the shutdown.
async fn use_engine(engine: &Engine) {
    let mut long = Request::tokens(prompt(100)).output_tokens_max(40);
    long.at_context_limit = ContextLimit::Shift { keep: 4 };
    let short = Request::tokens(prompt(40)).output_tokens_max(8).user("b");
    let (long, short) = tokio::join!(engine.submit(long), engine.submit(short));
    let streams = [long, short].into_iter().flatten();
    for stream in streams {
        stream.collect().await.expect("an output");
    }
    let pinned = engine.pin(Request::tokens(prompt(20)), Some(Duration::MAX));
    if let Err(error) = pinned.await {
        let is_typed = matches!(
            error,
            CacheCommandError::Cache(_) | CacheCommandError::Submit(_)
        );
        assert!(is_typed, "{error}");
    }
    let flushed = engine.flush().await;
    assert!(
        matches!(flushed, Ok(()) | Err(FlushError::Late { .. })),
        "{flushed:?}"
    );
    assert_no_part_failed(engine);
}

fn assert_no_part_failed(engine: &Engine) {
    let health = engine.health();
    let works = matches!(health.state, HealthState::Ready | HealthState::Busy);
    assert!(works && !health.pager_lost, "{health:?}");
    assert_eq!(engine.stats().rebuilds, 0, "no part has panicked");
}

#[tokio::test]
async fn every_setting_works_at_its_ends_or_is_rejected_by_name() {
    let folder = Folder::new("extremes");
    let mut failures = Vec::new();
    let count = settings(&mut tiered(&folder)).len();
    for (index, end) in (0..count).flat_map(|index| ENDS.map(|end| (index, end))) {
        let mut config = tiered(&folder);
        let (name, field) = settings(&mut config).swap_remove(index);
        field.set(end);
        let build = move || Ok(Oracle::new(oracle()).expect("a valid oracle"));
        let remote = Arc::new(MemoryRemote::new());
        let builder = Engine::builder(build).config(config).remote_tier(remote);
        let started = builder.start().await;
        let engine = match started {
            Ok(engine) => engine,
            Err(StartError::Config(error)) => {
                assert!(
                    error.to_string().contains(name),
                    "{name} at {end:?}: {error}"
                );
                continue;
            }
            Err(error) => panic!("{name} at {end:?}: {error}"),
        };
        let used = tokio::spawn(async move {
            use_engine(&engine).await;
            engine.shutdown(Shutdown::Finish).await;
        });
        match tokio::time::timeout(Duration::from_secs(60), used).await {
            Ok(Ok(())) => println!("{name} at {end:?} works"),
            Ok(Err(panic)) => failures.push(format!("{name} at {end:?}: {panic}")),
            Err(_) => failures.push(format!("{name} at {end:?} hangs")),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[tokio::test]
async fn a_reload_may_be_as_late_as_time_is_long() {
    for end in [End::Far, End::Most] {
        let mut config = small();
        config.recovery.reload_delay = end.time();
        let oracle = oracle();
        let faults = oracle.faults.clone();
        let is_loaded = Arc::new(AtomicBool::new(false));
        let build = move || {
            if is_loaded.swap(true, Ordering::Relaxed) {
                return Err(ModelError::Device("it is unplugged".into()));
            }
            Ok(Oracle::new(oracle.clone()).expect("a valid oracle"))
        };
        let engine = Engine::builder(build).config(config).start().await;
        let engine = engine.expect("the engine starts");
        faults.end_thread(1);
        let stream = engine.submit(Request::tokens(prompt(8))).await;
        until("the second load fails", || engine.stats().rebuilds == 2).await;
        let state = engine.health().state;
        assert!(
            matches!(state, HealthState::Recovering { .. }),
            "{end:?}: {state:?}"
        );
        drop(stream);
        engine.shutdown(Shutdown::Abort).await;
    }
}

#[tokio::test]
async fn no_number_of_a_request_ends_more_than_the_request() {
    type Change = fn(&mut Request, End);
    let changes: [(&str, Change); 13] = [
        ("output_tokens_max", |r, end| {
            r.output_tokens_max = end.count();
        }),
        ("output_tokens_min", |r, end| {
            r.output_tokens_min = end.count();
        }),
        ("both of them", |r, end| {
            r.output_tokens_max = end.count();
            r.output_tokens_min = end.count();
        }),
        ("logprobs", |r, end| r.logprobs = Some(end.count())),
        ("n", |r, end| r.n = end.count()),
        ("best_of", |r, end| r.best_of = Some(end.count())),
        ("start_within", |r, end| r.start_within = Some(end.time())),
        ("finish_within", |r, end| r.finish_within = Some(end.time())),
        ("at_context_limit", |r, end| {
            r.at_context_limit = ContextLimit::Shift { keep: end.count() };
        }),
        ("restore_points", |r, end| {
            r.restore_points = vec![end.count()]
        }),
        ("turn_end", |r, end| r.turn_end = Some(end.count())),
        ("prompt_logprobs", |r, end| {
            r.prompt_logprobs = Some(end.count());
        }),
        ("prompt_logprobs_from", |r, end| {
            r.prompt_logprobs = Some(0);
            r.prompt_logprobs_from = end.count();
        }),
    ];
    let engine = engine(&oracle(), small()).await;
    for (name, change) in changes {
        for end in ENDS {
            let mut request = Request::tokens(prompt(40)).output_tokens_max(4);
            change(&mut request, end);
            let many = request.n > 1;
            if many {
                drop(engine.submit_many(request).await);
            } else if let Ok(stream) = engine.submit(request).await {
                let collected = tokio::time::timeout(Duration::from_secs(60), stream.collect());
                let collected = collected.await;
                let collected = collected.unwrap_or_else(|_| panic!("{name} at {end:?} hangs"));
                collected.unwrap_or_else(|error| panic!("{name} at {end:?}: {error}"));
            }
            println!("{name} at {end:?}");
            assert_no_part_failed(&engine);
        }
    }
    engine.shutdown(Shutdown::Finish).await;
}
