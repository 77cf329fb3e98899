//! The input of a request: a text, or items.

use std::fmt;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

use super::ids::{IdKind, Ids};
use super::items::{
    Call, CallOutput, Item, ItemStatus, Logprobs, Message, Part, ReasoningItem, Role, SummaryPart,
};
use crate::body::text_or_list::{self, TextOrList};
use crate::error::ApiError;

/// The input as the body has it.
#[derive(Debug)]
pub(crate) enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

/// An item as the body has it, with the fields of all kinds.
#[derive(Debug, Default, serde::Deserialize)]
pub(crate) struct InputItem {
    #[serde(rename = "type")]
    kind: Option<String>,
    id: Option<String>,
    role: Option<Role>,
    content: Option<Content>,
    summary: Option<Parts>,
    call_id: Option<String>,
    name: Option<String>,
    arguments: Option<String>,
    output: Option<Content>,
}

/// Text, or parts of it.
#[derive(Debug)]
enum Content {
    Text(String),
    Parts(Parts),
}

/// Parts, counted as values of the body.
#[derive(Debug, Default)]
struct Parts(Vec<InputPart>);

#[derive(Debug, serde::Deserialize)]
struct InputPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
    refusal: Option<String>,
}

/// Free-form values that an item counts as, by its size in memory.
const ITEM_VALUES: usize = 4;
/// Most references of one input: conversations of agents have some hundred items.
const REFERENCES_MAX: usize = 1024;
/// The types of items that this server reads.
const KINDS: &str = "message, function_call, function_call_output, reasoning or item_reference";

impl Input {
    /// The items, with ids. `stored` finds the item that a reference names. Items that are referred
    /// to are shared, and have at most so many bytes of text together.
    ///
    /// # Errors
    ///
    /// The error names the item's field.
    pub(super) fn items(
        self,
        ids: &Ids,
        stored: impl Fn(&str) -> Option<Arc<Item>>,
        referenced_bytes_max: usize,
    ) -> Result<Vec<Arc<Item>>, ApiError> {
        let items = match self {
            Self::Text(text) => {
                let id = ids.input(IdKind::Message, 0);
                return Ok(vec![Arc::new(Item::message(id, Role::User, text))]);
            }
            Self::Items(items) => items,
        };
        if items.is_empty() {
            return Err(ApiError::field(
                "input",
                "`input` is empty; expected an item",
            ));
        }
        let mut references = References {
            stored,
            count: 0,
            bytes: 0,
            bytes_max: referenced_bytes_max,
        };
        let read = (0..).zip(items).map(|(index, item)| {
            let path = ItemPath { ids, index };
            item.read(&path, &mut references)
        });
        read.collect()
    }
}

/// The references of an input, counted while they are followed.
struct References<F> {
    stored: F,
    count: usize,
    bytes: usize,
    bytes_max: usize,
}

impl<F: Fn(&str) -> Option<Arc<Item>>> References<F> {
    fn follow(&mut self, path: &ItemPath<'_>, id: &str) -> Result<Arc<Item>, ApiError> {
        self.count += 1;
        if self.count > REFERENCES_MAX {
            let what = format!(
                "is the {}th reference; expected at most {REFERENCES_MAX}",
                self.count
            );
            return Err(path.invalid("id", &what));
        }
        let item = (self.stored)(id).ok_or_else(|| {
            let what = format!("is {id:?}, an item of no stored response: unknown or forgotten");
            path.invalid("id", &what)
        })?;
        self.bytes = self.bytes.saturating_add(item.text_bytes());
        if self.bytes > self.bytes_max {
            let what = format!(
                "refers to an item with which the conversation has more than {} bytes of earlier \
                 items; expected at most as many, as in a body (--body-bytes-max)",
                self.bytes_max
            );
            return Err(path.invalid("id", &what));
        }
        Ok(item)
    }
}

/// The place of an item in the input.
struct ItemPath<'a> {
    ids: &'a Ids,
    index: usize,
}

