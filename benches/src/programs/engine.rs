//! A whole engine, on the oracle or on MLX, and a timed reader for each caller.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use motet::config::EngineConfig;
use motet::model::ModelError;
use motet::model::oracle::{Oracle, OracleConfig};
use motet::model::weights::ModelFiles;
use motet::remote::RemoteTier;
use motet::{Engine, EngineBuilder, Request, TokenId, TokenStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use crate::programs::Result;

/// The error of a measurement on MLX where that is missing.
#[cfg(not(feature = "mlx"))]
pub(crate) const NO_MLX: &str = "built without MLX: build with `--features mlx`";

/// How often a condition is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A runtime of so many workers; 0 uses the caller's thread only.
pub(crate) fn runtime(workers: usize) -> Result<Runtime> {
    let mut builder = match workers {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    Ok(builder
        .worker_threads(workers.max(1))
        .enable_all()
        .build()?)
}

/// An engine on the oracle.
pub(crate) async fn on_oracle(oracle: OracleConfig, config: EngineConfig) -> Result<Engine> {
    Ok(of_oracle(oracle, config).start().await?)
}

/// An engine on this model, or on an oracle of similar speed.
pub(crate) async fn on_model(model: Option<&Path>, config: EngineConfig) -> Result<Engine> {
    on_model_in_mode(model, config, false).await
}

/// As [`on_model`]. With `deterministic`, every sum is in its sequence's order, and tokens do not
/// depend on what else a step computes.
pub(crate) async fn on_model_in_mode(
    model: Option<&Path>,
    config: EngineConfig,
    deterministic: bool,
) -> Result<Engine> {
    Ok(of_model(model, config, deterministic).start().await?)
}

/// As [`on_model`], with a tier that machines share, if there is one.
pub(crate) async fn on_model_with(
    model: Option<&Path>,
    config: EngineConfig,
    tier: Option<Arc<dyn RemoteTier>>,
) -> Result<Engine> {
    let mut builder = of_model(model, config, false);
    if let Some(tier) = tier {
        builder = builder.remote_tier(tier);
    }
    Ok(builder.start().await?)
}

fn of_oracle(oracle: OracleConfig, config: EngineConfig) -> EngineBuilder {
    let build =
        move || Oracle::new(oracle.clone()).map_err(|error| ModelError::Device(error.to_string()));
    Engine::builder(build).config(config)
}

fn of_model(model: Option<&Path>, config: EngineConfig, deterministic: bool) -> EngineBuilder {
    let Some(path) = model.map(Path::to_path_buf) else {
        return of_oracle(slow_oracle(), config);
    };
    let build =
        move || load(&path, deterministic).map_err(|error| ModelError::Device(error.to_string()));
    Engine::builder(build).config(config)
}

/// Costs about as much as SmolLM2-135M on two cores, so that measurements of a model can be
/// tried without one.
pub(crate) fn slow_oracle() -> OracleConfig {
    OracleConfig {
        cost: motet::model::oracle::StepCost {
            base: Duration::from_millis(15),
            per_token: Duration::from_micros(1_400),
            per_cached_token: Duration::from_micros(2),
        },
        ..free_oracle()
    }
}

/// An oracle whose steps cost nothing.
pub(crate) fn free_oracle() -> OracleConfig {
    OracleConfig {
        vocab_size: 50_000,
        verify: false,
        ..OracleConfig::default()
    }
}

/// A model on MLX.
#[cfg(feature = "mlx")]
pub(crate) type RealModel = motet::model::mlx::MlxModel;
/// Replaces a model on MLX where that is missing.
#[cfg(not(feature = "mlx"))]
pub(crate) type RealModel = Oracle;

/// The model on MLX. With `deterministic`, every sum is in its sequence's order.
pub(crate) fn load(path: &Path, deterministic: bool) -> Result<RealModel> {
    load_from(&ModelFiles::open(path)?, deterministic)
}

/// As [`load`], from open files.
#[cfg(feature = "mlx")]
pub(crate) fn load_from(files: &ModelFiles, deterministic: bool) -> Result<RealModel> {
    let options = motet::model::mlx::MlxOptions {
        deterministic,
        ..Default::default()
    };
    Ok(RealModel::load(files, options)?)
}

/// The error of a measurement on MLX.
#[cfg(not(feature = "mlx"))]
pub(crate) fn load_from(_files: &ModelFiles, _deterministic: bool) -> Result<RealModel> {
    Err(NO_MLX.into())
}

/// A request of tokens that runs to its full length.
pub(crate) fn request(prompt: Vec<TokenId>, output_tokens: usize) -> Request {
    Request::tokens(prompt)
        .output_tokens_max(output_tokens)
        .ignore_end_tokens()
}

/// Reads a stream and records the time of each token.
#[derive(Debug)]
pub(crate) struct TimedReader {
    token_times: Arc<Mutex<Vec<Instant>>>,
    reader: JoinHandle<Result<()>>,
}

impl TimedReader {
    pub(crate) fn new(mut stream: TokenStream) -> Self {
        let token_times = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&token_times);
        let reader = tokio::spawn(async move {
            while let Some(piece) = stream.next().await {
                if piece?.token.is_some() {
                    let now = Instant::now();
                    own.lock()
                        .expect("no panic happens under the lock")
                        .push(now);
                }
            }
            Ok(())
        });
        Self {
            token_times,
            reader,
        }
    }

    /// Times of its tokens so far.
    pub(crate) fn times(&self) -> Vec<Instant> {
        self.token_times
            .lock()
            .expect("no panic happens under the lock")
            .clone()
    }

    fn tokens(&self) -> usize {
        self.token_times
            .lock()
            .expect("no panic happens under the lock")
            .len()
    }

    /// Whether the stream has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.reader.is_finished()
    }

    /// Waits for the end of the stream.
    pub(crate) async fn end(self) -> Result<()> {
        self.reader.await?
    }

    /// Drops the stream.
    pub(crate) async fn leave(self) {
        self.reader.abort();
        // It ends by being aborted.
        self.reader.await.ok();
    }
}

/// Submits these requests, and reads each stream.
pub(crate) async fn submit_all(
    engine: &Engine,
    requests: Vec<Request>,
) -> Result<Vec<TimedReader>> {
    let mut timed_readers = Vec::with_capacity(requests.len());
    for request in requests {
        timed_readers.push(TimedReader::new(engine.submit(request).await?));
    }
    Ok(timed_readers)
}

/// Waits until each has got so many tokens.
pub(crate) async fn wait_for_tokens(timed_readers: &[TimedReader], tokens: usize) -> Result<()> {
    let few = |timed_reader: &TimedReader| timed_reader.tokens() < tokens;
    wait_while(|| {
        let waits = timed_readers.iter().any(few);
        if timed_readers
            .iter()
            .any(|timed_reader| few(timed_reader) && timed_reader.is_finished())
        {
            return Err("a sequence ended before its time".into());
        }
        Ok(waits)
    })
    .await
}

/// Waits while a condition holds.
pub(crate) async fn wait_while(is_so: impl Fn() -> Result<bool>) -> Result<()> {
    while is_so()? {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}
