//! The harness: cores, device, callers, and the messages between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::appended::{self, PaperGrammar, PaperSpelling};
use crate::draft_model::Drafts;
use crate::followed_blocks::BLOCK_TOKENS;
use crate::losses::Losses;
use crate::pager_harness::{PAGER_CHANNELS, PagerHarness};
use motet_core::cache::{self, CacheCore};
use motet_core::cache::{CacheError, PrefixKey, Salt};
use motet_core::config::{
    AdmissionConfig, CacheConfig, ChunkingConfig, PagerConfig, SchedulerConfig,
};
use motet_core::scheduler::{Effect, Event, Fork, MaskGate, SchedulerCore, Submission};
use motet_device::{DeviceEnd, Table};
use motet_model::oracle::{Oracle, OracleConfig, ShiftRule};
use motet_model::sampling::Sampling;
use motet_model::{DetachedState, DeviceMemory, LayerKind, Model, ModelSpec};
use motet_protocol::{ContextLimit, FinishReason, GenerateError, Priority, ReasoningBudget};
use motet_protocol::{Edit, Failure, Outcome, ReasoningTracker, WORK_IN_FLIGHT_MAX, Work};
use motet_protocol::{SequenceId, TokenId, UserId};
use motet_testkit::block_follower::BlockFollower;
use motet_testkit::core_harness::{Answer, CoreHarness};
use motet_testkit::naive::NaiveCache;
use motet_testkit::remote::MemoryRemote;
use rand::{Rng, RngExt};

/// A sequence's outcome, and the tokens that its caller received.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) output_tokens_max: usize,
    pub(crate) sampling: Sampling,
    pub(crate) at_context_limit: ContextLimit,
    pub(crate) salt: Salt,
    pub(crate) priority: Priority,
    /// One of a few users, unless it is given.
    pub(crate) user: Option<UserId>,
    pub(crate) start_by: Option<Duration>,
    pub(crate) finish_by: Option<Duration>,
    /// The seed of a grammar on paper.
    pub(crate) grammar: Option<u64>,
    pub(crate) reasoning: Option<ReasoningBudget>,
    /// Whether its tokens have the bytes of a vocabulary on paper.
    pub(crate) is_spelled: bool,
    /// The output that it predicts.
    pub(crate) prediction: Vec<TokenId>,
    pub(crate) sent: Vec<TokenId>,
    pub(crate) end: Option<Result<FinishReason, String>>,
}

pub(crate) struct HistoryHarness {
    pub(crate) oracle: OracleConfig,
    pub(crate) model: Oracle,
    pub(crate) table: Table<Oracle>,
    pub(crate) cores: CoreHarness,
    pub(crate) pager_harness: Option<PagerHarness>,
    /// Messages in flight to the device.
    pub(crate) work: VecDeque<Work>,
    /// Whether the device accepts new work before it finishes the work in flight.
    pub(crate) eager: bool,
    pub(crate) most_under_way: usize,
    pub(crate) callers: BTreeMap<SequenceId, Caller>,
    /// Errors of works that the device could not carry out.
    pub(crate) failures: Vec<String>,
    pub(crate) pins_made: u64,
    /// Cache commands without an answer so far.
    pub(crate) pending_commands: BTreeSet<u64>,
    /// Sequences that were inside when all were aborted.
    pub(crate) aborted: BTreeSet<SequenceId>,
    /// Sequences that began with a part of their outputs.
    pub(crate) continued: usize,
    /// Sequences that were handed over.
    pub(crate) handed_over: usize,
    pub(crate) forks: usize,
    pub(crate) shifts: usize,
    pub(crate) preempted: usize,
    pub(crate) scheduler_config: SchedulerConfig,
    /// Tokens after which a live sequence is copied; 0 is never.
    pub(crate) backup_tokens: usize,
    /// The transfer queue at which one device after another exports and imports.
    pub(crate) transfer_queue: Option<DeviceEnd<DetachedState<Oracle>>>,
    pub(crate) losses: Losses,
    /// Whether requests may have grammars, and budgets for their reasoning.
    pub(crate) appends: bool,
    /// Sequences whose gates are shut until their grammars have read their outputs.
    pub(crate) awaits_mask: Vec<SequenceId>,
    pub(crate) masks_awaited: usize,
    pub(crate) drafts: Option<Drafts>,
    /// Whether and what a follower of blocks knows.
    pub(crate) block_follower: Option<BlockFollower>,
}

