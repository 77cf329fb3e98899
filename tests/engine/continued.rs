//! Outputs that go on after a beginning which their callers have.

use motet::error::SubmitError;
use motet::grammar::GrammarSource;
use motet::model::oracle::OracleConfig;
use motet::request::{FinishReason, ReasoningBudget, Sampling, Usage};
use motet::{Engine, Request, Shutdown, TokenId};

use crate::common::{byte_oracle, bytes, engine_with_text, small};

const OUTPUT: usize = 40;

/// An output's tokens, with the text and the log probabilities that came with each.
struct Output {
    tokens: Vec<TokenId>,
    /// The text of the pieces up to each token, and of the whole.
    text: Vec<String>,
    logprobs: Vec<f32>,
    reason: FinishReason,
    usage: Usage,
}

async fn run(engine: &Engine, request: Request) -> Output {
    let mut stream = engine.submit(request).await.expect("it is valid");
    let mut output = Output {
        tokens: Vec::new(),
        text: vec![String::new()],
        logprobs: Vec::new(),
        reason: FinishReason::Cancelled,
        usage: Usage::default(),
    };
    while let Some(piece) = stream.next().await {
        let piece = piece.expect("it finishes");
        let text = output.text.last().cloned().unwrap_or_default() + &piece.text;
        output
            .logprobs
            .extend(piece.logprobs.iter().map(|token| token.logprob));
        match piece.token {
            Some(token) => {
                output.tokens.push(token);
                output.text.push(text);
            }
            None => *output.text.last_mut().expect("one") = text,
        }
        if let Some(finish) = piece.finish {
            output.reason = finish.reason;
            output.usage = finish.usage;
        }
    }
    output
}

/// Cuts an output after each of its tokens, and has it go on.
async fn check(name: &str, oracle: &OracleConfig, request: Request) {
    let engine = || engine_with_text(oracle, bytes(), small());
    let (first, second) = (engine().await, engine().await);
    let whole = run(&first, request.clone().logprobs(0)).await;
    let length = whole.tokens.len();
    assert!(length > 2, "{name}: {length}");
    for cut in 1..length {
        let so_far = &whole.tokens[..cut];
        let rest = request.clone().logprobs(0).output_so_far(so_far);
        let rest = run(&second, rest).await;
        assert_eq!(rest.tokens, whole.tokens[cut..], "{name}, {cut}");
        let text = whole.text[cut].clone() + rest.text.last().expect("one");
        assert_eq!(Some(&text), whole.text.last(), "{name}, {cut}");
        assert_eq!(rest.reason, whole.reason, "{name}, {cut}");
        let counts = |usage: &Usage| {
            (
                usage.prompt_tokens,
                usage.output_tokens,
                usage.reasoning_tokens,
            )
        };
        assert_eq!(counts(&rest.usage), counts(&whole.usage), "{name}, {cut}");
        assert!(whole.logprobs.ends_with(&rest.logprobs), "{name}, {cut}");
        if whole.logprobs.len() == length {
            assert_eq!(rest.logprobs.len(), rest.tokens.len(), "{name}, {cut}");
        }
    }
    for engine in [first, second] {
        engine.shutdown(Shutdown::Finish).await;
    }
}

fn request() -> Request {
    Request::text("What is to be sung by many voices? ").output_tokens_max(OUTPUT)
}

#[tokio::test]
async fn an_output_goes_on_as_it_would_have_wherever_it_is_cut() {
    let oracle = byte_oracle();
    check("greedy", &oracle, request()).await;
    let sampling = Sampling {
        temperature: 0.9,
        seed: 7,
        presence_penalty: 0.8,
        frequency_penalty: 0.3,
        repetition_penalty: 1.2,
        penalize_prompt: false,
        ..Sampling::GREEDY
    };
    check(
        "penalties of the output",
        &oracle,
        request().sampling(sampling),
    )
    .await;

    let ending = OracleConfig {
        end_one_in: 3,
        ..byte_oracle()
    };
    check("a least length", &ending, request().output_tokens_min(20)).await;
}

#[tokio::test]
async fn a_grammar_and_stop_strings_go_on_over_the_seam() {
    let oracle = byte_oracle();
    let grammar = GrammarSource::Regex("(motet|canon|fugue)( é| of [a-z]{4}){3}".into());
    check("a grammar", &oracle, request().grammar(grammar)).await;

    let letters = GrammarSource::Regex("[ab]{30}".into());
    let free = request().grammar(letters.clone());
    let engine = engine_with_text(&oracle, bytes(), small()).await;
    let text = run(&engine, free.clone()).await.text.pop().expect("one");
    engine.shutdown(Shutdown::Finish).await;
    // Five letters that come late, so that the stop string is held back in parts.
    let stop = &text[20..25];
    let stopped = free.stop(stop);
    check("a stop string", &oracle, stopped).await;
}

#[tokio::test]
async fn a_budget_of_reasoning_counts_what_was_before_the_seam() {
    let oracle = byte_oracle();
    let budget = ReasoningBudget {
        open: Vec::new(),
        close: vec![47],
        is_open: true,
        opens_once: true,
        tokens_max: 12,
    };
    check("reasoning", &oracle, request().reasoning(budget)).await;
}

#[tokio::test]
async fn beginnings_that_cannot_go_on_are_rejected() {
    let engine = engine_with_text(&byte_oracle(), bytes(), small()).await;
    let rejected = async |request: Request, field: &str, expected: &str| {
        let error = engine.submit(request).await.expect_err(expected);
        let is_field = matches!(&error, SubmitError::Field { field: named, .. } if *named == field);
        assert!(is_field, "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    };
    let so_far = |tokens: &[TokenId]| request().output_so_far(tokens);
    rejected(so_far(&[65; OUTPUT]), "output_so_far", "fewer than").await;
    rejected(so_far(&[65, 256]), "output_so_far", "end token").await;
    rejected(so_far(&[999]), "output_so_far", "token ids below").await;
    rejected(
        so_far(&[65, 66]).stop(text_of(&[65, 66])),
        "output_so_far",
        "stop string",
    )
    .await;
    rejected(
        so_far(&[65]).prompt_logprobs(0),
        "prompt_logprobs",
        "goes on",
    )
    .await;
    let error = engine.submit_many(so_far(&[65]).n(2)).await;
    let error = error.expect_err("two outputs cannot go on");
    assert!(error.to_string().contains("output_so_far"), "{error}");
    let source = engine.submit(request()).await.expect("it is valid");
    let fork = engine.fork(source.handle(), None, so_far(&[65])).await;
    let error = fork.expect_err("a fork has its source's output");
    assert!(error.to_string().contains("output_so_far"), "{error}");
    drop(source);
    engine.shutdown(Shutdown::Abort).await;
}

/// The text of these tokens.
fn text_of(tokens: &[TokenId]) -> String {
    bytes().tokenizer().decode(tokens).expect("text")
}
