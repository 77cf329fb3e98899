//! Chooses the worker of each sequence: in turn, or as Dynamo's router does.

use std::collections::HashMap;
use std::time::Duration;

use dynamo_kv_router::config::KvRouterConfig;
use dynamo_kv_router::indexer::TieredMatchDetails;
use dynamo_kv_router::protocols::{
    BlockHashOptions, LocalBlockHash, PrefillLoadHint, RoutingConstraints, WorkerConfigLike,
    WorkerId, compute_block_hash_for_seq,
};
use dynamo_kv_router::scheduling::{OverlapAnalysis, ScheduleMode};
use dynamo_kv_router::selector::DefaultWorkerSelector;
use dynamo_kv_router::sequences::topology::WorkerDpRange;
use dynamo_kv_router::{
    ActiveSequencesMultiWorker, NoopSequencePublisher, RadixTree, SchedulingRequest,
    SequenceRequest, WorkerSelectionInput, WorkerSelector,
};
use motet_core::cache::BlockEvent;
use motet_protocol::SequenceId;
use tokio::time::Instant;

use crate::Result;
use crate::events::Events;
use crate::predicted::PredictedBlocks;
use crate::setting::{BLOCK_TOKENS, RouterSettings, Routing, STEP_TOKENS, Setting};
use crate::worker::Sequence;

/// Chooses workers, which are counted from 0.
pub(crate) enum Router {
    RoundRobin { workers: Vec<usize>, turns: usize },
    Kv(Box<KvRouter>),
}

/// Dynamo's index of cached blocks, its count of active sequences and its default selection of a
/// worker, put together as in its own replay (`dynamo-mocker`, offline).
pub(crate) struct KvRouter {
    config: KvRouterConfig,
    worker: Limits,
    workers: HashMap<WorkerId, Limits>,
    index: RadixTree,
    predicted: Option<PredictedBlocks>,
    active: ActiveSequencesMultiWorker<NoopSequencePublisher>,
    selector: DefaultWorkerSelector,
    events: Events,
    /// The moment that virtual time counts from.
    start: Instant,
}

/// The router's knowledge of a worker.
#[derive(Clone, Copy, Debug)]
struct Limits {
    blocks: u64,
}

impl Router {
    pub(crate) fn new(setting: &Setting) -> Self {
        match setting.routing {
            Routing::RoundRobin => Self::RoundRobin {
                workers: (0..setting.workers).collect(),
                turns: 0,
            },
            Routing::Kv(settings) => Self::Kv(Box::new(KvRouter::new(setting, settings))),
        }
    }

    /// Chooses a worker for a sequence that starts now.
    pub(crate) fn route(&mut self, now: Duration, sequence: &Sequence) -> Result<usize> {
        match self {
            Self::RoundRobin { workers, turns } => {
                let worker = workers[*turns % workers.len()];
                *turns += 1;
                Ok(worker)
            }
            Self::Kv(kv) => kv.route(now, sequence),
        }
    }

    /// Tells it of a worker's blocks.
    pub(crate) fn blocks_changed(&mut self, worker: usize, events: &[BlockEvent]) -> Result<()> {
        if let Self::Kv(kv) = self {
            for event in events {
                let event = kv.events.of(worker as WorkerId, event);
                kv.index.apply_event(event)?;
            }
        }
        Ok(())
    }

    /// Tells it that a sequence has its first token.
    pub(crate) fn prefilled(&mut self, now: Duration, sequence: SequenceId) -> Result<()> {
        if let Self::Kv(kv) = self {
            let now = kv.start + now;
            kv.active.mark_prefill_completed(&name(sequence), now)?;
        }
        Ok(())
    }

    /// Tells it that a sequence has ended.
    pub(crate) fn ended(&mut self, now: Duration, sequence: SequenceId) -> Result<()> {
        if let Self::Kv(kv) = self {
            kv.active.free(&name(sequence), kv.start + now)?;
        }
        Ok(())
    }

    /// Tells it that a worker is lost, and that an empty one has taken its place.
    pub(crate) fn replaced(&mut self, lost: usize, new: usize) -> Result<()> {
        match self {
            Self::RoundRobin { workers, .. } => {
                let lost = workers.iter_mut().filter(|worker| **worker == lost);
                lost.for_each(|worker| *worker = new);
            }
            Self::Kv(kv) => {
                let (lost, new) = (lost as WorkerId, new as WorkerId);
                kv.workers.remove(&lost);
                kv.active.unregister_worker(lost)?;
                kv.index.remove_worker(lost);
                if let Some(predicted) = &mut kv.predicted {
                    predicted.remove_worker(lost);
                }
                kv.workers.insert(new, kv.worker);
                kv.active.upsert_worker(WorkerDpRange::new(new, 0, 1))?;
            }
        }
        Ok(())
    }
}

