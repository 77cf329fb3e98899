//! The report of the figures: `cargo xtask bench`.

use std::process::ExitCode;

fn main() -> ExitCode {
    motet_benches::main()
}
