//! The measurements of `cargo xtask bench pager`.
//!
//! The protocol is that of `benches/figures/`: one JSON request a line on standard input, one
//! JSON answer a line on standard output. Names of figures, their goals and medians belong to
//! xtask; loads, engines and clocks are here. Everything runs on a model on MLX. Without a
//! model it runs on an oracle of similar speed, which only shows that the measurement works:
//! the oracle's state is a thousandth of a model's.
//!
//! | file | content |
//! |---|---|
//! | `protocol.rs` | the requests |
//! | `harness.rs` | engines with so many bytes, and waiting until they are idle |
//! | `copy.rs` | a segment's export and import, beside a plain copy of as many bytes |
//! | `decode.rs` | sequences that decode while segments are offloaded and loaded |
//! | `first_token.rs` | a prompt whose beginning only the host or the disk has |
//! | `folder.rs` | a folder for the disk tier, and the system's cache of its files |
//! | `oversubscribed.rs` | users whose conversations take four times the device's bytes |
//!
//! Parts shared with `benches/scheduler/` are taken from there.

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
The measurements of `cargo xtask bench pager`; run that instead, or
    pager --serve [MODEL]    answer requests on this model, on MLX; without one on an oracle";

fn main() -> Result<()> {
    wire::run(USAGE, protocol::answer)
}
