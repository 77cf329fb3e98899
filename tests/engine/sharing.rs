//! State that engines share through a tier below their own, on the oracle: what one has computed,
//! another loads, and each caller's output equals the reference run's, whatever becomes of the tier.

use std::sync::Arc;
use std::time::Duration;

use crate::common::until;
use motet::config::{EngineConfig, RemoteConfig, RemoteSends};
use motet::model::oracle::{Oracle, OracleConfig, StepCost};
use motet::model::{LayerKind, ModelError};
use motet::request::Sampling;
use motet::{Engine, Request, Shutdown, TokenId};
use motet_testkit::remote::{Call, MemoryRemote, RemoteFault};

const GRID_TOKENS: usize = 32;
const PROMPT_TOKENS: usize = 200;
const OUTPUT_TOKENS: usize = 12;

fn oracle(layers: &[LayerKind]) -> OracleConfig {
    OracleConfig {
        context_tokens_max: 512,
        tail_block_tokens: 16,
        // Computing takes longer than loading, also on a busy machine.
        cost: StepCost {
            per_token: Duration::from_millis(1),
            ..StepCost::default()
        },
        ..OracleConfig::with_layers(layers)
    }
}

fn remote_config() -> RemoteConfig {
    RemoteConfig {
        grid_tokens: GRID_TOKENS,
        // A busy machine must not make the tier seem slow.
        answer_timeout: Duration::from_secs(60),
        timeout: Duration::from_secs(60),
        ..RemoteConfig::default()
    }
}

async fn engine(oracle: &OracleConfig, remote: &MemoryRemote, config: RemoteConfig) -> Engine {
    let mut engine_config = EngineConfig::default();
    engine_config.cache.device_bytes_max = oracle.spec().tail_bytes(512) * 16;
    engine_config.pager.host_bytes_max = 64 << 20;
    engine_config.pager.remote = Some(config);
    let oracle = oracle.clone();
    let build = move || Oracle::new(oracle.clone()).map_err(|e| ModelError::Device(e.to_string()));
    let builder = Engine::builder(build).config(engine_config);
    let started = builder.remote_tier(Arc::new(remote.clone())).start().await;
    started.expect("the engine starts")
}

fn prompt(number: u32) -> Vec<TokenId> {
    let tokens = 0..PROMPT_TOKENS as u32;
    tokens.map(|at| 1 + (at * 37 + number * 11) % 900).collect()
}

/// Returns how many tokens of the prompt were cached. The output is the reference run's.
async fn generate(
    engine: &Engine,
    oracle: &OracleConfig,
    prompt: &[TokenId],
    salt: Option<&str>,
) -> usize {
    let request = Request::tokens(prompt.to_vec()).output_tokens_max(OUTPUT_TOKENS);
    let request = match salt {
        Some(salt) => request.cache_salt(salt),
        None => request,
    };
    let stream = engine.submit(request).await.expect("it is accepted");
    let output = stream.collect().await.expect("an output");
    let expected = oracle.reference_tokens(prompt, OUTPUT_TOKENS, Sampling::GREEDY);
    assert_eq!(output.tokens, expected);
    output.finish.usage.cached_tokens
}

async fn until_sent(engine: &Engine, copies: u64) {
    until(
        &format!("{copies} copies are sent: {:?}", engine.stats().pager),
        || engine.stats().pager.sent >= copies,
    )
    .await;
}

#[tokio::test]
async fn another_engine_loads_what_one_has_computed() {
    for layers in [
        &[LayerKind::Full][..],
        &[LayerKind::Full, LayerKind::Window { tokens: 32 }],
        &[LayerKind::Full, LayerKind::Recurrent],
    ] {
        let (oracle, remote) = (oracle(layers), MemoryRemote::new());
        let first = engine(&oracle, &remote, remote_config()).await;
        let second = engine(&oracle, &remote, remote_config()).await;
        let mut conversation = prompt(1);
        for turn in 0..3 {
            // Engines take turns, as behind a router that knows of no caches.
            let engine = [&first, &second][turn % 2];
            let sent = engine.stats().pager.sent;
            let cached = generate(engine, &oracle, &conversation, None).await;
            let before = conversation.len() - if turn == 0 { 0 } else { 2 };
            let expected = if turn == 0 { 0 } else { before - 1 };
            assert_eq!(cached, expected, "turn {turn} on {layers:?}");
            until_sent(engine, sent + 1).await;
            let output = oracle.reference_tokens(&conversation, OUTPUT_TOKENS, Sampling::GREEDY);
            conversation.extend(output);
            conversation.extend([901, 950]);
        }
    }
}

