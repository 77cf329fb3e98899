//! End tokens: an answer ends at each token that any of the model's files, its vocabulary or its
//! chat template names. Tokens that the tokenizer does not know are neither sampled nor accepted.

use serde_json::{Value, json};

use crate::common::byte_vocabulary;
use motet::error::SubmitError;
use motet::grammar::GrammarSource;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::{FinishReason, ReasoningBudget};
use motet::text::TextCodec;
use motet::{Engine, Request, Shutdown, TokenId};
use motet_testkit::folder::Folder;
use motet_text::GgufVocabulary;

/// The token that the model's own description names.
const OWN_END: TokenId = 0;
const TURN_END: TokenId = 257;

const CHAT_ML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}\
    {{- message.content + '<|im_end|>\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Bytes, `<end>`, and the control tokens of ChatML, in a GGUF file that names no end token.
fn chat_ml() -> GgufVocabulary {
    let mut vocabulary = byte_vocabulary();
    for token in ["<|im_end|>", "<|im_start|>"] {
        vocabulary.tokens.push(token.into());
        vocabulary.token_types.push(3);
    }
    vocabulary.end = None;
    vocabulary
}

/// The same vocabulary as a folder's files.
fn in_folder(name: &str, files: &[(&str, Value)]) -> TextCodec {
    let vocabulary = chat_ml();
    let vocab: serde_json::Map<String, Value> = (vocabulary.tokens.iter().cloned())
        .zip((0..).map(|id: u32| json!(id)))
        .collect();
    let added = (256..259).map(|id| {
        json!({"id": id, "content": vocabulary.tokens[id], "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    });
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added.collect::<Vec<_>>(),
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
            "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": []}
    });
    let folder = Folder::new(name);
    std::fs::create_dir_all(&folder.0).expect("the temporary folder is writable");
    let files = files.iter().map(|(file, json)| (*file, json.to_string()));
    for (file, text) in files.chain([("tokenizer.json", tokenizer.to_string())]) {
        std::fs::write(folder.0.join(file), text).expect("the temporary folder is writable");
    }
    TextCodec::from_folder(&folder.0).expect("a folder that can be read")
}

/// An engine whose model has `rows` rows of logits.
async fn engine(text: TextCodec, rows: usize) -> Engine {
    let oracle = OracleConfig {
        vocab_size: rows,
        end_tokens: vec![OWN_END],
        end_one_in: 0,
        context_tokens_max: 512,
        ..OracleConfig::default()
    };
    let builder = Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")));
    builder.text(text).start().await.expect("the engine starts")
}

/// Why an output ends whose first token is `token`.
async fn reason_at(engine: &Engine, token: TokenId) -> FinishReason {
    let request = Request::tokens([1, 2])
        .output_tokens_max(2)
        .bias(token, 1e6);
    let stream = engine.submit(request).await.expect("it is valid");
    stream.collect().await.expect("it ends").finish.reason
}

async fn check_turn_end(text: TextCodec) {
    let engine = engine(text, 259).await;
    assert_eq!(reason_at(&engine, TURN_END).await, FinishReason::EndToken);
    assert_eq!(reason_at(&engine, 3).await, FinishReason::Length);
    let all = &engine.model().end_tokens;
    assert!(all.contains(&TURN_END) && all.contains(&OWN_END), "{all:?}");
    // The same tokens end an output that follows a grammar.
    let grammar = GrammarSource::Regex("a*".into());
    let grammar = Request::tokens([1, 2])
        .output_tokens_max(4)
        .grammar(grammar);
    let stream = engine.submit(grammar.bias(TURN_END, 1e6)).await;
    let ended = stream
        .expect("it is valid")
        .collect()
        .await
        .expect("it ends");
    assert_eq!(
        (&*ended.text, ended.finish.reason),
        ("", FinishReason::EndToken)
    );
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn an_answer_ends_at_the_token_that_the_tokenizer_names() {
    let named = [("tokenizer_config.json", json!({"eos_token": "<|im_end|>"}))];
    check_turn_end(in_folder("end-named", &named)).await;
    let object = json!({"eos_token": {"__type": "AddedToken", "content": "<|im_end|>"}});
    check_turn_end(in_folder(
        "end-object",
        &[("tokenizer_config.json", object)],
    ))
    .await;
    let older = [(
        "special_tokens_map.json",
        json!({"eos_token": "<|im_end|>"}),
    )];
    check_turn_end(in_folder("end-older", &older)).await;
}

#[tokio::test]
async fn an_answer_ends_at_the_token_that_the_template_writes_behind_it() {
    let template = [("tokenizer_config.json", json!({"chat_template": CHAT_ML}))];
    check_turn_end(in_folder("end-template", &template)).await;
    let processor = [("chat_template.json", json!({"chat_template": CHAT_ML}))];
    check_turn_end(in_folder("end-processor", &processor)).await;
    // A name that no list has.
    let mut vocabulary = chat_ml();
    vocabulary.tokens[TURN_END as usize] = "<|stop-now|>".into();
    vocabulary.chat_template = Some(CHAT_ML.replace("<|im_end|>", "<|stop-now|>"));
    check_turn_end(TextCodec::from_gguf(&vocabulary).expect("a vocabulary")).await;
}

#[tokio::test]
async fn an_answer_ends_at_a_control_token_that_is_known_by_its_name() {
    check_turn_end(TextCodec::from_gguf(&chat_ml()).expect("a vocabulary")).await;
    let mut zero = chat_ml();
    zero.end = Some(0);
    // Some converters write it as a normal or user-defined token.
    zero.token_types[TURN_END as usize] = 4;
    check_turn_end(TextCodec::from_gguf(&zero).expect("a vocabulary")).await;
}

/// Field names of the errors of these requests.
async fn rejected(engine: &Engine, requests: Vec<Request>) -> Vec<&'static str> {
    let mut fields = Vec::new();
    for request in requests {
        match engine.submit(request).await {
            Err(SubmitError::Field { field, .. }) => fields.push(field),
            other => panic!("expected an error about a field, got {other:?}"),
        }
    }
    fields
}

#[tokio::test]
async fn tokens_without_a_text_are_neither_sampled_nor_listed_nor_accepted() {
    let mut holes = chat_ml();
    for padding in [100, 259, 260] {
        holes
            .tokens
            .resize(holes.tokens.len().max(padding + 1), String::new());
        holes.token_types.resize(holes.tokens.len(), 5);
        holes.tokens[padding] = format!("[PAD{padding}]");
        holes.token_types[padding] = 5;
    }
    let text = TextCodec::from_gguf(&holes).expect("a vocabulary");
    assert_eq!(text.tokenizer().vocab_size(), 259);
    assert_eq!(text.tokenizer().missing_tokens(), [100]);
    let engine = engine(text, 280).await;
    assert_eq!(engine.model().vocab_size, 259);
    let is_known = |token: TokenId| token < 259 && token != 100;
    let base = || {
        let request = Request::tokens([1, 2])
            .output_tokens_max(200)
            .ignore_end_tokens();
        request.logprobs(20)
    };
    let grammar = GrammarSource::Regex("(.|\n)*".into());
    let mut within_grammar = base().grammar(grammar);
    within_grammar.ignore_end_tokens = false;
    for request in [base(), base().temperature(30.0).seed(3), within_grammar] {
        let scored = request.prompt_logprobs(20);
        let stream = engine.submit(scored).await.expect("it is valid");
        let output = stream.collect().await.expect("it ends");
        assert!(output.tokens.iter().all(|token| is_known(*token)));
        let lists = output.logprobs.iter().chain(&output.prompt_logprobs);
        assert!(
            lists
                .flat_map(|one| &one.top)
                .all(|(token, _)| is_known(*token))
        );
    }
    for unknown in [100, 259, 279, 280] {
        let reasoning = |open: TokenId, close: TokenId| ReasoningBudget {
            open: vec![open],
            close: vec![close],
            is_open: false,
            opens_once: false,
            tokens_max: 4,
        };
        let plain = || Request::tokens([1]);
        let requests = vec![
            Request::tokens([1, unknown]),
            plain().bias(unknown, 1.0),
            plain().stop_token(unknown),
            plain().reasoning(reasoning(unknown, 2)),
            plain().reasoning(reasoning(2, unknown)),
        ];
        let fields = [
            "prompt",
            "logit_bias",
            "stop_tokens",
            "reasoning.open",
            "reasoning.close",
        ];
        assert_eq!(rejected(&engine, requests).await, fields, "{unknown}");
    }
    engine.shutdown(Shutdown::Abort).await;
}
