//! The load generator's program.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    motet_load_generator::main().await
}
