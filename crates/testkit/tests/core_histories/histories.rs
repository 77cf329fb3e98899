//! Random histories: any operations and faults of the engine, in any order.

use std::time::Duration;

use crate::appended;
use crate::harness::{Caller, HistoryHarness};
use crate::pager_harness::any_tiers;
use motet_core::cache;
use motet_core::cache::{BlockTier, PrefixKey, Salt};
use motet_core::scheduler::Event;
use motet_model::LayerKind;
use motet_model::oracle::StepFault;
use motet_model::sampling::Sampling;
use motet_protocol::WORK_IN_FLIGHT_MAX;
use motet_protocol::{ContextLimit, Priority, ReasoningBudget};
use motet_protocol::{PinId, SequenceId, TokenId};
use motet_testkit::block_follower::BlockFollower;
use motet_testkit::folder::Folder;
use motet_testkit::remote::{MemoryRemote, RemoteFault};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) const KINDS: [&[LayerKind]; 5] = [
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

/// Prompts that often share beginnings.
pub(crate) fn prompt(rng: &mut impl Rng) -> Vec<TokenId> {
    let family = rng.random_range(1..4);
    let shared = [0, 7, 20, 33][rng.random_range(0..4)];
    let own = rng.random_range(1..20);
    let alphabet = rng.random_range(2..4);
    let mut tokens: Vec<TokenId> = (0..shared).map(|i| family + i % 5).collect();
    tokens.extend((0..own).map(|_| rng.random_range(1..=alphabet)));
    tokens
}

pub(crate) fn sampling(rng: &mut impl Rng) -> Sampling {
    if rng.random_bool(0.5) {
        return Sampling::GREEDY;
    }
    let is_penalized = rng.random_bool(0.3);
    Sampling {
        temperature: 1.0,
        seed: rng.random_range(0..4),
        repetition_penalty: if is_penalized { 1.5 } else { 1.0 },
        penalty_window: 8,
        ..Sampling::GREEDY
    }
}

/// A prompt that continues another sequence's prompt and output.
fn continue_conversation(
    harness: &HistoryHarness,
    rng: &mut impl Rng,
) -> Option<(Salt, Vec<TokenId>)> {
    let number = rng.random_range(0..harness.callers.len().max(1)) as u64 + 1;
    let before = harness.callers.get(&SequenceId(number))?;
    if before.salt.is_private() {
        return None;
    }
    let known = before.prompt.iter().chain(&before.sent).copied();
    let new = (0..rng.random_range(1..4)).map(|_| rng.random_range(1..4));
    let new: Vec<TokenId> = new.collect();
    let prompt = known.take(50).chain(new).collect();
    Some((before.salt.clone(), prompt))
}

/// A request of any kind: some continue when their context is full.
pub(crate) fn submit_any(harness: &mut HistoryHarness, rng: &mut impl Rng) {
    let shifts = rng.random_bool(0.3);
    let again = harness.pager_harness.is_some() && rng.random_bool(0.5);
    let (salt, prompt) = again
        .then(|| continue_conversation(harness, rng))
        .flatten()
        .unwrap_or_else(|| (any_salt(rng), prompt(rng)));
    let salt = if rng.random_bool(0.1) {
        Salt::private(harness.next_sequence())
    } else {
        salt
    };
    let caller = Caller {
        prompt,
        output_tokens_max: rng.random_range(1..if shifts { 90 } else { 12 }),
        sampling: sampling(rng),
        at_context_limit: if shifts {
            // At most, it keeps so much that one token at a time fits.
            ContextLimit::Shift {
                keep: if rng.random_bool(0.1) {
                    harness.oracle.context_tokens_max - 1
                } else {
                    rng.random_range(0..40)
                },
            }
        } else {
            ContextLimit::Stop
        },
        salt,
        priority: [Priority::Background, Priority::Normal, Priority::Urgent]
            [rng.random_range(0..3)],
        start_by: any_deadline(harness, rng),
        finish_by: any_deadline(harness, rng),
        grammar: (harness.appends && rng.random_bool(0.6)).then(|| rng.random_range(0..1_000)),
        reasoning: (harness.appends && rng.random_bool(0.4)).then(|| any_reasoning(rng)),
        is_spelled: rng.random_bool(0.5),
        ..Caller::default()
    };
    let prediction = any_prediction(harness, &caller, rng);
    let sent = any_beginning(harness, &caller, rng);
    harness.submit_caller(Caller {
        prediction,
        sent,
        ..caller
    });
}

/// Nothing in most cases, or a beginning of the output, which the caller has from elsewhere.
fn any_beginning(harness: &HistoryHarness, caller: &Caller, rng: &mut impl Rng) -> Vec<TokenId> {
    if rng.random_bool(0.85) {
        return Vec::new();
    }
    let mut output = harness.expected_output(caller);
    let ends = |token: &TokenId| harness.oracle.end_tokens.contains(token);
    output.truncate(output.iter().position(ends).unwrap_or(output.len()));
    output.truncate(rng.random_range(0..=output.len()));
    output
}

/// Nothing, the output itself, the output with some wrong tokens, or any tokens.
fn any_prediction(harness: &HistoryHarness, caller: &Caller, rng: &mut impl Rng) -> Vec<TokenId> {
    let mut output = match rng.random_range(0..4) {
        0 => return Vec::new(),
        _ => harness.expected_output(caller),
    };
    match rng.random_range(0..3) {
        0 => {}
        1 => {
            for token in &mut output {
                if rng.random_bool(0.2) {
                    *token = rng.random_range(1..50);
                }
            }
        }
        _ => output.fill_with(|| rng.random_range(1..50)),
    }
    output
}

fn any_reasoning(rng: &mut impl Rng) -> ReasoningBudget {
    let marks: [&[TokenId]; 3] = [&[49], &[48, 49], &[7, 7, 8]];
    ReasoningBudget {
        open: vec![rng.random_range(1..6)],
        close: marks[rng.random_range(0..marks.len())].to_vec(),
        is_open: rng.random_bool(0.7),
        opens_once: rng.random_bool(0.3),
        tokens_max: rng.random_range(0..8),
    }
}

pub(crate) fn any_deadline(harness: &HistoryHarness, rng: &mut impl Rng) -> Option<Duration> {
    let left = Duration::from_millis(rng.random_range(0..300));
    rng.random_bool(0.05).then_some(harness.cores.now() + left)
}

pub(crate) fn any_salt(rng: &mut impl Rng) -> Salt {
    if rng.random_bool(0.2) {
        Salt::new("a tenant")
    } else {
        Salt::default()
    }
}

/// Forks a live sequence, if there is one, at a random offset.
pub(crate) fn fork_any(harness: &mut HistoryHarness, rng: &mut impl Rng) {
    let live = harness.callers.iter().filter(|(_, c)| c.end.is_none());
    let live: Vec<SequenceId> = live.map(|(sequence, _)| *sequence).collect();
    if live.is_empty() {
        return;
    }
    let source = live[rng.random_range(0..live.len())];
    let of = &harness.callers[&source];
    let known = of.prompt.len() + of.sent.len();
    let appended: Vec<TokenId> = (0..rng.random_range(0..3)).collect();
    let most = match of.at_context_limit {
        ContextLimit::Stop => known.min(60),
        ContextLimit::Shift { .. } => known,
    };
    let at = if rng.random_bool(0.5) {
        most
    } else {
        rng.random_range(1..=most)
    };
    if rng.random_bool(0.15) {
        harness.rewind(source, at, &appended)
    } else {
        harness.fork(source, at, &appended)
    }
}

/// Pins, unpins, clears.
pub(crate) fn keep_any(harness: &mut HistoryHarness, rng: &mut impl Rng) {
    let message = match rng.random_range(0..7) {
        0 => cache::Message::Clear { salt: None },
        6 => cache::Message::Clear {
            salt: Some(any_salt(rng)),
        },
        1 | 2 => cache::Message::Unpin {
            pin: PinId(rng.random_range(0..=harness.pins_made)),
        },
        _ => {
            harness.pins_made += 1;
            let mut tokens = prompt(rng);
            tokens.truncate(rng.random_range(1..=tokens.len()));
            cache::Message::Pin(cache::Pin {
                pin: PinId(harness.pins_made),
                key: PrefixKey::of(any_salt(rng)),
                tokens: tokens.into(),
                time_to_live: Some(Duration::from_millis(rng.random_range(1..40))),
            })
        }
    };
    harness.cache_command(message);
}

/// Runs one random history of the whole engine to its end.
pub(crate) fn history(seed: u64, faults: bool) -> HistoryHarness {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let budget_tokens = [70, 150, 2_000][rng.random_range(0..3)];
    let kinds = KINDS[seed as usize % KINDS.len()];
    let mut harness = HistoryHarness::with_context(kinds, budget_tokens, 66);
    harness = with_some_draft_model(harness, seed);
    live(&mut harness, &mut rng, faults, false);
    harness.check_peak(budget_tokens);
    harness
}

/// Every third history has a draft model.
fn with_some_draft_model(harness: HistoryHarness, seed: u64) -> HistoryHarness {
    if seed.is_multiple_of(3) {
        harness.with_draft_model(seed as usize % 40)
    } else {
        harness
    }
}

/// A history with losses of the device, the cache and the scheduler as well, with or without a
/// pager.
pub(crate) fn history_of_losses(seed: u64, seen: &mut Seen) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let folder = Folder::new(&format!("core-histories-losses-{seed}"));
    let budget_tokens = [80, 150, 2_000][rng.random_range(0..3)];
    let kinds = KINDS[seed as usize % KINDS.len()];
    let mut harness = HistoryHarness::with_context(kinds, budget_tokens, 66);
    if rng.random_bool(0.5) {
        harness = harness.with_pager(&any_tiers(&mut rng, &folder.0), &MemoryRemote::new());
    }
    let faults = rng.random_bool(0.5);
    harness = with_some_draft_model(harness, seed);
    live(&mut harness, &mut rng, faults, true);
    seen.add(&harness);
}

