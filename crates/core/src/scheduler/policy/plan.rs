//! The policy of a step, as one pure function.
//!
//! Continuous batching with chunked prefill (Orca, Yu et al., OSDI'22; Sarathi, Agrawal et al.,
//! OSDI'24): every decoding sequence gets its one token first. Prompts take the rest of the
//! step's budget. The budget is in tokens and in time: chunks are no longer than decoding
//! sequences accept. Draft tokens join last, where they pay ([`draft_rows`]).

use std::cmp::Reverse;

use super::draft_rows::{self, DraftRow};
use super::row_cost::{ROWS_MAX, RowCost};
use super::step_cost::{StepCost, StepLoad};
use crate::config::InterToken;
use motet_protocol::SequenceId;
use motet_protocol::{FORCED_TOKENS_MAX, Priority};

/// A running sequence, as the policy sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate<'a> {
    /// Its id; ids are given in order of arrival.
    pub arrival: SequenceId,
    /// Tokens to evaluate; at least 1.
    pub pending: usize,
    /// Whether it has a token of its output, or is sampling one; `pending` is then 1, or the
    /// number of tokens that were appended to the output at once.
    pub decoding: bool,
    /// Tokens before these.
    pub cached: usize,
    /// Upper bound on its chunk in tokens, because the cache takes its state there or its grant
    /// ends there; at least 1.
    pub stop_after: Option<usize>,
    /// Whether it was part of a failed step and must run alone.
    pub suspect: bool,
    /// Whether its caller has received tokens and waits for the next one while lost state is
    /// computed again.
    pub resumes: bool,
    /// Its priority class.
    pub priority: Priority,
    /// Service that its user has received; less goes first.
    pub service: f64,
    /// Steps that were planned without it since its last one.
    pub waited_steps: usize,
    /// For each token of its draft, the probability that this token and all before it are right:
    /// each no larger than the one before. Empty unless it is decoding and `pending` is 1.
    pub survival: &'a [f32],
}

/// Upper bounds on a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Tokens; at least 1.
    pub tokens: usize,
    /// Time, for the sake of decoding sequences.
    pub inter_token: InterToken,
    /// Cost of steps; `None` while it is unknown, and time is unbounded.
    pub cost: Option<StepCost>,
    /// The cost of small steps, with which draft tokens are chosen.
    pub row_cost: RowCost,
    /// Tokens of a step up to which its cost can be trusted. A step that is bounded in time is
    /// no larger.
    pub trusted_tokens: usize,
    /// Number of steps without it after which a prompt gets `prefill_tokens_min` tokens,
    /// whether there is time for them or not.
    pub prefill_wait_steps_max: usize,
    /// Tokens of the smallest chunk; only the end of a prompt is shorter.
    pub prefill_tokens_min: usize,
}

/// One sequence's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the candidate.
    pub candidate: usize,
    /// Tokens that it evaluates, but for draft tokens.
    pub tokens: usize,
    /// Tokens of its draft that it verifies.
    pub draft_tokens: usize,
}

/// Chooses what runs in the next step.
///
/// * A suspect runs alone, before all others.
/// * Every decoding candidate gets its token before any prompt gets one. If tokens do not
///   suffice, the candidates that have waited longest go first. Then candidates with appended
///   tokens get more of them, up to [`FORCED_TOKENS_MAX`] each, while the step's tokens suffice. They
///   save a step each, so that the time that other candidates accept does not bound them.
/// * One of the prompts that have waited `prefill_wait_steps_max` steps gets a small chunk: the
///   one that has waited longest. Every prompt therefore makes progress within that many steps,
///   and one more for each other prompt that waits as long.
/// * Prompts take the remaining tokens: higher classes first; within a class prompts that
///   resume, then those of the user with the least service, then in order of arrival. The last
///   one may be cut.
/// * A step takes no longer than its decoding candidates accept. Candidates of a lower class
///   than the prompt do not count. Where a prompt resumes, its caller waits for the next token
///   too, so candidates of its own class do not count either.
/// * Draft tokens take what is left of both, as many as pay. Beside a prompt's chunk, whose tokens
///   the step gives for certain, hardly any does.
#[must_use]
pub fn plan(candidates: &[Candidate<'_>], budget: &Budget) -> Vec<Share> {
    let suspects = (0..candidates.len()).filter(|index| candidates[*index].suspect);
    if let Some(candidate) = suspects.min_by_key(|index| candidates[*index].arrival) {
        let tokens = most(&candidates[candidate]).min(budget.tokens);
        return vec![Share {
            candidate,
            tokens,
            draft_tokens: 0,
        }];
    }
    let mut step = Step::new(budget, candidates);
    let mut prompts: Vec<usize> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        if candidate.decoding {
            step.take(index, 1);
        } else {
            prompts.push(index);
        }
    }
    step.lengthen_decodes();
    step.bound_time();
    if step.tokens_left == 0 || prompts.is_empty() {
        step.finish_decodes();
        step.add_drafts();
        return step.shares;
    }
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
        let by_class = y.priority.cmp(&x.priority);
        by_class
            .then(y.resumes.cmp(&x.resumes))
            .then(x.service.total_cmp(&y.service))
            .then(x.arrival.cmp(&y.arrival))
    });
    // Set aside first, so that the others leave it these tokens. It may get more in its turn.
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
    step.add_drafts();
    step.shares
}

