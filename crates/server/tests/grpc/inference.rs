//! Requests, and the ends that they may have.

use std::time::Duration;

use tonic::metadata::MetadataValue;
use tonic::{Code, Request};
use vllm_proto::candidate_tokens::Select;
use vllm_proto::decoding_parameters::{StringChoices, StructuredOutput};
use vllm_proto::finish_info::{FinishReason, StopReason};
use vllm_proto::generate_request::Prompt;
use vllm_proto::{
    AbortRequest, CandidateTokens, DecodingParameters, EngineReasoningGate, GenerateRequest,
    KvCacheParameters, MediaItem, RandomSampling, ResponseOptions, StoppingCriteria,
};

use super::{Running, ask, read, stream};

fn prompt() -> Vec<u32> {
    "What will be? ".bytes().map(u32::from).collect()
}

fn text(prompt: &str, more: GenerateRequest) -> GenerateRequest {
    GenerateRequest {
        prompt: Some(Prompt::Text(prompt.to_owned())),
        ..more
    }
}

#[tokio::test]
async fn streams_and_whole_answers_have_the_same_tokens_and_text() {
    let server = Running::start("", "").await;
    let mut client = server.inference().await;
    let streamed = stream(&mut client, ask(&prompt(), 40)).await;
    assert_eq!(streamed.error.as_ref().map(ToString::to_string), None);
    assert_eq!(streamed.tokens.len(), 40);
    let finish = streamed.finish.expect("it finished");
    assert_eq!(finish.finish_reason(), FinishReason::Length);
    assert_eq!(finish.num_output_tokens, 40);
    let facts = streamed
        .messages
        .iter()
        .filter_map(|one| one.prompt_info.as_ref());
    let facts: Vec<_> = facts.collect();
    assert_eq!(facts.len(), 1, "the first message has them");
    assert_eq!(facts[0].num_prompt_tokens as usize, prompt().len());

    let whole = client.generate(ask(&prompt(), 40)).await;
    let whole = whole.expect("it is served").into_inner();
    let outputs = whole.outputs.expect("an output");
    assert_eq!(outputs.token_ids, streamed.tokens);
    assert_eq!(outputs.text, streamed.text);
    assert_eq!(outputs.num_tokens, 40);
    let finish = outputs.finish_info.expect("it finished");
    assert!(finish.num_cached_tokens > Some(0), "{finish:?}");

    let of_text = stream(&mut client, text("What will be? ", ask(&[], 40))).await;
    let answer = client.generate(text("What will be? ", ask(&[], 40))).await;
    let outputs = answer.expect("it is served").into_inner().outputs;
    let outputs = outputs.expect("an output");
    assert_eq!(
        (outputs.token_ids, outputs.text),
        (of_text.tokens, of_text.text)
    );
    server.stop().await;
}

#[tokio::test]
async fn outputs_of_one_request_have_numbers_and_seeds_of_their_own() {
    let server = Running::start("", "").await;
    let mut client = server.inference().await;
    let seeded = |n| GenerateRequest {
        temperature: Some(1.0),
        sampling: Some(RandomSampling {
            num_sequences: n,
            seed: Some(7),
            ..RandomSampling::default()
        }),
        ..ask(&prompt(), 20)
    };
    let sent = client.generate_stream(seeded(2)).await;
    let mut both = [Vec::new(), Vec::new()];
    let mut sent = sent.expect("it is accepted").into_inner();
    while let Some(message) = sent.message().await.expect("no error") {
        let outputs = message.outputs.expect("an output");
        both[outputs.index as usize].extend(outputs.token_ids);
    }
    assert_eq!([both[0].len(), both[1].len()], [20, 20]);
    assert_ne!(both[0], both[1]);
    let alone = stream(&mut client, seeded(1)).await;
    assert_eq!(alone.tokens, both[0]);
    let whole = client
        .generate(seeded(2))
        .await
        .expect_err("which of them?");
    assert!(whole.message().contains("GenerateStream"), "{whole}");
    server.stop().await;
}

