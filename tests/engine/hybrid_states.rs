//! State that cannot be cut at any token (windows, recurrent layers) through a preemption and
//! host memory. The tests count evaluated tokens, not time.

use std::time::Duration;

use crate::common::{engine, read, slow_oracle, small, until};
use motet::config::EngineConfig;
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, SegmentSize};
use motet::request::Priority;
use motet::request::Sampling;
use motet::{Engine, Request, Shutdown, TokenId};

const KINDS: [&[LayerKind]; 3] = [
    &[LayerKind::Recurrent],
    &[LayerKind::Full, LayerKind::Recurrent],
    &[
        LayerKind::Full,
        LayerKind::Window { tokens: 12 },
        LayerKind::Recurrent,
    ],
];

fn words(of: u32, tokens: usize) -> Vec<TokenId> {
    (0..tokens as u32)
        .map(|at| 1 + (of * 131 + at * 7) % 900)
        .collect()
}

fn request(prompt: &[TokenId], output_tokens: usize) -> Request {
    Request::tokens(prompt)
        .output_tokens_max(output_tokens)
        .ignore_end_tokens()
}

async fn evaluated(engine: &Engine) -> usize {
    until("all has ended", || {
        let stats = engine.stats();
        stats.running + stats.waiting == 0 && stats.cache.reserved_bytes == 0
    })
    .await;
    engine.stats().evaluated_tokens as usize
}

#[tokio::test]
async fn preempted_sequence_resumes_where_it_stopped() {
    for layers in KINDS {
        let oracle = slow_oracle(layers);
        let mut config = small();
        config.scheduler.sequences_max = 1;
        let engine = engine(&oracle, config).await;
        let prompt = words(1, 40);
        let background = request(&prompt, 50)
            .turn_end(37)
            .priority(Priority::Background);
        let mut stream = engine.submit(background).await.expect("it is accepted");
        let mut tokens = read(&mut stream, 10).await;
        let urgent = request(&words(2, 20), 5).priority(Priority::Urgent);
        let urgent = engine.submit(urgent).await.expect("it is accepted");
        urgent.collect().await.expect("it ends well");
        tokens.extend(stream.collect().await.expect("it ends well").tokens);
        assert_eq!(
            tokens,
            oracle.reference_tokens(&prompt, 50, Sampling::GREEDY),
            "{layers:?}"
        );
        assert_eq!(engine.stats().preempted, 1, "{layers:?}");
        let once = (40 + 50 - 1) + (20 + 5 - 1);
        assert_eq!(evaluated(&engine).await, once, "{layers:?}");
        engine.shutdown(Shutdown::Finish).await;
    }
}

/// The state above a conversation's end is given up; its end leaves the device and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversation_resumes_from_host_memory_below_state_that_was_given_up() {
    for layers in KINDS {
        let mut oracle = OracleConfig {
            context_tokens_max: 512,
            tail_block_tokens: 16,
            ..OracleConfig::with_layers(layers)
        };
        oracle.cost.per_token = Duration::from_millis(1);
        let mut config = EngineConfig::default();
        let spec = oracle.spec();
        let states = 6 * spec.segment_bytes(SegmentSize::whole(1));
        config.cache.device_bytes_max = spec.tail_bytes(512) * 2 + states;
        config.pager.host_bytes_max = 16 << 20;
        config.pager.clean_part = 1.0;
        let engine = engine(&oracle, config).await;
        let mut history = words(1, 60);
        let mut cached = Vec::new();
        for turn in 0..4 {
            history.extend(words(10 + turn, 20));
            let prompt = [&history[..], &[1, 2]].concat();
            let request = request(&prompt, 20).turn_end(history.len());
            let stream = engine.submit(request).await.expect("it is accepted");
            let output = stream.collect().await.expect("it ends well");
            assert_eq!(
                output.tokens,
                oracle.reference_tokens(&prompt, 20, Sampling::GREEDY),
                "{layers:?}"
            );
            cached.push((output.finish.usage.cached_tokens, history.len()));
            history = [&prompt[..], &output.tokens].concat();
            until("all is copied", || {
                let stats = engine.stats();
                stats.cache.reserved_bytes == 0 && stats.pager.host_copies > turn as usize
            })
            .await;
            if turn == 2 {
                // Other conversations take its place on the device.
                for other in 0..6 {
                    let prompt = words(50 + other, 400);
                    let stream = engine.submit(request_of(&prompt)).await.expect("accepted");
                    stream.collect().await.expect("it ends well");
                }
            }
        }
        // Each turn goes on from the last token that the turn before has computed.
        let expected = [0, 60 + 22 + 19, 60 + 2 * 42 - 1, 60 + 3 * 42 - 1];
        let found: Vec<usize> = cached.iter().map(|(cached, _)| *cached).collect();
        assert_eq!(found, expected, "{layers:?}");
        let stats = engine.stats();
        let restore = stats.cache.restore.expect("it has restore points");
        assert!(restore.given_up > 0, "{layers:?}: {restore:?}");
        assert!(stats.pager.unpacked > 0, "{layers:?}: it came back");
        engine.shutdown(Shutdown::Finish).await;
    }
}

fn request_of(prompt: &[TokenId]) -> Request {
    request(prompt, 4)
}