/// A history of sequences to which tokens are appended, with faults and losses or without.
pub(crate) fn appending_history(seed: u64, seen: &mut Seen) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let budget_tokens = [80, 150, 2_000][rng.random_range(0..3)];
    let kinds = KINDS[seed as usize % KINDS.len()];
    let mut harness = HistoryHarness::with_context(kinds, budget_tokens, 66);
    harness.appends = true;
    let (faults, losses) = (rng.random_bool(0.3), rng.random_bool(0.4));
    harness = with_some_draft_model(harness, seed);
    live(&mut harness, &mut rng, faults, losses);
    if !losses {
        harness.check_peak(budget_tokens);
    }
    seen.add(&harness);
}

/// A history with a pager, whose disk tier, or remote tier, is then opened by a second pager.
pub(crate) fn paged_history(seed: u64, faults: bool, seen: &mut Seen) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let folder = Folder::new(&format!("core-histories-{seed}-{faults}"));
    let budget_tokens = [80, 150, 250][rng.random_range(0..3)];
    let kinds = KINDS[seed as usize % KINDS.len()];
    let remote = MemoryRemote::new();
    for _ in 0..2 {
        let tiers = any_tiers(&mut rng, &folder.0);
        let mut harness =
            HistoryHarness::with_context(kinds, budget_tokens, 66).with_pager(&tiers, &remote);
        harness = with_some_draft_model(harness, seed);
        live(&mut harness, &mut rng, faults, false);
        harness.check_peak(budget_tokens);
        harness.check_empty();
        // Each sequence alone fits in memory: none is rejected because of the pager's leases.
        let ends = harness
            .callers
            .values()
            .filter_map(|caller| caller.end.as_ref());
        let out_of_memory = ends
            .filter_map(|end| end.as_ref().err())
            .find(|why| why.contains("memory"));
        assert!(faults || out_of_memory.is_none(), "{out_of_memory:?}");
        seen.add(&harness);
    }
}

