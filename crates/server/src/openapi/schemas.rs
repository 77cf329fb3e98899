//! Schemas of bodies and answers. They are derived from the structs that the handlers parse and
//! serialize. The limits of the running server are then set in them.

use schemars::generate::{Contract, SchemaSettings};
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::anthropic;
use crate::anthropic::answer::MessageBody;
use crate::anthropic::body::{MessagesRequest, Turn};
use crate::anthropic::events::MessageEvent;
use crate::app::App;
use crate::body::fields::Fields;
use crate::error::ErrorBody;
use crate::model_names::ModelNames;
use crate::openai::answer::{Completion, CompletionPart};
use crate::openai::chat::{ChatRequest, ChatShape, Conversation};
use crate::openai::embeddings::{EmbeddingRequest, Embeddings};
use crate::openai::text::TextRequest;
use crate::openai::text_shape::TextShape;
use crate::responses::events::ResponseEvent;
use crate::responses::request::CreateRequest;
use crate::responses::response::ResponseBody;
use crate::responses::stored::{Deleted, ItemList};
use crate::state::{Model, Models, StateAnswer};
use crate::tokens::{Detokenize, Detokenized, TokenizeChat, TokenizeText, Tokenized};

pub(super) fn schemas(app: &App) -> Map<String, Value> {
    let mut schemas = bodies();
    set_limits(&mut schemas, app);
    schemas.extend(answers());
    schemas
}

fn bodies() -> Map<String, Value> {
    let mut generator = generator(Contract::Deserialize);
    let bodies = [
        ("ChatRequest", ChatRequest::schema(&mut generator)),
        ("TextRequest", TextRequest::schema(&mut generator)),
        ("ResponseRequest", CreateRequest::schema(&mut generator)),
        ("EmbeddingRequest", EmbeddingRequest::schema(&mut generator)),
        ("MessagesRequest", MessagesRequest::schema(&mut generator)),
        ("CountTokens", Turn::schema(&mut generator)),
        ("Tokenize", tokenize(&mut generator)),
        ("Detokenize", Detokenize::schema(&mut generator)),
    ];
    complete(bodies, generator, &mut set_bounds)
}

fn tokenize(generator: &mut SchemaGenerator) -> Schema {
    let text = TokenizeText::schema(generator);
    let chat = <(TokenizeChat, Conversation)>::schema(generator);
    json_schema!({"anyOf": [text, chat]})
}

fn answers() -> Map<String, Value> {
    let mut generator = generator(Contract::Serialize);
    let of = &mut generator;
    let answers = [
        ("ChatCompletion", Completion::<ChatShape>::json_schema(of)),
        ("ChatPart", CompletionPart::<ChatShape>::json_schema(of)),
        ("TextCompletion", Completion::<TextShape>::json_schema(of)),
        ("TextPart", CompletionPart::<TextShape>::json_schema(of)),
        ("Response", ResponseBody::json_schema(of)),
        ("ResponseEvent", ResponseEvent::json_schema(of)),
        ("ResponseItems", ItemList::json_schema(of)),
        ("ResponseDeleted", Deleted::json_schema(of)),
        ("Embeddings", Embeddings::json_schema(of)),
        ("AnthropicMessage", MessageBody::json_schema(of)),
        ("MessageEvent", MessageEvent::json_schema(of)),
        (
            "MessagesError",
            anthropic::errors::ErrorBody::json_schema(of),
        ),
        ("CountedTokens", anthropic::CountedTokens::json_schema(of)),
        ("Models", Models::json_schema(of)),
        ("Model", Model::json_schema(of)),
        ("Tokenized", Tokenized::json_schema(of)),
        ("Detokenized", Detokenized::json_schema(of)),
        ("State", StateAnswer::json_schema(of)),
        ("Error", ErrorBody::json_schema(of)),
    ];
    complete(answers, generator, &mut |schema| {
        set_bounds(schema);
        close(schema);
    })
}

fn generator(contract: Contract) -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.contract = contract;
    });
    settings.into_generator()
}

