//! A whole sequence on the engine, with the oracle as the model.
//!
//! The cases' toy model is a table from token to next token. The oracle's tokens are hashes, so
//! the test searches an oracle that ends where the table does. Its tokens then stand for the
//! table's, one for one.

use std::time::Duration;

use motet::model::LayerKind;
use motet::model::oracle::{Oracle, OracleConfig, StepCost};
use motet::request::{FinishReason, Sampling};
use motet::{Engine, Request, TokenId};

use crate::cases::Fact;
use crate::check::Check;
use crate::suites::Known;

pub(crate) const SUITES: &[Known] = &[Known {
    suite: "decode.pipelined",
    own_cases: 2,
    beside: &[],
    shapes: &[
        (
            &["table", "eos", "seed", "position", "num_predict"],
            decodes,
        ),
        (&["seed", "position", "cancel_after_streamed"], is_cancelled),
    ],
}];

const END: TokenId = 0;
/// The token before the case's first token, if that is not at position 0.
const BEFORE: TokenId = 900;

/// Number of tokens in the cache after an output of `output` tokens has ended, with a prompt of
/// `prompt` tokens.
pub(crate) fn cached_after(prompt: usize, output: usize) -> usize {
    block_on(async {
        let config = oracle(0);
        let engine = engine(&config).await;
        let mut tokens: Vec<TokenId> = (1..=prompt as TokenId).collect();
        let request = Request::tokens(tokens.clone()).output_tokens_max(output);
        let completion = collect(&engine, request).await;
        tokens.extend(completion.tokens);
        tokens.push(BEFORE);
        let second = collect(&engine, Request::tokens(tokens).output_tokens_max(1)).await;
        engine.shutdown(motet::Shutdown::Abort).await;
        second.finish.usage.cached_tokens
    })
}

fn decodes(check: &mut Check, fact: &Fact<'_>) {
    // Every token of the table's output, to the end, and one beyond.
    let ends = fact.get("eos").tokens();
    let mut table = vec![fact.get("seed").token()];
    let words_max = fact.get("table").names().len() + 1;
    while table.iter().all(|token| !ends.contains(token)) {
        assert!(table.len() <= words_max, "the table comes to an end token");
        table.push(next_in_table(fact, table[table.len() - 1]));
    }
    let next_word = next_in_table(fact, table[table.len() - 1]);
    let seed = table.remove(0);
    let shown = table
        .len()
        .checked_sub(1)
        .expect("the seed is no end token");
    let most = fact.get("num_predict").number();
    assert!(
        shown < most,
        "an output that its length ends is not known here"
    );
    let before = vec![BEFORE; fact.get("position").number()];
    let prompt = [&before[..], &[seed]].concat();
    let config = ending_after(&prompt, shown);

    let (completion, steps, tokens) = block_on(async {
        let engine = engine(&config).await;
        if !before.is_empty() {
            collect(&engine, Request::tokens(before).output_tokens_max(1)).await;
        }
        let before = config.counters.now();
        let request = Request::tokens(prompt.clone());
        let request = request.output_tokens_max(most);
        let completion = collect(&engine, request).await;
        engine.shutdown(motet::Shutdown::Abort).await;
        let after = config.counters.now();
        let steps = (after.steps - before.steps) as usize;
        let tokens = (after.tokens_evaluated - before.tokens_evaluated) as usize;
        (completion, steps, tokens)
    });

    let expect = fact.get("expect");
    let single = config.reference_tokens(&prompt, shown, Sampling::GREEDY);
    assert_eq!(
        completion.tokens, single,
        "the oracle's tokens stand for the table's"
    );
    let content: String = table[..completion.tokens.len()]
        .iter()
        .map(TokenId::to_string)
        .collect();
    check.same("content", content.as_str(), expect.get("content").text());
    let reason = match completion.finish.reason {
        FinishReason::EndToken => "stop",
        _ => "another",
    };
    check.same("reason", reason, expect.get("done_reason").text());
    let usage = completion.finish.usage;
    check.same(
        "tokens shown",
        usage.output_tokens,
        expect.get("eval_count").number(),
    );

    let expected = expect.get("recorded_outputs").tokens();
    table.push(next_word);
    check.theirs("tokens that the device samples", &table, &expected);
    let forwards: Vec<Vec<usize>> = expect
        .get("forwards_position_len")
        .items()
        .iter()
        .map(Fact::numbers)
        .collect();
    let start = usage.cached_tokens;
    let theirs: Vec<Vec<usize>> = (0..expected.len())
        .map(|step| vec![start + step, 1])
        .collect();
    check.theirs("tokens that the device is given", theirs, forwards);
    assert_eq!(steps, tokens, "one token a step");
    assert!(
        (shown + 1..=expected.len()).contains(&steps),
        "{steps} steps"
    );
    check.lacks("a promise of how far the device runs ahead");
}

