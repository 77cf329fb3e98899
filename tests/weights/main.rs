//! Model files: both containers, all formats, and hostile contents.
//!
//! The tests generate the models: two layers, random weights. If `MOTET_MODEL` names a real
//! file or folder, that is read as well.

mod allocation;
mod config;
mod containers;
mod families;
mod fixtures;
mod folder;
mod gguf;
mod hostile;
mod metadata;
mod parts;
mod pooling;
#[path = "../common/quantised.rs"]
mod quantised;
mod quantised_folders;
#[path = "../common/read_whole.rs"]
mod read_whole;
mod real;
#[path = "../common/scratch.rs"]
mod scratch;
#[cfg(target_os = "linux")]
mod shortened;
mod tiny;
