//! Special tokens in a conversation count only if the template writes them.
//!
//! A caller that writes `<|im_end|>` in a message would end the turn and could begin one of
//! another role. llama.cpp and `transformers` (`split_special_tokens`) can read a text without
//! special tokens, but a rendered conversation has both kinds.
//!
//! The template engine knows of each character of its text whether the template or a caller wrote
//! it. [`encode`] extracts special tokens from the text as the `tokenizers` crate does, except those
//! with a caller's part, however the template has cut, joined or replaced strings.
//!
//! Templates spell some tokens with the roles of messages, as `<|user|>`. A role of letters, digits
//! and `_` is therefore as the template's own text. Names of tools and of their parameters are not:
//! a template that writes `<name>` would make any token of them.

mod extract;
mod markup;
mod table;

pub(super) use extract::encode;
pub(super) use markup::Markup;