/// Returns the tokens that a candidate could use.
fn most(candidate: &Candidate<'_>) -> usize {
    candidate
        .pending
        .min(candidate.stop_after.unwrap_or(usize::MAX))
}

/// Returns the bound on a step's duration in seconds, for the sake of its decoding sequences, which
/// are `decodes` and have this load. `None` if there is no bound, or the cost of steps is unknown.
#[must_use]
pub fn inter_token_bound(budget: &Budget, load: StepLoad, decodes: usize) -> Option<f64> {
    let cost = budget.cost?;
    let without_prompts = cost.of(load);
    match budget.inter_token {
        InterToken::Unbounded => None,
        InterToken::Relative(times) => {
            let one = cost.of(StepLoad {
                tokens: 1,
                attended: load.attended / decodes.max(1) as f64,
            });
            Some(without_prompts + without_prompts.max(times * one))
        }
        InterToken::Absolute(time) => Some(time.as_secs_f64()),
    }
}

/// A step under construction.
struct Step<'a> {
    budget: &'a Budget,
    candidates: &'a [Candidate<'a>],
    shares: Vec<Share>,
    tokens_left: usize,
    /// Load of the shares so far.
    load: StepLoad,
    /// Bound on the step's duration in seconds, for prompts of each class; `None` is unbounded.
    bounds: [Option<f64>; Priority::COUNT],
    /// Highest class of the decoding candidates.
    decoding: Option<Priority>,
}

