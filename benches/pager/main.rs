//! What `cargo xtask bench pager` measures.
//!
//! It speaks as `benches/figures/` does: one JSON request a line on standard input, one
//! JSON answer a line on standard output. Names of figures, their goals and medians are
//! xtask's; here are loads, engines and clocks. Everything runs on a model on MLX, or
//! without one on an oracle that is about as slow, which shows only that it can be
//! measured: the oracle's state is a thousandth of a model's.
//!
//! | file | idea |
//! |---|---|
//! | `protocol.rs` | what can be asked for |
//! | `harness.rs` | engines with so many bytes, and the moment when nothing moves in them |
//! | `copy.rs` | a segment's way out and in, beside a plain copy of as many bytes |
//! | `decode.rs` | those who decode while segments leave and come back |
//! | `first_token.rs` | a prompt that begins with what only the host or the disk has |
//! | `folder.rs` | a folder for the disk tier, and the system's cache of its files |
//! | `oversubscribed.rs` | users whose conversations take four times the device's bytes |
//!
//! What it shares with `benches/scheduler/` is taken from there.

mod copy;
mod decode;
mod first_token;
mod folder;
mod harness;
mod oversubscribed;
mod protocol;

#[path = "../scheduler/arrivals.rs"]
#[allow(dead_code, reason = "the scheduler's program uses the rest")]
mod arrivals;
#[path = "../scheduler/engine.rs"]
#[allow(dead_code, reason = "the scheduler's program uses the rest")]
mod engine;
#[path = "../scheduler/report.rs"]
#[allow(dead_code, reason = "the scheduler's program uses the rest")]
mod report;
#[path = "../scheduler/wire.rs"]
mod wire;

use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "\
What `cargo xtask bench pager` measures; run that instead, or
    pager --serve [MODEL]    answer requests on this model, on MLX; without one on an oracle";

fn main() -> Result<()> {
    wire::run(USAGE, protocol::answer)
}
