//! The scheduler's and the cache's cores with the oracle as device, without threads
//! or actors: messages are delivered in a random order, everything is checked after
//! each, and every sequence must get exactly the tokens that it gets alone.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use motet::cache::{self, CacheCore, CacheError, Salt};
use motet::config::{CacheConfig, SchedulerConfig};
use motet::device::{Outcome, Table, Work};
use motet::model::oracle::{Oracle, OracleConfig, StepFault};
use motet::model::sampling::Sampling;
use motet::model::{DeviceMemory, LayerKind, Model, ModelSpec};
use motet::request::{ContextLimit, FinishReason};
use motet::scheduler::{Effect, Event, SchedulerCore, Submission};
use motet::{SequenceId, TokenId};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How a sequence ended, and what it was told.
#[derive(Debug, Default)]
struct Caller {
    prompt: Vec<TokenId>,
    output_tokens_max: usize,
    sampling: Sampling,
    told: Vec<TokenId>,
    end: Option<Result<FinishReason, String>>,
}

struct House {
    oracle: OracleConfig,
    model: Oracle,
    table: Table<Oracle>,
    scheduler: SchedulerCore,
    cache: CacheCore,
    /// On the way to the cache, to the scheduler, to the device.
    messages: VecDeque<cache::Message>,
    answers: VecDeque<Result<Vec<cache::Effect>, CacheError>>,
    work: Option<Work>,
    callers: BTreeMap<SequenceId, Caller>,
    /// Work that the device could not carry out.
    failures: usize,
}

impl House {
    fn new(layers: &[LayerKind], budget_tokens: usize) -> Self {
        let oracle = OracleConfig {
            vocab_size: 50,
            context_tokens_max: 512,
            end_tokens: vec![0],
            end_one_in: 40,
            tail_block_tokens: 4,
            ..OracleConfig::with_layers(layers)
        };
        let model = Oracle::new(oracle.clone()).unwrap();
        let spec = model.spec().clone();
        let cache_config = CacheConfig {
            device_bytes_max: budget_bytes(&spec, budget_tokens),
            share_tokens_min: 4,
            merge_tokens_max: 0,
            ..CacheConfig::default()
        };
        let scheduler_config = SchedulerConfig {
            sequences_max: 8,
            queue_max: 100,
            step_tokens_max: 16,
            step_retries_max: 2,
        };
        Self {
            oracle,
            model,
            table: Table::new(),
            scheduler: SchedulerCore::new(spec.clone(), scheduler_config),
            cache: CacheCore::new(spec, cache_config),
            messages: VecDeque::new(),
            answers: VecDeque::new(),
            work: None,
            callers: BTreeMap::new(),
            failures: 0,
        }
    }

    fn submit(
        &mut self,
        prompt: Vec<TokenId>,
        output_tokens_max: usize,
        sampling: Sampling,
    ) -> SequenceId {
        let sequence = SequenceId(self.callers.len() as u64 + 1);
        let caller = Caller {
            prompt: prompt.clone(),
            output_tokens_max,
            sampling,
            ..Caller::default()
        };
        self.callers.insert(sequence, caller);
        self.feed(Event::Submit(Submission {
            sequence,
            prompt: prompt.into(),
            output_tokens_max,
            sampling,
            ignore_end_tokens: false,
            at_limit: ContextLimit::Stop,
            salt: Salt::default(),
            restore_points: Vec::new(),
            priority: 0,
        }));
        sequence
    }

    fn feed(&mut self, event: Event) {
        for effect in self.scheduler.handle(event) {
            match effect {
                Effect::Cache(message) => self.messages.push_back(message),
                Effect::Work(work) => {
                    assert!(self.work.is_none(), "one work at a time");
                    self.work = Some(work);
                }
                Effect::Upkept(..) => unreachable!("nobody asks"),
                Effect::Started {
                    sequence,
                    cached_tokens,
                    ..
                } => {
                    assert!(cached_tokens < self.callers[&sequence].prompt.len());
                }
                Effect::Token(sequence, token) => {
                    let caller = self.callers.get_mut(&sequence).unwrap();
                    assert!(caller.end.is_none(), "no token after the end");
                    caller.told.push(token);
                }
                Effect::Finished(sequence, reason) => self.end(sequence, Ok(reason)),
                Effect::Failed(sequence, error) => self.end(sequence, Err(error.to_string())),
            }
        }
        self.scheduler.check_integrity();
    }

    fn end(&mut self, sequence: SequenceId, end: Result<FinishReason, String>) {
        let before = self.callers.get_mut(&sequence).unwrap().end.replace(end);
        assert!(before.is_none(), "a sequence ends once");
    }