impl HistoryHarness {
    pub(crate) fn new(layers: &[LayerKind], budget_tokens: usize) -> Self {
        Self::with_context(layers, budget_tokens, 512)
    }

    pub(crate) fn with_context(
        layers: &[LayerKind],
        budget_tokens: usize,
        context_tokens_max: usize,
    ) -> Self {
        let oracle = OracleConfig {
            vocab_size: 50,
            context_tokens_max,
            end_tokens: vec![0],
            end_one_in: 40,
            tail_block_tokens: 4,
            ..OracleConfig::with_layers(layers)
        };
        Self::of(oracle, budget_tokens)
    }

    pub(crate) fn of(oracle: OracleConfig, budget_tokens: usize) -> Self {
        let model = Oracle::new(oracle.clone()).unwrap();
        let spec = model.spec().clone();
        let cache_config = CacheConfig {
            device_bytes_max: budget_bytes(&spec, budget_tokens),
            share_tokens_min: 4,
            restore_interval_tokens: 16,
            block_tokens: BLOCK_TOKENS,
            ..CacheConfig::default()
        };
        let scheduler_config = SchedulerConfig {
            sequences_max: 8,
            admission: AdmissionConfig {
                queue_max: 100,
                ..AdmissionConfig::default()
            },
            chunking: ChunkingConfig {
                step_tokens_max: 16,
                ..ChunkingConfig::default()
            },
            step_retries_max: 2,
            ..SchedulerConfig::default()
        };
        let scheduler = SchedulerCore::new(spec.clone(), scheduler_config.clone());
        let cores = CoreHarness::new(scheduler, CacheCore::new(spec, cache_config));
        Self {
            oracle,
            model,
            table: Table::new(),
            cores,
            pager_harness: None,
            work: VecDeque::new(),
            eager: false,
            most_under_way: 0,
            callers: BTreeMap::new(),
            failures: Vec::new(),
            pins_made: 0,
            pending_commands: BTreeSet::new(),
            aborted: BTreeSet::new(),
            continued: 0,
            handed_over: 0,
            forks: 0,
            shifts: 0,
            preempted: 0,
            scheduler_config,
            backup_tokens: 0,
            transfer_queue: None,
            losses: Losses::default(),
            appends: false,
            awaits_mask: Vec::new(),
            masks_awaited: 0,
            drafts: None,
            block_follower: None,
        }
    }

    /// The same harness with a pager, and what others have left in the remote tier.
    pub(crate) fn with_pager(mut self, config: &PagerConfig, remote: &MemoryRemote) -> Self {
        let (pager_harness, transfer_queue) = PagerHarness::new(&self.model, config, remote);
        self.table = Self::empty_table(Some(&transfer_queue));
        self.transfer_queue = Some(transfer_queue);
        let found = pager_harness.found;
        self.cores = (self.cores).with_cache(|cache| cache.with_pager(config, found));
        self.backup_tokens = config.backup_tokens;
        let scheduler = self.fresh_scheduler();
        self.cores.replace_scheduler(scheduler);
        self.pager_harness = Some(pager_harness);
        self
    }

    /// A scheduler without state.
    pub(crate) fn fresh_scheduler(&self) -> SchedulerCore {
        let config = self.scheduler_config.clone();
        let core = SchedulerCore::new(self.model.spec().clone(), config);
        let core = core.with_backups(self.backup_tokens);
        match &self.drafts {
            Some(drafts) => core.with_draft_model(drafts.spec()),
            None => core,
        }
    }

