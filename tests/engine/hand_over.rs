//! Sequences that end on one engine and go on at another.

use motet::config::{DiskConfig, EngineConfig};
use motet::error::GenerateError;
use motet::model::LayerKind;
use motet::request::Sampling;
use motet::{Engine, Request, Shutdown, TokenId};
use motet_testkit::folder::Folder;

use crate::common::{self, slow_oracle, small, until};

const OUTPUT: usize = 80;

/// A disk tier, and defaults otherwise.
fn on_disk(folder: &Folder) -> EngineConfig {
    let mut config = small();
    config.pager.host_bytes_max = 1 << 20;
    config.pager.disk = Some(DiskConfig {
        folder: folder.0.clone(),
        bytes_max: 1 << 24,
    });
    config
}

fn prompt(number: u64) -> Vec<TokenId> {
    (0..40)
        .chain([number as TokenId])
        .map(|token| token % 90 + 1)
        .collect()
}

/// Greedy and random by turns, with a penalty of the whole output.
fn sampling(number: u64) -> Sampling {
    Sampling {
        temperature: if number.is_multiple_of(2) { 0.0 } else { 0.9 },
        seed: number,
        ..Sampling::GREEDY
    }
}

fn request(text: Vec<TokenId>, number: u64, output_tokens: usize) -> Request {
    Request::tokens(text)
        .sampling(sampling(number))
        .output_tokens_max(output_tokens)
        .ignore_end_tokens()
}

/// Every token comes once, on one of the two engines, and is that of an engine that runs on.
#[tokio::test]
async fn streams_go_on_with_the_next_token_at_another_engine() {
    let folder = Folder::new("hand-over");
    let oracle = slow_oracle(&[LayerKind::Full]);
    let first = common::engine(&oracle, on_disk(&folder)).await;
    let mut streams = Vec::new();
    for number in 0..8 {
        let stream = first.submit(request(prompt(number), number, OUTPUT)).await;
        streams.push(stream.expect("it is valid"));
    }
    until("tokens are generated", || first.stats().output_tokens > 80).await;
    let (ended, delivered) = tokio::join!(first.shutdown(Shutdown::HandOver), async {
        let mut all = Vec::new();
        for stream in &mut streams {
            let mut tokens = Vec::new();
            let end = loop {
                match stream.next().await {
                    Some(Ok(piece)) => tokens.extend(piece.token),
                    Some(Err(error)) => break error,
                    None => panic!("no stream ends well"),
                }
            };
            assert_eq!(
                end,
                GenerateError::HandedOver {
                    output_tokens: tokens.len()
                }
            );
            all.push(tokens);
        }
        all
    });
    let () = ended;
    drop(first);
    let second = common::engine(&oracle, on_disk(&folder)).await;
    for (number, tokens) in (0..).zip(delivered) {
        let prompt = prompt(number);
        let text = [&prompt[..], &tokens].concat();
        let left = OUTPUT - tokens.len();
        let stream = second.submit(request(text.clone(), number, left)).await;
        let rest = stream.expect("it is valid").collect().await;
        let rest = rest.expect("it finishes");
        let expected = oracle.reference_tokens(&prompt, OUTPUT, sampling(number));
        assert_eq!([tokens, rest.tokens].concat(), expected);
        let cached = rest.finish.usage.cached_tokens;
        assert!(cached + 20 > text.len(), "{cached} of {}", text.len());
    }
    second.shutdown(Shutdown::Finish).await;
}

#[tokio::test]
async fn requests_that_wait_are_handed_over_without_a_token() {
    let oracle = slow_oracle(&[LayerKind::Full]);
    let mut config = small();
    config.scheduler.sequences_max = 1;
    let engine: Engine = common::engine(&oracle, config).await;
    let running = engine.submit(request(prompt(0), 0, OUTPUT)).await;
    let mut running = running.expect("it is valid");
    running.next().await;
    let waiting = engine.submit(request(prompt(1), 1, OUTPUT)).await;
    engine.shutdown(Shutdown::HandOver).await;
    let ended = waiting.expect("it is valid").collect().await;
    assert_eq!(ended, Err(GenerateError::HandedOver { output_tokens: 0 }));
}
