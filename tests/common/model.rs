//! The real model that tests run.

use std::path::PathBuf;

/// Its file: the path in `MOTET_MODEL`, or SmolLM2 as downloaded by the set-up.
pub(crate) fn model() -> PathBuf {
    let named = std::env::var_os("MOTET_MODEL").map(PathBuf::from);
    let downloaded = || {
        let folder = std::env::var_os("MOTET_MODEL_DIR")?;
        Some(PathBuf::from(folder).join("smollm2-135m-instruct.gguf"))
    };
    let path = named.or_else(downloaded).filter(|path| path.exists());
    path.expect("the model: run `cargo xtask setup --model smollm2-135m-instruct` first")
}
