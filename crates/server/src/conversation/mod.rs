//! Conversations of the API's dialects: `motet::chat` with the server's tenancy, budgets and names.
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
//! | `history.rs` | results in messages, checked by the dialect's fields |
//! | `effort.rs` | [`Effort`]: how much the model reasons |
//! | `tenancy.rs` | [`Tenancy`]: user, cache and class of a request |
//! | `names.rs` | [`FieldNames`]: a dialect's names of fields, for errors |
//! | `answers.rs` | [`Answers`]: the events of several answers, within the budget for results |
//! | `whole.rs` | [`WholeAnswer`]: an answer's events, collected |
//! | `usage.rs` | counts that dialects derive from a request's usage |

mod answers;
mod effort;
mod history;
mod names;
mod request;
mod tenancy;
mod usage;
mod whole;

pub(crate) use answers::{AnswerEvent, Answers, ScoredToken};
pub(crate) use effort::Effort;
pub(crate) use history::add_result;
pub(crate) use names::FieldNames;
pub(crate) use request::{ConversationRequest, chat_of, check_schema_bytes};
pub(crate) use tenancy::Tenancy;
pub(crate) use usage::{rejected_prediction_tokens, written_tokens};
pub(crate) use whole::WholeAnswer;