    /// Number of channels that may have messages in flight.
    pub(crate) fn channels(&self) -> u32 {
        3 + self.pager_harness.as_ref().map_or(0, |_| PAGER_CHANNELS)
    }

    pub(crate) fn submit(
        &mut self,
        prompt: Vec<TokenId>,
        output_tokens_max: usize,
        sampling: Sampling,
    ) -> SequenceId {
        self.submit_caller(Caller {
            prompt,
            output_tokens_max,
            sampling,
            ..Caller::default()
        })
    }

    /// The id of the sequence that is submitted next.
    pub(crate) fn next_sequence(&self) -> SequenceId {
        SequenceId(self.callers.len() as u64 + 1)
    }

    pub(crate) fn submit_caller(&mut self, caller: Caller) -> SequenceId {
        let sequence = self.next_sequence();
        let submission = Submission {
            output_so_far: caller.sent[..].into(),
            ..submission(sequence, &caller, &caller.prompt, &self.oracle)
        };
        self.continued += usize::from(!caller.sent.is_empty());
        self.callers.insert(sequence, caller);
        self.handle_event(Event::Submit(submission));
        sequence
    }

    /// Forks a sequence after `at` of its tokens, and adds `appended` to them.
    pub(crate) fn fork(&mut self, source: SequenceId, at: usize, appended: &[TokenId]) {
        self.fork_or_rewind(source, at, appended, false);
    }

    /// Ends a sequence and continues it after `at` of its tokens.
    pub(crate) fn rewind(&mut self, source: SequenceId, at: usize, appended: &[TokenId]) {
        self.fork_or_rewind(source, at, appended, true);
    }

    fn fork_or_rewind(
        &mut self,
        source: SequenceId,
        at: usize,
        appended: &[TokenId],
        replaces: bool,
    ) {
        let of = &self.callers[&source];
        let known = of.prompt.iter().chain(&of.sent).copied();
        let prompt: Vec<TokenId> = known.take(at).chain(appended.iter().copied()).collect();
        let left = match of.at_context_limit {
            ContextLimit::Shift { .. } => usize::MAX,
            ContextLimit::Stop => self.oracle.context_tokens_max - prompt.len(),
        };
        let caller = Caller {
            output_tokens_max: 9.min(left),
            sampling: of.sampling,
            at_context_limit: of.at_context_limit,
            salt: of.salt.clone(),
            prompt,
            ..Caller::default()
        };
        self.forks += 1;
        let sequence = SequenceId(self.callers.len() as u64 + 1);
        let submission = submission(sequence, &caller, appended, &self.oracle);
        self.callers.insert(sequence, caller);
        self.handle_event(Event::Fork(Fork {
            source,
            at: Some(at),
            replaces,
            submission,
        }));
        let end = &self.callers[&sequence].end;
        assert!(end.is_none(), "a live sequence can be forked: {end:?}");
    }

    pub(crate) fn abort(&mut self) {
        let inside = self.callers.iter().filter(|(_, c)| c.end.is_none());
        self.aborted.extend(inside.map(|(sequence, _)| *sequence));
        self.handle_event(Event::Abort);
        for sequence in &self.aborted {
            let end = &self.callers[sequence].end;
            assert!(matches!(end, Some(Err(_))), "{sequence} ends at once");
        }
    }

    /// Has all sequences end once no step is in flight. They have their tokens then.
    pub(crate) fn hand_over(&mut self) {
        self.handle_event(Event::HandOver);
    }

    pub(crate) fn cache_command(&mut self, message: cache::Message) {
        let command_id = 1 + self.pending_commands.last().unwrap_or(&0);
        self.pending_commands.insert(command_id);
        self.handle_event(Event::CacheCommand {
            command_id,
            message,
        });
    }

