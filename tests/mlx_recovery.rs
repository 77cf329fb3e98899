//! The real model, sixteen users, and a device thread that is killed repeatedly. Each user gets
//! every token of the undisturbed run exactly once. Prints the longest pause.
#![cfg(feature = "mlx")]

#[path = "common/killable.rs"]
mod killable;
#[path = "common/model.rs"]
mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use killable::{Kill, Killable};
use model::model;
use motet::config::EngineConfig;
use motet::model::mlx::{Arithmetic, MlxModel, MlxOptions, RetainedWeights};
use motet::model::weights::ModelFiles;
use motet::text::Message;
use motet::{Engine, Request, Shutdown, TokenId, TokenStream};

const USERS: usize = 16;
/// Tokens after which a running sequence is copied, if there is host memory.
const BACKUP_TOKENS: usize = 8;
/// The count of a reader whose stream has ended.
const ALL: usize = usize::MAX;

async fn engine(kill: &Kill, kills: u64, host_bytes_max: usize) -> Engine {
    let mut config = EngineConfig::default();
    config.recovery.rebuilds_max = kills as usize;
    config.pager.host_bytes_max = host_bytes_max;
    config.pager.backup_tokens = BACKUP_TOKENS;
    let files = ModelFiles::open(&model()).expect("a model");
    let text = motet::Engine::text_of(&files).expect("a tokenizer");
    let (retained, kill) = (RetainedWeights::default(), kill.clone());
    let load = move || {
        // Rounded activations turn differences of last bits, which depend on a step's other
        // sequences, into ones that may change a token.
        let options = MlxOptions {
            arithmetic: Some(Arithmetic::Exact),
            ..MlxOptions::default()
        };
        let model = MlxModel::load_reusing(&files, options, &retained)?;
        let kill = kill.clone();
        Ok(Killable { model, kill })
    };
    let builder = Engine::builder(load).text(text).config(config);
    builder.start().await.expect("the engine starts")
}

/// One user's tokens, and the longest time between two tokens.
async fn read(mut stream: TokenStream, count: Arc<AtomicUsize>) -> (Vec<TokenId>, Duration) {
    let (mut tokens, mut longest) = (Vec::new(), Duration::ZERO);
    let mut last: Option<Instant> = None;
    while let Some(piece) = stream.next().await {
        tokens.extend(piece.expect("no sequence fails").token);
        let now = Instant::now();
        longest = longest.max(last.map_or(Duration::ZERO, |last| now - last));
        last = Some(now);
        count.store(tokens.len(), Ordering::Relaxed);
    }
    count.store(ALL, Ordering::Relaxed);
    (tokens, longest)
}

/// Runs all users at once and kills the device thread `kills` times. Between two kills every
/// user gets as many tokens as lie between two copies, so that there are copies to load.
async fn run(kills: u64, output_tokens: usize, host_bytes_max: usize) -> Run {
    let kill_switch = Kill::default();
    let engine = engine(&kill_switch, kills, host_bytes_max).await;
    let system = Message::system("You are the guide of a botanical garden. Answer in a few words.");
    let (mut readers, mut counts) = (Vec::new(), Vec::new());
    for user in 0..USERS {
        let question = Message::user(format!("I am visitor {user}. What grows in bed {user}?"));
        let request = Request::chat([system.clone(), question])
            .output_tokens_max(output_tokens)
            .ignore_end_tokens();
        let stream = engine
            .submit(request)
            .await
            .expect("the request is admitted");
        let count = Arc::new(AtomicUsize::new(0));
        readers.push(tokio::spawn(read(stream, Arc::clone(&count))));
        counts.push(count);
    }
    let mut before = vec![0; USERS];
    for kill in 1..=kills {
        loop {
            let now: Vec<usize> = counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed))
                .collect();
            let waits =
                |(now, before): (&usize, &usize)| *now != ALL && *now < before + BACKUP_TOKENS;
            if !now.iter().zip(&before).any(waits) {
                before = now;
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(
            before.iter().any(|now| *now != ALL),
            "some users are still active"
        );
        kill_switch.arm();
        while engine.stats().rebuilds < kill {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let (mut outputs, mut longest) = (Vec::new(), Duration::ZERO);
    for reader in readers {
        let (tokens, pause) = reader.await.expect("a reader");
        outputs.push(tokens);
        longest = longest.max(pause);
    }
    let stats = engine.stats();
    println!(
        "{kills} kills, {host_bytes_max} host bytes: the longest pause {longest:?}, {} tokens \
         evaluated, {} copies brought",
        stats.evaluated_tokens, stats.pager.unpacked
    );
    engine.shutdown(Shutdown::Finish).await;
    Run {
        outputs,
        evaluated: stats.evaluated_tokens,
        brought: stats.pager.unpacked,
    }
}

/// The results of all users.
struct Run {
    outputs: Vec<Vec<TokenId>>,
    /// Tokens that were evaluated.
    evaluated: u64,
    /// Copies that were loaded from host memory.
    brought: u64,
}

/// Without host memory, everything is computed again after each kill. With it, only the tokens
/// without a copy are.
async fn check(kills: u64, output_tokens: usize) {
    let undisturbed = run(0, output_tokens, 0).await;
    let killed = run(kills, output_tokens, 0).await;
    check_tokens(&killed, &undisturbed, output_tokens);
    let copied = run(kills, output_tokens, 1 << 30).await;
    check_tokens(&copied, &undisturbed, output_tokens);
    assert!(killed.brought == 0 && copied.brought > 0);
    let recomputed_tokens = |run: &Run| run.evaluated - undisturbed.evaluated;
    let (copied, killed) = (recomputed_tokens(&copied), recomputed_tokens(&killed));
    assert!(
        copied * 2 < killed,
        "{copied} tokens again, {killed} without copies"
    );
}

fn check_tokens(killed: &Run, undisturbed: &Run, output_tokens: usize) {
    let pairs = killed.outputs.iter().zip(&undisturbed.outputs);
    for (user, (killed, undisturbed)) in pairs.enumerate() {
        assert_eq!(killed.len(), output_tokens, "user {user}");
        assert_eq!(killed, undisturbed, "user {user}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_device_kills_cost_time_and_nothing_else() {
    check(3, 5 * BACKUP_TOKENS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes on a small machine"]
async fn twenty_device_kills_cost_time_and_nothing_else() {
    check(20, 22 * BACKUP_TOKENS).await;
}
