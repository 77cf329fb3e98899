use std::path::Path;

use motet::Engine;
use motet::error::StartError;
use motet::model::mlx::{MlxDevice, MlxOptions};

async fn start(model: &Path) -> Result<Engine, StartError> {
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        deterministic: true,
        ..MlxOptions::default()
    };
    Engine::open_with(model, options)?.start().await
}

// The guide shows what stands above.

#[tokio::test]
async fn a_model_that_is_not_there_is_an_error() {
    let error = start(Path::new("nowhere.gguf")).await;
    assert!(error.is_err(), "tests/mlx_model runs the mode itself");
}
