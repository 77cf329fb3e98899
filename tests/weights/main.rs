//! Model files: both containers, all formats, and what strangers may put in them.
//!
//! The models here are made by the tests: two layers, random weights. With
//! `MOTET_MODEL` naming a real file or folder, that is read too.

mod allocation;
mod config;
mod containers;
mod folder;
mod gguf;
mod hostile;
mod metadata;
#[path = "../common/read_whole.rs"]
mod read_whole;
mod real;
#[path = "../common/scratch.rs"]
mod scratch;
mod tiny;
