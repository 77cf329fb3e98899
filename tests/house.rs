//! The scheduler's and the cache's cores with the oracle as device, without threads
//! or actors: messages are delivered in a random order, everything is checked after
//! each, and every sequence must get exactly the tokens that it gets alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use motet::cache::{self, CacheCore, CacheError, Salt};
use motet::config::{CacheConfig, SchedulerConfig};
use motet::device::{Edit, Failure, Outcome, Table, WORK_IN_FLIGHT_MAX, Work};
use motet::model::oracle::{Oracle, OracleConfig, ShiftRule, StepFault};
use motet::model::sampling::Sampling;
use motet::model::{DeviceMemory, LayerKind, Model, ModelSpec};
use motet::request::{ContextLimit, FinishReason, Priority};
use motet::scheduler::{Effect, Event, Fork, SchedulerCore, Submission};
use motet::{PinId, SequenceId, TokenId, UserId};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How a sequence ended, and what it was told.
#[derive(Debug, Default)]
struct Caller {
    prompt: Vec<TokenId>,
    output_tokens_max: usize,
    sampling: Sampling,
    at_limit: ContextLimit,
    salt: Salt,
    class: Priority,
    /// One of a few, unless it is given.
    user: Option<UserId>,
    start_by: Option<Duration>,
    finish_by: Option<Duration>,
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
    work: VecDeque<Work>,
    /// Whether the device takes new work before it lands what is under way.
    eager: bool,
    most_under_way: usize,
    callers: BTreeMap<SequenceId, Caller>,
    /// Work that the device could not carry out.
    failures: Vec<String>,
    /// What the cache takes for the time.
    now: Duration,
    pins_made: u64,
    /// Questions to the cache without an answer so far.
    tickets: BTreeSet<u64>,
    /// Whoever was inside when all were told to end.
    aborted: BTreeSet<SequenceId>,
    forks: usize,
    shifts: usize,
    preempted: usize,
}

impl House {
    fn new(layers: &[LayerKind], budget_tokens: usize) -> Self {
        Self::with_context(layers, budget_tokens, 512)
    }

