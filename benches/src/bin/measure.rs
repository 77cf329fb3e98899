//! Our program that measures on request.

use std::process::ExitCode;

fn main() -> ExitCode {
    motet_benches::measure()
}
