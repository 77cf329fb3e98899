//! The fleet's figures of `cargo xtask bench`: Motet's cache cores behind Dynamo's own router, on a
//! virtual clock.
//!
//! A program that measures on request, as `benches/src/protocol.rs` says. It is a package of its own
//! so that Dynamo's router stays out of all other dependencies.
//!
//! | file | content |
//! |---|---|
//! | `runs.rs` | the runs, by name |
//! | `setting.rs` | what is simulated |
//! | `fleet.rs` | the virtual clock: arrivals, steps, lost workers |
//! | `worker.rs`, `running.rs`, `costs.rs` | a worker: a cache core, its sequences, and the time of its steps |
//! | `router.rs`, `predicted.rs`, `events.rs` | Dynamo's router, and Motet's block events as it reads them |
//! | `tier.rs` | the shared tier as a set of keys |
//! | `trace.rs` | the trace as tokens, and what an endless cache would reuse of it |

mod costs;
mod events;
mod fleet;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "a library has it too, and uses the rest"
)]
#[path = "../../src/measured.rs"]
mod measured;
mod predicted;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "a library has it too, and uses the rest"
)]
#[path = "../../src/protocol.rs"]
mod protocol;
mod router;
mod running;
mod runs;
mod setting;
#[cfg(test)]
mod tests;
mod tier;
mod trace;
mod worker;

use std::error::Error;
use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "\
The simulated side of `cargo xtask bench fleet`; run that instead, or
    motet-bench-fleet runs TRACE    answer requests about a trace of blocks";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [command, trace] if command == "runs" => runs::serve(Path::new(trace)),
        _ => {
            println!("{USAGE}");
            Ok(())
        }
    }
}