impl ItemPath<'_> {
    fn field(&self, name: &str) -> String {
        format!("input[{}].{name}", self.index)
    }

    fn invalid(&self, name: &str, what: &str) -> ApiError {
        let field = self.field(name);
        let message = format!("`{field}` {what}");
        ApiError::field(field, message)
    }

    fn required<T>(&self, name: &str, value: Option<T>) -> Result<T, ApiError> {
        value.ok_or_else(|| self.invalid(name, "is missing"))
    }

    /// The client's id of the item, or a new one.
    fn id(&self, id: Option<String>, kind: IdKind) -> String {
        id.unwrap_or_else(|| self.ids.input(kind, self.index))
    }
}

impl InputItem {
    fn read<F: Fn(&str) -> Option<Arc<Item>>>(
        self,
        path: &ItemPath<'_>,
        references: &mut References<F>,
    ) -> Result<Arc<Item>, ApiError> {
        let implied = match (&self.role, &self.id) {
            (Some(_), _) => Some("message"),
            (None, Some(_)) => Some("item_reference"),
            (None, None) => None,
        };
        let kind = self.kind.as_deref().or(implied).map(str::to_owned);
        let item = match &*path.required("type", kind)? {
            "message" => self.message(path),
            "function_call" => self.call(path),
            "function_call_output" => self.call_output(path),
            "reasoning" => self.reasoning(path),
            "item_reference" => return references.follow(path, &path.required("id", self.id)?),
            other => {
                let field = path.field("type");
                let message = format!("`{field}` is {other:?}; this server takes {KINDS}");
                Err(ApiError::unprocessable(field, message))
            }
        };
        item.map(Arc::new)
    }

    fn message(self, path: &ItemPath<'_>) -> Result<Item, ApiError> {
        let role = path.required("role", self.role)?;
        let content = match path.required("content", self.content)? {
            Content::Text(text) => vec![role.part(text)],
            Content::Parts(Parts(parts)) => {
                let parts = (0..).zip(parts);
                let parts =
                    parts.map(
                        |(number, part)| match (&*part.kind, part.text, part.refusal) {
                            ("input_text" | "output_text" | "text", Some(text), _) => {
                                Ok(role.part(text))
                            }
                            ("refusal", _, Some(refusal)) => Ok(Part::Declined {
                                refusal: refusal.into(),
                            }),
                            (kind, ..) => Err(not_text(path, "content", number, kind)),
                        },
                    );
                parts.collect::<Result<_, _>>()?
            }
        };
        Ok(Item::Message(Message {
            id: path.id(self.id, IdKind::Message),
            role,
            status: ItemStatus::Completed,
            content,
        }))
    }

    fn call(self, path: &ItemPath<'_>) -> Result<Item, ApiError> {
        Ok(Item::FunctionCall(Call {
            call_id: path.required("call_id", self.call_id)?,
            name: path.required("name", self.name)?,
            arguments: path.required("arguments", self.arguments)?.into(),
            id: path.id(self.id, IdKind::Call),
            status: ItemStatus::Completed,
        }))
    }

    fn call_output(self, path: &ItemPath<'_>) -> Result<Item, ApiError> {
        let output = match path.required("output", self.output)? {
            Content::Text(text) => text,
            Content::Parts(parts) => {
                parts.text(path, "output", &["input_text", "output_text", "text"])?
            }
        };
        Ok(Item::FunctionCallOutput(CallOutput {
            call_id: path.required("call_id", self.call_id)?,
            output: output.into(),
            id: path.id(self.id, IdKind::CallOutput),
            status: ItemStatus::Completed,
        }))
    }

    fn reasoning(self, path: &ItemPath<'_>) -> Result<Item, ApiError> {
        let summary = self.summary.unwrap_or_default();
        let summary = summary.texts(path, "summary", &["summary_text"])?;
        let content = match self.content {
            None => Vec::new(),
            Some(Content::Parts(parts)) => {
                parts.texts(path, "content", &["reasoning_text", "text"])?
            }
            Some(Content::Text(_)) => {
                return Err(path.invalid("content", "is text; expected a list of parts"));
            }
        };
        let content = content.into_iter();
        Ok(Item::Reasoning(ReasoningItem {
            id: path.id(self.id, IdKind::Reasoning),
            status: ItemStatus::Completed,
            summary: summary
                .into_iter()
                .map(|text| SummaryPart::new(text.into()))
                .collect(),
            content: content
                .map(|text| Part::ReasoningText { text: text.into() })
                .collect(),
            encrypted_content: (),
        }))
    }
}