    /// Delivers the oldest message on one of the ways. False when it is empty.
    fn deliver(&mut self, way: u32) -> bool {
        match way {
            0 => {
                let Some(message) = self.messages.pop_front() else {
                    return false;
                };
                let answer = self.cache.handle(Duration::ZERO, message);
                self.cache.check_integrity();
                self.answers.push_back(answer);
            }
            1 => {
                let Some(answer) = self.answers.pop_front() else {
                    return false;
                };
                self.feed(Event::Cache(answer));
            }
            _ => {
                let Some(work) = self.work.take() else {
                    return false;
                };
                let result = self.table.carry_out(&mut self.model, work);
                self.failures += usize::from(result.is_err());
                self.feed(Event::Outcome(Outcome {
                    result,
                    busy: Duration::ZERO,
                    memory: DeviceMemory::default(),
                }));
            }
        }
        true
    }

    fn run_until_idle(&mut self, rng: &mut impl Rng) {
        let mut idle = 0;
        let mut delivered = 0;
        while idle < 3 {
            delivered += 1;
            assert!(delivered < 100_000, "work ends: {:?}", self.scheduler);
            let first = rng.random_range(0..3);
            idle = match (0..3).any(|i| self.deliver((first + i) % 3)) {
                true => 0,
                false => idle + 1,
            };
        }
        assert!(
            self.scheduler.is_idle(),
            "nothing is left to do: {:?}",
            self.scheduler
        );
    }

    /// Everybody got what it gets alone, and nothing leaked.
    fn check_end(&self) {
        for (sequence, caller) in &self.callers {
            let mut alone =
                self.oracle
                    .solo(&caller.prompt, caller.output_tokens_max, caller.sampling);
            let end = alone.iter().position(|token| *token == 0);
            alone.truncate(end.unwrap_or(alone.len()));
            match caller.end.as_ref().expect("every sequence ends") {
                Ok(FinishReason::Cancelled) | Err(_) => {
                    assert!(
                        alone.starts_with(&caller.told),
                        "{sequence}: as alone, so far"
                    );
                }
                Ok(reason) => {
                    assert_eq!(caller.told, alone, "{sequence}: as alone");
                    let expected = match end {
                        Some(_) => FinishReason::EndToken,
                        None => FinishReason::Length,
                    };
                    assert_eq!(*reason, expected, "{sequence}");
                }
            }
        }
        let counts = self.oracle.counters.now();
        let stats = self.cache.stats();
        assert_eq!(counts.tails_alive, 0, "no tail outlives its sequence");
        assert_eq!(
            counts.segments_alive, stats.segments,
            "only the trie holds segments"
        );
        assert_eq!(stats.reserved_bytes, 0);
        assert_eq!(self.table.held(), (stats.segments, 0));
    }
}

const KINDS: [&[LayerKind]; 4] = [
    &[LayerKind::Full],
    &[LayerKind::Full, LayerKind::Window { tokens: 5 }],
    &[LayerKind::Recurrent],
    &[
        LayerKind::Full,
        LayerKind::Window { tokens: 7 },
        LayerKind::Recurrent,
    ],
];

/// Room for about so many tokens, also where a state weighs the same for any number.
fn budget_bytes(spec: &ModelSpec, tokens: usize) -> usize {
    spec.tail_bytes(tokens) + tokens / 8 * spec.segment_bytes(motet::model::Extent::whole(1))
}

/// Prompts that share beginnings often.
fn prompt(rng: &mut impl Rng) -> Vec<TokenId> {
    let family = rng.random_range(1..4);
    let shared = [0, 7, 20, 33][rng.random_range(0..4)];
    let own = rng.random_range(1..20);
    let alphabet = rng.random_range(2..4);
    let mut tokens: Vec<TokenId> = (0..shared).map(|i| family + i % 5).collect();
    tokens.extend((0..own).map(|_| rng.random_range(1..=alphabet)));
    tokens
}

fn sampling(rng: &mut impl Rng) -> Sampling {
    match rng.random_bool(0.5) {
        true => Sampling::GREEDY,
        false => Sampling {
            temperature: 1.0,
            seed: rng.random_range(0..4),
            ..Sampling::GREEDY
        },
    }
}

