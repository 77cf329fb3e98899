//! Engines with so many bytes, and waiting until they are idle.

use std::path::Path;
use std::time::{Duration, Instant};

use motet::config::EngineConfig;
use motet::model::oracle::Oracle;
use motet::model::{Model, ModelError, ModelSpec};
use motet::{Engine, TokenId};

use crate::programs::Result;
use crate::programs::engine::{load, request, slow_oracle};

/// How often an engine is polled, and how often in a row it must be idle.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const IDLE_POLLS: usize = 50;
/// An engine that is not idle after so long is an error.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Copies take whole pages, which matters only for the oracle's small state.
const PAGES_BYTES: usize = 1 << 20;

/// The result of a prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstToken {
    /// From submit to the first token.
    pub(crate) seconds: f64,
    pub(crate) cached_tokens: usize,
}

/// The model's specification.
pub(crate) fn spec(model: Option<&Path>) -> Result<ModelSpec> {
    match model {
        None => Ok(Oracle::new(slow_oracle())?.spec().clone()),
        Some(path) => Ok(load(path, false)?.spec().clone()),
    }
}

/// Settings with so many device bytes for cached state, beside a step's scratch, and so many
/// host bytes for copies, if any.
pub(crate) fn config(spec: &ModelSpec, device_bytes: usize, host_bytes: usize) -> EngineConfig {
    let mut config = EngineConfig::default();
    config.scheduler.unread_tokens_max = 1 << 16;
    config.cache.full_sequences_min = 0;
    config.cache.device_bytes_max = device_bytes + config.scratch_bytes(spec);
    if host_bytes > 0 {
        // Beside the labels of copies, and an eighth that is kept for the next.
        let label_bytes = host_bytes / 16 + PAGES_BYTES;
        config.pager.label_bytes_max = Some(label_bytes);
        config.pager.host_bytes_max = host_bytes + PAGES_BYTES + label_bytes + label_bytes / 7;
    }
    config
}

/// An engine on this model, or on an oracle of similar speed, and the model's packer.
pub(crate) async fn start_with_packer<M, B>(
    build: B,
    config: EngineConfig,
) -> Result<(Engine, M::Packer)>
where
    M: Model,
    B: Fn() -> Result<M> + Send + Sync + 'static,
{
    let (sender, packer) = std::sync::mpsc::channel();
    let build = move || {
        let model = build().map_err(|error| ModelError::Device(error.to_string()))?;
        // Only the first packer is used.
        sender.send(model.packer()).ok();
        Ok(model)
    };
    let engine = Engine::builder(build).config(config).start().await?;
    Ok((engine, packer.recv()?))
}

/// Has one token generated after a prompt.
pub(crate) async fn ask(engine: &Engine, prompt: Vec<TokenId>) -> Result<FirstToken> {
    let started_at = Instant::now();
    let mut stream = engine.submit(request(prompt, 1)).await?;
    let (mut seconds, mut finish) = (None, None);
    while let Some(piece) = stream.next().await {
        let piece = piece?;
        if piece.token.is_some() {
            seconds.get_or_insert_with(|| started_at.elapsed().as_secs_f64());
        }
        finish = piece.finish;
    }
    let finish = finish.ok_or("a stream without an end")?;
    Ok(FirstToken {
        seconds: seconds.ok_or("a stream without a token")?,
        cached_tokens: finish.usage.cached_tokens,
    })
}

/// Waits until no sequence runs and no copy moves. If `writes`, all copies are on the disk
/// then.
pub(crate) async fn wait_until_idle(engine: &Engine, writes: bool) -> Result<()> {
    let started_at = Instant::now();
    let (mut before, mut idle_polls) = (None, 0);
    while idle_polls < IDLE_POLLS {
        if started_at.elapsed() > TIMEOUT {
            return Err(format!(
                "the engine does not become idle: {:?}",
                engine.stats().pager
            )
            .into());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        let stats = engine.stats();
        let runs = stats.running + stats.waiting > 0;
        // A copy that grew was packed more often than it was written.
        let written = !writes || stats.pager.disk_copies == stats.pager.copies;
        let now = (stats.pager, stats.cache.sealed_bytes);
        idle_polls = if !runs && written && before == Some(now) {
            idle_polls + 1
        } else {
            0
        };
        before = Some(now);
    }
    Ok(())
}

/// Whether the device holds any prefix of the prompt.
pub(crate) async fn is_on_device(engine: &Engine, prompt: &[TokenId]) -> Result<bool> {
    let tree = engine.cache_tree(None).await?;
    let mut tops = tree.nodes.iter().filter(|node| node.tokens_before == 0);
    Ok(tops.any(|top| top.tokens.first() == prompt.first()))
}
