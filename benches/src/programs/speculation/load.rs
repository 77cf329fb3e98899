//! Runs a load with drafts and without, in turn, on one engine.

use std::path::Path;
use std::time::Instant;

use motet::config::EngineConfig;
use motet::model::ModelError;
use motet::model::oracle::Oracle;
use motet::monitor::DraftCounts;
use motet::{Engine, Shutdown};

use super::Script;
use super::scripted::{Scripted, Scripts};
use crate::measured::{Records, median_of};
use crate::programs::Result;
use crate::programs::engine::{load, request, slow_oracle};

/// An engine on a scripted model.
pub(super) struct ScriptedEngine {
    engine: Engine,
    scripts: Scripts,
    /// Runs so far: each has a salt of its own, so that no run finds the answers of another.
    runs: u64,
}

/// One run of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) tokens_a_second: f64,
    pub(super) drafts: DraftCounts,
    pub(super) steps: u64,
    pub(super) tokens: usize,
}

impl ScriptedEngine {
    /// Starts one on this model, or on an oracle of similar speed.
    pub(super) async fn start(model: Option<&Path>, config: EngineConfig) -> Result<Self> {
        let scripts = Scripts::default();
        let own = scripts.clone();
        let engine = match model.map(Path::to_path_buf) {
            None => {
                let build = move || {
                    let oracle = Oracle::new(slow_oracle());
                    let oracle = oracle.map_err(|error| ModelError::Device(error.to_string()))?;
                    Ok(Scripted::new(oracle, own.clone()))
                };
                Engine::builder(build).config(config).start().await?
            }
            Some(path) => {
                let build = move || {
                    let model = load(&path, false);
                    let model = model.map_err(|error| ModelError::Device(error.to_string()))?;
                    Ok(Scripted::new(model, own.clone()))
                };
                Engine::builder(build).config(config).start().await?
            }
        };
        Ok(Self {
            engine,
            scripts,
            runs: 0,
        })
    }

    /// Runs these scripts, at most `batch` at once, in their order. The prompts are computed before,
    /// so that the time is that of decoding.
    pub(super) async fn run(
        &mut self,
        scripts: &[Script],
        batch: usize,
        speculation: bool,
    ) -> Result<Run> {
        self.runs += 1;
        let salt = format!("run {}", self.runs);
        self.scripts.set(scripts.to_vec());
        for (seed, script) in scripts.iter().enumerate() {
            let request = request(script.prompt.clone(), 1)
                .seed(seed as u64)
                .cache_salt(&salt)
                .speculation(false);
            self.engine.submit(request).await?.collect().await?;
        }
        let before = self.engine.stats();
        let started = Instant::now();
        let mut running = tokio::task::JoinSet::new();
        for (seed, script) in scripts.iter().enumerate() {
            if running.len() == batch {
                ended(running.join_next().await)?;
            }
            let request = request(script.prompt.clone(), script.output.len())
                .seed(seed as u64)
                .cache_salt(&salt)
                .speculation(speculation);
            let stream = self.engine.submit(request).await?;
            let expected = script.output.clone();
            running.spawn(async move {
                let output = stream.collect().await?;
                if output.tokens == expected {
                    Ok(())
                } else {
                    Err("an output is not its script".into())
                }
            });
        }
        while let Some(end) = running.join_next().await {
            ended(Some(end))?;
        }
        let seconds = started.elapsed().as_secs_f64();
        let after = self.engine.stats();
        let tokens = scripts.iter().map(|script| script.output.len()).sum();
        Ok(Run {
            tokens_a_second: tokens as f64 / seconds,
            drafts: after.drafts.since(before.drafts),
            steps: after.steps - before.steps,
            tokens,
        })
    }

    pub(super) async fn end(self) {
        self.engine.shutdown(Shutdown::Abort).await;
    }
}

/// Records tokens/s with ÷ without of each turn.
pub(super) fn record(records: &mut Records, figure: &str, with: &[Run], without: &[Run]) {
    for (with, without) in with.iter().zip(without) {
        records.sample(figure, with.tokens_a_second / without.tokens_a_second);
    }
    let last = with[with.len() - 1];
    let remark = format!(
        "{:.1} tok/s against {:.1}; {} tokens in {} steps, {} of {} draft tokens accepted in the last turn",
        median_of(with, |run| run.tokens_a_second),
        median_of(without, |run| run.tokens_a_second),
        last.tokens,
        last.steps,
        last.drafts.accepted_tokens,
        last.drafts.draft_tokens,
    );
    records.remark(figure, remark);
}

fn ended(end: Option<std::result::Result<Result<()>, tokio::task::JoinError>>) -> Result<()> {
    end.expect("a sequence runs")??;
    Ok(())
}