#[tokio::test]
async fn log_probabilities_come_beside_their_tokens() {
    let server = Running::start("", "").await;
    let mut client = server.inference().await;
    let top = |n| {
        Some(CandidateTokens {
            select: Some(Select::TopN(n)),
        })
    };
    let request = GenerateRequest {
        response: Some(ResponseOptions {
            output_token_ids: true,
            output_candidates: top(2),
            prompt_candidates: top(1),
            prompt_logprobs: true,
            prompt_token_ids: true,
            ..ResponseOptions::default()
        }),
        ..ask(&prompt(), 12)
    };
    let got = stream(&mut client, request).await;
    assert_eq!(got.tokens.len(), 12);
    for message in &got.messages {
        let outputs = message.outputs.as_ref().expect("an output");
        if outputs.finish_info.is_some() {
            continue;
        }
        assert_eq!(outputs.logprobs.len(), outputs.token_ids.len());
        assert_eq!(outputs.ranks, vec![1; outputs.token_ids.len()], "greedy");
        for candidates in &outputs.candidate_tokens {
            assert_eq!(candidates.tokens.len(), 2);
        }
    }
    let facts = got.messages[0]
        .prompt_info
        .as_ref()
        .expect("the first has them");
    assert_eq!(facts.token_ids, prompt());
    assert_eq!(
        facts.logprobs.len(),
        prompt().len() - 1,
        "the first has none"
    );
    server.stop().await;
}

#[tokio::test]
async fn outputs_end_where_their_requests_say() {
    let server = Running::start("", "").await;
    let mut client = server.inference().await;
    let free = stream(&mut client, ask(&prompt(), 40)).await;
    let stop = free.tokens[17];
    let first = free
        .tokens
        .iter()
        .position(|token| *token == stop)
        .expect("there");
    let mut request = ask(&prompt(), 40);
    request.stopping.as_mut().expect("set").stop_token_ids = vec![stop];
    let stopped = stream(&mut client, request).await;
    assert_eq!(stopped.tokens, free.tokens[..first]);
    let finish = stopped.finish.expect("it finished");
    assert_eq!(finish.finish_reason(), FinishReason::Stop);
    assert_eq!(finish.stop_reason, Some(StopReason::StopTokenId(stop)));

    let choices = ["red", "gr\"een", "blue\n"].map(str::to_owned);
    let request = GenerateRequest {
        decoding: Some(DecodingParameters {
            structured_output: Some(StructuredOutput::Choice(StringChoices {
                choices: choices.to_vec(),
            })),
            ..DecodingParameters::default()
        }),
        stopping: Some(StoppingCriteria {
            max_new_tokens: 40,
            ..StoppingCriteria::default()
        }),
        ..ask(&prompt(), 40)
    };
    let chosen = stream(&mut client, request).await;
    assert!(choices.contains(&chosen.text), "{chosen:?}");
    server.stop().await;
}

