//! Conversations: tools, reasoning and formats, through `motet::chat`.

use crate::common::{byte_oracle, byte_vocabulary, engine_with_text, small};
use motet::chat::{
    Answer, AnswerEnd, ChatError, ChatEvent, ChatField, ChatRequest, Delta, Reasoning,
};
use motet::grammar::GrammarSource;
use motet::model::oracle::OracleConfig;
use motet::request::FinishReason;
use motet::text::{ChatTemplate, Message, TextCodec, Tool, ToolChoice};
use motet::{Engine, Request, TokenId};
use serde_json::{Value, json};

/// A template that knows tools, calls and reasoning.
const TEMPLATE: &str = "{% if tools %}{{ tools | tojson }}{% endif %}\
    {% for m in messages %}{{ m.role }}: {{ m.content }}\
    {% if m.tool_calls %}<tool_call>{{ m.tool_calls | tojson }}</tool_call>{% endif %}\n\
    {% endfor %}{% if add_generation_prompt %}assistant: \
    {% if thinks %}<think>{% endif %}{% endif %}";

async fn engine() -> Engine {
    let template = ChatTemplate::new(TEMPLATE, []).expect("it compiles");
    let tokenizer = TextCodec::from_gguf(&byte_vocabulary()).expect("a vocabulary");
    let codec = TextCodec::new(tokenizer.tokenizer().clone(), Some(template));
    let oracle = OracleConfig {
        context_tokens_max: 4096,
        ..byte_oracle()
    };
    engine_with_text(&oracle, codec, small()).await
}

fn clock() -> Tool {
    let zone = json!({"enum": ["utc", "cet"]});
    Tool {
        name: "clock".into(),
        description: Some("Tells the time.".into()),
        parameters: json!({"type": "object", "properties": {"zone": zone}, "required": ["zone"]}),
        is_strict: false,
    }
}

/// A request that is sampled, so that its outputs differ.
fn request() -> ChatRequest {
    let settings = Request::default().output_tokens_max(2500).temperature(1.0);
    ChatRequest::new([Message::user("What time is it?")])
        .tools([clock()])
        .settings(settings)
}

fn required() -> ChatRequest {
    request().tool_choice(ToolChoice::Required)
}

async fn answer(engine: &Engine, request: ChatRequest) -> Answer {
    let stream = engine.chat(request).await.expect("it is accepted");
    stream.collect().await.expect("a whole answer")
}

#[track_caller]
fn check_calls(answer: &Answer) {
    assert_eq!(answer.end, Some(AnswerEnd::Calls));
    assert!(answer.calls().next().is_some(), "{answer:?}");
    for call in answer.calls() {
        assert!(call.is_complete);
        assert_eq!((&*call.name, call.id.len()), ("clock", 9));
        let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
        assert!(["utc", "cet"].contains(&arguments["zone"].as_str().expect("text")));
    }
}

#[tokio::test]
async fn required_calls_follow_their_schema_and_are_the_same_streamed() {
    let engine = engine().await;
    let whole = answer(&engine, required()).await;
    check_calls(&whole);
    assert_eq!(whole.text(), "");
    let mut stream = engine.chat(required()).await.expect("it is accepted");
    let mut joined = Answer::default();
    while let Some(event) = stream.next().await {
        assert_eq!(joined.end, None, "the end is the last event");
        joined.add(event.expect("an event"));
    }
    let arguments = |answer: &Answer| -> Vec<String> {
        answer.calls().map(|call| call.arguments.clone()).collect()
    };
    assert_eq!(arguments(&joined), arguments(&whole));
    assert_eq!(joined.usage.output_tokens, whole.usage.output_tokens);
    let ids: std::collections::BTreeSet<&str> = whole
        .calls()
        .chain(joined.calls())
        .map(|call| &*call.id)
        .collect();
    assert_eq!(ids.len(), whole.calls().count() + joined.calls().count());
}

#[tokio::test]
async fn several_answers_have_calls_of_their_own() {
    let engine = engine().await;
    let mut request = required().one_call();
    request.settings.n = 3;
    let streams = engine.chat_many(request).await.expect("it is accepted");
    assert_eq!(streams.len(), 3);
    for stream in streams {
        let answer = stream.collect().await.expect("a whole answer");
        check_calls(&answer);
        assert_eq!(answer.calls().count(), 1);
    }
}

