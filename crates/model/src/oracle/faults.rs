//! Failures that a test injects into the oracle.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use motet_protocol::TokenId;

/// A handle by which a test makes an oracle fail. Cheap to clone; any thread may use it while the
/// oracle runs. A fault strikes once, except poison.
///
/// Steps are numbered from 0, as [`OracleCounts::steps`] counts them.
///
/// [`OracleCounts::steps`]: super::OracleCounts::steps
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Plan>>);

/// Number of times that each fault has struck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultCounts {
    /// [`StepFault::Fail`], or poison.
    pub failed: u64,
    /// [`StepFault::FailFinish`].
    pub failed_finish: u64,
    /// [`StepFault::Panic`].
    pub panicked: u64,
    /// [`StepFault::Stall`], or a token that makes steps stall.
    pub stalled: u64,
    /// Steps that failed because they evaluated a poisoned token.
    pub poisoned: u64,
    /// Allocations that failed.
    pub allocations_failed: u64,
    /// Exports that failed.
    pub exports_failed: u64,
    /// Exported segments that were left uncomputed.
    pub exports_stalled: u64,
    /// Stalled exports on which a thread blocked instead of polling whether they are computed.
    pub exports_waited_for: u64,
}

/// A fault of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepFault {
    /// Its submission returns [`ModelError::Device`](motet_protocol::ModelError::Device).
    Fail,
    /// Submission and sampling succeed; `finish` fails as above.
    FailFinish,
    /// Its submission panics.
    Panic,
    /// Its submission takes so much longer, then succeeds.
    Stall(Duration),
}

/// Completion state that stalled exports share.
#[derive(Debug, Default)]
pub(super) struct Stall {
    is_finished: AtomicBool,
    waited_for: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Plan {
    at_steps: Vec<(u64, StepFault)>,
    next_steps: Vec<(u64, StepFault)>,
    poison: Vec<TokenId>,
    stalls: Vec<(TokenId, Duration)>,
    allocation_failures: u64,
    export_failures: u64,
    export_stalls: u64,
    thread_ends: u64,
    /// Shared by the exports that are stalled now.
    stall: Arc<Stall>,
    exports_waited_for: Arc<AtomicU64>,
    counts: FaultCounts,
}

impl Faults {
    /// Injects `fault` into step number `step`.
    pub fn at_step(&self, step: u64, fault: StepFault) {
        self.plan().at_steps.push((step, fault));
    }

    /// Injects `fault` into each of the next `steps` steps.
    pub fn next_steps(&self, steps: u64, fault: StepFault) {
        self.plan().next_steps.push((steps, fault));
    }

    /// Fails every step in which some span evaluates `token`.
    pub fn poison(&self, token: TokenId) {
        self.plan().poison.push(token);
    }

    /// Makes every step in which some span evaluates `token` take so much longer.
    pub fn stall_on(&self, token: TokenId, longer: Duration) {
        self.plan().stalls.push((token, longer));
    }

    /// Fails the allocations of the next `times` new segments and tails, including imported
    /// segments. A split, which makes two segments, counts as one, and so does a removal.
    pub fn fail_allocations(&self, times: u64) {
        self.plan().allocation_failures = times;
    }

    /// Fails the next `times` exports.
    pub fn fail_exports(&self, times: u64) {
        self.plan().export_failures = times;
    }

    /// Leaves the next `times` exported segments uncomputed, like a device that hangs, until
    /// [`compute_exports`](Faults::compute_exports).
    pub fn stall_exports(&self, times: u64) {
        self.plan().export_stalls = times;
    }

    /// Computes all exported segments that are stalled.
    pub fn compute_exports(&self) {
        let stall = std::mem::take(&mut self.plan().stall);
        stall.is_finished.store(true, Ordering::Release);
    }

    /// Panics at the next `times` reports of the memory in use, when a step has finished. No step
    /// is to blame, and an engine loses the thread of its device.
    pub fn end_thread(&self, times: u64) {
        self.plan().thread_ends = times;
    }

