//! `vllm.Control`: facts about server and model, the sources of KV events, and `Abort`.
//!
//! Its calls need a key where keys are required, and count against none. Calls for adapters, for new
//! weights and for sleep are answered as unimplemented.

use std::path::PathBuf;
use std::sync::Arc;

use tonic::{Request, Response, Status};
use vllm_proto::control_server;
use vllm_proto::*;

use super::running::RunningRequests;
use crate::app::App;
use crate::fleet::CacheBlocks;

/// The protocol that this server speaks, by which sidecars know it.
const API: &str = "vllm";

/// Facts that fleets ask for, beside those of the engine.
#[derive(Clone, Debug, Default)]
pub struct FleetFacts {
    /// The folder or repository in which the fleet finds the model's tokenizer.
    pub tokenizer: Option<PathBuf>,
    /// Where readers get KV events, if they are published.
    pub kv_events: Option<KvEventsFacts>,
}

/// Where readers get KV events.
#[derive(Clone, Debug)]
pub struct KvEventsFacts {
    /// The publisher's address.
    pub address: String,
    /// The address that replays missed events.
    pub replay_address: Option<String>,
    /// The events' topic.
    pub topic: String,
}

/// The service.
#[derive(Debug)]
pub(super) struct Control {
    app: Arc<App>,
    running: Arc<RunningRequests>,
    facts: FleetFacts,
    instance: String,
}

impl Control {
    pub(super) fn new(app: &Arc<App>, running: Arc<RunningRequests>, facts: FleetFacts) -> Self {
        Self {
            app: Arc::clone(app),
            running,
            facts,
            instance: app.name("server"),
        }
    }

    fn server_info(&self) -> ServerInfo {
        let engine = &self.app.engine;
        let (config, model) = (engine.config(), engine.model());
        let blocks = CacheBlocks::of(engine);
        ServerInfo {
            engine_version: concat!("motet ", env!("CARGO_PKG_VERSION")).to_owned(),
            api_version: API.to_owned(),
            instance_id: self.instance.clone(),
            parallelism: Some(ParallelismInfo {
                tensor_parallel_size: 1,
                pipeline_parallel_size: 1,
                data_parallel_size: 1,
                data_parallel_rank: 0,
                decode_context_parallel_size: 1,
                world_size: 1,
                data_parallel_size_local: 1,
            }),
            max_model_len: u32::try_from(model.context_tokens_max).unwrap_or(u32::MAX),
            kv_block_size: u32::try_from(blocks.tokens).unwrap_or(u32::MAX),
            total_kv_blocks: blocks.total() as u64,
            max_running_requests: config.scheduler.sequences_max as u64,
            max_batched_tokens: config.scheduler.chunking.step_tokens_max as u64,
            proto_version: VERSION.to_owned(),
            effective_attention_block_size: Some(blocks.tokens as u64),
            ..ServerInfo::default()
        }
    }

    fn model_info(&self) -> ModelInfo {
        let names: Vec<&str> = self.app.model_names.listed().collect();
        let others = names.iter().skip(1).map(|name| (*name).to_owned());
        let tokenizer = self.facts.tokenizer.as_ref();
        ModelInfo {
            model_id: tokenizer.map_or_else(
                || self.app.model.clone(),
                |folder| folder.display().to_string(),
            ),
            served_model_name: self.app.model.clone(),
            served_model_aliases: others.collect(),
            supports_text_input: self.app.engine.text().is_some(),
            supports_token_ids_input: true,
            ..ModelInfo::default()
        }
    }

    fn kv_event_sources(&self) -> Vec<KvEventSource> {
        let sources = self.facts.kv_events.iter().map(|events| KvEventSource {
            transport: "zmq".to_owned(),
            endpoint: events.address.clone(),
            topic: events.topic.clone(),
            replay_endpoint: events.replay_address.clone().unwrap_or_default(),
            data_parallel_rank: Some(0),
            encoding: "msgpack".to_owned(),
            ..KvEventSource::default()
        });
        sources.collect()
    }
}

/// The answer to calls for what this server does not have.
fn unimplemented() -> Status {
    Status::unimplemented(
        "this server has no adapters, no new weights and no sleep: it serves one model",
    )
}

#[tonic::async_trait]
impl control_server::Control for Control {
    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<ServerInfo>, Status> {
        Ok(Response::new(self.server_info()))
    }

