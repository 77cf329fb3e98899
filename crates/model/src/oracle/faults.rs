//! Failures that a test asks the oracle for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use motet_core::TokenId;

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
    /// Segments that were handed over and not computed.
    pub exports_hung: u64,
    /// Of these, those that somebody waited for instead of asking whether they are computed.
    pub exports_waited_for: u64,
}

/// What happens to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFault {
    /// Its launch returns [`ModelError::Device`](motet_core::protocol::ModelError::Device).
    Fail,
    /// It is launched and drawn, and fails as above when it is to land.
    FailLanding,
    /// Its launch panics.
    Panic,
    /// Its launch takes so much longer, then succeeds.
    Hang(Duration),
}

/// What segments share that were handed over and are not computed.
#[derive(Debug, Default)]
pub(super) struct Hang {
    is_over: AtomicBool,
    waited_for: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Plan {
    at_steps: Vec<(u64, StepFault)>,
    next_steps: Vec<(u64, StepFault)>,
    poison: Vec<TokenId>,
    hangs: Vec<(TokenId, Duration)>,
    memory_refusals: u64,
    hand_over_refusals: u64,
    export_hangs: u64,
    /// What the segments that hang now share.
    hang: Arc<Hang>,
    exports_waited_for: Arc<AtomicU64>,
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

    /// Leaves the next `times` segments that are handed over uncomputed, until they are
    /// [computed after all](Faults::compute_exports), as a device does that hangs.
    pub fn hang_exports(&self, times: u64) {
        self.plan().export_hangs = times;
    }

    /// Computes all segments that were handed over and hang.
    pub fn compute_exports(&self) {
        let hang = std::mem::take(&mut self.plan().hang);
        hang.is_over.store(true, Ordering::Release);
    }

    /// Forgets every fault that has not struck yet, poison too. What hangs goes on hanging.
    pub fn clear(&self) {
        let mut plan = self.plan();
        *plan = Plan {
            counts: plan.counts,
            hang: Arc::clone(&plan.hang),
            exports_waited_for: Arc::clone(&plan.exports_waited_for),
            ..Plan::default()
        };
    }

    /// What has struck so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        let plan = self.plan();
        FaultCounts {
            exports_waited_for: plan.exports_waited_for.load(Ordering::Relaxed),
            ..plan.counts
        }
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

    /// What says when a segment that is handed over now is computed; none where it is at once.
    pub(super) fn hangs_export(&self) -> Option<Arc<Hang>> {
        let mut plan = self.plan();
        let hangs = take_one(&mut plan.export_hangs);
        plan.counts.exports_hung += u64::from(hangs);
        if !hangs {
            return None;
        }
        if !Arc::ptr_eq(&plan.hang.waited_for, &plan.exports_waited_for) {
            plan.hang = Arc::new(Hang {
                waited_for: Arc::clone(&plan.exports_waited_for),
                ..Hang::default()
            });
        }
        Some(Arc::clone(&plan.hang))
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0
            .lock()
            .expect("no thread panics while it holds the plan")
    }
}

impl Hang {
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Somebody waits until it is over.
    pub(super) fn is_waited_for(&self) {
        self.waited_for.fetch_add(1, Ordering::Relaxed);
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