/// These schemas and those that they refer to, all transformed.
fn complete<const N: usize>(
    named: [(&str, Schema); N],
    mut generator: SchemaGenerator,
    transform: &mut dyn FnMut(&mut Schema),
) -> Map<String, Value> {
    let mut schemas = generator.take_definitions(false);
    let named = named.map(|(name, schema)| (name.to_owned(), schema.to_value()));
    schemas.extend(named);
    let mut transform = RecursiveTransform(transform);
    for value in schemas.values_mut() {
        let schema: &mut Schema = value.try_into().expect("an object");
        transform.transform(schema);
    }
    schemas
}

/// Replaces the formats of numbers, which only Rust knows, by their bounds.
fn set_bounds(schema: &mut Schema) {
    let bounds = match schema.get("format").and_then(Value::as_str) {
        Some("uint" | "uint64") => [json!(0), json!(u64::MAX)],
        Some("uint32") => [json!(0), json!(u32::MAX)],
        Some("uint8") => [json!(0), json!(u8::MAX)],
        Some("int64") => [json!(i64::MIN), json!(i64::MAX)],
        Some("float") => [json!(f32::MIN), json!(f32::MAX)],
        Some("double") => {
            schema.remove("format");
            return;
        }
        _ => return,
    };
    schema.remove("format");
    let is_bounded_below = schema.get("exclusiveMinimum").is_some();
    for (keyword, bound) in ["minimum", "maximum"].into_iter().zip(bounds) {
        if schema.get(keyword).is_none() && !(keyword == "minimum" && is_bounded_below) {
            schema.insert(keyword.to_owned(), bound);
        }
    }
}

/// An answer has no other fields.
fn close(schema: &mut Schema) {
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_none() {
        schema.insert("additionalProperties".to_owned(), json!(false));
    }
}

/// Sets the limits that depend on the running server.
fn set_limits(schemas: &mut Map<String, Value>, app: &App) {
    let model = app.engine.model();
    schemas["Token"]["maximum"] = json!(model.vocab_size - 1);
    let embedding = &mut schemas["EmbeddingRequest"]["properties"];
    set_names(&mut embedding["model"], &app.model_names);
    embedding["dimensions"]["maximum"] = json!(model.hidden_size);
    for tokens in ["max_tokens", "max_completion_tokens"] {
        let tokens = &mut schemas["TextRequest"]["properties"][tokens];
        tokens["minimum"] = json!(0);
        let or_none = "; 0 with log probabilities of the prompt, and else 1 or more";
        describe_further(tokens, or_none);
    }
    let with_model = [
        "ChatRequest",
        "TextRequest",
        "ResponseRequest",
        "MessagesRequest",
        "CountTokens",
    ];
    for body in with_model {
        set_names(&mut schemas[body]["properties"]["model"], &app.model_names);
    }
    for body in ["ChatRequest", "TextRequest"] {
        let properties = &mut schemas[body]["properties"];
        properties["num_keep"]["maximum"] = json!(model.context_tokens_max - 1);
        let of_vocabulary = format!(", below {}", model.vocab_size);
        describe_further(&mut properties["logit_bias"], &of_vocabulary);
    }
    for body in ["ChatRequest", "TextRequest", "ResponseRequest"] {
        let properties = &mut schemas[body]["properties"];
        let of_class = format!(
            "; of a key that has no class, the highest is {}",
            app.access.class_max
        );
        describe_further(&mut properties["priority"], &of_class);
    }
}

/// A request names the model, or leaves the name out.
fn set_names(schema: &mut Value, names: &ModelNames) {
    if !names.is_any() {
        let mut listed: Vec<Option<&str>> = names.listed().map(Some).collect();
        listed.push(None);
        schema["enum"] = json!(listed);
    }
}

fn describe_further(schema: &mut Value, further: &str) {
    let description = schema["description"].as_str().unwrap_or_default();
    schema["description"] = json!(format!("{description}{further}"));
}