    pub(crate) fn handle_event(&mut self, event: Event) {
        match &event {
            Event::Pause(sequence) if self.callers[sequence].end.is_none() => {
                self.losses.paused.insert(*sequence);
            }
            Event::Resume(sequence) => drop(self.losses.paused.remove(sequence)),
            Event::Outcome(_) | Event::Cache(_) | Event::CacheEffects(_)
                if std::mem::take(&mut self.losses.scheduler_fails) =>
            {
                return self.lose_scheduler(event);
            }
            _ => {}
        }
        for effect in self.cores.handle(event) {
            match effect {
                Effect::Cache(message) => unreachable!("{message:?} is on its way"),
                Effect::Work(work) => {
                    assert!(!self.losses.device_away, "no work without a device");
                    self.losses.epoch = work.epoch;
                    let removes = |edit: &&Edit| matches!(edit, Edit::Remove { .. });
                    self.shifts += work.edits.iter().filter(removes).count();
                    self.work.push_back(work);
                    let out = self.work.len() + self.table.in_flight();
                    assert!(out <= WORK_IN_FLIGHT_MAX, "two works at a time");
                }
                Effect::CommandDone(command_id, _) => {
                    assert!(
                        self.pending_commands.remove(&command_id),
                        "an answer is awaited"
                    );
                }
                Effect::Started {
                    sequence,
                    cached_tokens,
                    ..
                } => {
                    assert!(self.losses.started.insert(sequence), "it starts once");
                    let caller = &self.callers[&sequence];
                    assert!(cached_tokens < caller.prompt.len() + caller.sent.len());
                }
                Effect::Token(sequence, token, _) => {
                    let caller = self.callers.get_mut(&sequence).unwrap();
                    assert!(caller.end.is_none(), "no token after the end");
                    caller.sent.push(token);
                }
                Effect::Prefilled(sequence, tokens) => {
                    let caller = &self.callers[&sequence];
                    let prompt = caller.prompt.len() + caller.sent.len();
                    assert!((1..=prompt).contains(&tokens), "{tokens} of {prompt}");
                }
                Effect::PromptLogprobs(sequence, ..) | Effect::HiddenSum(sequence, ..) => {
                    panic!("{sequence} wants no results of its prompt")
                }
                Effect::Shifted(sequence, tokens) => {
                    let caller = &self.callers[&sequence];
                    let history = caller.prompt.len() + caller.sent.len();
                    assert!((1..history).contains(&tokens), "{tokens} of {history}");
                }
                Effect::Predicted(sequence) => {
                    assert!(self.callers.contains_key(&sequence), "a token follows");
                }
                Effect::Forked {
                    sequence, source, ..
                } => assert!(source < sequence),
                Effect::Preempted(_) => self.preempted += 1,
                Effect::AwaitMask(sequence) => {
                    assert!(
                        self.callers[&sequence].grammar.is_some(),
                        "it has a grammar"
                    );
                    self.masks_awaited += 1;
                    self.awaits_mask.push(sequence);
                }
                Effect::Finished(sequence, reason) => self.end(sequence, Ok(reason)),
                Effect::Failed(sequence, error) => {
                    if let GenerateError::HandedOver { output_tokens } = error {
                        assert_eq!(output_tokens, self.callers[&sequence].sent.len());
                        self.aborted.insert(sequence);
                        self.handed_over += 1;
                    }
                    self.end(sequence, Err(error.to_string()));
                }
            }
        }
    }

    pub(crate) fn end(&mut self, sequence: SequenceId, end: Result<FinishReason, String>) {
        self.losses.paused.remove(&sequence);
        let before = self.callers.get_mut(&sequence).unwrap().end.replace(end);
        assert!(before.is_none(), "a sequence ends once");
    }

    /// Delivers the oldest message of a channel, after the masks that are ready. Returns false if
    /// there is nothing to deliver.
    pub(crate) fn deliver(&mut self, channel: u32) -> bool {
        let ready = std::mem::take(&mut self.awaits_mask);
        for sequence in &ready {
            self.handle_event(Event::Mask(*sequence, MaskGate::Open));
        }
        self.deliver_from(channel) || !ready.is_empty()
    }

