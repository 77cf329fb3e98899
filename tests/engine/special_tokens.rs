//! Special tokens in the text of an output.

use crate::common::byte_vocabulary;
use motet::error::SubmitError;
use motet::grammar::GrammarSource;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::request::{Completion, FinishReason};
use motet::text::{TextCodec, Tool, ToolChoice};
use motet::{Engine, Request, Shutdown, TokenId};
use motet_text::{ReasoningStart, Tools};
use serde_json::json;

const END: TokenId = 256;
const MARK: TokenId = 257;

/// Bytes, an end token, and a special token `<mark>`.
fn codec() -> TextCodec {
    let mut vocabulary = byte_vocabulary();
    vocabulary.tokens.push("<mark>".into());
    vocabulary.token_types.push(3);
    TextCodec::from_gguf(&vocabulary).expect("a vocabulary")
}

async fn engine(text: Option<TextCodec>, end_one_in: u64) -> Engine {
    let oracle = OracleConfig {
        vocab_size: 258,
        end_tokens: vec![END],
        end_one_in,
        context_tokens_max: 512,
        ..OracleConfig::default()
    };
    let builder = Engine::builder(move || Ok(Oracle::new(oracle.clone()).expect("a valid oracle")));
    let builder = match text {
        Some(text) => builder.text(text),
        None => builder,
    };
    builder.start().await.expect("the engine starts")
}

async fn output(engine: &Engine, request: Request) -> Completion {
    let stream = engine.submit(request).await.expect("it is valid");
    stream.collect().await.expect("it ends")
}

#[tokio::test]
async fn special_tokens_are_in_the_text_if_asked_for() {
    let engine = engine(Some(codec()), 0).await;
    // Only the mark is sampled.
    let marks = || {
        let mut request = Request::tokens([1, 2]).output_tokens_max(3);
        request.ignore_end_tokens = true;
        request.logit_bias.insert(MARK, 1e6);
        request
    };
    let without = output(&engine, marks()).await;
    assert_eq!((&*without.text, &without.tokens[..]), ("", &[MARK; 3][..]));
    let with = output(&engine, marks().special_tokens_in_text()).await;
    assert_eq!(
        (&*with.text, &with.tokens),
        ("<mark><mark><mark>", &without.tokens)
    );
    // A stop string may be a special token then.
    let stopped = marks().special_tokens_in_text().stop("<mark><mark>");
    let stopped = output(&engine, stopped).await;
    assert_eq!(stopped.text, "");
    assert_eq!(stopped.finish.reason, FinishReason::StopString);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn the_token_that_ends_the_output_is_no_part_of_its_text() {
    let engine = engine(Some(codec()), 4).await;
    let request = Request::tokens([1, 2]).special_tokens_in_text();
    let ended = output(&engine, request).await;
    assert_eq!(ended.finish.reason, FinishReason::EndToken);
    assert!(!ended.text.contains("<end>"), "{}", ended.text);
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn special_tokens_need_a_tokenizer() {
    let engine = engine(None, 0).await;
    let request = Request::tokens([1, 2]).special_tokens_in_text();
    let error = engine.submit(request).await.expect_err("rejected");
    let field = "special_tokens_in_text";
    assert!(matches!(error, SubmitError::NoTokenizer { field: found } if found == field));
    engine.shutdown(Shutdown::Abort).await;
}

#[tokio::test]
async fn schema_of_a_tool_that_is_no_grammar_is_rejected_by_name() {
    let engine = engine(Some(codec()), 0).await;
    let tool = |name: &str, property: serde_json::Value| Tool {
        name: name.into(),
        description: None,
        parameters: json!({"type": "object", "properties": {"a": property}}),
        is_strict: false,
    };
    let grammar = |property| -> GrammarSource {
        let tools = vec![
            tool("good", json!({"type": "string"})),
            tool("bad", property),
        ];
        let tools = Tools::new(tools).expect("valid");
        let codec = codec();
        let format = codec.answer_format();
        let source = format.grammar(&tools, &ToolChoice::Required, true, ReasoningStart::Absent);
        source.expect("valid").expect("constrained")
    };
    for property in [json!({"type": "text"}), json!({"x-guidance": {}})] {
        let request = Request::tokens([1, 2]).grammar(grammar(property.clone()));
        match engine.submit(request).await {
            Err(SubmitError::ToolSchema { name, .. }) => assert_eq!(name.reveal(), "bad"),
            other => panic!("{property}: {other:?}"),
        }
    }
    let property = json!({"type": "integer", "minimum": 0, "maximum": 9});
    let request = Request::tokens([1, 2]).grammar(grammar(property));
    let output = output(&engine, request.output_tokens_max(400)).await;
    let text = output.text;
    assert!(text.starts_with("{\"name\": \""), "{text}");
    engine.shutdown(Shutdown::Abort).await;
}
