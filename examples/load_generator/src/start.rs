//! The engine: a model on MLX, or the oracle.

use std::time::{Duration, Instant};

#[cfg(feature = "mlx")]
use anyhow::Context;
use anyhow::Result;
use indicatif::ProgressBar;
use motet::Engine;
use motet::config::EngineConfig;
use motet::model::ModelError;
#[cfg(feature = "mlx")]
use motet::model::mlx::{MlxDevice, MlxOptions};
use motet::model::oracle::{Oracle, OracleConfig, StepCost};

use crate::arguments::{Arguments, DeviceKind};
use crate::conversation::{ORACLE_END, ORACLE_VOCAB_SIZE};
use crate::progress::Progress;

/// The oracle's costs: the time of a step, and the bytes of a token's state (keys and
/// values of a model of 135 million parameters, in f32).
const ORACLE_COST: StepCost = StepCost {
    base: Duration::from_millis(2),
    per_token: Duration::from_micros(50),
    per_cached_token: Duration::ZERO,
};
const ORACLE_TOKEN_BYTES: usize = 46_080;
const ORACLE_CONTEXT_TOKENS_MAX: usize = 32_768;
/// One in this many of the oracle's tokens ends a reply.
const ORACLE_END_ONE_IN: u64 = 200;

/// A running engine, and the time that its start took.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) engine: Engine,
    pub(crate) load_time: Duration,
}

/// Starts the engine that the arguments ask for.
pub(crate) async fn engine(arguments: &Arguments, progress: &Progress) -> Result<Started> {
    let started_at = Instant::now();
    let loading = progress.spinner("loading the model");
    let config = arguments.engine.config();
    let engine = if arguments.oracle {
        oracle(config, ORACLE_COST).await?
    } else {
        let device = arguments.engine.device;
        model(arguments.model.as_deref(), device, config, &loading).await?
    };
    loading.finish_and_clear();
    Ok(Started {
        engine,
        load_time: started_at.elapsed(),
    })
}

/// Starts an engine on the oracle with these costs.
pub(crate) async fn oracle(config: EngineConfig, cost: StepCost) -> Result<Engine> {
    let oracle = OracleConfig {
        vocab_size: ORACLE_VOCAB_SIZE,
        context_tokens_max: ORACLE_CONTEXT_TOKENS_MAX,
        end_tokens: vec![ORACLE_END],
        end_one_in: ORACLE_END_ONE_IN,
        layer_bytes: ORACLE_TOKEN_BYTES.into(),
        cost,
        verify: false,
        ..OracleConfig::default()
    };
    let build = move || Oracle::new(oracle.clone()).map_err(|e| ModelError::Device(e.to_string()));
    Ok(Engine::builder(build).config(config).start().await?)
}

#[cfg(feature = "mlx")]
async fn model(
    named: Option<&str>,
    device: Option<DeviceKind>,
    config: EngineConfig,
    loading: &ProgressBar,
) -> Result<Engine> {
    // Nothing else runs yet, so that a download may block.
    let show = |line| loading.set_message(line);
    let path = crate::model_path::find(named, |name| std::env::var_os(name), show)?;
    let options = MlxOptions {
        device: device.map(|device| match device {
            DeviceKind::Cpu => MlxDevice::Cpu,
            DeviceKind::Gpu => MlxDevice::Gpu,
        }),
        ..MlxOptions::default()
    };
    let loaded = async {
        let engine = Engine::open_with(&path, options)?;
        engine.config(config).start().await
    };
    loaded
        .await
        .with_context(|| format!("cannot run {}", path.display()))
}

#[cfg(not(feature = "mlx"))]
async fn model(
    _: Option<&str>,
    _: Option<DeviceKind>,
    _: EngineConfig,
    _: &ProgressBar,
) -> Result<Engine> {
    anyhow::bail!(
        "this program was built without MLX and cannot run a model.\n\
         Set MLX up and build with it:\n  \
           cargo xtask setup --model smollm2-135m-instruct\n  \
           cargo run --release --package motet-load-generator --features mlx\n\
         or see the scheduler at work on a simulated device:\n  \
           cargo run --release --package motet-load-generator -- --oracle"
    )
}