impl Role {
    fn part(self, text: String) -> Part {
        match self {
            Self::Assistant => Part::output_text(text.into(), Logprobs::default()),
            Self::User | Self::System | Self::Developer => Part::InputText { text: text.into() },
        }
    }
}

impl Parts {
    /// The texts of parts, which must have one of these types.
    fn texts(
        self,
        path: &ItemPath<'_>,
        field: &str,
        kinds: &[&str],
    ) -> Result<Vec<String>, ApiError> {
        let parts = (0..).zip(self.0);
        let texts = parts.map(|(number, part)| match part.text {
            Some(text) if kinds.contains(&&*part.kind) => Ok(text),
            _ => Err(not_text(path, field, number, &part.kind)),
        });
        texts.collect()
    }

    fn text(self, path: &ItemPath<'_>, field: &str, kinds: &[&str]) -> Result<String, ApiError> {
        self.texts(path, field, kinds).map(|texts| texts.concat())
    }
}

fn not_text(path: &ItemPath<'_>, field: &str, number: usize, kind: &str) -> ApiError {
    let what = format!("is a part of type {kind:?}; expected text");
    path.invalid(&format!("{field}[{number}]"), &what)
}

impl TextOrList for Input {
    type Element = InputItem;
    const EXPECTED: &'static str = "text or a list of items";
    const ELEMENT_VALUES: usize = ITEM_VALUES;

    fn text(text: String) -> Self {
        Self::Text(text)
    }

    fn list(items: Vec<InputItem>) -> Self {
        Self::Items(items)
    }
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_list::deserialize(deserializer)
    }
}

impl TextOrList for Content {
    type Element = InputPart;
    const EXPECTED: &'static str = "text or a list of parts";
    const ELEMENT_VALUES: usize = 1;

    fn text(text: String) -> Self {
        Self::Text(text)
    }

    fn list(parts: Vec<InputPart>) -> Self {
        Self::Parts(Parts(parts))
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_list::deserialize(deserializer)
    }
}

impl<'de> Deserialize<'de> for Parts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PartsVisitor)
    }
}

struct PartsVisitor;

impl<'de> Visitor<'de> for PartsVisitor {
    type Value = Parts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of parts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<Parts, A::Error> {
        text_or_list::elements(parts, Content::ELEMENT_VALUES).map(Parts)
    }
}

impl JsonSchema for Input {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ResponseInput".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let items = [message(), call(), call_output(), reasoning(), reference()];
        json_schema!({"anyOf": [
            {"type": "string"},
            {"type": "array", "minItems": 1, "items": {"anyOf": items}},
        ]})
    }
}

fn message() -> Schema {
    let text = text_part(&["input_text", "output_text", "text"]);
    let refusal = json_schema!({
        "type": "object",
        "properties": {"type": {"const": "refusal"}, "refusal": {"type": "string"}},
        "required": ["type", "refusal"],
    });
    json_schema!({
        "type": "object",
        "description": "A message; those of role `developer` reach the template as the system's",
        "properties": {
            "type": {"enum": ["message", null]},
            "id": {"type": ["string", "null"]},
            "role": {"enum": ["user", "system", "developer", "assistant"]},
            "content": {"anyOf": [
                {"type": "string"},
                {"type": "array", "items": {"anyOf": [text, refusal]}},
            ]},
        },
        "required": ["role", "content"],
    })
}

fn call() -> Schema {
    json_schema!({
        "type": "object",
        "description": "A call that the model has made",
        "properties": {
            "type": {"const": "function_call"},
            "id": {"type": ["string", "null"]},
            "call_id": {"type": "string"},
            "name": {"type": "string"},
            "arguments": {"type": "string", "contentMediaType": "application/json"},
        },
        "required": ["type", "call_id", "name", "arguments"],
    })
}

fn call_output() -> Schema {
    json_schema!({
        "type": "object",
        "description": "The result of a call",
        "properties": {
            "type": {"const": "function_call_output"},
            "id": {"type": ["string", "null"]},
            "call_id": {"type": "string", "description": "The id of a call before it"},
            "output": {"anyOf": [
                {"type": "string"},
                {"type": "array", "items": text_part(&["input_text", "output_text", "text"])},
            ]},
        },
        "required": ["type", "call_id", "output"],
    })
}

