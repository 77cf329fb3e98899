//! The cache's figures of `cargo xtask bench`.
//!
//! A program like `benches/figures/`: one JSON request a line on standard input, one JSON
//! answer a line on standard output, and each answer carries all samples of one figure. It is a
//! package of its own so that kvbm-logical, its peer, stays out of all other dependencies.
//!
//! | file | content |
//! |---|---|
//! | `protocol.rs` | the requests, and the loop that answers them |
//! | `matching.rs` | the speed of matching a long path |
//! | `session.rs`, `kvbm.rs` | match, open and close; kvbm-logical's match beside it |
//! | `eviction.rs` | insertion and eviction, from a thousand nodes to a million |
//! | `host_bytes.rs`, `allocations.rs` | bytes of bookkeeping, by a counting allocator |
//! | `harness.rs` | cores, tries and texts to measure on |
//! | `rounds.rs` | interleaved measurements, medians |

mod allocations;
mod eviction;
mod harness;
mod host_bytes;
mod kvbm;
mod matching;
mod protocol;
mod rounds;
mod session;

use std::error::Error;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

const USAGE: &str = "\
The cache's side of `cargo xtask bench cache`; run that instead, or
    motet-bench-cache --serve    answer requests";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("--serve") => protocol::serve(),
        _ => {
            println!("{USAGE}");
            Ok(())
        }
    }
}
