//! Conversations with tools, reasoning and formats, and their answers as typed events.
//!
//! ```text
//!  ChatRequest ─▶ Engine::chat ─▶ ChatStream ─▶ ChatEvent … ─▶ Answer
//!       └────── prepare ─▶ Request, AnswerReader ──┘
//! ```
//!
//! A [`ChatRequest`] is messages, the tools that the model may call, how it reasons, and the form of
//! its text. [`Engine::chat`](crate::Engine::chat) starts the answer. A [`ChatStream`] returns it in
//! parts as they are generated: reasoning, text, and calls with their arguments. An [`Answer`] is
//! all of them. A call that is required, and one of a strict tool, follows the tool's JSON schema
//! by a grammar, whatever the model samples.
//!
//! ```no_run
//! use motet::chat::{AnswerEnd, ChatRequest};
//! use motet::text::{Message, Tool};
//!
//! # async fn example(engine: motet::Engine) -> Result<(), Box<dyn std::error::Error>> {
//! let clock = Tool {
//!     name: "clock".into(),
//!     description: Some("Tells the time.".into()),
//!     parameters: serde_json::Value::Null, // or the JSON schema of an object
//!     is_strict: false,
//! };
//! let mut messages = vec![Message::user("What time is it?")];
//! let answer = loop {
//!     let request = ChatRequest::new(messages.clone()).tools([clock.clone()]);
//!     let answer = engine.chat(request).await?.collect().await?;
//!     if answer.end != Some(AnswerEnd::Calls) {
//!         break answer;
//!     }
//!     messages.push(answer.message());
//!     messages.extend(answer.calls().map(|call| call.result("noon")));
//! };
//! println!("{}", answer.text());
//! # Ok(())
//! # }
//! ```
//!
//! Families of models write calls and reasoning in different forms, which
//! [`motet::text`](crate::text) reads. A template that knows no tools gets them as a text in the
//! system's message.
//!
//! | file | content |
//! |---|---|
//! | `request.rs` | [`ChatRequest`] and its setters |
//! | `reasoning.rs` | [`Reasoning`]: settings, as variables of the template and as a budget |
//! | `tools.rs` | the tools of a request, checked |
//! | `tools_as_text.rs` | tools for templates that know none |
//! | `history.rs` | [`History`]: the calls of earlier messages, and their results |
//! | `error.rs` | [`ChatError`], and the fields that it names: [`ChatField`] |
//! | `prepare.rs` | from a conversation to the engine's request |
//! | `event.rs` | [`ChatEvent`], [`Delta`] and [`AnswerEnd`] |
//! | `reader.rs` | [`AnswerReader`]: from pieces of an output to events |
//! | `stream.rs` | [`ChatStream`]: the events of one answer |
//! | `answer.rs` | [`Answer`]: events, collected |

mod answer;
mod error;
mod event;
#[cfg(test)]
mod fixtures;
mod history;
mod prepare;
mod reader;
mod reasoning;
mod request;
mod stream;
mod tools;
mod tools_as_text;

pub use answer::{Answer, AnswerItem, Call};
pub use error::{ChatError, ChatField};
pub use event::{AnswerEnd, ChatEvent, Delta};
pub use history::History;
pub use reader::AnswerReader;
pub use reasoning::Reasoning;
pub use request::ChatRequest;
pub use stream::ChatStream;
