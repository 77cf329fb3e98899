//! The text crate on tokenizers small enough to write down.

mod answers;
mod families;
mod family_tokens;
mod files;
mod forged_tokens;
mod jinja;
#[path = "../common/sentence_piece.rs"]
mod sentence_piece;
mod templates;
mod tokens;
mod vocabularies;