    fn deliver_from(&mut self, channel: u32) -> bool {
        match channel {
            0 => {
                let Some(mut message) = self.cores.take_message() else {
                    return false;
                };
                if let (Some(_), cache::Message::OpenSlot(begin)) =
                    (&self.pager_harness, &mut message)
                    && begin.sequence.0 % 4 > 0
                {
                    // Steps take no time here. Most are reported with a duration.
                    begin.token_time = Some(Duration::from_millis(1));
                }
                self.cores.pass(Duration::from_millis(1));
                let answer = if std::mem::take(&mut self.losses.cache_fails) {
                    self.lose_cache(message)
                } else {
                    Answer::Asked(self.send_to_cache(message))
                };
                self.cores.answer(answer);
            }
            1 => match self.cores.take_answer() {
                Some(Answer::Asked(Err(CacheError::Lost))) => {
                    self.handle_event(Event::CacheLost(None));
                    self.handle_event(Event::Cache(Err(CacheError::Lost)));
                }
                Some(Answer::Asked(answer)) => self.handle_event(Event::Cache(answer)),
                Some(Answer::Unasked(cache_effects)) => {
                    self.handle_event(Event::CacheEffects(cache_effects))
                }
                None => return false,
            },
            2 => return self.device(),
            4 => {
                let sent = self
                    .pager_harness
                    .as_mut()
                    .and_then(|pager_harness| pager_harness.sent.pop_front());
                let Some(sent) = sent else {
                    return false;
                };
                let cache_effects = self.send_to_cache(cache::Message::Paged(sent));
                let cache_effects = cache_effects.expect("events of the pager are valid");
                if !cache_effects.is_empty() {
                    self.cores.answer(Answer::Unasked(cache_effects));
                }
            }
            channel => {
                let now = self.cores.now();
                let pager_harness = self
                    .pager_harness
                    .as_mut()
                    .expect("these channels are the pager's");
                return pager_harness.deliver(channel - 3, now);
            }
        }
        true
    }

    pub(crate) fn send_to_cache(
        &mut self,
        message: cache::Message,
    ) -> Result<Vec<cache::Effect>, CacheError> {
        let answer = self.cores.send_to_cache(message);
        let block_events = self.cores.take_block_events();
        self.apply_block_events(block_events);
        let for_pager = self.cores.take_outbox();
        if let Some(pager_harness) = &mut self.pager_harness {
            pager_harness.messages.extend(for_pager);
            pager_harness.tick(self.cores.now());
        }
        answer
    }

    /// Lets the device do one thing, if there is one to do: submit, sample or finish.
    pub(crate) fn device(&mut self) -> bool {
        let in_flight = self.table.in_flight();
        self.eager = !self.eager;
        let can_submit =
            !self.work.is_empty() && in_flight < WORK_IN_FLIGHT_MAX && !self.table.needs_sampling();
        if self.table.needs_sampling() && in_flight == 1 {
            self.table.sample(&mut self.model);
        } else if can_submit && (self.eager || in_flight == 0) {
            let work = self.work.pop_front().expect("there is work");
            if let Some(drafts) = &mut self.drafts {
                drafts.submit(&work);
            }
            self.table.submit(&mut self.model, work);
            self.most_under_way = self.most_under_way.max(self.table.in_flight());
        } else if in_flight > 0 {
            let result = self.table.finish(&mut self.model);
            let failed = |failure: &Failure| !matches!(failure, Failure::Dropped);
            let failure = result.as_ref().err().filter(|failure| failed(failure));
            self.failures
                .extend(failure.map(|failure| format!("{failure:?}")));
            let lost = self.table.take_lost();
            self.losses.edits += usize::from(!lost.is_empty());
            let drafts = self.drafts.as_mut().map(Drafts::finish);
            let (drafts, busy) = drafts.unwrap_or_else(|| (Ok(Vec::new()), Duration::ZERO));
            self.handle_event(Event::Outcome(Outcome {
                result,
                drafts,
                busy,
                gap: Duration::ZERO,
                memory: DeviceMemory::default(),
                lost,
            }));
        } else {
            return can_submit;
        }
        true
    }