    async fn get_model_info(
        &self,
        _: Request<GetModelInfoRequest>,
    ) -> Result<Response<ModelInfo>, Status> {
        Ok(Response::new(self.model_info()))
    }

    async fn get_kv_event_sources(
        &self,
        _: Request<GetKvEventSourcesRequest>,
    ) -> Result<Response<GetKvEventSourcesResponse>, Status> {
        let sources = self.kv_event_sources();
        Ok(Response::new(GetKvEventSourcesResponse { sources }))
    }

    async fn abort(
        &self,
        request: Request<AbortRequest>,
    ) -> Result<Response<AbortResponse>, Status> {
        let caller = request.extensions().get::<Option<Arc<str>>>();
        let caller = caller.and_then(Option::as_ref);
        for id in &request.get_ref().request_ids {
            self.running.abort(caller, id);
        }
        Ok(Response::new(AbortResponse {}))
    }

    async fn shutdown(
        &self,
        _: Request<ShutdownRequest>,
    ) -> Result<Response<ShutdownResponse>, Status> {
        // The operator's signal ends the process, and not a request.
        Err(Status::failed_precondition(
            "this server is ended by SIGTERM: it hands its requests over",
        ))
    }

    async fn is_paused(
        &self,
        _: Request<IsPausedRequest>,
    ) -> Result<Response<IsPausedResponse>, Status> {
        Ok(Response::new(IsPausedResponse { paused: false }))
    }

    async fn is_sleeping(
        &self,
        _: Request<IsSleepingRequest>,
    ) -> Result<Response<IsSleepingResponse>, Status> {
        Ok(Response::new(IsSleepingResponse { sleeping: false }))
    }

    async fn load_lora(
        &self,
        _: Request<LoadLoraRequest>,
    ) -> Result<Response<LoadLoraResponse>, Status> {
        Err(unimplemented())
    }

    async fn unload_lora(
        &self,
        _: Request<UnloadLoraRequest>,
    ) -> Result<Response<UnloadLoraResponse>, Status> {
        Err(unimplemented())
    }

    async fn list_loras(
        &self,
        _: Request<ListLorasRequest>,
    ) -> Result<Response<ListLorasResponse>, Status> {
        Err(unimplemented())
    }

    async fn pause_generation(
        &self,
        _: Request<PauseGenerationRequest>,
    ) -> Result<Response<PauseGenerationResponse>, Status> {
        Err(unimplemented())
    }

    async fn resume_generation(
        &self,
        _: Request<ResumeGenerationRequest>,
    ) -> Result<Response<ResumeGenerationResponse>, Status> {
        Err(unimplemented())
    }

    async fn sleep(&self, _: Request<SleepRequest>) -> Result<Response<SleepResponse>, Status> {
        Err(unimplemented())
    }

    async fn wake_up(&self, _: Request<WakeUpRequest>) -> Result<Response<WakeUpResponse>, Status> {
        Err(unimplemented())
    }

    async fn init_weight_transfer_engine(
        &self,
        _: Request<InitWeightTransferEngineRequest>,
    ) -> Result<Response<InitWeightTransferEngineResponse>, Status> {
        Err(unimplemented())
    }

    async fn start_weight_update(
        &self,
        _: Request<StartWeightUpdateRequest>,
    ) -> Result<Response<StartWeightUpdateResponse>, Status> {
        Err(unimplemented())
    }

    async fn start_draft_weight_update(
        &self,
        _: Request<StartDraftWeightUpdateRequest>,
    ) -> Result<Response<StartDraftWeightUpdateResponse>, Status> {
        Err(unimplemented())
    }

    async fn update_weights(
        &self,
        _: Request<UpdateWeightsRequest>,
    ) -> Result<Response<UpdateWeightsResponse>, Status> {
        Err(unimplemented())
    }

    async fn finish_weight_update(
        &self,
        _: Request<FinishWeightUpdateRequest>,
    ) -> Result<Response<FinishWeightUpdateResponse>, Status> {
        Err(unimplemented())
    }

    async fn update_weight_version(
        &self,
        _: Request<UpdateWeightVersionRequest>,
    ) -> Result<Response<UpdateWeightVersionResponse>, Status> {
        Err(unimplemented())
    }

    async fn get_weight_version(
        &self,
        _: Request<GetWeightVersionRequest>,
    ) -> Result<Response<GetWeightVersionResponse>, Status> {
        Err(unimplemented())
    }
}