#[tokio::test]
async fn result_of_a_call_is_part_of_the_next_prompt() {
    let engine = engine().await;
    let called = answer(&engine, required().one_call()).await;
    let call = called.calls().next().expect("a call");
    let mut next = request();
    next.chat.messages.push(called.message());
    next.chat.messages.push(call.result("noon"));
    let chat = next.clone().into_chat(&engine).expect("a conversation");
    let text = engine.text().expect("text");
    let rendered = text.template().expect("a template").render(&chat, true);
    let rendered = rendered.expect("it renders");
    assert!(rendered.contains(&call.id), "{rendered}");
    assert!(rendered.contains("tool: noon"), "{rendered}");
    let answered = answer(&engine, next).await;
    assert!(answered.usage.cached_tokens > 0, "{:?}", answered.usage);
}

#[tokio::test]
async fn each_token_has_its_log_probability_once() {
    let engine = engine().await;
    let mut request = request();
    request.settings.logprobs = Some(2);
    request.settings.output_tokens_max = 50;
    let answer = answer(&engine, request).await;
    assert_eq!(answer.end, Some(AnswerEnd::Length));
    assert_eq!(answer.logprobs.len(), 50);
}

#[tokio::test]
async fn required_call_begins_at_once_unless_a_setting_asks_for_reasoning() {
    let engine = engine().await;
    let reasons = async |request: ChatRequest| {
        let (request, _) = request.prepare(&engine).await.expect("it is valid");
        request.reasoning.is_some()
    };
    assert!(reasons(request()).await, "the model may reason");
    assert!(!reasons(required()).await);
    assert!(!reasons(required().reasoning(Reasoning::off())).await);
    for asked in [
        Reasoning::on(),
        Reasoning::with_effort("low"),
        Reasoning::default().tokens_max(5),
    ] {
        assert!(
            reasons(required().reasoning(asked.clone())).await,
            "{asked:?}"
        );
    }
    let mut opened = required();
    opened.chat.variables.insert("thinks".into(), json!(true));
    assert!(reasons(opened.clone()).await, "the prompt opens it");
    let budget = Reasoning::default().tokens_max(5);
    let answer = answer(&engine, opened.one_call().reasoning(budget)).await;
    check_calls(&answer);
    assert!(answer.usage.reasoning_tokens <= 5, "{:?}", answer.usage);
}

#[tokio::test]
async fn text_follows_a_format() {
    let engine = engine().await;
    let schema = r#"{"type": "object", "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"], "additionalProperties": false}"#;
    let format = || GrammarSource::JsonSchema(schema.into());
    let mut by_settings = ChatRequest::new([Message::user("?")]);
    by_settings.settings.grammar = Some(format());
    for request in [
        ChatRequest::new([Message::user("?")]).output_format(format()),
        request()
            .tool_choice(ToolChoice::None)
            .output_format(format()),
        by_settings,
    ] {
        let answer = answer(&engine, request).await;
        let value: Value = serde_json::from_str(&answer.text()).expect("JSON");
        assert!(value["a"].is_u64(), "{value}");
        assert_eq!(answer.end, Some(AnswerEnd::Stop));
    }
}

