//! The API's bodies, as requests to the engine and back.
//!
//! | file | what is there |
//! |---|---|
//! | `parameters.rs` | the fields that both endpoints have |
//! | `chat.rs` | `/v1/chat/completions` |
//! | `text.rs` | `/v1/completions` |
//! | `answer.rs` | an answer whole, or as server-sent events |

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod parameters;
pub(crate) mod text;
