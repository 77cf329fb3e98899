use std::collections::HashSet;
use std::time::Duration;

use arbtest::arbitrary::{Result, Unstructured};

use super::*;
use crate::random_cases::check_cases;
use crate::scheduler::policy::uniform;

const DECODE: Candidate<'static> = Candidate {
    arrival: SequenceId(0),
    pending: 1,
    decoding: true,
    cached: 100,
    stop_after: None,
    suspect: false,
    resumes: false,
    priority: Priority::Normal,
    service: 0.0,
    waited_steps: 0,
    survival: &[],
};

const BUDGET: Budget = Budget {
    tokens: 8,
    inter_token: InterToken::Unbounded,
    cost: None,
    row_cost: RowCost::PREDICTED,
    trusted_tokens: usize::MAX,
    prefill_wait_steps_max: 4,
    prefill_tokens_min: 1,
};

fn prompt(pending: usize) -> Candidate<'static> {
    Candidate {
        pending,
        decoding: false,
        cached: 0,
        ..DECODE
    }
}

/// Checks the shares of candidates that arrive in this order.
fn check_with(candidates: &[Candidate<'_>], budget: &Budget, expected: &[(usize, usize)]) {
    let named = candidates
        .iter()
        .zip(1..)
        .map(|(candidate, number)| Candidate {
            arrival: SequenceId(number),
            ..*candidate
        });
    let shares: Vec<_> = plan(&named.collect::<Vec<_>>(), budget)
        .iter()
        .map(|share| (share.candidate, share.tokens))
        .collect();
    assert_eq!(shares, expected);
}

fn check(candidates: &[Candidate<'_>], expected: &[(usize, usize)]) {
    check_with(candidates, &BUDGET, expected);
}

#[test]
fn appended_tokens_come_with_the_decodes() {
    let appended = |pending| Candidate { pending, ..DECODE };
    check(&[appended(3), DECODE], &[(0, 3), (1, 1)]);
    // Each of the others has its token first.
    check(&[appended(20), DECODE, DECODE], &[(0, 6), (1, 1), (2, 1)]);
    check(&[appended(3), prompt(20)], &[(0, 3), (1, 5)]);
    let at_a_stop = Candidate {
        stop_after: Some(2),
        ..appended(5)
    };
    check(&[at_a_stop], &[(0, 2)]);
    let budget = Budget {
        tokens: 100,
        ..BUDGET
    };
    let all_forced = [(0, FORCED_TOKENS_MAX), (1, 1)];
    check_with(&[appended(90), DECODE], &budget, &all_forced);
}

#[test]
fn decodes_come_first_and_prompts_share_the_rest_in_order() {
    check(&[], &[]);
    check(&[DECODE, DECODE], &[(0, 1), (1, 1)]);
    check(&[prompt(20), DECODE], &[(1, 1), (0, 7)]);
    check(&[prompt(3), DECODE, prompt(9)], &[(1, 1), (0, 3), (2, 4)]);
    check(&[prompt(8), prompt(8)], &[(0, 8)]);
}

#[test]
fn chunk_ends_at_a_checkpoint() {
    let waited = Candidate {
        stop_after: Some(2),
        ..prompt(5)
    };
    check(&[waited, prompt(9)], &[(0, 2), (1, 6)]);
}

#[test]
fn a_suspect_runs_alone() {
    let suspect = Candidate {
        suspect: true,
        ..prompt(20)
    };
    check(&[DECODE, suspect, suspect], &[(1, 8)]);
}

#[test]
fn classes_come_before_service_and_service_before_arrival() {
    let served = Candidate {
        service: 5.0,
        ..prompt(3)
    };
    let urgent = Candidate {
        priority: Priority::Urgent,
        service: 9.0,
        ..prompt(3)
    };
    check(&[served, prompt(3), urgent], &[(2, 3), (1, 3), (0, 2)]);
}

#[test]
fn chunks_respect_the_inter_token_bound() {
    let cost = StepCost {
        base: 10e-3,
        per_token: 1e-3,
        per_attended: 0.0,
    };
    let budget = Budget {
        tokens: 256,
        inter_token: InterToken::Relative(3.0),
        cost: Some(cost),
        ..BUDGET
    };
    // One decode takes 11 ms, so there are 33 ms for prompts.
    check_with(
        &[DECODE, prompt(99), DECODE],
        &budget,
        &[(0, 1), (2, 1), (1, 33)],
    );
    let absolute = Budget {
        inter_token: InterToken::Absolute(Duration::from_millis(21)),
        ..budget
    };
    check_with(&[DECODE, prompt(99)], &absolute, &[(0, 1), (1, 10)]);
    // No candidate decodes, or only one of a lower class.
    check_with(&[prompt(999)], &budget, &[(0, 256)]);
    let urgent = Candidate {
        priority: Priority::Urgent,
        ..prompt(999)
    };
    check_with(&[DECODE, urgent], &budget, &[(0, 1), (1, 255)]);
    // There is no time for a minimal chunk, until one prompt has waited too long.
    let with_minimum = Budget {
        prefill_tokens_min: 40,
        ..budget
    };
    let overdue = Candidate {
        waited_steps: 4,
        ..prompt(99)
    };
    check_with(&[DECODE, prompt(99)], &with_minimum, &[(0, 1)]);
    check_with(
        &[DECODE, prompt(99), overdue],
        &with_minimum,
        &[(0, 1), (2, 40)],
    );
    // The end of a prompt is computed however short it is.
    check_with(&[DECODE, prompt(9)], &with_minimum, &[(0, 1), (1, 9)]);
}

/// The caller of a resuming prompt waits between two tokens as well, and has waited longer.
#[test]
fn resumed_prompts_go_first_and_unbounded() {
    let cost = StepCost {
        base: 10e-3,
        per_token: 1e-3,
        per_attended: 0.0,
    };
    let budget = Budget {
        tokens: 256,
        inter_token: InterToken::Relative(3.0),
        cost: Some(cost),
        ..BUDGET
    };
    let resumes = Candidate {
        resumes: true,
        ..prompt(99)
    };
    check_with(&[DECODE, prompt(99)], &budget, &[(0, 1), (1, 33)]);
    check_with(&[DECODE, resumes], &budget, &[(0, 1), (1, 99)]);
    // It takes all the time that there was for others.
    check_with(&[DECODE, prompt(99), resumes], &budget, &[(0, 1), (2, 99)]);
    // A decoding candidate of a higher class still bounds the step.
    let urgent = Candidate {
        priority: Priority::Urgent,
        ..DECODE
    };
    check_with(&[urgent, resumes], &budget, &[(0, 1), (1, 33)]);
}

/// A step of which each row costs a tenth of the step without any.
const LINE: StepCost = StepCost {
    base: 9e-3,
    per_token: 1e-3,
    per_attended: 0.0,
};

/// Checks the draft tokens of candidates that arrive in this order.
fn check_drafts(candidates: &[Candidate<'_>], budget: &Budget, expected: &[usize]) {
    let shares = plan(candidates, budget);
    let mut found = vec![0; candidates.len()];
    for share in shares {
        found[share.candidate] = share.draft_tokens;
    }
    assert_eq!(found, expected);
}

#[test]
fn draft_tokens_join_last_where_they_pay() {
    let budget = Budget {
        tokens: 64,
        cost: Some(LINE),
        ..BUDGET
    };
    let likely = Candidate {
        survival: &[0.9, 0.8, 0.7, 0.01],
        ..DECODE
    };
    let unlikely = Candidate {
        survival: &[0.2, 0.1],
        ..DECODE
    };
    check_drafts(&[likely], &budget, &[3]);
    check_drafts(&[likely, unlikely], &budget, &[3, 0]);
    check_drafts(&[DECODE, DECODE, unlikely], &budget, &[0, 0, 0]);
    // Only as many as the step's tokens, the slot and the cost allow.
    let short = Budget {
        tokens: 3,
        ..budget
    };
    check_drafts(&[likely], &short, &[2]);
    let at_a_stop = Candidate {
        stop_after: Some(2),
        ..likely
    };
    check_drafts(&[at_a_stop], &budget, &[1]);
    let unknown = Budget {
        cost: None,
        ..budget
    };
    check_drafts(&[likely], &unknown, &[0]);
    let waits = Budget {
        row_cost: RowCost {
            idle_after_drafts: 1.0,
            ..RowCost::PREDICTED
        },
        ..budget
    };
    check_drafts(&[likely], &waits, &[0]);
    let suspect = Candidate {
        suspect: true,
        ..likely
    };
    check_drafts(&[suspect], &budget, &[0]);
}

#[test]
fn draft_tokens_leave_prompts_and_the_bound_of_time_alone() {
    let budget = Budget {
        tokens: 64,
        cost: Some(LINE),
        ..BUDGET
    };
    let likely = Candidate {
        survival: &[0.9, 0.8, 0.7],
        ..DECODE
    };
    // The prompt takes all tokens, and then the step gives so many that no row pays.
    check_drafts(&[likely, prompt(100)], &budget, &[0, 0]);
    let large = Budget {
        tokens: 512,
        ..budget
    };
    check_drafts(&[likely, prompt(300)], &large, &[0, 0]);
    check_drafts(&[likely, prompt(3)], &large, &[3, 0]);
    let bounded = Budget {
        inter_token: InterToken::Absolute(Duration::from_micros(11_500)),
        ..budget
    };
    check_drafts(&[likely], &bounded, &[1]);
    let untrusted = Budget {
        trusted_tokens: 1,
        ..bounded
    };
    check_drafts(&[likely], &untrusted, &[0]);
}

#[test]
fn decodes_take_turns_when_tokens_are_short() {
    let mut candidates = vec![DECODE; 10];
    candidates[9].waited_steps = 1;
    let shares = plan(&candidates, &BUDGET);
    assert_eq!(shares.len(), 8);
    assert_eq!(
        shares[0],
        Share {
            candidate: 9,
            tokens: 1,
            draft_tokens: 0
        }
    );
}

/// A run of the policy over random sequences that arrive, progress and end.
struct Run<'a, 'bytes> {
    random: &'a mut Unstructured<'bytes>,
    budget: Budget,
    candidates: Vec<Candidate<'static>>,
    arrivals: u64,
}

impl<'a, 'bytes> Run<'a, 'bytes> {
    fn new(random: &'a mut Unstructured<'bytes>) -> Result<Self> {
        let mut cost = None;
        if random.ratio(8u8, 10)? {
            cost = Some(StepCost {
                base: uniform(random, 0.0..1e-2)?,
                per_token: uniform(random, 0.0..1e-3)?,
                per_attended: uniform(random, 0.0..1e-6)?,
            });
        }
        let inter_token = match random.int_in_range(0..=2)? {
            0 => InterToken::Unbounded,
            1 => InterToken::Relative(uniform(random, 0.1..6.0)?),
            _ => {
                InterToken::Absolute(Duration::from_micros(uniform(random, 0.0..50_000.0)? as u64))
            }
        };
        let budget = Budget {
            tokens: uniform(random, 1.0..200.0)? as usize,
            inter_token,
            cost,
            row_cost: RowCost::PREDICTED,
            trusted_tokens: random.int_in_range(1..=399)?,
            prefill_wait_steps_max: random.int_in_range(1..=19)?,
            prefill_tokens_min: random.int_in_range(1..=31)?,
        };
        Ok(Self {
            random,
            budget,
            candidates: Vec::new(),
            arrivals: 0,
        })
    }

    fn arrive(&mut self) -> Result<()> {
        let random = &mut *self.random;
        let priority = [Priority::Background, Priority::Normal, Priority::Urgent];
        self.arrivals += 1;
        self.candidates.push(Candidate {
            arrival: SequenceId(self.arrivals),
            pending: random.int_in_range(1..=299)?,
            decoding: false,
            cached: random.int_in_range(0..=1999)?,
            stop_after: None,
            suspect: random.ratio(5u16, 1000)?,
            resumes: false,
            priority: *random.choose(&priority)?,
            service: uniform(random, 0.0..10.0)?,
            waited_steps: 0,
            survival: &[],
        });
        Ok(())
    }

    /// Runs one step and checks every invariant of the policy.
    fn step(&mut self) -> Result<()> {
        while self.candidates.len() < 40 && self.random.ratio(3u8, 10)? {
            self.arrive()?;
        }
        for candidate in &mut self.candidates {
            let waits = !candidate.decoding && self.random.ratio(1u8, 20)?;
            let stop_after = waits.then(|| self.random.int_in_range(1..=49));
            candidate.stop_after = stop_after.transpose()?;
        }
        let shares = plan(&self.candidates, &self.budget);
        self.check(&shares);
        let mut planned = vec![0; self.candidates.len()];
        for share in &shares {
            planned[share.candidate] = share.tokens;
        }
        let candidates = std::mem::take(&mut self.candidates);
        for (mut candidate, tokens) in candidates.into_iter().zip(planned) {
            if tokens == 0 {
                candidate.waited_steps += 1;
                self.candidates.push(candidate);
                continue;
            }
            candidate.waited_steps = 0;
            candidate.suspect = false;
            candidate.cached += tokens;
            candidate.pending -= tokens;
            if candidate.pending == 0 {
                candidate.pending = 1;
                candidate.decoding = true;
            }
            let is_finished = candidate.decoding && self.random.ratio(1u8, 10)?;
            if !is_finished {
                self.candidates.push(candidate);
            }
        }
        Ok(())
    }

    fn check(&self, shares: &[Share]) {
        let Self {
            budget, candidates, ..
        } = self;
        let spent: usize = shares.iter().map(|share| share.tokens).sum();
        assert!(spent <= budget.tokens, "the step keeps within its budget");
        let mut seen = HashSet::new();
        for share in shares {
            assert!(seen.insert(share.candidate), "scheduled once");
            assert!(share.tokens >= 1 && share.tokens <= most(&candidates[share.candidate]));
        }
        if candidates.iter().any(|c| c.suspect) {
            assert_eq!(shares.len(), 1, "a suspect runs alone");
            return;
        }
        let of = |share: &&Share| candidates[share.candidate];
        let decodes = candidates.iter().filter(|c| c.decoding).count();
        let served = shares.iter().filter(|share| of(share).decoding).count();
        assert_eq!(served, decodes.min(budget.tokens), "decode comes first");
        assert_eq!(
            candidates.is_empty(),
            shares.is_empty() && candidates.is_empty()
        );
        self.check_starvation(decodes);
        self.check_time(shares);
        self.check_conserving(shares, spent);
    }

    /// Checks that no candidate has waited longer than the bound, as far as the tokens allow.
    fn check_starvation(&self, decodes: usize) {
        let suspects_and_changes = 60;
        if decodes >= self.budget.tokens {
            return;
        }
        let bound = self.budget.prefill_wait_steps_max + 40 + suspects_and_changes;
        for candidate in self.candidates.iter().filter(|c| !c.decoding) {
            assert!(candidate.waited_steps <= bound, "starved: {candidate:?}");
        }
    }

    /// Checks that the step ends in time, except for the chunk of an overdue prompt.
    fn check_time(&self, shares: &[Share]) {
        let Self {
            budget, candidates, ..
        } = self;
        let Some(cost) = budget.cost else { return };
        let decoding = |share: &&Share| candidates[share.candidate].decoding;
        let load = |shares: &[&Share]| {
            shares.iter().fold(StepLoad::default(), |load, share| {
                load.and(StepLoad::span(
                    share.tokens,
                    candidates[share.candidate].cached,
                ))
            })
        };
        let decodes: Vec<&Share> = shares.iter().filter(decoding).collect();
        let classes = decodes
            .iter()
            .map(|share| candidates[share.candidate].priority);
        let bound = match budget.inter_token {
            InterToken::Unbounded => return,
            InterToken::Relative(times) => {
                let mut one = load(&decodes);
                one.tokens = 1;
                one.attended /= decodes.len().max(1) as f64;
                let all = cost.of(load(&decodes));
                all + all.max(times * cost.of(one))
            }
            InterToken::Absolute(time) => time.as_secs_f64(),
        };
        let Some(highest) = classes.max() else { return };
        let overdue = |c: &Candidate| c.waited_steps >= budget.prefill_wait_steps_max;
        // Prompts of a higher class are not bounded, and prompts after them find no time left.
        let free = |share: &&Share| {
            let c = &candidates[share.candidate];
            !c.decoding && (c.priority > highest || overdue(c))
        };
        if shares.iter().any(|share| free(&share)) {
            return;
        }
        let all: Vec<&Share> = shares.iter().collect();
        let longest = bound.max(cost.of(load(&decodes)));
        assert!(
            cost.of(load(&all)) <= longest * (1.0 + 1e-9),
            "the step ends in time"
        );
    }

    /// Checks that tokens are left only where there is no time, or no candidate for them.
    fn check_conserving(&self, shares: &[Share], spent: usize) {
        let Self {
            budget, candidates, ..
        } = self;
        let requested_tokens: usize = candidates.iter().map(most).sum();
        let bound = budget.cost.is_some()
            && budget.inter_token != InterToken::Unbounded
            && candidates.iter().any(|c| c.decoding);
        if !bound {
            assert_eq!(
                spent,
                requested_tokens.min(budget.tokens),
                "no token is left: {shares:?}"
            );
        }
        if !candidates.is_empty() {
            assert!(!shares.is_empty(), "some candidate runs");
        }
    }
}

/// More than the random bytes that a run takes.
const BYTES: u64 = 48 << 10;

/// 1,000 seeds with 1,000 steps each.
#[test]
fn plan_holds_its_invariants_in_a_million_states() {
    check_cases(1000, BYTES, |random| {
        let mut run = Run::new(random)?;
        for _ in 0..1000 {
            run.step()?;
        }
        Ok(())
    });
}