fn is_cancelled(check: &mut Check, fact: &Fact<'_>) {
    // The oracle's own tokens do.
    fact.skip(&["table", "eos"]);
    let mut config = oracle(0);
    config.cost = StepCost {
        base: Duration::from_millis(1),
        ..StepCost::default()
    };
    let prompt = vec![fact.get("seed").token()];
    assert_eq!(fact.get("position").number(), 0);
    let output_max = 400;
    let streamed = fact.get("cancel_after_streamed").within(0..=output_max - 1);
    let (evaluated, cached) = block_on(async {
        let engine = engine(&config).await;
        let request = Request::tokens(prompt.clone()).output_tokens_max(output_max);
        let mut stream = engine.submit(request).await.expect("it is accepted");
        for _ in 0..streamed {
            stream
                .next()
                .await
                .expect("goes on")
                .expect("no fault was asked for");
        }
        drop(stream);
        while engine.stats().running > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let evaluated = config.counters.now().tokens_evaluated as usize;
        let completion = [
            prompt.clone(),
            config.reference_tokens(&prompt, 300, Sampling::GREEDY),
        ]
        .concat();
        let second = collect(&engine, Request::tokens(completion).output_tokens_max(1)).await;
        engine.shutdown(motet::Shutdown::Abort).await;
        (evaluated, second.finish.usage.cached_tokens)
    });
    let counts = config.counters.now();
    let expect = fact.get("expect");
    let error = if evaluated < output_max {
        "cancelled"
    } else {
        ""
    };
    check.same("ended", error, expect.get("error").text());
    // The outputs that were recorded are those of as many evaluated tokens.
    check.prose(&expect.get("cache_offset"), "1 + recorded outputs - 1");
    assert!(
        (evaluated.saturating_sub(1)..=evaluated).contains(&cached) && cached >= streamed,
        "{cached} of {evaluated} tokens are cached"
    );
    let none_left = counts.tails_alive == 0 && counts.segments_alive == 0;
    check.same(
        "no plan is left",
        none_left,
        expect.get("no_pending_capture_schedule").flag(),
    );
    check.same(
        "nothing is held",
        none_left,
        expect.get("all_captures_closed").flag(),
    );
    check.lacks("an error for a caller that has cancelled");
}

fn next_in_table(fact: &Fact<'_>, token: TokenId) -> TokenId {
    fact.get("table").get(&token.to_string()).token()
}

/// An oracle that answers the prompt with so many tokens and an end token, and answers the tokens
/// before the prompt's last one without an end.
fn ending_after(prompt: &[TokenId], tokens: usize) -> OracleConfig {
    let before = &prompt[..prompt.len() - 1];
    let fits = |config: &OracleConfig| {
        let single = config.reference_tokens(prompt, tokens + 1, Sampling::GREEDY);
        single.iter().position(|token| *token == END) == Some(tokens)
            && (before.is_empty() || config.reference_tokens(before, 1, Sampling::GREEDY) != [END])
    };
    let mut seeds = 0..10_000;
    let found = seeds.find(|seed| {
        fits(&OracleConfig {
            end_one_in: 4,
            ..oracle(*seed)
        })
    });
    OracleConfig {
        end_one_in: 4,
        ..oracle(found.expect("one in a few dozen"))
    }
}

fn oracle(seed: u64) -> OracleConfig {
    OracleConfig {
        end_tokens: vec![END],
        seed,
        ..OracleConfig::with_layers(&[LayerKind::Full])
    }
}

async fn engine(config: &OracleConfig) -> Engine {
    let config = config.clone();
    let oracle = move || Ok(Oracle::new(config.clone()).expect("a valid oracle"));
    Engine::builder(oracle)
        .start()
        .await
        .expect("the engine starts")
}

async fn collect(engine: &Engine, request: Request) -> motet::request::Completion {
    let stream = engine.submit(request).await.expect("it is accepted");
    stream.collect().await.expect("no fault was asked for")
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("threads").block_on(future)
}
