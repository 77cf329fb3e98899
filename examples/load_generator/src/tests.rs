//! Small loads on the oracle in this process, from the command line to the report. Time
//! is paused: a sleeping task wakes as soon as no other task is ready.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use motet::model::oracle::StepCost;
use tokio::sync::watch;

use crate::arguments::Arguments;
use crate::load_target::LoadTarget;
use crate::mix::Kind;
use crate::progress::Progress;
use crate::report::{self, Computed, Report, Steps};
use crate::user::Stop;
use crate::{load_run, script, start};

/// Runs a command line on an oracle whose steps take no time.
async fn run(words: &str, stop: Stop) -> Report {
    run_at_cost(words, stop, StepCost::default()).await
}

async fn run_at_cost(words: &str, stop: Stop, cost: StepCost) -> Report {
    let words = ["load_generator", "--oracle"]
        .into_iter()
        .chain(words.split_whitespace());
    let arguments = Arguments::parse_from(words);
    let mut config = arguments.engine.config();
    // The paused clock runs ahead of the device, which is a thread.
    config.scheduler.device_timeout = Duration::MAX;
    let engine = start::oracle(config, cost).await;
    let load_target = LoadTarget::Engine(Arc::new(engine.expect("an engine that starts")));
    let scripts = script::write(&arguments.load);
    let load_run = load_run::run(&load_target, scripts, &Progress::new(true), stop).await;
    let stats = &load_run
        .engine
        .as_ref()
        .expect("an engine was watched")
        .stats;
    assert_eq!(stats.running, 0, "no sequence runs");
    assert_eq!(stats.cache.reserved_bytes, 0, "no bytes are reserved");
    let report = Report::new(&arguments, &load_target, 0.0, &load_run).expect("a report");
    load_target.shut_down().await;
    check_consistent(&report);
    let page = report::page(&report, &load_run, "load_generator");
    assert_eq!(page.matches("<figure>").count(), 5);
    assert!(!page.contains("http"), "the page is self-contained");
    report
}

/// Checks the invariants of every report.
fn check_consistent(report: &Report) {
    let (requests, tokens) = (&report.requests, &report.tokens);
    let ended = requests.finished + requests.failed + requests.interrupted;
    assert!(ended <= requests.planned);
    assert!(tokens.prompt_from_cache < tokens.prompt.max(1));
    let computed = computed(report);
    assert!(computed.prompt_distinct <= computed.distinct);
    let steps = steps(report);
    assert_eq!(steps.by_sequences.iter().sum::<u64>(), steps.count);
    let gaps = report.latency.between_tokens.map_or(0, |gaps| gaps.count);
    let firsts = report.latency.first_token.map_or(0, |firsts| firsts.count);
    assert_eq!(gaps + firsts, tokens.output as u64);
    for line in report::table(report).lines() {
        assert!(line.chars().count() <= 80, "{line}");
        assert_eq!(line.trim_end(), line);
    }
    serde_json::to_string(report).expect("a report is valid JSON");
}

fn computed(report: &Report) -> &Computed {
    report
        .tokens
        .computed
        .as_ref()
        .expect("an engine reports it")
}

fn steps(report: &Report) -> &Steps {
    report.steps.as_ref().expect("an engine reports it")
}

/// A stop signal that is never sent. Keep the sender.
fn no_stop() -> (watch::Sender<bool>, Stop) {
    let (sender, receiver) = watch::channel(false);
    (sender, Stop(receiver))
}

#[test]
fn reports_do_not_show_keys() {
    let check = |command: &str, shown: &str| {
        let words = command.split_whitespace().map(str::to_owned);
        assert_eq!(crate::command_line(words), shown);
    };
    check(
        "load --api-key secret --users 2",
        "load --api-key KEY --users 2",
    );
    check("load --api-key=secret", "load --api-key=KEY");
    check("load --url http://x", "load --url http://x");
}

