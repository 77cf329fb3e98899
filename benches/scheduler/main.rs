//! What `cargo xtask bench scheduler` measures.
//!
//! It speaks as `benches/figures/` does: one JSON request a line on standard input, one
//! JSON answer a line on standard output. Names of figures, their goals and medians are
//! xtask's; here are loads, devices and clocks.
//!
//! Policies are measured in a virtual house: the scheduler's and the cache's cores and
//! the device's table as they are, the oracle as model, and a clock that only the cost
//! of a step moves on. What it says is the same in every run. Costs of the house itself
//! and of a real device are measured on a whole engine.
//!
//! | file | idea |
//! |---|---|
//! | `protocol.rs` | what can be asked for |
//! | `report.rs` | what an answer consists of |
//! | `arrivals.rs` | who asks for what, and when |
//! | `harness/` | the virtual house |
//! | `fair.rs` | two users, one greedy |
//! | `priority.rs` | an urgent class above a background |
//! | `preemption.rs` | less memory than the load wants |
//! | `cache_off.rs` | what a cache costs that finds nothing |
//! | `engine.rs` | a whole engine, on the oracle or on MLX, and a clerk for each caller |
//! | `host.rs` | what the house costs for each sequence and step |
//! | `overload.rs` | ten times more than can be served |
//! | `stall.rs` | long prompts beside those who decode |
//! | `stall_virtual.rs` | the same in the virtual house |
//! | `idle.rs` | how long the device waits |

mod arrivals;
mod cache_off;
mod engine;
mod fair;
mod harness;
mod host;
mod idle;
mod overload;
mod preemption;
mod priority;
mod protocol;
mod report;
mod stall;
mod stall_virtual;
mod wire;

use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "\
What `cargo xtask bench scheduler` measures; run that instead, or
    scheduler --serve [MODEL]    answer requests; those that need a model use this one, on MLX";

fn main() -> Result<()> {
    wire::run(USAGE, protocol::answer)
}
