//! What `cargo xtask bench recovery` measures.
//!
//! It speaks as `benches/figures/` does: one JSON request a line on standard input, one
//! JSON answer a line on standard output. Names of figures, their goals and medians are
//! xtask's; here are loads, engines, kills and clocks. Everything runs on a model on MLX, or
//! without one on an oracle that is about as slow, which shows only that it can be measured.
//!
//! | file | idea |
//! |---|---|
//! | `protocol.rs` | what can be asked for |
//! | `killed.rs` | engines whose device thread can be killed |
//! | `pause.rs` | the longest gap of live streams, and what it is made of |
//! | `tokens.rs` | streams that are killed again and again, beside undisturbed ones |
//! | `overhead.rs` | decoding with everything that a recovery needs, and without |
//!
//! What it shares with `benches/scheduler/` and `benches/pager/` is taken from there.

mod killed;
mod overhead;
mod pause;
mod protocol;
mod tokens;

#[path = "../scheduler/arrivals.rs"]
#[allow(dead_code, reason = "the scheduler's program uses the rest")]
mod arrivals;
#[path = "../scheduler/engine.rs"]
#[allow(dead_code, reason = "the scheduler's program uses the rest")]
mod engine;
#[path = "../pager/harness.rs"]
#[allow(dead_code, reason = "the pager's program uses the rest")]
mod harness;
#[path = "../scheduler/report.rs"]
#[allow(dead_code, reason = "the scheduler's program uses the rest")]
mod report;
#[path = "../scheduler/wire.rs"]
mod wire;

use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "\
What `cargo xtask bench recovery` measures; run that instead, or
    recovery --serve [MODEL]    answer requests on this model, on MLX; without one on an oracle";

fn main() -> Result<()> {
    wire::run(USAGE, protocol::answer)
}
