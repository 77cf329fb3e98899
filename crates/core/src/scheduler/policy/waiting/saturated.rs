//! A model of the policies of starts and of steps together: each class saturated in turn, and
//! all at once. Every class progresses, and no sequence starts before one of a higher class.

use std::collections::BTreeMap;

use arbtest::arbitrary::{Result, Unstructured};

use super::super::plan::{Budget, Candidate, plan};
use super::super::row_cost::RowCost;
use super::super::turns::{AGED_TURN, TURN_TOKENS, Turns};
use super::*;
use crate::config::InterToken;
use crate::random_cases::check_cases;

const CLASSES: [Priority; 3] = [Priority::Background, Priority::Normal, Priority::Urgent];
/// Users of each class.
const USERS: u64 = 3;

#[derive(Clone, Debug)]
struct Load {
    sequences_max: usize,
    step_tokens_max: usize,
    prefill_wait_steps_max: usize,
    prefill_tokens_min: usize,
    /// Steps after which a request is aged.
    ageing: usize,
    /// Requests of each class that wait at any time outside of its breaks; at least one.
    waiting: [usize; Priority::COUNT],
    /// Steps for which requests of a class arrive, and then for which none does; 0 if they
    /// always arrive.
    breaks: [usize; Priority::COUNT],
    prompt_tokens_max: usize,
    output_tokens_max: usize,
    seed: u64,
}

fn load(random: &mut Unstructured<'_>) -> Result<Load> {
    let sequences_max = random.int_in_range(1..=9)?;
    let mut waits = || random.choose(&[1, 1, 12]).copied();
    let waiting = [waits()?, waits()?, waits()?];
    let mut breaks = || random.choose(&[0, 0, 3, 40]).copied();
    let breaks = [breaks()?, breaks()?, breaks()?];
    Ok(Load {
        sequences_max,
        step_tokens_max: sequences_max + random.int_in_range(0..=29)?,
        prefill_wait_steps_max: random.int_in_range(1..=3)?,
        prefill_tokens_min: random.int_in_range(6..=16)?,
        ageing: random.int_in_range(1..=29)?,
        waiting,
        breaks,
        prompt_tokens_max: random.int_in_range(1..=39)?,
        output_tokens_max: random.int_in_range(1..=23)?,
        seed: random.arbitrary()?,
    })
}

impl Load {
    /// Upper bound on the steps until a class with waiting requests has a token.
    fn bound(&self) -> usize {
        let chunks =
            (self.prompt_tokens_max + self.output_tokens_max).div_ceil(self.prefill_tokens_min);
        // From a slot to the end of a turn, and from a slot to the end of an output.
        let waits = self.prefill_wait_steps_max + self.sequences_max;
        let turn = chunks * waits + TURN_TOKENS;
        let life = chunks * waits + self.output_tokens_max;
        // Its own last turn and that of the other class are paid back, and a slot is free for
        // the eighth start.
        self.ageing + 2 * AGED_TURN as usize * turn + (AGED_TURN as usize + 1) * life
    }

    fn comes(&self, priority: Priority, step: usize) -> bool {
        let part = step.checked_div(self.breaks[priority as usize]);
        part.is_none_or(|part| part % 2 == 0)
    }
}

#[derive(Clone, Debug)]
struct Request {
    priority: Priority,
    user: u64,
    /// Tokens to compute before its next token.
    prompt_left: usize,
    prompt: usize,
    output_left: usize,
    waited_steps: usize,
    /// Steps for which it has waited for a slot.
    queued: usize,
    has_slot: bool,
    turn_tokens_left: usize,
}

struct Engine {
    load: Load,
    requests: BTreeMap<SequenceId, Request>,
    service: [f64; (USERS * 3) as usize],
    turns: Turns,
    made: u64,
    steps: usize,
    /// Steps since the class last had a token, while it has requests.
    without: [usize; Priority::COUNT],
    tokens: [usize; Priority::COUNT],
}

impl Engine {
    fn new(load: Load) -> Self {
        Self {
            turns: Turns::new(load.sequences_max),
            load,
            requests: BTreeMap::new(),
            service: [0.0; (USERS * 3) as usize],
            made: 0,
            steps: 0,
            without: [0; Priority::COUNT],
            tokens: [0; Priority::COUNT],
        }
    }

