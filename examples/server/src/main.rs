//! An OpenAI-compatible server: see `--help`, and `lib.rs` for a map.

use anyhow::Result;
use clap::Parser;
use motet_server::arguments::Arguments;
use motet_server::serve;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // RUST_LOG sets the log filter; the default is `info`.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    serve::run(&arguments).await
}
