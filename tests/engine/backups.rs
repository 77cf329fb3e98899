//! Live sequences are copied to host memory as they grow. When the device dies, copied state is
//! loaded and not computed again. The tests count evaluated tokens, not time.

use std::time::Duration;

use crate::common::until;
use motet::config::EngineConfig;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::model::{LayerKind, ModelSpec};
use motet::{Engine, Request, Shutdown, TokenId, TokenStream};

const USERS: u32 = 8;
const PROMPT_TOKENS: usize = 80;
const OUTPUT_TOKENS: usize = 48;
/// Each sequence pauses when its caller has this many tokens to read.
const UNREAD_TOKENS: usize = 24;
const BACKUP_TOKENS: usize = 16;
/// Prompt and output of the request at which the device dies.
const LAST: (TokenId, usize) = (999, 1);

fn oracle() -> OracleConfig {
    let mut oracle = OracleConfig {
        context_tokens_max: 256,
        end_one_in: 0,
        tail_block_tokens: 16,
        ..OracleConfig::with_layers(&[LayerKind::Full])
    };
    // Copying must be faster, however busy the machine is.
    oracle.cost.per_token = Duration::from_millis(2);
    oracle
}

fn config(spec: &ModelSpec, backup_tokens: usize) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scheduler.sequences_max = 12;
    config.scheduler.chunking.step_tokens_max = 48;
    config.scheduler.unread_tokens_max = UNREAD_TOKENS;
    config.cache.device_bytes_max = spec.tail_bytes(256) * 32 + config.scratch_bytes(spec);
    config.pager.host_bytes_max = 16 << 20;
    // Only live state is copied.
    config.pager.clean_part = 0.0;
    config.pager.backup_tokens = backup_tokens;
    config
}

fn prompt(user: u32) -> Vec<TokenId> {
    (0..PROMPT_TOKENS as u32)
        .map(|at| 1 + user * 100 + at)
        .collect()
}

/// The tokens that each stream returns.
async fn read(streams: Vec<TokenStream>) -> Vec<Vec<TokenId>> {
    let readers = streams
        .into_iter()
        .map(|stream| tokio::spawn(stream.collect()));
    let mut all = Vec::new();
    for reader in readers.collect::<Vec<_>>() {
        all.push(
            reader
                .await
                .expect("a reader")
                .expect("no request fails")
                .tokens,
        );
    }
    all
}

/// All users get as many tokens as they may have unread; then the device dies if `device_dies`.
/// Returns the tokens of all users, and the number of evaluated tokens.
async fn run(backup_tokens: usize, device_dies: bool) -> (Vec<Vec<TokenId>>, usize) {
    let oracle = oracle();
    let faults = oracle.faults.clone();
    let config = config(&oracle.spec(), backup_tokens);
    let engine = Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("valid")))
        .config(config)
        .start()
        .await
        .expect("the engine starts");
    let request = |prompt: Vec<TokenId>, tokens| Request::tokens(prompt).output_tokens_max(tokens);
    let mut streams = Vec::new();
    for user in 0..USERS {
        let stream = engine.submit(request(prompt(user), OUTPUT_TOKENS)).await;
        streams.push(stream.expect("it is accepted"));
    }
    until("all are paused", || engine.stats().paused == USERS as usize).await;
    if backup_tokens > 0 {
        // The last copy is due at this many tokens at the latest.
        let least = PROMPT_TOKENS + UNREAD_TOKENS - 1 - 2 * BACKUP_TOKENS;
        until("all are copied", || {
            let pager = engine.stats().pager;
            pager.packed as usize >= USERS as usize * least.div_ceil(48)
        })
        .await;
        let mut before = 0;
        until("no copies are under way", || {
            let packed = engine.stats().pager.packed;
            std::thread::sleep(Duration::from_millis(20));
            std::mem::replace(&mut before, packed) == packed
        })
        .await;
    } else {
        assert_eq!(engine.stats().pager.packed, 0);
    }
    if device_dies {
        faults.end_thread(1);
    }
    let last = engine.submit(request(vec![LAST.0], LAST.1)).await;
    let last = read(vec![last.expect("it is accepted")]).await;
    assert_eq!(last[0].len(), LAST.1);
    assert_eq!(engine.stats().rebuilds, u64::from(device_dies));
    let all = read(streams).await;
    let evaluated = engine.stats().evaluated_tokens;
    engine.shutdown(Shutdown::Finish).await;
    (all, evaluated as usize)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backed_up_state_is_not_recomputed() {
    let (undisturbed, least) = run(BACKUP_TOKENS, false).await;
    let recomputed = async |backup_tokens| {
        let (all, evaluated) = run(backup_tokens, true).await;
        assert_eq!(all, undisturbed);
        evaluated - least
    };
    // Per sequence: the tokens since its last copy was due, and the token that it goes on from;
    // and the request at which the device died.
    let unfinished = USERS as usize * (BACKUP_TOKENS + 1) + 4;
    let with_copies = recomputed(BACKUP_TOKENS).await;
    assert!(with_copies <= unfinished, "{with_copies} tokens");
    let without = recomputed(0).await;
    assert!(
        without >= USERS as usize * PROMPT_TOKENS,
        "{without} tokens"
    );
}