#[tokio::test]
async fn wrong_fields_are_named() {
    let server = Running::start("", "").await;
    let mut client = server.inference().await;
    let mut check = async |request: GenerateRequest, code: Code, expected: &str| {
        let error = client.generate_stream(request).await.expect_err(expected);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(expected), "{error}");
    };
    let fine = || ask(&prompt(), 4);
    let named = GenerateRequest {
        model: "another".into(),
        ..fine()
    };
    check(named, Code::NotFound, "another").await;
    let sampling = RandomSampling {
        top_p: Some(2.0),
        ..RandomSampling::default()
    };
    let wide = GenerateRequest {
        sampling: Some(sampling),
        ..fine()
    };
    check(wide, Code::InvalidArgument, "`sampling.top_p` is 2").await;
    check(ask(&[300], 4), Code::InvalidArgument, "`token_ids`").await;
    check(ask(&[], 4), Code::InvalidArgument, "`token_ids`").await;
    let empty = GenerateRequest {
        prompt: None,
        ..fine()
    };
    check(
        empty,
        Code::InvalidArgument,
        "`text` or `token_ids` is missing",
    )
    .await;
    let lora = GenerateRequest {
        lora_name: "x".into(),
        ..fine()
    };
    check(lora, Code::InvalidArgument, "`lora_name` is set").await;
    let media = GenerateRequest {
        media: vec![MediaItem::default()],
        ..fine()
    };
    check(media, Code::InvalidArgument, "`media` is set").await;
    let salt = KvCacheParameters {
        cache_salt: "s".repeat(2_000),
        ..KvCacheParameters::default()
    };
    let salted = GenerateRequest {
        kv: Some(salt),
        ..fine()
    };
    check(
        salted,
        Code::InvalidArgument,
        "`kv.cache_salt` has 2000 bytes",
    )
    .await;
    let urgent = GenerateRequest {
        priority: -1,
        ..fine()
    };
    check(urgent, Code::PermissionDenied, "urgent").await;
    let gate = EngineReasoningGate {
        reasoning_ended: Some(false),
        ..EngineReasoningGate::default()
    };
    let object = DecodingParameters {
        structured_output: Some(StructuredOutput::JsonObject(true)),
        ..DecodingParameters::default()
    };
    let gated = GenerateRequest {
        engine_reasoning_gate: Some(gate),
        decoding: Some(object),
        ..fine()
    };
    check(gated, Code::InvalidArgument, "reasoning_ended` is set").await;
    let regex = StructuredOutput::Regex("(".into());
    let decoding = DecodingParameters {
        structured_output: Some(regex),
        ..DecodingParameters::default()
    };
    let wrong = GenerateRequest {
        decoding: Some(decoding),
        stopping: None,
        ..fine()
    };
    check(
        wrong,
        Code::InvalidArgument,
        "`decoding.regex` does not compile",
    )
    .await;
    server.stop().await;
}

