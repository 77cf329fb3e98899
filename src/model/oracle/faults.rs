//! Failures that a test asks the oracle for.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::TokenId;

/// A handle by which a test makes an oracle fail. Cheap to clone; any thread may
/// use it while the oracle runs. A fault that struck is spent, except poison.
///
/// Steps are numbered from 0, as [`OracleCounts::steps`] counts them.
///
/// [`OracleCounts::steps`]: super::OracleCounts::steps
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

/// How often each fault has struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultCounts {
    /// [`StepFault::Fail`], or poison.
    pub failed: u64,
    /// [`StepFault::FailLanding`].
    pub failed_landing: u64,
    /// [`StepFault::Panic`].
    pub panicked: u64,
    /// [`StepFault::Hang`], or a token that makes steps hang.
    pub hung: u64,
    /// Steps that failed because they evaluated poison.
    pub poisoned: u64,
    /// Memory that was refused.
    pub memory_refused: u64,
    /// Segments that were not handed over.
    pub hand_overs_refused: u64,
}

/// What happens to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFault {
    /// Its launch returns [`ModelError::Device`](crate::model::ModelError::Device).
    Fail,
    /// It is launched and drawn, and fails as above when it is to land.
    FailLanding,
    /// Its launch panics.
    Panic,
    /// Its launch takes so much longer, then succeeds.
    Hang(Duration),
}

#[derive(Debug, Default)]
struct Plan {
    at_steps: Vec<(u64, StepFault)>,
    next_steps: Vec<(u64, StepFault)>,
    poison: Vec<TokenId>,
    hangs: Vec<(TokenId, Duration)>,
    memory_refusals: u64,
    hand_over_refusals: u64,
    counts: FaultCounts,
}

impl Faults {
    /// Strikes step number `step` with `fault`.
    pub fn at_step(&self, step: u64, fault: StepFault) {
        self.plan().at_steps.push((step, fault));
    }

    /// Strikes each of the next `steps` steps with `fault`.
    pub fn next_steps(&self, steps: u64, fault: StepFault) {
        self.plan().next_steps.push((steps, fault));
    }

    /// Fails every step in which some span evaluates `token`.
    pub fn poison(&self, token: TokenId) {
        self.plan().poison.push(token);
    }

    /// Makes every step in which some span evaluates `token` take so much longer.
    pub fn hang_on(&self, token: TokenId, longer: Duration) {
        self.plan().hangs.push((token, longer));
    }

    /// Refuses the memory for the next `times` new segments and tails, and segments
    /// taken in; a split, which makes two segments, counts as one, and so does a removal.
    pub fn refuse_memory(&self, times: u64) {
        self.plan().memory_refusals = times;
    }

    /// Fails the next `times` attempts to hand a segment over.
    pub fn refuse_hand_overs(&self, times: u64) {
        self.plan().hand_over_refusals = times;
    }

    /// Forgets every fault that has not struck yet, poison too.
    pub fn clear(&self) {
        let mut plan = self.plan();
        *plan = Plan {
            counts: plan.counts,
            ..Plan::default()
        };
    }

    /// What has struck so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.plan().counts
    }

    /// What strikes step `step`, which evaluates `tokens`.
    pub(super) fn strike(
        &self,
        step: u64,
        tokens: impl Iterator<Item = TokenId>,
    ) -> Vec<StepFault> {
        let ends = |fault: &StepFault| matches!(fault, StepFault::Fail | StepFault::Panic);
        let mut plan = self.plan();
        let mut struck = Vec::new();
        plan.at_steps.retain(|&(at, fault)| {
            if at == step {
                struck.push(fault);
            }
            at != step
        });
        for (steps, fault) in &mut plan.next_steps {
            if *steps > 0 {
                *steps -= 1;
                struck.push(*fault);
            }
        }
        plan.next_steps.retain(|(steps, _)| *steps > 0);
        if !plan.poison.is_empty() || !plan.hangs.is_empty() {
            let tokens: Vec<TokenId> = tokens.collect();
            if plan.poison.iter().any(|poison| tokens.contains(poison)) {
                plan.counts.poisoned += u64::from(!struck.iter().any(ends));
                struck.push(StepFault::Fail);
            }
            let hangs = plan
                .hangs
                .iter()
                .filter(|(token, _)| tokens.contains(token));
            struck.extend(hangs.map(|(_, longer)| StepFault::Hang(*longer)));
        }
        // A step may hang and then fail; it cannot fail and then hang.
        struck.sort_by_key(|fault| !matches!(fault, StepFault::Hang(_)));
        if let Some(end) = struck.iter().position(ends) {
            // It never gets any further.
            struck.truncate(end + 1);
            struck.retain(|fault| *fault != StepFault::FailLanding);
        }
        plan.counts.add(&struck);
        struck
    }

    /// Whether the device refuses the memory that is asked for now.
    pub(super) fn refuses_memory(&self) -> bool {
        let mut plan = self.plan();
        let refuses = take_one(&mut plan.memory_refusals);
        plan.counts.memory_refused += u64::from(refuses);
        refuses
    }

    /// Whether a segment is not handed over now.
    pub(super) fn refuses_hand_over(&self) -> bool {
        let mut plan = self.plan();
        let refuses = take_one(&mut plan.hand_over_refusals);
        plan.counts.hand_overs_refused += u64::from(refuses);
        refuses
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0
            .lock()
            .expect("no thread panics while it holds the plan")
    }
}

impl FaultCounts {
    fn add(&mut self, struck: &[StepFault]) {
        for fault in struck {
            *match fault {
                StepFault::Fail => &mut self.failed,
                StepFault::FailLanding => &mut self.failed_landing,
                StepFault::Panic => &mut self.panicked,
                StepFault::Hang(_) => &mut self.hung,
            } += 1;
        }
    }
}

/// Whether there was one left.
fn take_one(left: &mut u64) -> bool {
    let some = *left > 0;
    *left -= u64::from(some);
    some
}
