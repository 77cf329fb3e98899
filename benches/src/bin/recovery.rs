//! The same program as `measure`, under the name that is built with failpoints.

use std::process::ExitCode;

fn main() -> ExitCode {
    motet_benches::measure()
}
