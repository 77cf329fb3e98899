//! A worker: Motet's cache core, and steps that take the time of `costs.rs`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use motet_core::cache::{BlockEvent, CacheCore, Effect, Message, OpenSlot};
use motet_core::config::CacheConfig;
use motet_protocol::{LayerGroup, LayerKind, ModelSpec, SequenceId, TokenId};

use crate::costs;
use crate::running::Running;
use crate::setting::{BLOCK_TOKENS, SEQUENCES_MAX, STEP_TOKENS, Setting, Tells};
use crate::tier::SharedTier;
use crate::trace::Outputs;

/// A request's way through the fleet, on one worker.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SequenceId,
    /// The prompt, and the output that earlier workers have sent.
    pub(crate) tokens: Arc<[TokenId]>,
    /// Tokens of output that are still to come.
    pub(crate) output_tokens: usize,
    /// Its request's place in the trace.
    pub(crate) request: usize,
    /// Its state on a worker that was lost.
    pub(crate) lost: Option<Lost>,
}

/// A sequence on a lost worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    /// Tokens of the prompt that it did not compute, at its first start.
    pub(crate) reused: usize,
    /// Tokens whose state it had.
    pub(crate) computed: usize,
    /// Whether it had sent a token.
    pub(crate) is_answered: bool,
}

/// A result of a step.
#[derive(Debug)]
pub(crate) enum Report {
    /// A sequence has the first token that this worker sends.
    Prefilled(Prefilled),
    /// A sequence has all its tokens.
    Ended(SequenceId),
}

#[derive(Debug)]
pub(crate) struct Prefilled {
    pub(crate) sequence: Sequence,
    /// Tokens that the worker did not compute.
    pub(crate) reused: usize,
    /// Part of those that came from the shared tier.
    pub(crate) loaded: usize,
}

/// A worker of the fleet. It asks for slots in the order of arrival, and each step has one token of
/// each sequence that decodes, and chunks of prompts.
#[derive(Debug)]
pub(crate) struct Worker {
    core: CacheCore,
    tells: Tells,
    memory_tokens: usize,
    waiting: VecDeque<Sequence>,
    /// Sequences that have asked for a slot. They wait until another one has computed what they
    /// share.
    asked: BTreeMap<SequenceId, Sequence>,
    running: Vec<Running>,
    is_in_step: bool,
}

impl Worker {
    pub(crate) fn new(setting: &Setting) -> Self {
        let memory_tokens = setting.worker_blocks * BLOCK_TOKENS;
        let config = CacheConfig {
            device_bytes_max: memory_tokens,
            eviction: setting.eviction,
            block_tokens: BLOCK_TOKENS,
            ..CacheConfig::default()
        };
        let mut core = CacheCore::new(spec(), config);
        core.follow_blocks();
        Self {
            core,
            tells: setting.tells,
            memory_tokens,
            waiting: VecDeque::new(),
            asked: BTreeMap::new(),
            running: Vec::new(),
            is_in_step: false,
        }
    }

    pub(crate) fn push(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// The changes of its blocks since the last call.
    pub(crate) fn block_events(&mut self) -> Vec<BlockEvent> {
        self.core.take_block_events()
    }

    /// Begins a step, unless one is under way, and returns when it ends. `None` if there is nothing
    /// to do.
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        mut tier: Option<&mut SharedTier>,
    ) -> Option<Duration> {
        if self.is_in_step {
            return None;
        }
        while self.running.len() + self.asked.len() < SEQUENCES_MAX
            && let Some(sequence) = self.waiting.pop_front()
        {
            let id = sequence.id;
            self.ask_for_slot(now, sequence, tier.as_deref_mut());
            let is_out_of_memory = self.waiting.front().is_some_and(|first| first.id == id);
            if is_out_of_memory {
                break;
            }
        }
        let end = self.plan(now);
        self.is_in_step = end.is_some();
        end
    }

    /// Ends the step that is under way.
    pub(crate) fn end(
        &mut self,
        now: Duration,
        outputs: &mut Outputs,
        mut tier: Option<&mut SharedTier>,
    ) -> Vec<Report> {
        self.is_in_step = false;
        let (mut reports, mut messages) = (Vec::new(), Vec::new());
        for running in &mut self.running {
            let was_decoding = running.is_decoding();
            if !running.advance(outputs) {
                continue;
            }
            messages.extend(running.progress());
            messages.extend(running.reached());
            if running.is_decoding() && !was_decoding {
                if let Some(tier) = tier.as_deref_mut() {
                    tier.prefilled(&running.sequence.tokens);
                }
                reports.push(Report::Prefilled(running.prefilled()));
            }
        }
        for message in messages {
            self.send(now, message, tier.as_deref_mut());
        }
        for ended in self
            .running
            .extract_if(.., |r| r.is_finished())
            .collect::<Vec<_>>()
        {
            reports.push(Report::Ended(ended.sequence.id));
            if let Some(tier) = tier.as_deref_mut() {
                tier.ended(&ended.computed_tokens());
            }
            self.send(now, ended.close(), tier.as_deref_mut());
        }
        reports
    }