    pub(crate) fn run_until_idle(&mut self, rng: &mut impl Rng) {
        let mut idle = 0;
        let mut delivered = 0;
        while idle < 3 {
            delivered += 1;
            assert!(
                delivered < 100_000,
                "work ends: {:?}",
                self.cores.scheduler()
            );
            let channels = self.channels();
            let first = rng.random_range(0..channels);
            idle = if (0..channels).any(|i| self.deliver((first + i) % channels)) {
                0
            } else {
                idle + 1
            };
            // Nothing else happens until a deadline.
            if let (3, Some(at)) = (idle, self.wakes_at()) {
                self.cores.pass_until(at);
                self.handle_event(Event::TimePassed);
                if let Some(pager_harness) = &mut self.pager_harness {
                    pager_harness.tick(self.cores.now());
                }
                idle = 0;
            }
            if idle == 3 && self.losses.device_away {
                self.find_device();
                idle = 0;
            }
        }
        assert!(
            self.cores.scheduler().is_idle(),
            "no event is left: {:?}",
            self.cores.scheduler()
        );
    }

    fn wakes_at(&self) -> Option<Duration> {
        let pager_harness = self
            .pager_harness
            .as_ref()
            .and_then(|pager_harness| pager_harness.core.wakes_at());
        self.cores
            .scheduler()
            .wakes_at()
            .into_iter()
            .chain(pager_harness)
            .min()
    }

    /// The output of a reference run of this caller.
    pub(crate) fn expected_output(&self, caller: &Caller) -> Vec<TokenId> {
        let is_plain = !caller.sampling.has_penalties();
        if caller.grammar.is_some() || caller.reasoning.is_some() || !is_plain {
            return appended::expected_output(&self.oracle, caller);
        }
        let (prompt, tokens) = (&caller.prompt, caller.output_tokens_max);
        match caller.at_context_limit {
            ContextLimit::Stop => self
                .oracle
                .reference_tokens(prompt, tokens, caller.sampling),
            ContextLimit::Shift { keep } => {
                let context_tokens = self.oracle.context_tokens_max;
                let rule = ShiftRule {
                    context_tokens,
                    keep,
                };
                self.oracle
                    .reference_tokens_with_shifts(prompt, tokens, caller.sampling, rule)
            }
        }
    }

    /// Checks that every caller got the output of its reference run, and that nothing leaked.
    pub(crate) fn check_end(&self) {
        for (sequence, caller) in &self.callers {
            let mut expected_output = self.expected_output(caller);
            let ends = |token: &TokenId| self.oracle.end_tokens.contains(token);
            let end = expected_output.iter().position(ends);
            expected_output.truncate(end.unwrap_or(expected_output.len()));
            match caller.end.as_ref().expect("every sequence ends") {
                Ok(FinishReason::Cancelled | FinishReason::Deadline) | Err(_) => {
                    assert!(
                        expected_output.starts_with(&caller.sent),
                        "{sequence}: as in its reference run, so far"
                    );
                }
                Ok(reason) => {
                    assert_eq!(
                        caller.sent, expected_output,
                        "{sequence}: as in its reference run"
                    );
                    let expected = match end {
                        Some(_) => FinishReason::EndToken,
                        None => FinishReason::Length,
                    };
                    assert_eq!(*reason, expected, "{sequence}");
                }
            }
        }
        if let Some(stranded) = &self.losses.stranded {
            stranded.clear();
        }
        let counts = self.oracle.counters.now();
        let stats = self.cores.cache().stats();
        assert_eq!(counts.tails_alive, 0, "no tail outlives its sequence");
        assert_eq!(
            counts.segments_alive, stats.segments,
            "only the trie holds segments"
        );
        assert_eq!(stats.reserved_bytes, 0);
        assert_eq!(self.table.held(), (stats.segments, 0));
        if let Some(pager_harness) = &self.pager_harness {
            pager_harness.check_end();
        }
    }

