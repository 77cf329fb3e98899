//! The one core behind the API's dialects: what a dialect asks of the model, and what comes back.
//!
//! ```text
//!  chat completions ─┐                              ┌─▶ chunks of a chat
//!  responses ────────┼─▶ ConversationRequest ─▶ Answers ─▶ events of a response
//!  messages ─────────┘        (submit)              └─▶ events of a message
//! ```
//!
//! Each dialect reads its body, turns it into a [`ConversationRequest`] and submits it. It then reads
//! [`AnswerEvent`]s from [`Answers`] and writes them in its own shape, as they come or
//! [whole](WholeAnswer). A dialect knows nothing of grammars, of the formats in which models write
//! calls and reasoning, or of the engine.
//!
//! | file | content |
//! |---|---|
//! | `request.rs` | [`ConversationRequest`], and its way to the engine |
//! | `tools.rs` | [`CallableTools`]: tools, and how they may be called |
//! | `history.rs` | checks of the calls and results in messages |
//! | `reasoning.rs` | [`Reasoning`]: settings, as variables of the template and as a budget |
//! | `tenancy.rs` | [`Tenancy`]: user, cache and class of a request |
//! | `names.rs` | [`FieldNames`]: a dialect's names of fields, for errors |
//! | `tools_as_text.rs` | tools for templates that know none |
//! | `answers.rs` | [`Answers`] and [`AnswerEvent`] |
//! | `whole.rs` | [`WholeAnswer`]: an answer's events, collected |
//! | `usage.rs` | counts that dialects derive from a request's usage |

mod answers;
#[cfg(test)]
mod fixtures;
mod history;
mod names;
mod reasoning;
mod request;
mod tenancy;
mod tools;
mod tools_as_text;
mod usage;
mod whole;

pub(crate) use answers::{AnswerEnd, AnswerEvent, AnswerPiece, Answers, ScoredToken};
pub(crate) use history::{History, call_for_template, set_reasoning};
pub(crate) use names::FieldNames;
pub(crate) use reasoning::{Effort, Reasoning};
pub(crate) use request::{ConversationRequest, chat_of, check_schema_bytes, continue_last};
pub(crate) use tenancy::Tenancy;
pub(crate) use tools::{CallableTool, CallableTools};
pub(crate) use usage::written_tokens;
pub(crate) use whole::{AnswerItem, WholeAnswer};