fn live(harness: &mut HistoryHarness, rng: &mut ChaCha8Rng, faults: bool, losses: bool) {
    if rng.random_bool(0.5) {
        harness.follow_blocks();
    }
    for _ in 0..rng.random_range(50..400) {
        match rng.random_range(0..20) {
            0 if harness.callers.len() < 64 => submit_any(harness, rng),
            5 if harness.callers.len() < 64 => fork_any(harness, rng),
            6 if rng.random_bool(0.2) => keep_any(harness, rng),
            1 if !harness.callers.is_empty() && rng.random_bool(0.3) => {
                let sequence = SequenceId(rng.random_range(1..=harness.callers.len()) as u64);
                harness.handle_event(Event::Stop(sequence));
            }
            7 if !harness.callers.is_empty() => {
                let sequence = SequenceId(rng.random_range(1..=harness.callers.len()) as u64);
                harness.handle_event(if rng.random_bool(0.4) {
                    Event::Pause(sequence)
                } else {
                    Event::Resume(sequence)
                });
            }
            2 if faults && rng.random_bool(0.2) => {
                let fault = [StepFault::Fail, StepFault::Panic][rng.random_range(0..2)];
                harness.oracle.faults.next_steps(1, fault);
            }
            4 if rng.random_bool(0.003) => harness.abort(),
            4 if rng.random_bool(0.003) => harness.hand_over(),
            3 if faults && rng.random_bool(0.3) => {
                harness
                    .oracle
                    .faults
                    .fail_allocations(rng.random_range(1..4));
            }
            8 if faults && rng.random_bool(0.1) => harness.oracle.faults.fail_exports(2),
            9 if faults && rng.random_bool(0.4) => {
                if let Some(pager_harness) = &mut harness.pager_harness {
                    pager_harness.disk_faults = rng.random_range(1..4);
                    let remote_faults = [
                        RemoteFault::Fails,
                        RemoteFault::Lost,
                        RemoteFault::Hangs,
                        RemoteFault::Slow(Duration::from_secs(1)),
                    ];
                    let faults = rng.random_range(0..3);
                    let fault = remote_faults[rng.random_range(0..4)];
                    pager_harness.remote_store.fault((0..faults).map(|_| fault));
                }
            }
            10 if losses && rng.random_bool(0.2) => match rng.random_range(0..3) {
                0 => harness.lose_device(),
                1 => harness.losses.cache_fails = true,
                _ => harness.losses.scheduler_fails = true,
            },
            11 if losses => harness.find_device(),
            12 if losses && rng.random_bool(0.02) => harness.lose_pager(),
            13 if (losses || faults) && rng.random_bool(0.3) => {
                if let Some(pager_harness) = &mut harness.pager_harness {
                    pager_harness.fails = true;
                }
            }
            channel => {
                let channels = harness.channels();
                harness.deliver(channel % channels);
            }
        }
    }
    harness.oracle.faults.clear();
    harness.losses.cache_fails = false;
    harness.losses.scheduler_fails = false;
    if let Some(pager_harness) = &mut harness.pager_harness {
        pager_harness.disk_faults = 0;
        pager_harness.fails = false;
    }
    for number in 1..=harness.callers.len() {
        harness.handle_event(Event::Resume(SequenceId(number as u64)));
    }
    harness.run_until_idle(rng);
    harness.check_end();
    let labels = harness.pager_harness.as_ref();
    let labels = labels.map_or(0, |pager| pager.config.label_bytes_max());
    harness.check_followed_blocks(!faults && !losses && labels >= 1 << 20);
    assert!(
        faults || harness.failures.is_empty(),
        "the device fails only on request: {:?}",
        harness.failures
    );
}

