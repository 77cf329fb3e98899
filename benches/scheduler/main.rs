//! The measurements of `cargo xtask bench scheduler`.
//!
//! The protocol is that of `benches/figures/`: one JSON request a line on standard input, one
//! JSON answer a line on standard output. Names of figures, their goals and medians belong to
//! xtask; loads, devices and clocks are here.
//!
//! Policies are measured in a virtual engine: the real cores of the scheduler and the cache and
//! the device's real table, the oracle as model, and a clock that only the cost of a step
//! advances. Its results are the same in every run. Costs of the engine itself and of a real
//! device are measured on a whole engine.
//!
//! | file | content |
//! |---|---|
//! | `protocol.rs` | the requests |
//! | `report.rs` | the parts of an answer |
//! | `arrivals.rs` | requests and their arrival times |
//! | `harness/` | the virtual engine |
//! | `fair.rs` | two users, one greedy |
//! | `priority.rs` | an urgent class above a background |
//! | `preemption.rs` | less memory than the load needs |
//! | `cache_off.rs` | the cost of a cache without hits |
//! | `engine.rs` | a whole engine, on the oracle or on MLX, and a timed reader for each caller |
//! | `host.rs` | the engine's cost for each sequence and step |
//! | `overload.rs` | ten times more than can be served |
//! | `stall.rs` | long prompts beside decoding sequences |
//! | `stall_virtual.rs` | the same in the virtual engine |
//! | `hybrid/` | chats on a model that cannot resume after any token |
//! | `idle.rs` | how long the device waits |

mod arrivals;
mod cache_off;
mod engine;
mod fair;
mod harness;
mod host;
mod hybrid;
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
The measurements of `cargo xtask bench scheduler`; run that instead, or
    scheduler --serve [MODEL]    answer requests; those that need a model use this one, on MLX";

fn main() -> Result<()> {
    wire::run(USAGE, protocol::answer)
}
