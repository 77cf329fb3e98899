//! `LLMEngine`, by which Dynamo drives an engine.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use async_trait::async_trait;
use dynamo_backend_common::{
    DynamoError, EngineConfig, GenerateContext, KvEventSource, LLMEngine, LLMEngineOutput,
    LlmRegistration, MetricsBindings, MetricsCtx, PreprocessedRequest,
};
use futures::FutureExt;
use motet::{Engine, Shutdown};
use motet_server::fleet::CacheBlocks;
use motet_server::start;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::answer::{self, Answer, Items, Stopped};
use crate::arguments::Arguments;
use crate::kv_events::RANK;
use crate::{errors, kv_events, load, request};

/// The control that empties the cache, as other workers call it.
const CLEAR: &str = "clear_kv_blocks";

/// A worker, which has an engine from its start on.
pub(crate) struct MotetWorker {
    arguments: Arguments,
    engine: OnceLock<Engine>,
    publishers: Publishers,
}

/// The tasks that publish changes and use of the cache.
#[derive(Clone, Default)]
struct Publishers(Arc<Mutex<JoinSet<()>>>);

impl Publishers {
    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.0
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl MotetWorker {
    pub(crate) fn new(arguments: Arguments) -> Self {
        Self {
            arguments,
            engine: OnceLock::new(),
            publishers: Publishers::default(),
        }
    }

    fn engine(&self) -> Result<&Engine, DynamoError> {
        self.engine.get().ok_or_else(errors::not_started)
    }

    /// The facts about the engine by which Dynamo routes.
    fn registration(&self, engine: &Engine) -> EngineConfig {
        let (config, blocks) = (engine.config(), CacheBlocks::of(engine));
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        EngineConfig {
            model: self.arguments.model_name(),
            llm: Some(LlmRegistration {
                context_length: Some(number(engine.model().context_tokens_max)),
                kv_cache_block_size: Some(number(blocks.tokens)),
                total_kv_blocks: Some(blocks.total() as u64),
                max_num_seqs: Some(config.scheduler.sequences_max as u64),
                max_num_batched_tokens: Some(config.scheduler.chunking.step_tokens_max as u64),
                ..LlmRegistration::default()
            }),
            ..EngineConfig::default()
        }
    }
}

#[async_trait]
impl LLMEngine for MotetWorker {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let (model, config) = (&self.arguments.model, self.arguments.engine_config());
        let engine = start::engine_of(model, config, None).await;
        let engine = engine.map_err(|error| errors::start(&error))?;
        let engine = self.engine.get_or_init(|| engine);
        tracing::info!(device_memory = %engine.device_budget(), "the engine has started");
        Ok(self.registration(engine))
    }

    async fn generate(
        &self,
        sent: PreprocessedRequest,
        context: GenerateContext,
    ) -> Result<Items, DynamoError> {
        let engine = self.engine()?;
        let prompt_tokens = sent.token_ids.len();
        let request = request::read(sent, engine.model().context_tokens_max)?;
        if request.output_tokens_max == 0 {
            // The worker that had it before was lost between its last token and its end.
            return Ok(answer::ended(LLMEngineOutput::length(), prompt_tokens));
        }
        let has_logprobs = request.logprobs.is_some();
        let context = context.inner_arc();
        let mut stopped: Stopped = async move { context.stopped().await }.boxed();
        let stream = tokio::select! {
            biased;
            () = &mut stopped => return Ok(answer::ended(LLMEngineOutput::cancelled(), prompt_tokens)),
            stream = engine.submit(request) => stream.map_err(errors::submit)?,
        };
        Ok(Answer::new(stream, stopped, has_logprobs).into_items())
    }

    /// Hands the running requests over, and ends the engine.
    async fn cleanup(&self) -> Result<(), DynamoError> {
        if let Some(engine) = self.engine.get() {
            engine.shutdown(Shutdown::HandOver).await;
        }
        self.publishers.tasks().abort_all();
        Ok(())
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let (engine, publishers) = (self.engine()?.clone(), self.publishers.clone());
        Ok(vec![KvEventSource::Push {
            dp_rank: RANK,
            on_ready: Box::new(move |publisher| {
                publishers
                    .tasks()
                    .spawn(kv_events::publish(engine, publisher));
                Ok(())
            }),
        }])
    }

    async fn setup_metrics(&self, _: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let (engine, publishers) = (self.engine()?.clone(), self.publishers.clone());
        Ok(MetricsBindings {
            dp_ranks: vec![RANK],
            on_publisher_ready: Some(Box::new(move |publisher| {
                publishers.tasks().spawn(load::publish(engine, publisher));
                Ok(())
            })),
        })
    }

    /// One token of a prompt of one token.
    async fn health_check_payload(&self) -> Result<Option<Value>, DynamoError> {
        Ok(Some(json!({
            "token_ids": [0],
            "sampling_options": {"temperature": 0.0},
            "stop_conditions": {"max_tokens": 1, "ignore_eos": true},
        })))
    }

    async fn supported_controls(&self) -> Result<Vec<String>, DynamoError> {
        Ok(vec![CLEAR.to_owned()])
    }

    async fn engine_control(&self, control: String, _: Value) -> Result<Value, DynamoError> {
        if control != CLEAR {
            return Err(errors::invalid(format!(
                "there is no control {control:?}; expected {CLEAR:?}"
            )));
        }
        let result = self.engine()?.clear_all_caches().await;
        Ok(match result {
            Ok(()) => json!({"status": "success", "message": "the cache is empty"}),
            Err(error) => json!({"status": "error", "message": error.to_string()}),
        })
    }
}

#[cfg(test)]
mod tests;