/// One random history of the whole house. Returns how many tokens were told, and how
/// often the device failed.
fn history(seed: u64, faults: bool) -> (usize, usize) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let budget_tokens = [70, 150, 2_000][rng.random_range(0..3)];
    let mut house = House::new(KINDS[seed as usize % KINDS.len()], budget_tokens);
    for _ in 0..rng.random_range(50..400) {
        match rng.random_range(0..20) {
            0 if house.callers.len() < 60 => {
                let (prompt, output) = (prompt(&mut rng), rng.random_range(1..12));
                let sampling = sampling(&mut rng);
                house.submit(prompt, output, sampling);
            }
            1 if !house.callers.is_empty() && rng.random_bool(0.3) => {
                let sequence = SequenceId(rng.random_range(1..=house.callers.len()) as u64);
                house.feed(Event::Stop(sequence));
            }
            2 if faults && rng.random_bool(0.2) => {
                let fault = [StepFault::Fail, StepFault::Panic][rng.random_range(0..2)];
                house.oracle.faults.next_steps(1, fault);
            }
            4 if rng.random_bool(0.003) => house.feed(Event::Abort),
            3 if faults && rng.random_bool(0.05) => house.oracle.faults.refuse_memory(1),
            way => {
                house.deliver(way % 3);
            }
        }
    }
    house.oracle.faults.clear();
    house.run_until_idle(&mut rng);
    house.check_end();
    assert!(
        faults || house.failures == 0,
        "the device fails only when told to"
    );
    let peak = house.oracle.counters.now().bytes_peak;
    let budget = budget_bytes(house.model.spec(), budget_tokens);
    assert!(
        peak <= budget,
        "{peak} bytes were alive on a device of {budget}"
    );
    let told = house.callers.values().map(|caller| caller.told.len()).sum();
    (told, house.failures)
}

#[test]
fn any_order_of_messages_gives_every_caller_its_own_tokens() {
    let told: usize = (0..2_000).map(|seed| history(seed, false).0).sum();
    assert!(
        told > 10_000,
        "only {told} tokens in all: these histories prove little"
    );
}

#[test]
fn and_so_with_failing_steps_and_panics() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let message = info.to_string();
        if !message.contains("oracle") {
            eprintln!("{message} on {thread:?}");
        }
    }));
    let (mut told, mut failures) = (0, 0);
    for seed in 0..2_000 {
        let seen = history(10_000 + seed, true);
        told += seen.0;
        failures += seen.1;
    }
    println!("{told} tokens told, {failures} failures of the device");
    assert!(
        told > 10_000 && failures > 500,
        "{told} tokens, {failures} failures"
    );
    std::panic::set_hook(quiet);
}

#[test]
fn sixteen_equal_beginnings_are_computed_once() {
    for kinds in KINDS {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut house = House::new(kinds, 10_000);
        let shared: Vec<TokenId> = (0..200).map(|i| 1 + i % 40).collect();
        for user in 0..16 {
            let mut prompt = shared.clone();
            prompt.extend([41 + user % 8, 41 + user / 8, 3]);
            house.submit(prompt, 4, Sampling::GREEDY);
        }
        house.run_until_idle(&mut rng);
        house.check_end();
        let told: usize = house.callers.values().map(|c| c.told.len()).sum();
        let evaluated = house.oracle.counters.now().tokens_evaluated as usize;
        // Two users may share the token after the common beginning.
        let most = shared.len() + 16 * 3 + told;
        assert!(
            evaluated <= most,
            "{kinds:?}: {evaluated} tokens evaluated, at most {most} needed"
        );
    }
}

#[test]
fn nobody_small_overtakes_who_is_large() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let mut house = House::new(KINDS[0], 200);
    let small = |house: &mut House, rng: &mut ChaCha8Rng| {
        let prompt = (0..20).map(|_| rng.random_range(1..40)).collect();
        house.submit(prompt, 8, Sampling::GREEDY)
    };
    for _ in 0..12 {
        small(&mut house, &mut rng);
    }
    let prompt: Vec<TokenId> = (0..150).map(|i| 1 + i % 40).collect();
    let large = house.submit(prompt, 40, Sampling::GREEDY);
    let mut later = Vec::new();
    while house.callers[&large].end.is_none() {
        assert!(later.len() < 2_000, "the large one comes to its turn");
        later.push(small(&mut house, &mut rng));
        for _ in 0..10 {
            let way = rng.random_range(0..3);
            house.deliver(way);
        }
    }
    let overtook = later.iter().filter(|s| house.callers[s].end.is_some());
    assert!(
        overtook.count() <= 8,
        "at most those that were asked beside it"
    );
    house.run_until_idle(&mut rng);
    house.check_end();
}

#[test]
fn a_poisoned_sequence_fails_alone() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut house = House::new(KINDS[0], 10_000);
    house.oracle.faults.poison(49);
    for user in 0..6 {
        let poison = if user == 3 { 49 } else { 7 };
        house.submit(vec![1, 2, 3, user, poison, 5], 6, Sampling::GREEDY);
    }
    house.run_until_idle(&mut rng);
    house.check_end();
    for (sequence, caller) in &house.callers {
        let failed = matches!(caller.end, Some(Err(_)));
        assert_eq!(
            failed,
            *sequence == SequenceId(4),
            "{sequence} ended in {:?}",
            caller.end
        );
    }
}