fn reasoning() -> Schema {
    json_schema!({
        "type": "object",
        "description": "The model's reasoning: the content, or the summary if that is all",
        "properties": {
            "type": {"const": "reasoning"},
            "id": {"type": ["string", "null"]},
            "summary": {"type": ["array", "null"], "items": text_part(&["summary_text"])},
            "content": {"type": ["array", "null"], "items": text_part(&["reasoning_text", "text"])},
        },
        "required": ["type"],
    })
}

fn reference() -> Schema {
    json_schema!({
        "type": "object",
        "description": "An item of a stored response",
        "properties": {
            "type": {"enum": ["item_reference", null]},
            "id": {"type": "string"},
        },
        "required": ["id"],
    })
}

fn text_part(kinds: &[&str]) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {"type": {"enum": kinds}, "text": {"type": "string"}},
        "required": ["type", "text"],
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(input: Value) -> Result<Vec<Arc<Item>>, ApiError> {
        let input: Input = serde_json::from_value(input).expect("an input");
        let item = Item::message("msg_1".to_owned(), Role::Assistant, "stored".to_owned());
        let item = Arc::new(item);
        let stored = |id: &str| (id == "msg_1").then(|| Arc::clone(&item));
        input.items(&Ids::new(), stored, 6_200)
    }

    #[test]
    fn references_are_bounded_and_share_their_item() {
        let references = |count: usize| read(json!(vec![json!({"id": "msg_1"}); count]));
        let items = references(100).expect("62 bytes each");
        assert!(items.iter().all(|item| Arc::ptr_eq(item, &items[0])));
        for (count, field) in [
            (101, "input[100].id"),
            (REFERENCES_MAX + 1, "input[100].id"),
        ] {
            let error = references(count).expect_err("too long");
            assert_eq!((error.status.as_u16(), error.param()), (400, Some(field)));
        }
    }

    #[test]
    fn texts_and_items_are_read() {
        let items = read(json!("hello")).expect("a text");
        assert_eq!(items.len(), 1);
        assert_eq!(items[0].text(), "hello");

        let items = read(json!([
            {"role": "user", "content": "a"},
            {"type": "message", "role": "assistant", "id": "mine", "content": [
                {"type": "output_text", "text": "b", "annotations": []},
                {"type": "refusal", "refusal": "c"},
            ]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": [
                {"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"},
            ]},
            {"id": "msg_1"},
            {"type": "item_reference", "id": "msg_1"},
        ]));
        let items = items.expect("items");
        let texts: Vec<_> = items.iter().map(|item| item.text()).collect();
        assert_eq!(texts, ["a", "bc", "s", "r", "{}", "xy", "stored", "stored"]);
        assert_eq!(items[1].id(), "mine");
        let message = serde_json::to_value(&*items[1]).expect("JSON");
        let expected = json!({"type": "refusal", "refusal": "c"});
        assert_eq!(message["content"][1], expected);
        assert!(items[4].id().starts_with("fc_") && items[4].id().ends_with("_i4"));
    }

    #[test]
    fn invalid_items_are_rejected_by_field() {
        let check = |item: Value, field: &str, status: u16| {
            let error = read(json!([{"role": "user", "content": "x"}, item]));
            let error = error.expect_err(field);
            let body = serde_json::to_value(error.body()).expect("JSON");
            assert_eq!(body["error"]["param"], field);
            assert_eq!(error.status, status);
        };
        check(json!({}), "input[1].type", 400);
        check(json!({"content": "x"}), "input[1].type", 400);
        check(json!({"role": "user"}), "input[1].content", 400);
        check(
            json!({"type": "message", "content": "x", "id": "x"}),
            "input[1].role",
            400,
        );
        let image = json!([{"type": "input_image", "image_url": "x"}]);
        check(
            json!({"role": "user", "content": image}),
            "input[1].content[0]",
            400,
        );
        check(
            json!({"type": "function_call", "id": "x"}),
            "input[1].call_id",
            400,
        );
        check(
            json!({"type": "function_call_output", "id": "x"}),
            "input[1].output",
            400,
        );
        check(
            json!({"type": "item_reference", "id": "x"}),
            "input[1].id",
            400,
        );
        check(
            json!({"type": "web_search_call", "id": "x"}),
            "input[1].type",
            422,
        );
        let error = read(json!([])).expect_err("no item");
        assert_eq!(error.status, 400);
    }
}