    /// Ends the worker. Returns its sequences with slots, and those without.
    pub(crate) fn lose(self) -> (Vec<Running>, Vec<Sequence>) {
        let others = self.asked.into_values().chain(self.waiting);
        (self.running, others.collect())
    }

    /// Panics unless the cache is consistent.
    pub(crate) fn check_integrity(&self) {
        self.core.check_integrity();
    }

    /// Plans a step that begins now, and returns when it ends. Without work for now, it ends when a
    /// load does.
    fn plan(&mut self, now: Duration) -> Option<Duration> {
        let decoding = self.running.iter().filter(|running| running.is_decoding());
        let (count, tokens) = decoding.fold((0, 0), |(count, tokens), running| {
            (count + 1, tokens + running.computed)
        });
        let (mut left, mut prompt_tokens) = (STEP_TOKENS.saturating_sub(count), 0);
        for running in &mut self.running {
            running.chunk = running.next_chunk(now).min(left);
            left -= running.chunk;
            prompt_tokens += running.chunk;
        }
        if count == 0 && prompt_tokens == 0 {
            return self.running.iter().map(|running| running.ready_at).min();
        }
        let used = tokens as f64 / self.memory_tokens as f64;
        Some(now + costs::step(prompt_tokens, count, used))
    }

    fn ask_for_slot(&mut self, now: Duration, sequence: Sequence, tier: Option<&mut SharedTier>) {
        let tokens = Arc::clone(&sequence.tokens);
        let open_slot = OpenSlot::new(sequence.id, tokens, sequence.output_tokens);
        self.asked.insert(sequence.id, sequence);
        self.send(now, Message::OpenSlot(open_slot), tier);
    }

    fn send(&mut self, now: Duration, message: Message, mut tier: Option<&mut SharedTier>) {
        let mut messages = VecDeque::from([message]);
        while let Some(message) = messages.pop_front() {
            let effects = self.core.handle(now, message);
            for effect in effects.expect("a simulation sends valid messages") {
                match effect {
                    Effect::SlotOpened {
                        sequence,
                        cached_tokens,
                        ..
                    } => self.opened(now, sequence, cached_tokens, tier.as_deref_mut()),
                    Effect::OutOfMemory { sequence } => {
                        let sequence = self.asked.remove(&sequence).expect("it has asked");
                        self.waiting.push_front(sequence);
                    }
                    Effect::Checkpoint { sequence, at, .. } => {
                        let mut running = self.running.iter_mut();
                        let running = running.find(|running| running.sequence.id == sequence);
                        let running = running.expect("a leader has a slot");
                        running.checkpoints.push(at);
                        messages.extend(running.reached());
                    }
                    Effect::ReportAt { sequence, at } if self.tells == Tells::AsComputed => {
                        let mut running = self.running.iter_mut();
                        let running = running.find(|running| running.sequence.id == sequence);
                        let running = running.expect("a sequence with a slot reports");
                        running.report_at = Some(at);
                        messages.extend(running.progress());
                    }
                    // The others are for a device.
                    _ => {}
                }
            }
        }
    }

    /// A sequence has got its slot.
    fn opened(
        &mut self,
        now: Duration,
        id: SequenceId,
        cached: usize,
        tier: Option<&mut SharedTier>,
    ) {
        let sequence = self.asked.remove(&id).expect("it has asked");
        let found = tier.map_or(0, |tier| {
            tier.reused(&sequence.tokens[..cached]);
            // The last token is computed in any case.
            tier.find(&sequence.tokens[..sequence.tokens.len() - 1])
        });
        let loaded = found.saturating_sub(cached);
        let ready_at = now + costs::load(loaded);
        self.running
            .push(Running::new(sequence, cached, loaded, ready_at));
    }
}

/// A model whose state is one byte a token.
fn spec() -> ModelSpec {
    ModelSpec {
        name: "one byte a token".to_owned(),
        vocab_size: usize::MAX,
        hidden_size: 0,
        context_tokens_max: 1 << 20,
        end_tokens: Vec::new(),
        layer_groups: vec![LayerGroup {
            kind: LayerKind::Full,
            layers: 1,
            bytes: 1,
        }],
        tail_block_tokens: 16,
        can_shift: false,
        scratch_bytes_per_token: 0,
        overlap_tokens_max: usize::MAX,
        draft_tokens_max: 0,
    }
}