/// Counts over many histories.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) histories: usize,
    pub(crate) sent: usize,
    pub(crate) forks: usize,
    pub(crate) shifts: usize,
    pub(crate) failures: usize,
    /// Works with a failed edit.
    pub(crate) edits_failed: usize,
    pub(crate) preempted: usize,
    pub(crate) overlapped: usize,
    /// Devices, caches, schedulers and pagers that were lost.
    pub(crate) lost: [usize; 4],
    /// Pagers that panicked and were rebuilt.
    pub(crate) pagers_rebuilt: usize,
    /// The pager's copies that were packed, loaded, read and written, and failures.
    pub(crate) packed: u64,
    pub(crate) unpacked: u64,
    pub(crate) read: u64,
    pub(crate) written: u64,
    /// Blocks in copies that a follower knows in the end.
    pub(crate) copied_blocks: usize,
    /// Those that were sent to a remote tier, and fetched from it.
    pub(crate) shared: u64,
    pub(crate) fetched: u64,
    pub(crate) moves_failed: u64,
    /// Times that a sequence waited until its grammar had read its output.
    pub(crate) masks_awaited: usize,
    /// Tokens of drafts that grammars have followed.
    pub(crate) looked_ahead: usize,
    /// Tokens that draft models have written, and draft models that have failed.
    pub(crate) drafted: usize,
    pub(crate) draft_models_lost: usize,
    pub(crate) handed_over: usize,
    pub(crate) continued: usize,
}

impl Seen {
    pub(crate) fn add(&mut self, harness: &HistoryHarness) {
        let sent = harness.callers.values().map(|caller| caller.sent.len());
        self.histories += 1;
        self.sent += sent.sum::<usize>();
        self.forks += harness.forks;
        self.shifts += harness.shifts;
        self.failures += harness.failures.len();
        self.edits_failed += harness.losses.edits;
        self.preempted += harness.preempted;
        self.masks_awaited += harness.masks_awaited;
        self.looked_ahead += appended::take_looked_ahead();
        self.handed_over += harness.handed_over;
        self.continued += harness.continued;
        if let Some(drafts) = &harness.drafts {
            self.drafted += drafts.tokens;
            self.draft_models_lost += drafts.lost;
        }
        let losses = &harness.losses;
        let lost = [
            losses.devices,
            losses.caches,
            losses.schedulers,
            losses.pagers,
        ];
        self.lost = std::array::from_fn(|one| self.lost[one] + lost[one]);
        if let Some(pager_harness) = &harness.pager_harness {
            let stats = pager_harness.core.stats();
            self.pagers_rebuilt += pager_harness.lost;
            self.packed += stats.packed;
            self.unpacked += stats.unpacked;
            self.read += stats.read;
            self.written += stats.written;
            self.shared += stats.sent;
            self.fetched += stats.fetched;
            self.moves_failed += stats.failed;
        }
        let blocks = harness
            .block_follower
            .iter()
            .flat_map(BlockFollower::blocks);
        let copied = blocks.filter(|(tier, _)| *tier != BlockTier::Device);
        self.copied_blocks += copied.count();
        self.overlapped += usize::from(harness.most_under_way == WORK_IN_FLIGHT_MAX);
    }
}
