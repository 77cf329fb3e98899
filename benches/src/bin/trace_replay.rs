//! Replays traces of requests through the cache, and reports the hit rates.

use std::process::ExitCode;

fn main() -> ExitCode {
    motet_benches::trace_replay()
}
