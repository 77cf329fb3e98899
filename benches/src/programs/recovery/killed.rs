//! Engines whose device thread can be killed.

use std::path::Path;
use std::time::{Duration, Instant};

use motet::config::EngineConfig;
use motet::model::oracle::Oracle;
use motet::model::weights::ModelFiles;
use motet::model::{ModelError, ModelSpec};
use motet::{Engine, Request, TokenId};
use rand_chacha::ChaCha8Rng;

use crate::programs::arrivals::prompt;
use crate::programs::engine::{TimedReader, load_from, slow_oracle, wait_for_tokens};
use crate::programs::recovery::injection::Injection;
use crate::programs::{Result, pages};

/// More kills than will occur.
const KILLS_MAX: usize = 1 << 20;
/// A device that is not killed after so long is an error.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Tokens that a caller may leave unread.
const UNREAD_TOKENS: usize = 24;
/// Tokens that all decode side by side before the measurement starts.
const WARM_TOKENS: usize = 8;
/// Tokens of each sequence by then, if it is not ahead of others.
pub(crate) const DECODED_TOKENS: usize = UNREAD_TOKENS + WARM_TOKENS;

/// Numeric mode of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As fast as possible.
    Fast,
    /// The same bits whatever else is in a step.
    Deterministic,
}

/// An engine whose device thread can be killed.
pub(crate) struct Killable {
    pub(crate) engine: Engine,
    injection: Injection,
}

impl Killable {
    pub(crate) async fn start(
        model: Option<&Path>,
        mut config: EngineConfig,
        mode: Mode,
        recovers: bool,
    ) -> Result<Self> {
        config.recovery.rebuilds_max = KILLS_MAX;
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
            Some(_) => return Err(crate::programs::engine::NO_MLX.into()),
        };
        let _ = mode;
        let injection = Injection::default();
        let builder = injection
            .clone()
            .into_builder(builder.config(config), recovers)?;
        let engine = builder.start().await?;
        Ok(Self { engine, injection })
    }

    /// Kills the device thread at its next outcome. Returns the time of the kill.
    pub(crate) async fn kill(&self) -> Result<Instant> {
        self.injection.kill();
        let started_at = Instant::now();
        while self.injection.is_due() {
            if started_at.elapsed() > TIMEOUT {
                return Err("the device thread is not killed".into());
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        Ok(Instant::now())
    }
}

/// Lets all of these decode side by side: none continues before each has had `UNREAD_TOKENS`,
/// because no stream is read until then. Prompts are therefore not computed beside decoding
/// sequences.
pub(crate) async fn side_by_side(
    engine: &Engine,
    requests: Vec<Request>,
) -> Result<Vec<TimedReader>> {
    let mut streams = Vec::with_capacity(requests.len());
    for request in requests {
        streams.push(engine.submit(request).await?);
    }
    let started_at = Instant::now();
    while engine.stats().paused < streams.len() {
        if started_at.elapsed() > TIMEOUT {
            return Err(format!("not all decode: {:?}", engine.stats()).into());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let timed_readers: Vec<TimedReader> = streams.into_iter().map(TimedReader::new).collect();
    wait_for_tokens(&timed_readers, UNREAD_TOKENS + WARM_TOKENS).await?;
    Ok(timed_readers)
}

/// Settings with memory for twice as many of these sequences as there are, and for their copies
/// in host memory on request.
pub(crate) fn config(
    spec: &ModelSpec,
    streams: usize,
    tokens: usize,
    is_paged: bool,
) -> EngineConfig {
    let bytes = 2 * streams * spec.tail_bytes(tokens);
    let mut config = pages::config(spec, bytes, if is_paged { 2 * bytes } else { 0 });
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

/// Measures the time to load the model again from open files.
pub(crate) struct Load(Option<ModelFiles>);

impl Load {
    pub(crate) fn new(model: Option<&Path>) -> Result<Self> {
        let load = Self(model.map(ModelFiles::open).transpose()?);
        // The first load reads everything once more, for the model's identity.
        load.seconds()?;
        Ok(load)
    }

    /// Seconds of a load on a thread of its own, as a device thread does it; nothing for the
    /// oracle.
    pub(crate) fn seconds(&self) -> Result<f64> {
        let Some(files) = &self.0 else {
            return Ok(0.0);
        };
        std::thread::scope(|scope| {
            let load = || {
                let started_at = Instant::now();
                let model = load_from(files, false)?;
                let seconds = started_at.elapsed().as_secs_f64();
                drop(model);
                Ok(seconds)
            };
            let loaded = scope.spawn(load).join();
            loaded.map_err(|_| "the model panicked while loading")?
        })
    }
}
