//! What a model says after a few words, from a crate outside Motet's workspace.
//!
//! ```sh
//! cargo xtask setup --for FOLDER   # once, in Motet's checkout; FOLDER is this crate's
//! cargo run -- MODEL PROMPT
//! ```

use motet::{Engine, Request, Shutdown};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(prompt)) = (arguments.next(), arguments.next()) else {
        return Err("name a model and a prompt".into());
    };
    let engine = Engine::open(model)?.start().await?;
    let request = Request::text(prompt).output_tokens_max(8);
    let stream = engine.submit(request).await?;
    println!("{}", stream.collect().await?.text);
    engine.shutdown(Shutdown::Finish).await;
    Ok(())
}
