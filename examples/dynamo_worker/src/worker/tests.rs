use clap::Parser;
use dynamo_backend_common::FinishReason;
use dynamo_backend_common::testing::{mock_context, run_conformance};
use futures::{StreamExt, TryStreamExt};

use super::*;

fn worker(more: &str) -> MotetWorker {
    let words = "worker --oracle --tokenizer org/name --cache-mib 64";
    let words = words.split(' ').chain(more.split_whitespace());
    MotetWorker::new(Arguments::parse_from(words))
}

async fn started(more: &str) -> MotetWorker {
    let worker = worker(more);
    worker.start(1).await.expect("the oracle starts");
    worker
}

/// A request for 40 tokens after a prompt, as the frontend sends it.
fn request(prompt: &[u32], changes: Value) -> PreprocessedRequest {
    let mut request = json!({
        "token_ids": prompt,
        "stop_conditions": {"max_tokens": 40, "ignore_eos": true},
        "sampling_options": {"temperature": 0.9, "seed": 7},
        "output_options": {},
    });
    for (part, fields) in changes.as_object().expect("an object") {
        let fields = fields.as_object().expect("an object");
        for (field, value) in fields {
            request[part][field] = value.clone();
        }
    }
    serde_json::from_value(request).expect("a request")
}

async fn submit(worker: &MotetWorker, request: PreprocessedRequest) -> Result<Items, DynamoError> {
    worker
        .generate(request, GenerateContext::new(mock_context(), None))
        .await
}

async fn whole(worker: &MotetWorker, request: PreprocessedRequest) -> Vec<LLMEngineOutput> {
    let items = submit(worker, request).await.expect("accepted");
    items.try_collect().await.expect("a whole output")
}

fn tokens(items: &[LLMEngineOutput]) -> Vec<u32> {
    items
        .iter()
        .flat_map(|item| item.token_ids.clone())
        .collect()
}

#[tokio::test]
async fn the_sdk_finds_its_contract_kept() {
    run_conformance(|| worker("")).await.expect("conformance");
}

#[tokio::test]
async fn registration_has_the_engines_sizes() {
    let worker = worker("--block-tokens 32 --sequences-max 9");
    let registered = worker.start(1).await.expect("the oracle starts");
    assert_eq!(registered.model, "oracle");
    let llm = registered.llm.expect("it has tokens");
    assert_eq!(llm.context_length, Some(8192));
    assert_eq!(llm.kv_cache_block_size, Some(32));
    // The oracle's tokens take eight bytes each.
    assert_eq!(llm.total_kv_blocks, Some((64 << 20) / (8 * 32)));
    assert_eq!(llm.max_num_seqs, Some(9));
}

/// The frontend sends prompt and delivered tokens to another worker, with less left to generate.
#[tokio::test]
async fn an_output_goes_on_at_another_worker_with_the_same_tokens() {
    let (one, other) = (started("").await, started("").await);
    let prompt = [1, 2, 3];
    for sampling in [json!({}), json!({"temperature": 0.0})] {
        let changes = json!({"sampling_options": sampling});
        let expected = tokens(&whole(&one, request(&prompt, changes)).await);
        assert_eq!(expected.len(), 40);
        for delivered in [1, 17, 39] {
            let all = [&prompt[..], &expected[..delivered]].concat();
            let changes = json!({
                "sampling_options": sampling,
                "stop_conditions": {"max_tokens": 40 - delivered},
            });
            let rest = tokens(&whole(&other, request(&all, changes)).await);
            assert_eq!(rest, expected[delivered..], "after {delivered} tokens");
        }
    }
}

#[tokio::test]
async fn an_output_with_nothing_left_ends_at_once() {
    let worker = started("").await;
    let changes = json!({"stop_conditions": {"max_tokens": 0}});
    let items = whole(&worker, request(&[1, 2], changes)).await;
    let [end] = &items[..] else {
        panic!("expected the end alone")
    };
    assert_eq!(end.finish_reason, Some(FinishReason::Length));
    assert_eq!(
        end.completion_usage.as_ref().expect("usage").total_tokens,
        2
    );
}

#[tokio::test]
async fn cleanup_hands_over_what_runs_after_its_tokens() {
    let worker = started("").await;
    let changes = json!({"stop_conditions": {"max_tokens": 4000}});
    let mut items = submit(&worker, request(&[1, 2, 3], changes.clone()))
        .await
        .expect("accepted");
    let mut delivered = Vec::new();
    for _ in 0..5 {
        delivered.extend(
            items
                .next()
                .await
                .expect("it goes on")
                .expect("a token")
                .token_ids,
        );
    }
    let (ended, error) = tokio::join!(worker.cleanup(), async {
        loop {
            match items.next().await.expect("an error is the last item") {
                Ok(item) => delivered.extend(item.token_ids),
                Err(error) => return error,
            }
        }
    });
    ended.expect("cleaned up");
    assert_eq!(error.reason().as_str(), "backend.engine_shutdown");
    assert!(items.next().await.is_none());
    // Another has the same tokens: none is lost, and none is doubled.
    let other = started("").await;
    let expected = tokens(&whole(&other, request(&[1, 2, 3], changes)).await);
    assert_eq!(delivered, expected[..delivered.len()]);
    let late = submit(&worker, request(&[1], json!({})))
        .await
        .err()
        .expect("it has ended");
    assert_eq!(late.reason().as_str(), "backend.engine_shutdown");
}

