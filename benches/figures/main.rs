//! Motet's side of `cargo xtask bench`.
//!
//! It measures on request, so that a comparison can alternate between two sides with both
//! models loaded: one JSON request a line on standard input, one JSON answer a line on standard
//! output. `xtask/bench/mlx_lm_peer.py` uses the same protocol for mlx-lm. Figures, their goals
//! and their statistics belong to xtask.
//!
//! | file | content |
//! |---|---|
//! | `protocol.rs` | the requests, and the loop that answers them |
//! | `decoder.rs` | prefill and decode through the `Model` trait, timed |
//! | `device.rs` | loading, a bare product, peak bytes: not part of the trait |
//! | `system_prompt.rs` | an engine whose users share a system prompt |
//! | `memory.rs` | how fast memory is read |
//! | `overlap.rs` | one and two steps in flight, compared |
//! | `profile.rs`, `profile_table.rs` | the time of a step, operation by operation |
//! | `export.rs` | the model as a folder that mlx-lm reads |

mod decoder;
mod device;
mod export;
mod memory;
mod overlap;
#[cfg(feature = "mlx")]
mod profile;
#[cfg(feature = "mlx")]
mod profile_table;
mod protocol;
mod system_prompt;

use std::error::Error;
use std::path::Path;

use motet::model::CacheKind;

use device::Mode;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "\
Motet's side of `cargo xtask bench`; run that instead, or
    figures --serve [MODEL]           answer requests, on the oracle or on this model
    figures --serve-deterministic MODEL  the same, with every sum in its sequence's order
    figures --serve-cached KIND MODEL the same, with state cached in bf16, f16 or int8
    figures --serve-exact MODEL [--text FILE]  the same, with every product in f32; the tokenizer
                                      may come from another model
    figures --overlap MODEL           compare one and two steps in flight
    figures --profile MODEL [--quick] show where a step's time goes
    figures --export-hf MODEL FOLDER  write the model as f32 safetensors for mlx-lm";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["--serve"] => protocol::serve(device::oracle()?, &device::Oracle),
        ["--serve", model] => device::serve(Path::new(model), Mode::Default),
        ["--serve-deterministic", model] => device::serve(Path::new(model), Mode::Deterministic),
        ["--serve-cached", "bf16", model] => {
            device::serve(Path::new(model), Mode::Cached(CacheKind::Bf16))
        }
        ["--serve-cached", "f16", model] => {
            device::serve(Path::new(model), Mode::Cached(CacheKind::F16))
        }
        ["--serve-cached", "int8", model] => {
            device::serve(Path::new(model), Mode::Cached(CacheKind::Int8))
        }
        ["--serve-exact", model] => device::serve(Path::new(model), Mode::Exact),
        ["--serve-exact", model, "--text", other] => {
            device::serve_with_text(Path::new(model), Path::new(other), Mode::Exact)
        }
        ["--overlap", model] => device::overlap(Path::new(model)),
        ["--profile", model] => device::profile(Path::new(model), false),
        ["--profile", model, "--quick"] => device::profile(Path::new(model), true),
        ["--export-hf", model, folder] => export::run(Path::new(model), Path::new(folder)),
        // `cargo bench` and `cargo test --benches` pass arguments of their own.
        _ => {
            println!("{USAGE}");
            Ok(())
        }
    }
}
