//! Random histories: whatever may happen to the house, in any order.

use std::time::Duration;

use crate::house::{Caller, House, budget_bytes};
use motet::cache::{self, Salt};
use motet::device::WORK_IN_FLIGHT_MAX;
use motet::model::oracle::StepFault;
use motet::model::sampling::Sampling;
use motet::model::{LayerKind, Model};
use motet::request::{ContextLimit, Priority};
use motet::scheduler::Event;
use motet::{PinId, SequenceId, TokenId};
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

/// Prompts that share beginnings often.
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
pub(crate) fn submit_any(house: &mut House, rng: &mut impl Rng) {
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

pub(crate) fn any_deadline(house: &House, rng: &mut impl Rng) -> Option<Duration> {
    let left = Duration::from_millis(rng.random_range(0..300));
    rng.random_bool(0.05).then_some(house.now + left)
}

pub(crate) fn any_salt(rng: &mut impl Rng) -> Salt {
    match rng.random_bool(0.2) {
        true => Salt::new("a tenant"),
        false => Salt::default(),
    }
}

/// Forks a live sequence, if there is one, somewhere in what it has.
pub(crate) fn fork_any(house: &mut House, rng: &mut impl Rng) {
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
pub(crate) fn keep_any(house: &mut House, rng: &mut impl Rng) {
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
pub(crate) fn history(seed: u64, faults: bool) -> House {
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
pub(crate) struct Seen {
    pub(crate) told: usize,
    pub(crate) forks: usize,
    pub(crate) shifts: usize,
    pub(crate) failures: usize,
    pub(crate) preempted: usize,
    pub(crate) overlapped: usize,
}

impl Seen {
    pub(crate) fn add(&mut self, house: &House) {
        let told = house.callers.values().map(|caller| caller.told.len());
        self.told += told.sum::<usize>();
        self.forks += house.forks;
        self.shifts += house.shifts;
        self.failures += house.failures.len();
        self.preempted += house.preempted;
        self.overlapped += usize::from(house.most_under_way == WORK_IN_FLIGHT_MAX);
    }
}
