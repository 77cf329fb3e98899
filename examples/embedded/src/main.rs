//! Completes a prompt with a model, from a crate outside Motet's workspace.
//!
//! ```sh
//! cargo xtask setup --for FOLDER   # once, in Motet's checkout; FOLDER is this crate's
//! cargo run -- MODEL PROMPT        # with `blas` behind it, on OpenBLAS instead of Motet's kernels
//! ```

use motet::model::mlx::{MlxDevice, MlxOptions};
use motet::{Engine, Request, Shutdown};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(prompt)) = (arguments.next(), arguments.next()) else {
        return Err("name a model and a prompt".into());
    };
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        kernels: arguments.next().as_deref() != Some("blas"),
        ..MlxOptions::default()
    };
    let engine = Engine::open_with(model, options)?.start().await?;
    let request = Request::text(prompt).output_tokens_max(8);
    let stream = engine.submit(request).await?;
    println!("{}", stream.collect().await?.text);
    engine.shutdown(Shutdown::Finish).await;
    Ok(())
}
