//! An OpenAI-compatible server: see `--help`, and `lib.rs` for a map.

use anyhow::Result;
use clap::Parser;
use motet_server::arguments::{Arguments, LogForm};
use motet_server::serve;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // RUST_LOG sets the log filter; the default is `info`.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match arguments.log_form {
        LogForm::Json => log.json().flatten_event(true).init(),
        LogForm::Text => log.with_target(false).init(),
    }
    serve::run(&arguments).await
}