#[tokio::test]
async fn salted_state_stays_unless_it_is_shared() {
    for shares_salted in [false, true] {
        let (oracle, remote) = (oracle(&[LayerKind::Full]), MemoryRemote::new());
        let config = RemoteConfig {
            shares_salted,
            ..remote_config()
        };
        let first = engine(&oracle, &remote, config.clone()).await;
        let second = engine(&oracle, &remote, config).await;
        let salted = Some("tenant");
        generate(&first, &oracle, &prompt(1), salted).await;
        // State without a salt is sent after it.
        let sent = 1 + u64::from(shares_salted);
        generate(&first, &oracle, &prompt(2), None).await;
        until_sent(&first, sent).await;
        assert_eq!(remote.len() as u64, sent);
        let shared = generate(&second, &oracle, &prompt(1), salted).await;
        assert_eq!(shared > 0, shares_salted, "{shared} tokens");
        for salt in [None, Some("other")] {
            let of_others = generate(&second, &oracle, &prompt(1), salt).await;
            assert_eq!(of_others, 0, "tenants share nothing");
        }
    }
}

#[tokio::test]
async fn state_is_sent_when_it_is_used_twice() {
    let (oracle, remote) = (oracle(&[LayerKind::Full]), MemoryRemote::new());
    let config = RemoteConfig {
        sends: RemoteSends::UsedTwice,
        ..remote_config()
    };
    let engine = engine(&oracle, &remote, config).await;
    generate(&engine, &oracle, &prompt(1), None).await;
    generate(&engine, &oracle, &prompt(2), None).await;
    generate(&engine, &oracle, &prompt(2), None).await;
    until_sent(&engine, 1).await;
    assert_eq!(remote.len(), 1, "one of two prompts was used twice");
}

/// A tier that fails, loses copies or does not answer, to a question or when a copy is loaded, costs
/// no request, and changes no output.
#[tokio::test]
async fn faults_of_the_tier_cost_no_request() {
    let (oracle, remote) = (oracle(&[LayerKind::Full]), MemoryRemote::new());
    let first = engine(&oracle, &remote, remote_config()).await;
    for number in 0..4 {
        generate(&first, &oracle, &prompt(number), None).await;
    }
    until_sent(&first, 4).await;
    let impatient = RemoteConfig {
        answer_timeout: Duration::from_millis(20),
        timeout: Duration::from_millis(20),
        ..remote_config()
    };
    let mut fresh = 4;
    for call in [Call::Find, Call::Load, Call::Store] {
        for fault in [RemoteFault::Fails, RemoteFault::Lost, RemoteFault::Hangs] {
            let config = match fault {
                RemoteFault::Hangs => impatient.clone(),
                _ => remote_config(),
            };
            let second = engine(&oracle, &remote, config).await;
            remote.fault_by(move |made| {
                if made == call {
                    fault
                } else {
                    RemoteFault::None
                }
            });
            // The last has been computed by no engine.
            fresh += 1;
            for number in [0, 1, 2, 3, fresh] {
                generate(&second, &oracle, &prompt(number), None).await;
            }
            let failed = || second.stats().pager.failed > 0;
            until(&format!("{call:?} {fault:?} is seen"), failed).await;
            remote.fault_by(|_| RemoteFault::None);
        }
    }
}

/// A copy that the tier names and does not have is not fetched by one sequence after another.
#[tokio::test]
async fn lost_copies_are_computed() {
    let (oracle, remote) = (oracle(&[LayerKind::Full]), MemoryRemote::new());
    let first = engine(&oracle, &remote, remote_config()).await;
    generate(&first, &oracle, &prompt(1), None).await;
    until_sent(&first, 1).await;
    let second = engine(&oracle, &remote, remote_config()).await;
    remote.fault_by(|call| match call {
        Call::Load => RemoteFault::Lost,
        Call::Find => RemoteFault::None,
        // A process that stores the copy would have it again.
        Call::Store => RemoteFault::Fails,
    });
    for asks in 1..=3 {
        let cached = generate(&second, &oracle, &prompt(1), None).await;
        assert_eq!(cached, 0, "it was computed");
        second.clear_all_caches().await.expect("it is cleared");
        assert_eq!(second.stats().pager.remote_asks, asks);
    }
    let loads = remote.calls(Call::Load);
    assert_eq!(loads, 1, "the copy was asked for once");
}

/// Copies that wait to be sent when the engine shuts down are sent.
#[tokio::test]
async fn the_rest_is_sent_at_the_shutdown() {
    let (oracle, remote) = (oracle(&[LayerKind::Full]), MemoryRemote::new());
    let engine = engine(&oracle, &remote, remote_config()).await;
    remote.fault_by(|_| RemoteFault::Slow(Duration::from_millis(100)));
    for number in 0..4 {
        generate(&engine, &oracle, &prompt(number), None).await;
    }
    engine.shutdown(Shutdown::Finish).await;
    assert_eq!(remote.len(), 4);
}
