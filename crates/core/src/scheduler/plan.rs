//! The policy of a step, as one pure function.
//!
//! Continuous batching with chunked prefill (Orca, Yu et al., OSDI'22; Sarathi,
//! Agrawal et al., OSDI'24): every decoding sequence gets its one token first, then
//! prompts take what is left of the step's budget. The budget is in tokens and in
//! time: chunks are no longer than those who decode can bear.

use std::cmp::Reverse;

use super::cost::{StepCost, StepLoad};
use crate::SequenceId;
use crate::config::InterToken;
use crate::protocol::Priority;

/// What the policy knows of one running sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Its name; names are given in order of arrival.
    pub arrival: SequenceId,
    /// Tokens that are to be evaluated; at least 1.
    pub pending: usize,
    /// Whether it has drawn a token, or is drawing it: then `pending` is 1.
    pub decoding: bool,
    /// Tokens that come before these.
    pub cached: usize,
    /// A chunk may not go beyond this many tokens, because somebody waits for the
    /// state there; at least 1.
    pub stop_after: Option<usize>,
    /// Whether it was part of a step that failed, and must prove itself alone.
    pub suspect: bool,
    /// Whether its caller has had tokens of it, and waits for the next while what the device
    /// has lost is computed again.
    pub resumes: bool,
    /// Its class.
    pub class: Priority,
    /// What its user has had; those with less go first.
    pub service: f64,
    /// Steps that were planned without it since its last.
    pub waited_steps: usize,
}

/// What a step may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Tokens; at least 1.
    pub tokens: usize,
    /// Time, for the sake of those who decode.
    pub inter_token: InterToken,
    /// What steps cost; `None` while that is unknown, and time no object.
    pub cost: Option<StepCost>,
    /// Tokens of a step beyond which its cost is a guess: one that is bounded in time is
    /// no larger.
    pub trusted_tokens: usize,
    /// After how many steps without it a prompt gets `prefill_tokens_min` tokens,
    /// whether there is time for them or not.
    pub prefill_wait_steps_max: usize,
    /// Tokens that are worth a chunk; a shorter one is only the end of a prompt.
    pub prefill_tokens_min: usize,
}

/// One sequence's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the candidate.
    pub candidate: usize,
    /// Tokens it evaluates.
    pub tokens: usize,
}

/// Chooses what runs in the next step.
///
/// * A suspect runs alone, before all others.
/// * Every decoding candidate gets its token before any prompt gets one, as far as
///   the tokens go; whoever has waited longest first, if they do not.
/// * Of the prompts that have waited `prefill_wait_steps_max` steps, the one that has
///   waited longest gets a small chunk. So every prompt makes progress within as many
///   steps, and one more for each other prompt that waits as long.
/// * Then prompts take the rest: higher classes first, within a class those that resume, then
///   the user who has had least, then in order of arrival. The last one may be cut. A step is no
///   longer than its decoding candidates can bear; those of a lower class have no say. Where a
///   prompt resumes, its caller waits for the next token too: those of its own class have no
///   say either.
#[must_use]
pub fn plan(candidates: &[Candidate], budget: &Budget) -> Vec<Share> {
    let suspects = (0..candidates.len()).filter(|index| candidates[*index].suspect);
    if let Some(candidate) = suspects.min_by_key(|index| candidates[*index].arrival) {
        let tokens = most(&candidates[candidate]).min(budget.tokens);
        return vec![Share { candidate, tokens }];
    }
    let mut step = Step::new(budget, candidates);
    let mut prompts: Vec<usize> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        match candidate.decoding {
            true => step.take(index, 1),
            false => prompts.push(index),
        }
    }
    if step.tokens_left == 0 || prompts.is_empty() {
        return step.finish_decodes();
    }
    step.bound_time();
    let overdue =
        |index: &&usize| candidates[**index].waited_steps >= budget.prefill_wait_steps_max;
    let longest = prompts
        .iter()
        .filter(overdue)
        .max_by_key(|index| {
            let candidate = &candidates[**index];
            (candidate.waited_steps, Reverse(candidate.arrival))
        })
        .copied();
    prompts.sort_by(|a, b| {
        let (x, y) = (&candidates[*a], &candidates[*b]);
        let by_class = y.class.cmp(&x.class);
        by_class
            .then(y.resumes.cmp(&x.resumes))
            .then(x.service.total_cmp(&y.service))
            .then(x.arrival.cmp(&y.arrival))
    });
    // Set aside first, so that the others leave it its place; it may get more in turn.
    let aside = longest.map_or(0, |index| {
        most(&candidates[index])
            .min(budget.prefill_tokens_min.max(1))
            .min(step.tokens_left)
    });
    step.reserve(longest, aside);
    for index in prompts {
        let tokens = step.chunk(index, if longest == Some(index) { aside } else { 0 });
        step.take(index, tokens);
    }
    step.shares
}