#[tokio::test]
async fn a_full_worker_and_bad_requests_have_errors_of_their_own() {
    let worker = started("--sequences-max 1 --queue-max 0").await;
    let long = json!({"stop_conditions": {"max_tokens": 4000}});
    let running = submit(&worker, request(&[1], long))
        .await
        .expect("accepted");
    let full = submit(&worker, request(&[2], json!({})))
        .await
        .err()
        .expect("it is full");
    assert_eq!(full.reason().as_str(), "capacity.worker_overloaded");
    drop(running);
    for (changes, named) in [
        (json!({"sampling_options": {"n": 2}}), "`n`"),
        (json!({"sampling_options": {"top_p": 7.0}}), "`top_p` is 7"),
        (
            json!({"stop_conditions": {"max_thinking_tokens": 5}}),
            "`max_thinking_tokens`",
        ),
        (
            json!({"sampling_options": {"guided_decoding": {"structural_tag": {}}}}),
            "`structural_tag`",
        ),
    ] {
        let error = submit(&worker, request(&[1], changes))
            .await
            .err()
            .expect(named);
        assert_eq!(error.reason().as_str(), "backend.invalid_argument");
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[tokio::test]
async fn tokens_come_with_their_log_probabilities() {
    let worker = started("").await;
    let changes = json!({"output_options": {"logprobs": 3}});
    let items = whole(&worker, request(&[1, 2], changes)).await;
    assert_eq!(tokens(&items).len(), 40);
    for item in &items {
        let chosen = item.log_probs.as_ref().expect("asked for");
        let likeliest = item.top_logprobs.as_ref().expect("asked for");
        assert_eq!(chosen.len(), item.token_ids.len());
        assert!(likeliest.iter().all(|likeliest| likeliest.len() == 3));
    }
}

#[tokio::test]
async fn choices_become_a_grammar() {
    let worker = started("").await;
    let guided = json!({"choice": ["yes", "a \"no\""]});
    let changes = json!({
        "sampling_options": {"guided_decoding": guided},
        "stop_conditions": {"ignore_eos": false},
    });
    let items = whole(&worker, request(&[1, 2], changes)).await;
    let tokens = tokens(&items);
    let engine = worker.engine().expect("started");
    let text = engine.detokenize(tokens, None).await.expect("text");
    assert!(["yes", "a \"no\""].contains(&text.as_str()), "{text:?}");
    assert_eq!(
        items.last().and_then(|end| end.finish_reason.clone()),
        Some(FinishReason::Stop)
    );
}

#[tokio::test]
async fn the_health_check_is_a_request_that_works() {
    let worker = started("").await;
    let payload = worker
        .health_check_payload()
        .await
        .expect("it has one")
        .expect("it has one");
    let probe = serde_json::from_value(payload).expect("a request");
    assert_eq!(tokens(&whole(&worker, probe).await).len(), 1);
}

#[tokio::test]
async fn a_control_empties_the_cache() {
    let worker = started("").await;
    let prompt: Vec<u32> = (0..100).collect();
    let cached = async || {
        let items = whole(&worker, request(&prompt, json!({}))).await;
        let usage = items
            .last()
            .and_then(|end| end.completion_usage.clone())
            .expect("usage");
        usage
            .prompt_tokens_details
            .and_then(|details| details.cached_tokens)
    };
    assert_eq!(cached().await, Some(0));
    assert!(cached().await > Some(0));
    let controls = worker.supported_controls().await.expect("it has some");
    let answer = worker
        .engine_control(controls[0].clone(), json!({}))
        .await
        .expect("known");
    assert_eq!(answer["status"], "success");
    assert_eq!(cached().await, Some(0));
}

#[tokio::test]
async fn a_stopped_request_ends_as_cancelled_and_frees_its_slot() {
    let worker = started("--sequences-max 1 --queue-max 0").await;
    let context = mock_context();
    let long = json!({"stop_conditions": {"max_tokens": 4000}});
    let sent = GenerateContext::new(Arc::clone(&context), None);
    let mut items = worker
        .generate(request(&[1], long), sent)
        .await
        .expect("accepted");
    let first = items.next().await.expect("it goes on").expect("a token");
    context.stop_generating();
    let rest: Vec<_> = items.try_collect().await.expect("no error");
    let end = rest.last().expect("an end");
    assert_eq!(end.finish_reason, Some(FinishReason::Cancelled));
    let sent_tokens = first.token_ids.len() + tokens(&rest).len();
    let usage = end.completion_usage.as_ref().expect("usage");
    assert_eq!(usage.completion_tokens as usize, sent_tokens);
    worker.engine().expect("started").drain().await;
}