    fn arrive(&mut self) {
        for priority in CLASSES {
            if !self.load.comes(priority, self.steps) {
                continue;
            }
            let waits = |r: &&Request| r.priority == priority && !r.has_slot;
            let missing = self.load.waiting[priority as usize]
                .saturating_sub(self.requests.values().filter(waits).count());
            for _ in 0..missing {
                self.made += 1;
                let dice = (self.made ^ self.load.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                let dice = dice as usize;
                let prompt = 1 + dice % self.load.prompt_tokens_max;
                let request = Request {
                    priority,
                    user: priority as u64 * USERS + self.made % USERS,
                    prompt_left: prompt,
                    prompt,
                    output_left: 1 + (dice / 64) % self.load.output_tokens_max,
                    waited_steps: 0,
                    queued: 0,
                    has_slot: false,
                    turn_tokens_left: 0,
                };
                self.requests.insert(SequenceId(self.made), request);
            }
        }
    }

    fn slots_free(&self) -> usize {
        let taken = self.requests.values().filter(|r| r.has_slot).count();
        self.load.sequences_max - taken
    }

    fn waiting(&self) -> Vec<QueuedView> {
        let admitted = self.requests.values().filter(|r| r.has_slot);
        let admitted = admitted.map(|r| AdmittedPrompt {
            priority: r.priority,
            service: self.service[r.user as usize],
            tokens: r.prompt_left,
        });
        let fill = 2 * self.load.step_tokens_max;
        let in_time = served_in_time(&mut admitted.collect::<Vec<_>>(), fill);
        let waiting = self.requests.iter().filter(|(_, r)| !r.has_slot);
        waiting
            .map(|(sequence, r)| QueuedView {
                sequence: *sequence,
                priority: r.priority,
                aged: r.queued >= self.load.ageing,
                in_turn: r.turn_tokens_left > 0,
                ready: true,
                needed: self.service[r.user as usize] < in_time[r.priority as usize],
                service: self.service[r.user as usize],
                turned_away: false,
                resident_tokens: 0,
                overtaken: 0,
            })
            .collect()
    }

    fn start_all(&mut self) {
        loop {
            let waiting = self.waiting();
            let slots = self.slots_free();
            let start_limits = StartLimits {
                slots,
                open: [slots > 0; Priority::COUNT],
            };
            let Some(next) = next(&waiting, 0.0, &self.turns, start_limits) else {
                let mut waiting = waiting.iter();
                let due = waiting.find(|one| one.aged && self.turns.is_due(one.priority));
                assert!(slots == 0 || due.is_none(), "{due:?} has no turn");
                return;
            };
            let one = waiting[next.index];
            if slots == 0 {
                if !self.preempt_for_queued(&one) {
                    return;
                }
                continue;
            }
            let above = waiting.iter().filter(|other| other.priority > one.priority);
            let above = above.count();
            assert!(
                next.is_turn || above == 0 || above < slots,
                "{one:?} starts while {above} of a higher class wait for {slots} slots"
            );
            let request = self
                .requests
                .get_mut(&one.sequence)
                .expect("the request waits");
            request.has_slot = true;
            request.waited_steps = 0;
            if next.is_turn {
                assert!(request.priority < Priority::Urgent);
                request.turn_tokens_left = TURN_TOKENS;
                self.turns.begin(one.priority);
            } else {
                self.turns.start(one.priority);
            }
        }
    }

    /// Preempts a sequence. None of its computed state stays in the cache: the worst case.
    fn preempt_for_queued(&mut self, one: &QueuedView) -> bool {
        let running: Vec<SequenceId> = self
            .requests
            .iter()
            .filter(|(_, r)| r.has_slot)
            .map(|(name, _)| *name)
            .collect();
        let running_views: Vec<RunningView> = running
            .iter()
            .map(|name| {
                let r = &self.requests[name];
                RunningView {
                    sequence: *name,
                    priority: r.priority,
                    service: self.service[r.user as usize],
                    slots: 1.0,
                    lost_tokens: r.prompt - r.prompt_left,
                    paused: false,
                    fresh: false,
                    in_turn: r.turn_tokens_left > 0,
                }
            })
            .collect();
        let requester = PreemptFor::Queued {
            priority: one.priority,
            service: one.service,
            slots: 1.0,
        };
        let Some(victim) = victim(&running_views, &requester, 0.0) else {
            return false;
        };
        let victim = self
            .requests
            .get_mut(&running[victim])
            .expect("the request runs");
        assert_eq!(victim.turn_tokens_left, 0, "a turn keeps its slot");
        victim.has_slot = false;
        victim.prompt_left = victim.prompt;
        true
    }

    fn step(&mut self) {
        let names: Vec<SequenceId> = self
            .requests
            .iter()
            .filter(|(_, r)| r.has_slot)
            .map(|(name, _)| *name)
            .collect();
        let candidates: Vec<Candidate<'_>> = names
            .iter()
            .map(|name| {
                let r = &self.requests[name];
                Candidate {
                    arrival: *name,
                    pending: r.prompt_left.max(1),
                    decoding: r.prompt_left == 0,
                    cached: r.prompt - r.prompt_left,
                    stop_after: None,
                    suspect: false,
                    resumes: false,
                    priority: r.priority,
                    service: self.service[r.user as usize],
                    waited_steps: r.waited_steps,
                    survival: &[],
                }
            })
            .collect();
        let budget = Budget {
            tokens: self.load.step_tokens_max,
            inter_token: InterToken::Unbounded,
            cost: None,
            row_cost: RowCost::PREDICTED,
            trusted_tokens: usize::MAX,
            prefill_wait_steps_max: self.load.prefill_wait_steps_max,
            prefill_tokens_min: self.load.prefill_tokens_min,
        };
        let shares = plan(&candidates, &budget);
        // A prompt has a chunk within this many steps, whatever its class.
        let chunk_within = self.load.prefill_wait_steps_max + self.load.sequences_max;
        for name in &names {
            let request = self.requests.get_mut(name).expect("the request runs");
            request.waited_steps += 1;
            assert!(request.waited_steps <= chunk_within, "{request:?} starves");
        }
        let mut sampled = [0; Priority::COUNT];
        for share in shares {
            let name = names[share.candidate];
            let request = self.requests.get_mut(&name).expect("the request runs");
            request.waited_steps = 0;
            let priority = request.priority;
            self.service[request.user as usize] += share.tokens as f64;
            request.prompt_left -= share.tokens.min(request.prompt_left);
            if request.prompt_left > 0 {
                continue;
            }
            sampled[priority as usize] += 1;
            // After a restart it computes its output again, too.
            request.prompt += 1;
            request.output_left -= 1;
            let in_turn = request.turn_tokens_left > 0;
            request.turn_tokens_left = request.turn_tokens_left.saturating_sub(1);
            let is_finished = request.output_left == 0;
            if in_turn && (request.turn_tokens_left == 0 || is_finished) {
                self.turns.end(priority);
            }
            if is_finished {
                self.requests.remove(&name);
            }
        }
        self.turns.step();
        self.steps += 1;
        for request in self.requests.values_mut().filter(|r| !r.has_slot) {
            request.queued += 1;
        }
        self.check_progress(sampled);
    }

    /// Checks that no class is without a token for longer than two of its turns may be apart.
    fn check_progress(&mut self, sampled: [usize; Priority::COUNT]) {
        let bound = self.load.bound();
        for priority in CLASSES {
            let at = priority as usize;
            let is_present = self.requests.values().any(|r| r.priority == priority);
            self.tokens[at] += sampled[at];
            self.without[at] = if sampled[at] > 0 || !is_present {
                0
            } else {
                self.without[at] + 1
            };
            assert!(
                self.without[at] <= bound,
                "{priority:?} has had no token for {bound} steps"
            );
        }
    }
}

/// More than twice the longest bound of the loads that [`load`] generates.
const STEPS_MAX: usize = 8_000;

const CASES: u64 = 128;
/// More than the random bytes that a case takes.
const BYTES: u64 = 32;

#[test]
fn every_class_progresses_and_none_before_a_higher_one() {
    check_cases(CASES, BYTES, |random| {
        let load = load(random)?;
        check_all_progress(load);
        Ok(())
    });
}

fn check_all_progress(load: Load) {
    let mut engine = Engine::new(load);
    // A class that starves has time to exceed the bound.
    let steps = 2 * engine.load.bound();
    assert!(steps <= STEPS_MAX, "{steps} steps");
    for _ in 0..steps {
        engine.arrive();
        engine.start_all();
        engine.step();
    }
    let tokens = engine.tokens;
    assert!(tokens.iter().all(|tokens| *tokens > 0), "{tokens:?}");
}