#[tokio::test]
async fn errors_name_the_field() {
    let engine = engine().await;
    let check = async |request: ChatRequest, field: ChatField| {
        let error = engine.chat(request).await.expect_err("it is rejected");
        assert_eq!(error.field(), field, "{error}");
        assert!(!error.to_string().is_empty());
    };
    let with = |change: &dyn Fn(&mut ChatRequest)| {
        let mut request = request();
        change(&mut request);
        request
    };
    let tool = |name: &str, parameters: Value| Tool {
        name: name.into(),
        parameters,
        ..clock()
    };
    let two = [clock(), tool("a b", Value::Null)];
    check(request().tools(two), ChatField::ToolName(1)).await;
    let list = [tool("a", json!([]))];
    check(request().tools(list), ChatField::ToolParameters(0)).await;
    let no_grammar = json!({"type": "object", "properties": {"a": {"type": "text"}}});
    let tools = [clock(), tool("a", no_grammar)];
    check(required().tools(tools), ChatField::ToolParameters(1)).await;
    let other = ToolChoice::Named("bell".into());
    check(request().tool_choice(other), ChatField::ToolChoice).await;
    let format = request().output_format(GrammarSource::Json);
    check(format, ChatField::OutputFormat).await;
    let budget = Reasoning::off().tokens_max(3);
    check(request().reasoning(budget), ChatField::ReasoningTokensMax).await;
    let continued = with(&|request| request.chat.continues_last = true);
    check(continued, ChatField::ContinuesLast).await;
    let result = with(&|request| {
        let result = Message::result("1", "clock", "noon");
        request.chat.messages.push(result);
    });
    check(result, ChatField::ResultId(1)).await;
    let long = with(&|request| request.chat.messages[0].content = "a".repeat(5000));
    check(long, ChatField::Messages).await;
    let hot = with(&|request| request.settings.sampling.temperature = -1.0);
    check(hot, ChatField::Settings).await;
    engine.drain().await;
    let drained = engine.chat(request()).await;
    assert!(matches!(drained, Err(ChatError::Submit { .. })));
}

#[tokio::test]
async fn dropped_stream_cancels_its_answer() {
    let engine = engine().await;
    let mut stream = engine.chat(request()).await.expect("it is accepted");
    let first = stream.next().await.expect("an event").expect("a part");
    assert!(matches!(first, ChatEvent::Delta { .. }));
    let handle = stream.handle();
    drop(stream);
    let finish = handle.finished().await.expect("it ends");
    assert_eq!(finish.reason, FinishReason::Cancelled);
}

/// The parts of an answer in their order, without the ids of calls. Adjacent parts of a kind are one.
fn parts(events: &[ChatEvent]) -> Vec<(&'static str, String)> {
    let mut parts: Vec<(&'static str, String)> = Vec::new();
    for event in events {
        let ChatEvent::Delta { delta, .. } = event else {
            continue;
        };
        let (kind, text) = match delta {
            Delta::Reasoning(text) => ("reasoning", text.clone()),
            Delta::Text(text) => ("text", text.clone()),
            Delta::CallStarted { name, index, .. } => ("call", format!("{index}: {name}")),
            Delta::CallArguments { json, .. } => ("arguments", json.clone()),
            Delta::CallEnded { is_complete, .. } => ("end", is_complete.to_string()),
        };
        match parts.last_mut() {
            Some((last, joined)) if *last == kind => joined.push_str(&text),
            _ if text.is_empty() => {}
            _ => parts.push((kind, text)),
        }
    }
    parts
}

#[tokio::test]
async fn an_answer_goes_on_within_its_reasoning_and_its_calls() {
    let engine = engine().await;
    let request = |so_far: &[TokenId]| {
        let mut request = required();
        request.settings.output_so_far = so_far.to_vec();
        request
    };
    let run = async |so_far: &[TokenId]| {
        let prepared = request(so_far).prepare(&engine).await;
        let (request, mut reader) = prepared.expect("it is valid");
        let mut stream = engine.submit(request).await.expect("it is accepted");
        let (mut tokens, mut events) = (Vec::new(), Vec::new());
        while let Some(piece) = stream.next().await {
            let piece = piece.expect("it finishes");
            tokens.extend(piece.token);
            // The events after each token.
            events.push(reader.read(piece));
        }
        (tokens, events)
    };
    let (tokens, events) = run(&[]).await;
    let whole = parts(&events.concat());
    assert!(
        whole.iter().any(|(kind, _)| *kind == "arguments"),
        "{whole:?}"
    );
    for cut in (1..tokens.len()).step_by(1 + tokens.len() / 60) {
        let (rest, after) = run(&tokens[..cut]).await;
        assert_eq!(rest, tokens[cut..], "{cut}");
        let joined = [events[..cut].concat(), after.concat()].concat();
        assert_eq!(parts(&joined), whole, "{cut}");
    }
}
