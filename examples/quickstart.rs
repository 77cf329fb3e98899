//! The smallest program that talks to a model.
//!
//! ```sh
//! cargo xtask setup --model smollm2-135m-instruct   # once
//! cargo run --release --features mlx --example quickstart -- [MODEL]
//! ```

use std::io::Write;

use motet::text::Message;
use motet::{Engine, Request, Shutdown};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let engine = Engine::open(model_path()?)?.start().await?;
    let question = Message::user("What is a motet? Answer in one sentence.");
    let request = Request::chat([question]).output_tokens_max(64);
    let mut stream = engine.submit(request).await?;
    while let Some(piece) = stream.next().await {
        print!("{}", piece?.text);
        std::io::stdout().flush()?;
    }
    engine.shutdown(Shutdown::Finish).await;
    Ok(())
}

/// Returns the first argument, or the model that `cargo xtask setup` fetched.
fn model_path() -> anyhow::Result<std::path::PathBuf> {
    let named = std::env::args_os().nth(1);
    let downloaded = || {
        let folder = std::env::var_os("MOTET_MODEL_DIR")?;
        Some(std::path::Path::new(&folder).join("smollm2-135m-instruct.gguf"))
    };
    named
        .map(Into::into)
        .or_else(|| std::env::var_os("MOTET_MODEL").map(Into::into))
        .or_else(downloaded)
        .ok_or_else(|| anyhow::anyhow!("name a model, or run `cargo xtask setup` first"))
}
