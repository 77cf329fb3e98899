//! The cache's figures of `cargo xtask bench`.
//!
//! A program that measures on request, as `benches/src/protocol.rs` says. It is a package of its own
//! so that kvbm-logical, its peer, stays out of all other dependencies.
//!
//! | file | content |
//! |---|---|
//! | `runs.rs` | the runs, by name |
//! | `matching.rs` | the speed of matching a long path |
//! | `session.rs`, `kvbm.rs` | match, open and close; kvbm-logical's match beside it |
//! | `eviction.rs` | insertion and eviction, from a thousand nodes to a million |
//! | `host_bytes.rs`, `allocations.rs` | bytes of bookkeeping, by a counting allocator |
//! | `harness.rs` | cores, tries and texts to measure on |
//! | `rounds.rs` | interleaved measurements |

mod allocations;
mod eviction;
mod harness;
mod host_bytes;
mod kvbm;
mod matching;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "a library has it too, and uses the rest"
)]
#[path = "../../src/measured.rs"]
mod measured;
#[allow(
    dead_code,
    unreachable_pub,
    reason = "a library has it too, and uses the rest"
)]
#[path = "../../src/protocol.rs"]
mod protocol;
mod rounds;
mod runs;
mod session;

use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const USAGE: &str = "\
The cache's side of `cargo xtask bench cache`; run that instead, or
    motet-bench-cache runs    answer requests";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("runs") => runs::serve(),
        _ => {
            println!("{USAGE}");
            Ok(())
        }
    }
}