#[tokio::test(start_paused = true)]
async fn every_load_is_served_to_its_end() {
    let check = async |words: &str, requests: usize| {
        let (_sender, stop) = no_stop();
        let report = run(words, stop).await;
        assert_eq!(report.requests.finished, requests, "{words}");
        assert!(!report.interrupted);
        // No token less than the distinct ones. As all state fits, hardly more
        let tokens = computed(&report);
        assert!(tokens.evaluated >= tokens.distinct as u64, "{words}");
        // (an end is seen one step late).
        let most = 1.05 * tokens.distinct as f64 + requests as f64;
        assert!(tokens.evaluated as f64 <= most, "{words}: {tokens:?}");
        // The cache holds each distinct token's state once. It may also hold the state of
        // an end token, with which the next turn begins in most chat templates.
        let memory = report.memory.as_ref().expect("an engine reports it");
        assert!(memory.cached_bytes >= memory.needed_bytes, "{words}");
        assert!(memory.held_by_needed <= 1.1, "{words}: {memory:?}");
        assert!(memory.held_by_needed <= memory.held_max_by_needed);
        assert!(memory.restore.is_none(), "full attention has none");
        report
    };
    let report = check("", 48).await;
    assert!(computed(&report).shared_start_computed_once);
    assert!(computed(&report).shared_start >= 400);
    assert!(report.tokens.prompt_from_cache_share > 0.9);

    check("--arrivals poisson:50 --turns 2", 32).await;
    check("--think-ms 3000 --users 3 --temperature 0.8", 9).await;
    check("--system-words 0 --turns 5 --users 70", 350).await;

    let report = check("--mix chatty=3,long=2,batch=2 --long-words 200", 21).await;
    let kinds: Vec<_> = report.kinds.iter().map(|kind| kind.kind).collect();
    assert_eq!(kinds, [Kind::Chatty, Kind::Long, Kind::Batch]);
    let finished: usize = report.kinds.iter().map(|kind| kind.finished).sum();
    assert_eq!(finished, 21);
    assert!(report::table(&report).contains("batch, 2 users"));

    let report = check("--unique-words 100", 16).await;
    assert!(!computed(&report).shared_start_computed_once);
    assert!(report.tokens.prompt_from_cache_share < 0.05);

    let report = check("--ignore-end --reply-tokens 20", 48).await;
    assert_eq!(report.tokens.output, 48 * 20);
}

#[tokio::test(start_paused = true)]
async fn rejected_requests_are_retried_and_counted() {
    let (_sender, stop) = no_stop();
    let report = run("--sequences-max 2 --queue-max 1 --users 12", stop).await;
    assert_eq!(report.requests.finished, 36);
    assert!(report.requests.rejections > 0);
    assert!(steps(&report).by_sequences.len() <= 2);
}

#[tokio::test(start_paused = true)]
async fn errors_are_reported_once_each_with_their_number() {
    let (_sender, stop) = no_stop();
    let report = run("--temperature nan --users 5", stop).await;
    assert_eq!((report.requests.failed, report.requests.finished), (5, 0));
    assert_eq!(report.requests.errors.len(), 1);
    let table = report::table(&report);
    assert!(table.contains("5 failed: request field `sampling.temperature`"));
}

// Time is not paused here, so that the device makes progress in real time.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_run_reports_what_it_has() {
    let (sender, stop) = no_stop();
    let pressed = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        sender.send_replace(true);
        sender
    });
    let cost = StepCost {
        base: Duration::from_millis(2),
        ..StepCost::default()
    };
    let report = run_at_cost("--ignore-end --reply-tokens 1000", stop, cost).await;
    pressed.await.expect("the sender is kept");
    assert!(report.interrupted);
    assert_eq!(report.requests.interrupted, 16);
    assert!(report.tokens.output > 0);
    assert!(report::table(&report).contains("interrupted while 16 were under way"));
}