    fn with_context(layers: &[LayerKind], budget_tokens: usize, context_tokens_max: usize) -> Self {
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

    fn of(oracle: OracleConfig, budget_tokens: usize) -> Self {
        let model = Oracle::new(oracle.clone()).unwrap();
        let spec = model.spec().clone();
        let cache_config = CacheConfig {
            device_bytes_max: budget_bytes(&spec, budget_tokens),
            share_tokens_min: 4,
            restore_interval_tokens: 16,
            ..CacheConfig::default()
        };
        let scheduler_config = SchedulerConfig {
            sequences_max: 8,
            queue_max: 100,
            step_tokens_max: 16,
            step_retries_max: 2,
            ..SchedulerConfig::default()
        };
        Self {
            oracle,
            model,
            table: Table::new(),
            scheduler: SchedulerCore::new(spec.clone(), scheduler_config),
            cache: CacheCore::new(spec, cache_config),
            messages: VecDeque::new(),
            answers: VecDeque::new(),
            work: VecDeque::new(),
            eager: false,
            most_under_way: 0,
            callers: BTreeMap::new(),
            failures: Vec::new(),
            now: Duration::ZERO,
            pins_made: 0,
            tickets: BTreeSet::new(),
            aborted: BTreeSet::new(),
            forks: 0,
            shifts: 0,
            preempted: 0,
        }
    }

    fn submit(
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

    fn submit_caller(&mut self, caller: Caller) -> SequenceId {
        let sequence = SequenceId(self.callers.len() as u64 + 1);
        let submission = submission(sequence, &caller, &caller.prompt, &self.oracle.end_tokens);
        self.callers.insert(sequence, caller);
        self.feed(Event::Submit(submission));
        sequence
    }

    /// Forks a sequence after `at` of its tokens, and adds `appended` to them.
    fn fork(&mut self, source: SequenceId, at: usize, appended: &[TokenId]) {
        let of = &self.callers[&source];
        let known = of.prompt.iter().chain(&of.told).copied();
        let prompt: Vec<TokenId> = known.take(at).chain(appended.iter().copied()).collect();
        let left = match of.at_limit {
            ContextLimit::Shift { .. } => usize::MAX,
            ContextLimit::Stop => self.oracle.context_tokens_max - prompt.len(),
        };
        let caller = Caller {
            output_tokens_max: 9.min(left),
            sampling: of.sampling,
            at_limit: of.at_limit,
            salt: of.salt.clone(),
            prompt,
            ..Caller::default()
        };
        self.forks += 1;
        let sequence = SequenceId(self.callers.len() as u64 + 1);
        let submission = submission(sequence, &caller, appended, &self.oracle.end_tokens);
        self.callers.insert(sequence, caller);
        self.feed(Event::Fork(Fork {
            source,
            at: Some(at),
            submission,
        }));
        let end = &self.callers[&sequence].end;
        assert!(end.is_none(), "a live sequence can be forked: {end:?}");
    }

    fn abort(&mut self) {
        let inside = self.callers.iter().filter(|(_, c)| c.end.is_none());
        self.aborted.extend(inside.map(|(sequence, _)| *sequence));
        self.feed(Event::Abort);
        for sequence in &self.aborted {
            let end = &self.callers[sequence].end;
            assert!(matches!(end, Some(Err(_))), "{sequence} ends at once");
        }
    }

    fn upkeep(&mut self, message: cache::Message) {
        let ticket = 1 + self.tickets.last().unwrap_or(&0);
        self.tickets.insert(ticket);
        self.feed(Event::Upkeep { ticket, message });
    }

    fn feed(&mut self, event: Event) {
        for effect in self.scheduler.handle(self.now, event) {
            match effect {
                Effect::Cache(message) => self.messages.push_back(message),
                Effect::Work(work) => {
                    let removes = |edit: &&Edit| matches!(edit, Edit::Remove { .. });
                    self.shifts += work.edits.iter().filter(removes).count();
                    self.work.push_back(work);
                    let out = self.work.len() + self.table.under_way();
                    assert!(out <= WORK_IN_FLIGHT_MAX, "two works at a time");
                }
                Effect::Upkept(ticket, _) => {
                    assert!(self.tickets.remove(&ticket), "an answer is awaited");
                }
                Effect::Started {
                    sequence,
                    cached_tokens,
                    ..
                } => {
                    assert!(cached_tokens < self.callers[&sequence].prompt.len());
                }
                Effect::Token(sequence, token, _) => {
                    let caller = self.callers.get_mut(&sequence).unwrap();
                    assert!(caller.end.is_none(), "no token after the end");
                    caller.told.push(token);
                }
                Effect::Preempted(_) => self.preempted += 1,
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
                self.now += Duration::from_millis(1);
                let answer = self.cache.handle(self.now, message);
                self.cache.check_integrity();
                self.answers.push_back(answer);
            }
            1 => {
                let Some(answer) = self.answers.pop_front() else {
                    return false;
                };
                self.feed(Event::Cache(answer));
            }
            _ => return self.device(),
        }
        true
    }

    /// The device does one thing, if there is one to do: launches, draws or lands.
    fn device(&mut self) -> bool {
        let under_way = self.table.under_way();
        self.eager = !self.eager;
        let can_launch =
            !self.work.is_empty() && under_way < WORK_IN_FLIGHT_MAX && !self.table.is_to_draw();
        if self.table.is_to_draw() && under_way == 1 {
            self.table.draw(&mut self.model);
        } else if can_launch && (self.eager || under_way == 0) {
            let work = self.work.pop_front().expect("there is work");
            self.table.launch(&mut self.model, work);
            self.most_under_way = self.most_under_way.max(self.table.under_way());
        } else if under_way > 0 {
            let result = self.table.land(&mut self.model);
            let failed = |failure: &Failure| !matches!(failure, Failure::Dropped);
            let failure = result.as_ref().err().filter(|failure| failed(failure));
            self.failures
                .extend(failure.map(|failure| format!("{failure:?}")));
            self.feed(Event::Outcome(Outcome {
                result,
                busy: Duration::ZERO,
                gap: Duration::ZERO,
                memory: DeviceMemory::default(),
            }));
        } else {
            return can_launch;
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
            // Nothing else happens until a deadline.
            if let (3, Some(at)) = (idle, self.scheduler.wakes_at()) {
                self.now = self.now.max(at);
                self.feed(Event::Tick);
                idle = 0;
            }
        }
        assert!(
            self.scheduler.is_idle(),
            "nothing is left to do: {:?}",
            self.scheduler
        );
    }

    /// What a caller gets that has the device for itself.
    fn alone(&self, caller: &Caller) -> Vec<TokenId> {
        let (prompt, tokens) = (&caller.prompt, caller.output_tokens_max);
        match caller.at_limit {
            ContextLimit::Stop => self.oracle.solo(prompt, tokens, caller.sampling),
            ContextLimit::Shift { keep } => {
                let context_tokens = self.oracle.context_tokens_max;
                let rule = ShiftRule {
                    context_tokens,
                    keep,
                };
                self.oracle
                    .solo_shifting(prompt, tokens, caller.sampling, rule)
            }
        }
    }

    /// Everybody got what it gets alone, and nothing leaked.
    fn check_end(&self) {
        for (sequence, caller) in &self.callers {
            let mut alone = self.alone(caller);
            let ends = |token: &TokenId| self.oracle.end_tokens.contains(token);
            let end = alone.iter().position(ends);
            alone.truncate(end.unwrap_or(alone.len()));
            match caller.end.as_ref().expect("every sequence ends") {
                Ok(FinishReason::Cancelled | FinishReason::Deadline) | Err(_) => {
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

fn submission(
    sequence: SequenceId,
    caller: &Caller,
    prompt: &[TokenId],
    end_tokens: &[TokenId],
) -> Submission {
    Submission {
        sequence,
        prompt: prompt.into(),
        output_tokens_max: caller.output_tokens_max,
        sampling: caller.sampling,
        draw_spec: None,
        end_tokens: end_tokens.into(),
        user: caller.user.unwrap_or(UserId(sequence.0 % 3)),
        weight: 1.0 + (sequence.0 % 2) as f64,
        class: caller.class,
        start_by: caller.start_by,
        finish_by: caller.finish_by,
        at_limit: caller.at_limit,
        salt: caller.salt.clone(),
        // Every other sequence asks for one.
        restore_points: (sequence.0 % 2..1).map(|_| prompt.len() / 2).collect(),
        retention: (sequence.0 % 3) as u8,
    }
}

const KINDS: [&[LayerKind]; 5] = [
    &[LayerKind::Full],
    &[LayerKind::Full, LayerKind::Window { tokens: 5 }],
    &[LayerKind::Recurrent],
    &[LayerKind::Window { tokens: 40 }],
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

/// A request of any kind: some go on when their context is full.
fn submit_any(house: &mut House, rng: &mut impl Rng) {
    let shifts = rng.random_bool(0.3);
    let caller = Caller {
        prompt: prompt(rng),
        output_tokens_max: rng.random_range(1..if shifts { 90 } else { 12 }),
        sampling: sampling(rng),
        at_limit: match shifts {
            // As much as may be kept leaves room for one token at a time.
            true => ContextLimit::Shift {
                keep: match rng.random_bool(0.1) {
                    true => house.oracle.context_tokens_max - 1,
                    false => rng.random_range(0..40),
                },
            },
            false => ContextLimit::Stop,
        },
        salt: any_salt(rng),
        class: [Priority::Background, Priority::Normal, Priority::Urgent][rng.random_range(0..3)],
        start_by: any_deadline(house, rng),
        finish_by: any_deadline(house, rng),
        ..Caller::default()
    };
    house.submit_caller(caller);
}

fn any_deadline(house: &House, rng: &mut impl Rng) -> Option<Duration> {
    let left = Duration::from_millis(rng.random_range(0..300));
    rng.random_bool(0.05).then_some(house.now + left)
}

fn any_salt(rng: &mut impl Rng) -> Salt {
    match rng.random_bool(0.2) {
        true => Salt::new("a tenant"),
        false => Salt::default(),
    }
}

/// Forks a live sequence, if there is one, somewhere in what it has.
fn fork_any(house: &mut House, rng: &mut impl Rng) {
    let live = house.callers.iter().filter(|(_, c)| c.end.is_none());
    let live: Vec<SequenceId> = live.map(|(sequence, _)| *sequence).collect();
    if live.is_empty() {
        return;
    }
    let source = live[rng.random_range(0..live.len())];
    let of = &house.callers[&source];
    let known = of.prompt.len() + of.told.len();
    let appended: Vec<TokenId> = (0..rng.random_range(0..3)).collect();
    let most = match of.at_limit {
        ContextLimit::Stop => known.min(60),
        ContextLimit::Shift { .. } => known,
    };
    let at = match rng.random_bool(0.5) {
        true => most,
        false => rng.random_range(1..=most),
    };
    house.fork(source, at, &appended);
}

/// Pins, unpins, clears.
fn keep_any(house: &mut House, rng: &mut impl Rng) {
    let message = match rng.random_range(0..7) {
        0 => cache::Message::Clear { salt: None },
        6 => cache::Message::Clear {
            salt: Some(any_salt(rng)),
        },
        1 | 2 => cache::Message::Unpin {
            pin: PinId(rng.random_range(0..=house.pins_made)),
        },
        _ => {
            house.pins_made += 1;
            let mut tokens = prompt(rng);
            tokens.truncate(rng.random_range(1..=tokens.len()));
            cache::Message::Pin(cache::Pin {
                pin: PinId(house.pins_made),
                salt: any_salt(rng),
                tokens: tokens.into(),
                time_to_live: Some(Duration::from_millis(rng.random_range(1..40))),
            })
        }
    };
    house.upkeep(message);
}

/// One random history of the whole house, at its end.
fn history(seed: u64, faults: bool) -> House {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let budget_tokens = [70, 150, 2_000][rng.random_range(0..3)];
    let kinds = KINDS[seed as usize % KINDS.len()];
    let mut house = House::with_context(kinds, budget_tokens, 66);
    for _ in 0..rng.random_range(50..400) {
        match rng.random_range(0..20) {
            0 if house.callers.len() < 64 => submit_any(&mut house, &mut rng),
            5 if house.callers.len() < 64 => fork_any(&mut house, &mut rng),
            6 if rng.random_bool(0.2) => keep_any(&mut house, &mut rng),
            1 if !house.callers.is_empty() && rng.random_bool(0.3) => {
                let sequence = SequenceId(rng.random_range(1..=house.callers.len()) as u64);
                house.feed(Event::Stop(sequence));
            }
            7 if !house.callers.is_empty() => {
                let sequence = SequenceId(rng.random_range(1..=house.callers.len()) as u64);
                house.feed(match rng.random_bool(0.4) {
                    true => Event::Pause(sequence),
                    false => Event::Resume(sequence),
                });
            }
            2 if faults && rng.random_bool(0.2) => {
                let fault = [StepFault::Fail, StepFault::Panic][rng.random_range(0..2)];
                house.oracle.faults.next_steps(1, fault);
            }
            4 if rng.random_bool(0.003) => house.abort(),
            3 if faults && rng.random_bool(0.05) => house.oracle.faults.refuse_memory(1),
            way => {
                house.deliver(way % 3);
            }
        }
    }
    house.oracle.faults.clear();
    for number in 1..=house.callers.len() {
        house.feed(Event::Resume(SequenceId(number as u64)));
    }
    house.run_until_idle(&mut rng);
    house.check_end();
    assert!(
        faults || house.failures.is_empty(),
        "the device fails only when told to: {:?}",
        house.failures
    );
    let peak = house.oracle.counters.now().bytes_peak;
    let budget = budget_bytes(house.model.spec(), budget_tokens);
    assert!(
        peak <= budget,
        "{peak} bytes were alive on a device of {budget}"
    );
    house
}

/// What many histories have seen.
#[derive(Debug, Default)]
struct Seen {
    told: usize,
    forks: usize,
    shifts: usize,
    failures: usize,
    preempted: usize,
    overlapped: usize,
}

impl Seen {
    fn add(&mut self, house: &House) {
        let told = house.callers.values().map(|caller| caller.told.len());
        self.told += told.sum::<usize>();
        self.forks += house.forks;
        self.shifts += house.shifts;
        self.failures += house.failures.len();
        self.preempted += house.preempted;
        self.overlapped += usize::from(house.most_under_way == WORK_IN_FLIGHT_MAX);
    }
}

#[test]
fn any_order_of_messages_gives_every_caller_its_own_tokens() {
    let mut seen = Seen::default();
    for seed in 0..2_500 {
        seen.add(&history(seed, false));
    }
    println!("{seen:?}");
    assert!(
        seen.told > 50_000
            && seen.forks > 2_000
            && seen.shifts > 300
            && seen.preempted > 300
            && seen.overlapped > 1_000,
        "these histories prove little: {seen:?}"
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
    let mut seen = Seen::default();
    for seed in 0..2_500 {
        seen.add(&history(10_000 + seed, true));
    }
    println!("{seen:?}");
    assert!(
        seen.told > 50_000 && seen.failures > 500,
        "these histories prove little: {seen:?}"
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
        // An end is seen one step late.
        let most = shared.len() + 16 * 3 + told + 16;
        assert!(
            evaluated <= most,
            "{kinds:?}: {evaluated} tokens evaluated, at most {most} needed"
        );
    }
}

/// Who comes while another's step is under way comes too late for a state that is not
/// kept. Then one of them computes what all share, and not each.
#[test]
fn latecomers_compute_a_common_beginning_once() {
    for kinds in KINDS {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut house = House::new(kinds, 10_000);
        let shared: Vec<TokenId> = (0..20).map(|i| 1 + i % 40).collect();
        let prompt = |user: TokenId| {
            let mut prompt = shared.clone();
            prompt.extend((0..30).map(|i| 41 + (user + i) % 8));
            prompt
        };
        house.submit(prompt(0), 4, Sampling::GREEDY);
        while house.oracle.counters.now().tokens_evaluated < 32 {
            (0..3).any(|way| house.deliver(way));
        }
        for user in 1..8 {
            house.submit(prompt(user), 4, Sampling::GREEDY);
        }
        house.run_until_idle(&mut rng);
        house.check_end();
        let told: usize = house.callers.values().map(|c| c.told.len()).sum();
        let evaluated = house.oracle.counters.now().tokens_evaluated as usize;
        let most = 2 * shared.len() + 8 * 30 + told + 8;
        assert!(
            evaluated <= most,
            "{kinds:?}: {evaluated} tokens evaluated, at most {most} needed"
        );
    }
}

/// While a sequence that begins alike lives on, those who come one after another find
/// the common beginning, once one of them has computed it.
#[test]
fn a_live_sequence_does_not_keep_others_from_sharing() {
    for kinds in KINDS {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let endless = OracleConfig {
            end_tokens: Vec::new(),
            end_one_in: 0,
            ..House::new(kinds, 0).oracle
        };
        let mut house = House::of(endless, 10_000);
        let prompt = |user: TokenId| (1..25).chain([40 + user, 48]).collect::<Vec<TokenId>>();
        house.submit(prompt(0), 200, Sampling::GREEDY);
        for user in 1..5 {
            while house.callers[&SequenceId(1)].told.len() < 4 * user as usize {
                (0..3).any(|way| house.deliver(way));
            }
            house.submit(prompt(user), 1, Sampling::GREEDY);
        }
        house.run_until_idle(&mut rng);
        house.check_end();
        let told: usize = house.callers.values().map(|c| c.told.len()).sum();
        let evaluated = house.oracle.counters.now().tokens_evaluated as usize;
        let most = 2 * 24 + 5 * 2 + told + 5;
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
        house.submit_caller(Caller {
            prompt: (0..20).map(|_| rng.random_range(1..40)).collect(),
            output_tokens_max: 8,
            user: Some(UserId(0)),
            ..Caller::default()
        })
    };
    for _ in 0..12 {
        small(&mut house, &mut rng);
    }
    let prompt: Vec<TokenId> = (0..150).map(|i| 1 + i % 40).collect();
    let large = house.submit_caller(Caller {
        prompt,
        output_tokens_max: 40,
        user: Some(UserId(0)),
        ..Caller::default()
    });
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
