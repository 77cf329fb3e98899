//! The engine with its real actors and device thread, on the oracle. One program: the engine's
//! generic code is compiled once for all of these tests.

mod appended;
mod backups;
mod changed_files;
mod chat;
#[path = "../common/mod.rs"]
mod common;
mod continued;
mod end_tokens;
mod extremes;
#[path = "../hostile/forced.rs"]
mod forced_texts;
mod hand_over;
mod hybrid_reuse;
mod hybrid_states;
mod isolation;
mod keeping;
mod long_texts;
mod outputs;
mod paging;
mod requests;
mod restore_points;
mod results;
mod reuse;
mod rewind;
mod scheduling;
mod scores;
mod sharing;
mod special_tokens;
mod speculation;
mod starting;
mod watching;
