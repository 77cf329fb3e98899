//! The dialects of OpenAI's API: bodies, as requests to the model, and answers.
//!
//! | file | content |
//! |---|---|
//! | `parameters.rs` | the common fields of both endpoints |
//! | `chat/` | `/v1/chat/completions` |
//! | `text.rs` | `/v1/completions` |
//! | `text_shape.rs` | its answers |
//! | `text_logprobs.rs` | their log probabilities: parallel lists |
//! | `scored_text.rs` | its answers with log probabilities of the prompt |
//! | `offsets.rs` | offsets of tokens in a text, for log probabilities |
//! | `embeddings.rs` | `/v1/embeddings` |
//! | `answer.rs` | answers, complete or as server-sent events |

pub(crate) mod answer;
pub(crate) mod chat;
pub(crate) mod embeddings;
mod offsets;
pub(crate) mod parameters;
pub(crate) mod scored_text;
pub(crate) mod text;
mod text_logprobs;
pub(crate) mod text_shape;