/// Tokens that a candidate could use.
fn most(candidate: &Candidate) -> usize {
    candidate
        .pending
        .min(candidate.stop_after.unwrap_or(usize::MAX))
}

/// A step on the way.
struct Step<'a> {
    budget: &'a Budget,
    candidates: &'a [Candidate],
    shares: Vec<Share>,
    tokens_left: usize,
    /// What is taken so far.
    load: StepLoad,
    /// The end of the step in seconds, for prompts of each class; none is unbounded.
    bounds: [Option<f64>; Priority::COUNT],
    /// The highest class of those who decode.
    decoding: Option<Priority>,
}

impl<'a> Step<'a> {
    fn new(budget: &'a Budget, candidates: &'a [Candidate]) -> Self {
        Self {
            budget,
            candidates,
            shares: Vec::with_capacity(candidates.len().min(budget.tokens)),
            tokens_left: budget.tokens,
            load: StepLoad::default(),
            bounds: [None; Priority::COUNT],
            decoding: None,
        }
    }

    fn take(&mut self, candidate: usize, tokens: usize) {
        if tokens == 0 {
            return;
        }
        let cached = self.candidates[candidate].cached;
        self.load = self.load.and(StepLoad::span(tokens, cached));
        self.tokens_left = self.tokens_left.saturating_sub(tokens);
        self.shares.push(Share { candidate, tokens });
    }

    /// With decodes only: the tokens may not suffice for all.
    fn finish_decodes(mut self) -> Vec<Share> {
        if self.shares.len() > self.budget.tokens {
            let waited = |share: &Share| self.candidates[share.candidate].waited_steps;
            self.shares.sort_by_key(|share| Reverse(waited(share)));
            self.shares.truncate(self.budget.tokens);
        }
        self.shares
    }

    /// Reckons how long the step may be, for prompts of each class, now that those who
    /// decode are in it.
    fn bound_time(&mut self) {
        let Some(cost) = self.budget.cost else {
            return;
        };
        let without_prompts = cost.of(self.load);
        let bound = match self.budget.inter_token {
            InterToken::Unbounded => return,
            InterToken::Relative(times) => {
                let one = cost.of(self.one_decode());
                without_prompts + without_prompts.max(times * one)
            }
            InterToken::Absolute(time) => time.as_secs_f64(),
        };
        let decoding = self
            .shares
            .iter()
            .map(|share| self.candidates[share.candidate].class);
        self.decoding = decoding.max();
        if let Some(highest) = self.decoding {
            self.bounds[..=highest as usize].fill(Some(bound));
        }
    }

    /// The mean of those who decode.
    fn one_decode(&self) -> StepLoad {
        let decodes = self.shares.len().max(1) as f64;
        StepLoad {
            tokens: 1,
            attended: self.load.attended / decodes,
        }
    }

    /// Keeps tokens and time for a candidate whose turn comes later.
    fn reserve(&mut self, candidate: Option<usize>, tokens: usize) {
        if let Some(candidate) = candidate {
            let cached = self.candidates[candidate].cached;
            self.load = self.load.and(StepLoad::span(tokens, cached));
            self.tokens_left -= tokens;
        }
    }

    /// Tokens for a prompt of which `aside` are kept already.
    fn chunk(&mut self, index: usize, aside: usize) -> usize {
        let candidate = &self.candidates[index];
        if aside > 0 {
            let kept = StepLoad::span(aside, candidate.cached);
            self.load.tokens -= kept.tokens;
            self.load.attended -= kept.attended;
            self.tokens_left += aside;
        }
        let wanted = most(candidate).min(self.tokens_left);
        let yields = !candidate.resumes || self.decoding > Some(candidate.class);
        let bound = self.bounds[candidate.class as usize].filter(|_| yields);
        let fitting = match (self.budget.cost, bound) {
            (Some(cost), Some(bound)) => {
                let trusted = self.budget.trusted_tokens.saturating_sub(self.load.tokens);
                let within = cost.tokens_within(bound - cost.of(self.load), candidate.cached);
                within.min(trusted)
            }
            _ => wanted,
        };
        match wanted.min(fitting) {
            few if few < self.budget.prefill_tokens_min && few < wanted => aside,
            tokens => tokens.max(aside),
        }
    }
}

#[cfg(test)]
mod tests;
