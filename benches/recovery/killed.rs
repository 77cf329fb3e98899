//! Engines whose device thread can be killed.

use std::path::Path;
use std::time::{Duration, Instant};

use motet::config::EngineConfig;
use motet::fuse::Fuses;
use motet::model::oracle::Oracle;
use motet::model::{ModelError, ModelSpec};
use motet::{Engine, Request, TokenId};
use rand_chacha::ChaCha8Rng;

use crate::arrivals::prompt;
use crate::engine::{Clerk, all_have, slow_oracle};
use crate::{Result, house};

/// More kills than there will be.
const KILLS_MAX: usize = 1 << 20;
/// A device that is not killed after so long is an error.
const PATIENCE: Duration = Duration::from_secs(120);
/// Tokens that a caller may leave unread.
const UNREAD_TOKENS: usize = 24;
/// Tokens that all decode side by side before it counts.
const WARM_TOKENS: usize = 8;
/// Tokens that each has had by then, if it is not ahead of others.
pub(crate) const DECODED_TOKENS: usize = UNREAD_TOKENS + WARM_TOKENS;

/// How a model is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As fast as can be.
    Fast,
    /// The same bits whatever else is in a step.
    Deterministic,
}

/// An engine, and what kills its device thread.
pub(crate) struct Killable {
    pub(crate) engine: Engine,
    fuses: Fuses,
}

impl Killable {
    pub(crate) async fn start(
        model: Option<&Path>,
        mut config: EngineConfig,
        mode: Mode,
        recovers: bool,
    ) -> Result<Self> {
        config.recovery.rebuilds_max = KILLS_MAX;
        let fuses = Fuses::default();
        let builder = match model {
            None => Engine::builder(|| {
                Oracle::new(slow_oracle()).map_err(|error| ModelError::Device(error.to_string()))
            }),
            #[cfg(feature = "mlx")]
            Some(path) => {
                let options = motet::model::mlx::MlxOptions {
                    deterministic: mode == Mode::Deterministic,
                    ..Default::default()
                };
                Engine::open_with(path, options)?
            }
            #[cfg(not(feature = "mlx"))]
            Some(_) => return Err(crate::engine::NO_MLX.into()),
        };
        let _ = mode;
        let builder = builder.config(config).fuses(fuses.clone());
        let builder = match recovers {
            true => builder,
            false => builder.without_book_keeping(),
        };
        let engine = builder.start().await?;
        Ok(Self { engine, fuses })
    }

    /// Kills the device thread at its next outcome; when it has come to that.
    pub(crate) async fn kill(&self) -> Result<Instant> {
        self.fuses.device.light(1);
        let begun = Instant::now();
        while self.fuses.device.is_lit() {
            if begun.elapsed() > PATIENCE {
                return Err("the device thread is not killed".into());
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        Ok(Instant::now())
    }
}

/// Has all of these decode side by side: none goes on before each has had `UNREAD_TOKENS`, for
/// nobody reads until then. So prompts are not computed beside those who decode.
pub(crate) async fn side_by_side(engine: &Engine, requests: Vec<Request>) -> Result<Vec<Clerk>> {
    let mut streams = Vec::with_capacity(requests.len());
    for request in requests {
        streams.push(engine.submit(request).await?);
    }
    let begun = Instant::now();
    while engine.stats().paused < streams.len() {
        if begun.elapsed() > PATIENCE {
            return Err(format!("not all decode: {:?}", engine.stats()).into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let clerks: Vec<Clerk> = streams.into_iter().map(Clerk::new).collect();
    all_have(&clerks, UNREAD_TOKENS + WARM_TOKENS).await?;
    Ok(clerks)
}

/// Settings with room for twice as many of these sequences as there are, and for their
/// copies in host memory if that is wanted.
pub(crate) fn config(
    spec: &ModelSpec,
    streams: usize,
    tokens: usize,
    is_paged: bool,
) -> EngineConfig {
    let bytes = 2 * streams * spec.tail_bytes(tokens);
    let mut config = house::config(spec, bytes, if is_paged { 2 * bytes } else { 0 });
    config.scheduler.unread_tokens_max = UNREAD_TOKENS;
    config
}

/// Prompts that have nothing in common.
pub(crate) fn prompts(
    numbers: &mut ChaCha8Rng,
    streams: usize,
    tokens: usize,
) -> Vec<Vec<TokenId>> {
    (0..streams).map(|_| prompt(numbers, tokens)).collect()
}

/// How long it takes to load the model again, of which the files are open.
pub(crate) struct Load(#[cfg(feature = "mlx")] Option<motet::model::weights::ModelFiles>);

impl Load {
    pub(crate) fn new(model: Option<&Path>) -> Result<Self> {
        #[cfg(feature = "mlx")]
        {
            let files = model.map(motet::model::weights::ModelFiles::open);
            let load = Self(files.transpose()?);
            // The first reads all once more, for the model's identity.
            load.seconds()?;
            Ok(load)
        }
        #[cfg(not(feature = "mlx"))]
        match model {
            None => Ok(Self()),
            Some(_) => Err(crate::engine::NO_MLX.into()),
        }
    }

    /// On a thread of its own, as a device thread does it; nothing for the oracle.
    pub(crate) fn seconds(&self) -> Result<f64> {
        #[cfg(feature = "mlx")]
        if let Some(files) = &self.0 {
            use motet::model::mlx::{MlxModel, MlxOptions};

            return std::thread::scope(|scope| {
                let load = || {
                    let begun = Instant::now();
                    let model = MlxModel::load(files, MlxOptions::default())?;
                    let seconds = begun.elapsed().as_secs_f64();
                    drop(model);
                    Ok::<f64, ModelError>(seconds)
                };
                let loaded = scope.spawn(load).join();
                Ok(loaded.map_err(|_| "the model panicked while loading")??)
            });
        }
        Ok(0.0)
    }
}