    /// Checks that the device never exceeded its budget.
    pub(crate) fn check_peak(&self, budget_tokens: usize) {
        let peak = self.oracle.counters.now().bytes_peak;
        let budget = budget_bytes(self.model.spec(), budget_tokens);
        assert!(
            peak <= budget,
            "{peak} bytes were alive on a device of {budget}"
        );
    }

    /// Checks that each token of each caller was evaluated once, but for so many.
    pub(crate) fn check_computed_once(&self, repeated: usize) {
        let mut naive = NaiveCache::new(self.model.spec());
        for caller in self.callers.values() {
            naive.publish(0, &[&caller.prompt[..], &caller.sent].concat());
        }
        let evaluated = self.oracle.counters.now().tokens_evaluated as usize;
        let most = naive.tokens() + repeated;
        assert!(
            evaluated <= most,
            "{:?}: {evaluated} tokens evaluated, at most {most} needed",
            self.model.spec().layer_groups
        );
    }

    /// Checks that everything cached can be evicted when no sequence is left: no lease remains.
    pub(crate) fn check_empty(&mut self) {
        for caller in self.callers.values().filter(|c| c.salt.is_private()) {
            let left = self.cores.cache().tree(&caller.salt).nodes;
            assert!(left.is_empty(), "unreachable segments are gone");
        }
        self.cores.pass(Duration::from_secs(60));
        let clear = cache::Message::Clear { salt: None };
        let result = self.cores.send_to_cache(clear);
        result.expect("it can be cleared");
        assert_eq!(
            self.cores.cache().stats().segments,
            0,
            "no segment is leased"
        );
    }
}

pub(crate) fn submission(
    sequence: SequenceId,
    caller: &Caller,
    prompt: &[TokenId],
    oracle: &OracleConfig,
) -> Submission {
    Submission {
        sequence,
        prompt: prompt.into(),
        prompt_output: None,
        output_tokens_max: caller.output_tokens_max,
        sampling: caller.sampling,
        sampling_spec: match caller.grammar {
            Some(seed) => Some(PaperGrammar::spec(seed, oracle)),
            None => caller.sampling.has_penalties().then(Arc::default),
        },
        end_tokens: oracle.end_tokens[..].into(),
        user: caller.user.unwrap_or(UserId(sequence.0 % 3)),
        weight: 1.0 + (sequence.0 % 2) as f64,
        priority: caller.priority,
        start_by: caller.start_by,
        finish_by: caller.finish_by,
        at_context_limit: caller.at_context_limit,
        key: PrefixKey::of(caller.salt.clone()),
        // Every other sequence asks for one.
        restore_points: (sequence.0 % 2..1).map(|_| prompt.len() / 2).collect(),
        turn_end: (!sequence.0.is_multiple_of(3)).then(|| prompt.len() - prompt.len() / 4),
        retention: (sequence.0 % 3) as u8,
        reasoning: reasoning_tracker(caller),
        report_prefill_progress: sequence.0.is_multiple_of(5),
        speculates: !sequence.0.is_multiple_of(7),
        prediction: caller.prediction[..].into(),
        output_so_far: Arc::default(),
    }
}

fn reasoning_tracker(caller: &Caller) -> Option<ReasoningTracker> {
    let tracker = ReasoningTracker::new(Arc::new(caller.reasoning.clone()?));
    Some(if caller.is_spelled {
        tracker.with_spelling(Arc::new(PaperSpelling))
    } else {
        tracker
    })
}

/// Bytes for about so many tokens, also where a state has the same size for any number.
pub(crate) fn budget_bytes(spec: &ModelSpec, tokens: usize) -> usize {
    spec.tail_bytes(tokens) + tokens / 8 * spec.segment_bytes(motet_model::SegmentSize::whole(1))
}