impl<'a> Step<'a> {
    fn new(budget: &'a Budget, candidates: &'a [Candidate<'a>]) -> Self {
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
        self.shares.push(Share {
            candidate,
            tokens,
            draft_tokens: 0,
        });
    }

    /// Gives decoding candidates more than one token where tokens were appended to their output.
    fn lengthen_decodes(&mut self) {
        for share in &mut self.shares {
            let candidate = &self.candidates[share.candidate];
            let tokens = most(candidate).min(FORCED_TOKENS_MAX);
            let more = tokens.saturating_sub(1).min(self.tokens_left);
            if more > 0 {
                let (one, all) = (1, 1 + more);
                let without = StepLoad::span(one, candidate.cached);
                self.load.tokens -= without.tokens;
                self.load.attended -= without.attended;
                self.load = self.load.and(StepLoad::span(all, candidate.cached));
                self.tokens_left -= more;
                share.tokens = all;
            }
        }
    }

    /// Finishes a step with decodes only, for which the tokens may not suffice.
    fn finish_decodes(&mut self) {
        if self.shares.len() > self.budget.tokens {
            let waited = |share: &Share| self.candidates[share.candidate].waited_steps;
            self.shares.sort_by_key(|share| Reverse(waited(share)));
            self.shares.truncate(self.budget.tokens);
        }
    }

    /// Adds those draft tokens that pay, in a step that is complete otherwise.
    fn add_drafts(&mut self) {
        let Some(cost) = self.budget.cost else {
            return;
        };
        let bound = self.decoding.and_then(|class| self.bounds[class as usize]);
        let trusted_left = self.budget.trusted_tokens.saturating_sub(self.load.tokens);
        let trusted_left = bound.map_or(usize::MAX, |_| trusted_left);
        let bound = bound.unwrap_or(f64::INFINITY);
        let mut rows = self.draft_rows();
        let rows_max = self.tokens_left.min(ROWS_MAX).min(trusted_left);
        draft_rows::leave_best(&mut rows, rows_max);
        // Each decoding candidate gets a token, and a prompt's token saves as much as one.
        let tokens: usize = self.shares.iter().map(|share| self.certain(share)).sum();
        let row_cost = &self.budget.row_cost;
        let without = self.load;
        let mut load = without;
        let pays = draft_rows::rows_that_pay(&rows, tokens as f64, |taken| {
            let Some(last) = taken.checked_sub(1).and_then(|last| rows.get(last)) else {
                return Some(row_cost.of(without, &cost));
            };
            load.tokens += 1;
            load.attended += last.attended as f64;
            let seconds = row_cost.of(load, &cost) + row_cost.idle_after_drafts;
            (seconds <= bound).then_some(seconds)
        });
        for row in &rows[..pays] {
            self.shares[row.share].draft_tokens += 1;
        }
    }

    /// Returns the tokens that the step gives for certain with this share.
    fn certain(&self, share: &Share) -> usize {
        if self.candidates[share.candidate].decoding {
            1
        } else {
            share.tokens
        }
    }

    /// Returns the draft rows of all shares that evaluate all that is known of their sequence.
    fn draft_rows(&self) -> Vec<DraftRow> {
        let mut rows = Vec::new();
        for (share, taken) in self.shares.iter().enumerate() {
            let candidate = &self.candidates[taken.candidate];
            let left = candidate.stop_after.unwrap_or(usize::MAX);
            let left = left.saturating_sub(taken.tokens);
            let survival = candidate.survival.iter().take(left);
            let first = candidate.cached + taken.tokens + 1;
            rows.extend(
                (first..)
                    .zip(survival)
                    .map(|(attended, survival)| DraftRow {
                        share,
                        survival: *survival,
                        attended,
                    }),
            );
        }
        rows
    }

    /// Computes the bound on the step's duration for prompts of each class, once all decoding
    /// candidates are in the step.
    fn bound_time(&mut self) {
        let bound = inter_token_bound(self.budget, self.load, self.shares.len());
        let Some(bound) = bound else {
            return;
        };
        let decoding = self
            .shares
            .iter()
            .map(|share| self.candidates[share.candidate].priority);
        self.decoding = decoding.max();
        if let Some(highest) = self.decoding {
            self.bounds[..=highest as usize].fill(Some(bound));
        }
    }

    /// Reserves tokens and time for a candidate that is added later.
    fn reserve(&mut self, candidate: Option<usize>, tokens: usize) {
        if let Some(candidate) = candidate {
            let cached = self.candidates[candidate].cached;
            self.load = self.load.and(StepLoad::span(tokens, cached));
            self.tokens_left -= tokens;
        }
    }

    /// Returns the tokens for a prompt that has `aside` tokens reserved already.
    fn chunk(&mut self, index: usize, aside: usize) -> usize {
        let candidate = &self.candidates[index];
        if aside > 0 {
            let reserved = StepLoad::span(aside, candidate.cached);
            self.load.tokens -= reserved.tokens;
            self.load.attended -= reserved.attended;
            self.tokens_left += aside;
        }
        let requested_tokens = most(candidate).min(self.tokens_left);
        let yields = !candidate.resumes || self.decoding > Some(candidate.priority);
        let bound = self.bounds[candidate.priority as usize].filter(|_| yields);
        let fitting = match (self.budget.cost, bound) {
            (Some(cost), Some(bound)) => {
                let trusted = self.budget.trusted_tokens.saturating_sub(self.load.tokens);
                let within = cost.tokens_within(bound - cost.of(self.load), candidate.cached);
                within.min(trusted)
            }
            _ => requested_tokens,
        };
        match requested_tokens.min(fitting) {
            few if few < self.budget.prefill_tokens_min && few < requested_tokens => aside,
            tokens => tokens.max(aside),
        }
    }
}

#[cfg(test)]
mod tests;
