//! The measurements of `cargo xtask bench recovery`.
//!
//! The protocol is that of `benches/figures/`: one JSON request a line on standard input, one
//! JSON answer a line on standard output. Names of figures, their goals and medians belong to
//! xtask; loads, engines, kills and clocks are here. Everything runs on a model on MLX. Without
//! a model it runs on an oracle of similar speed, which only shows that the measurement works.
//!
//! | file | content |
//! |---|---|
//! | `protocol.rs` | the requests |
//! | `injection.rs` | additions of `--cfg motet_injected` to an engine |
//! | `killed.rs` | engines whose device thread can be killed |
//! | `pause.rs` | the longest gap of live streams, and its parts |
//! | `tokens.rs` | streams that are killed repeatedly, beside undisturbed ones |
//! | `overhead.rs` | decoding with everything that a recovery needs, and without |
//!
//! Parts shared with `benches/scheduler/` and `benches/pager/` are taken from there.

mod injection;
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
The measurements of `cargo xtask bench recovery`; run that instead, or
    recovery --serve [MODEL]    answer requests on this model, on MLX; without one on an oracle";

fn main() -> Result<()> {
    wire::run(USAGE, protocol::answer)
}