    /// Clears every fault that has not struck yet, including poison. Stalled exports stay
    /// stalled.
    pub fn clear(&self) {
        let mut plan = self.plan();
        *plan = Plan {
            counts: plan.counts,
            stall: Arc::clone(&plan.stall),
            exports_waited_for: Arc::clone(&plan.exports_waited_for),
            ..Plan::default()
        };
    }

    /// The faults that have struck so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        let plan = self.plan();
        FaultCounts {
            exports_waited_for: plan.exports_waited_for.load(Ordering::Relaxed),
            ..plan.counts
        }
    }

    /// Takes the faults that strike step `step`, which evaluates `tokens`.
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
        if !plan.poison.is_empty() || !plan.stalls.is_empty() {
            let tokens: Vec<TokenId> = tokens.collect();
            if plan.poison.iter().any(|poison| tokens.contains(poison)) {
                plan.counts.poisoned += u64::from(!struck.iter().any(ends));
                struck.push(StepFault::Fail);
            }
            let stalls = plan
                .stalls
                .iter()
                .filter(|(token, _)| tokens.contains(token));
            struck.extend(stalls.map(|(_, longer)| StepFault::Stall(*longer)));
        }
        // A step may stall and then fail; it cannot fail and then stall.
        struck.sort_by_key(|fault| !matches!(fault, StepFault::Stall(_)));
        if let Some(end) = struck.iter().position(ends) {
            // A step that fails at submission reaches no later fault.
            struck.truncate(end + 1);
            struck.retain(|fault| *fault != StepFault::FailFinish);
        }
        plan.counts.add(&struck);
        struck
    }

    /// Whether the current allocation fails.
    pub(super) fn fails_allocation(&self) -> bool {
        let mut plan = self.plan();
        let fails = take_one(&mut plan.allocation_failures);
        plan.counts.allocations_failed += u64::from(fails);
        fails
    }

    /// Whether the current export fails.
    pub(super) fn fails_export(&self) -> bool {
        let mut plan = self.plan();
        let fails = take_one(&mut plan.export_failures);
        plan.counts.exports_failed += u64::from(fails);
        fails
    }

    /// Whether the current report of the memory in use panics.
    pub(super) fn ends_thread(&self) -> bool {
        take_one(&mut self.plan().thread_ends)
    }

    /// Completion state of the current export; `None` if it is computed at once.
    pub(super) fn export_stall(&self) -> Option<Arc<Stall>> {
        let mut plan = self.plan();
        let stalls = take_one(&mut plan.export_stalls);
        plan.counts.exports_stalled += u64::from(stalls);
        if !stalls {
            return None;
        }
        if !Arc::ptr_eq(&plan.stall.waited_for, &plan.exports_waited_for) {
            plan.stall = Arc::new(Stall {
                waited_for: Arc::clone(&plan.exports_waited_for),
                ..Stall::default()
            });
        }
        Some(Arc::clone(&plan.stall))
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0
            .lock()
            .expect("no thread panics while it holds the plan")
    }
}

impl Stall {
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Acquire)
    }

    /// Counts a thread that blocks until the stall ends.
    pub(super) fn count_waiter(&self) {
        self.waited_for.fetch_add(1, Ordering::Relaxed);
    }
}

impl FaultCounts {
    fn add(&mut self, struck: &[StepFault]) {
        for fault in struck {
            *match fault {
                StepFault::Fail => &mut self.failed,
                StepFault::FailFinish => &mut self.failed_finish,
                StepFault::Panic => &mut self.panicked,
                StepFault::Stall(_) => &mut self.stalled,
            } += 1;
        }
    }
}

/// Takes one from the counter; returns whether one was left.
fn take_one(left: &mut u64) -> bool {
    let is_left = *left > 0;
    *left -= u64::from(is_left);
    is_left
}