impl KvRouter {
    fn new(setting: &Setting, settings: RouterSettings) -> Self {
        const LABEL: &str = "simulation";
        let config = KvRouterConfig {
            overlap_score_credit: settings.overlap_credit,
            ..KvRouterConfig::default()
        };
        let worker = Limits {
            blocks: setting.worker_blocks as u64,
        };
        let ids = 0..setting.workers as WorkerId;
        // Expiry would look at the real clock.
        let active = ActiveSequencesMultiWorker::new_without_expiry(
            NoopSequencePublisher,
            BLOCK_TOKENS,
            ids.clone().map(|id| (id, (0, 1))).collect(),
            false,
            0,
            LABEL,
        );
        Self {
            worker,
            workers: ids.map(|id| (id, worker)).collect(),
            index: RadixTree::new(),
            predicted: settings.predicted.map(PredictedBlocks::new),
            active,
            selector: DefaultWorkerSelector::new_seeded(Some(config.clone()), LABEL, setting.seed),
            config,
            events: Events::default(),
            start: Instant::now(),
        }
    }

    fn route(&mut self, now: Duration, sequence: &Sequence) -> Result<usize> {
        let now = self.start + now;
        let tokens = &sequence.tokens;
        let options = BlockHashOptions::default();
        let blocks = compute_block_hash_for_seq(tokens, BLOCK_TOKENS as u32, options);
        let chain = self.config.compute_seq_hashes_for_tracking(
            tokens,
            BLOCK_TOKENS as u32,
            None,
            options,
            Some(&blocks),
        );
        let mut request = scheduling_request(sequence)?;
        request.worker_loads = self.active.project_worker_loads(chain.as_deref(), now);
        let matches = self.matches(now, &blocks)?;
        let analysis = OverlapAnalysis::new(&self.config, BLOCK_TOKENS as u32, &matches);
        request.overlap = analysis.signals();
        let selected = self
            .selector
            .select_worker(WorkerSelectionInput::configured(
                &self.workers,
                &request,
                request.eligibility(),
                BLOCK_TOKENS as u32,
            ))?;
        if let Some(predicted) = &mut self.predicted {
            predicted.insert(now, selected.worker, &blocks)?;
        }
        let uncached = tokens.len().saturating_sub(selected.cached_tokens);
        let tracked = SequenceRequest {
            request_id: name(sequence.id),
            token_sequence: chain,
            track_prefill_tokens: request.track_prefill_tokens,
            expected_output_tokens: request.expected_output_tokens,
            prefill_load_hint: (uncached > 0).then_some(PrefillLoadHint {
                initial_effective_prefill_tokens: uncached,
                expected_prefill_duration: None,
            }),
            worker: selected.worker,
            lora_name: None,
        };
        self.active.add_request(tracked, now)?;
        Ok(usize::try_from(selected.worker.worker_id)?)
    }

    /// The blocks that each worker has or is expected to have, whichever are more.
    fn matches(&mut self, now: Instant, blocks: &[LocalBlockHash]) -> Result<TieredMatchDetails> {
        let mut device = self.index.find_match_details(blocks.to_vec(), false);
        if let Some(predicted) = &mut self.predicted {
            let scores = &mut device.overlap_scores.scores;
            for (worker, blocks) in predicted.find(now, blocks)?.scores {
                let known = scores.entry(worker).or_default();
                *known = blocks.max(*known);
            }
        }
        Ok(TieredMatchDetails {
            device,
            lower_tier: HashMap::default(),
        })
    }
}

/// A request without load and overlap.
fn scheduling_request(sequence: &Sequence) -> Result<SchedulingRequest> {
    Ok(SchedulingRequest {
        mode: ScheduleMode::Tracked {
            request_id: name(sequence.id),
        },
        token_seq: None,
        isl_tokens: sequence.tokens.len(),
        lora_name: None,
        expected_output_tokens: Some(u32::try_from(sequence.output_tokens)?),
        affinity_target: None,
        pinned_worker: None,
        allowed_worker_ids: None,
        routing_constraints: RoutingConstraints::default(),
        router_config_override: None,
        track_prefill_tokens: true,
        priority_jump: 0.0,
        strict_priority: 0,
        policy_class: None,
        session_context: None,
        overlap: Default::default(),
        kv_transfer_candidates: None,
        retain_kv_transfer_chain: false,
        shared_cache_hits: None,
        worker_loads: Default::default(),
        resp_tx: None,
    })
}

fn name(sequence: SequenceId) -> String {
    sequence.0.to_string()
}

impl WorkerConfigLike for Limits {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }

    fn data_parallel_size(&self) -> u32 {
        1
    }

    fn max_num_batched_tokens(&self) -> Option<u64> {
        Some(STEP_TOKENS as u64)
    }

    fn total_kv_blocks(&self) -> Option<u64> {
        Some(self.blocks)
    }
}