#[tokio::test]
async fn cancelled_and_late_requests_end_in_the_engine() {
    let server = Running::start("", "").await;
    let mut client = server.inference().await;
    // It is not read, so that it cannot end by itself.
    let unread = client.generate_stream(ask(&prompt(), 8_000)).await;
    let unread = unread.expect("it is accepted");
    server.until_inside(1).await;
    drop(unread);
    server.until_inside(0).await;

    let mut late = Request::new(ask(&prompt(), 8_000));
    late.metadata_mut()
        .insert("grpc-timeout", MetadataValue::from_static("200m"));
    let late = client.generate_stream(late).await;
    server.until_inside(0).await;
    let code = match late {
        Ok(late) => read(late.into_inner()).await.code(),
        // It could not start in time.
        Err(status) => Some(status.code()),
    };
    assert_eq!(code, Some(Code::DeadlineExceeded));
    let mut wrong = Request::new(ask(&prompt(), 4));
    wrong
        .metadata_mut()
        .insert("grpc-timeout", MetadataValue::from_static("soon"));
    let error = client
        .generate_stream(wrong)
        .await
        .expect_err("it is no time");
    assert!(error.message().contains("grpc-timeout"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn keys_have_requests_of_their_own() {
    let server = Running::start("", "ann secret-a\nbob secret-b 1").await;
    let mut client = server.inference().await;
    let error = client
        .generate(ask(&prompt(), 4))
        .await
        .expect_err("no key");
    assert_eq!(error.code(), Code::Unauthenticated);
    let of = |key: &str, id: &str| {
        let request = GenerateRequest {
            request_id: id.to_owned(),
            ..ask(&prompt(), 8_000)
        };
        with_key(key, request)
    };
    let running = client.generate_stream(of("secret-b", "one")).await;
    let running = running.expect("it is accepted").into_inner();
    let more = client.generate_stream(of("secret-b", "two")).await;
    let more = more.expect_err("bob may have one");
    assert_eq!(more.code(), Code::ResourceExhausted);
    assert!(more.metadata().contains_key("retry-after"));
    let abort = |key: &str| {
        with_key(
            key,
            AbortRequest {
                request_ids: vec!["one".to_owned(), "unknown".to_owned()],
            },
        )
    };
    let mut control = server.control().await;
    let mut unkeyed = abort("secret-a");
    unkeyed.metadata_mut().clear();
    let error = control.abort(unkeyed).await.expect_err("no key");
    assert_eq!(error.code(), Code::Unauthenticated);
    control
        .abort(abort("secret-a"))
        .await
        .expect("it finds none");
    assert_eq!(server.inside(), 1, "ann cannot abort it");
    control
        .abort(abort("secret-b"))
        .await
        .expect("it is aborted");
    let got = read(running).await;
    let finish = got.finish.expect("an end");
    assert_eq!(finish.finish_reason(), FinishReason::Aborted);
    assert_eq!(finish.num_output_tokens as usize, got.tokens.len());
    server.until_inside(0).await;
    let two = [of("secret-a", "one"), of("secret-a", "one")];
    let mut both = Vec::new();
    for one in two {
        // A client that tries again may have two requests with one id.
        both.push(client.generate_stream(one).await.expect("it is accepted"));
    }
    control
        .abort(abort("secret-a"))
        .await
        .expect("both are aborted");
    for one in both {
        let finish = read(one.into_inner()).await.finish.expect("an end");
        assert_eq!(finish.finish_reason(), FinishReason::Aborted);
    }
    server.stop().await;
}

fn with_key<T>(key: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let bearer = format!("Bearer {key}").parse().expect("ASCII");
    request.metadata_mut().insert("authorization", bearer);
    request
}

#[tokio::test]
async fn tenants_share_no_cache() {
    let server = Running::start("", "").await;
    let mut client = server.inference().await;
    let mut cached = async |salt: &str, bypass: bool| {
        let request = GenerateRequest {
            kv: Some(KvCacheParameters {
                cache_salt: salt.to_owned(),
                bypass_prefix_cache: bypass,
                ..KvCacheParameters::default()
            }),
            ..ask(&prompt().repeat(8), 4)
        };
        let got = stream(&mut client, request).await;
        got.finish.expect("an end").num_cached_tokens.expect("set")
    };
    assert_eq!(cached("", false).await, 0);
    assert!(cached("", false).await > 0);
    assert_eq!(cached("a", false).await, 0);
    assert!(cached("a", false).await > 0);
    assert_eq!(cached("b", false).await, 0);
    assert_eq!(cached("", true).await, 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_go_over_one_connection() {
    let server = Running::start("--sequences-max 16", "").await;
    let client = server.inference().await;
    let expected = stream(&mut client.clone(), ask(&prompt(), 30)).await.tokens;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let mut client = client.clone();
        all.spawn(async move { stream(&mut client, ask(&prompt(), 30)).await });
    }
    while let Some(got) = all.join_next().await {
        assert_eq!(got.expect("no panic").tokens, expected);
    }
    tokio::time::timeout(Duration::from_secs(60), server.stop())
        .await
        .expect("in time");
}

#[tokio::test]
async fn an_answer_that_has_ended_and_is_not_read_is_dropped() {
    let server = Running::start("--unread-seconds 1", "ann secret-a 1").await;
    let mut client = server.inference().await;
    let mut wide = ask(&prompt(), 2_000);
    wide.response.as_mut().expect("set").output_candidates = Some(CandidateTokens {
        select: Some(Select::TopN(20)),
    });
    let unread = client.generate_stream(with_key("secret-a", wide)).await;
    let unread = unread.expect("it is accepted").into_inner();
    server.until_inside(0).await;
    // Its key has its place again, though the connection is open and the stream was not read.
    let again = async {
        while client
            .generate(with_key("secret-a", ask(&prompt(), 4)))
            .await
            .is_err()
        {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(60), again).await;
    again.expect("in time");
    let got = read(unread).await;
    assert!(got.finish.is_none(), "it was not sent whole");
    assert!(got.code().is_some(), "it ends with an error");
    server.stop().await;
}
