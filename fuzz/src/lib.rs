//! The fuzz targets: one function each, which panics when it finds a bug.
//!
//! Each takes any bytes. `fuzz_targets/` passes them libFuzzer's inputs (`cargo xtask fuzz`).
//! `tests/fuzz` passes them the corpus and some thousand mutations of it, with a stable
//! compiler.
//!
//! | target | the bytes are | promise |
//! |---|---|---|
//! | [`cache`] | messages to the cache's core | it is consistent after each, and empty at the end |
//! | [`pager`] | messages to the pager's core, and when its events are delivered | the same; its events are true, and all work finishes |
//! | [`gguf`], [`safetensors`], [`config`] | a model's file | a typed error, or a readable model |
//! | [`tokenizer`] | a `tokenizer.json` | a typed error, or a tokenizer |
//! | [`template`] | a chat template and a message | a typed error, or text |
//! | [`text`] | text, tokens, a stop string | decoding returns the same text, in any pieces |
//! | [`answer`] | an answer of a model, with calls | the same parts in any pieces; arguments are JSON |
//! | [`disk`] | a file of the disk tier, or damage to one | it is removed, or it holds what was stored |
//! | [`request`] | a request's fields | a typed error, or a stream |

mod answers;
mod caches;
mod disks;
mod input;
mod models;
mod pagers;
#[path = "../../tests/common/read_whole.rs"]
mod read_whole;
mod requests;
#[path = "../../tests/common/scratch.rs"]
mod scratch;
#[path = "../../tests/common/sentence_piece.rs"]
mod sentence_piece;
mod texts;

pub use answers::answer;
pub use caches::cache;
pub use disks::disk;
pub use models::{config, gguf, safetensors};
pub use pagers::pager;
pub use requests::request;
pub use texts::{template, text, tokenizer};

/// A target's body.
pub type Target = fn(&[u8]);

/// All of them, by name.
pub const TARGETS: [(&str, Target); 11] = [
    ("cache", cache),
    ("pager", pager),
    ("gguf", gguf),
    ("safetensors", safetensors),
    ("config", config),
    ("tokenizer", tokenizer),
    ("template", template),
    ("text", text),
    ("answer", answer),
    ("disk", disk),
    ("request", request),
];
