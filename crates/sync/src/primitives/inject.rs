//! Mistakes that model checks must find, each by its name.
//!
//! With `--cfg motet_injected_bug` a model [injects](inject) one of them for its own thread and
//! must fail then. Loom's threads share one of the system's, so all of a model's see it.
//! Without that cfg there are none: `injected` is `false` and `ordering` is the strong one
//! before the compiler is done.

use std::cell::Cell;

use super::{Ordering, fence};

/// A mistake of one primitive. Those whose names end in a word for an ordering take that
/// ordering away from one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InjectedBug {
    /// Admission looks, then adds.
    AdmissionInTwoSteps,
    /// Entering does not see what was done before a request left.
    AdmissionEnterAcquire,
    /// Leaving does not show what was done before.
    AdmissionLeaveRelease,
    /// A drain does not see what was done before a request left.
    AdmissionInsideAcquire,
    /// A user's share is looked at and changed under two locks.
    UsersTwoLocks,
    /// Each side looks whether a sequence is live, then ends it.
    CancelInTwoSteps,
    /// A caller that leaves does not show what it did before.
    CancelRelease,
    /// A scheduler that sees that a caller has left does not see what it did before.
    CancelSeenAcquire,
    /// A sequence pauses without looking again how far it is ahead.
    CreditsPauseInTwoSteps,
    /// A read does not show that what was read is free.
    CreditsReadRelease,
    /// A sequence that goes on does not see that what was read is free.
    CreditsPauseAcquire,
    /// A thread looks whether the gate is open, then goes in.
    GateInTwoSteps,
    /// Opening does not show what was written before.
    GateOpenRelease,
    /// A thread that goes in does not see what was written before the gate opened.
    GateEnterAcquire,
    /// A thread that leaves does not show that it is done.
    GateLeaveRelease,
    /// Closing does not see that all are done.
    GateCloseAcquire,
    /// The heart stands still for a moment while work is under way.
    HeartbeatInTwoSteps,
    /// A beat does not show what the scheduler did before.
    HeartbeatRelease,
    /// A look at the beat does not see what the scheduler did before.
    HeartbeatAcquire,
    /// An eviction looks, then evicts.
    LeaseEvictInTwoSteps,
    /// A lease is given back in two steps.
    LeaseDropInTwoSteps,
    /// Giving a lease back does not show that its use is done.
    LeaseDropRelease,
    /// An eviction does not see that all are done.
    LeaseEvictAcquire,
    /// A thread that wakes others shows why, and then does not look whether they park.
    ParkingWakerFence,
    /// A thread that parks says so, and then does not look whether there is something.
    ParkingSleeperFence,
    /// A parcel is put on the dock in two steps.
    TransferQueuePutInTwoSteps,
    /// A device thread looks which thread the dock serves, then clears it.
    TransferQueueClearInTwoSteps,
    /// A device thread looks which thread the dock serves, then hands over.
    TransferQueueExportInTwoSteps,
    /// Host memory looks whether a copy is awaited, then keeps it.
    HostKeepTwoLocks,
    /// A buffer that comes back is counted under two locks.
    BufferTwoLocks,
    /// The lock of a model excludes others and orders nothing.
    LockOrdersNothing,
}

thread_local!(static INJECTED: Cell<Option<InjectedBug>> = const { Cell::new(None) });

/// From now on the primitives of this thread make this mistake, or none.
pub fn inject(bug: Option<InjectedBug>) {
    INJECTED.set(bug);
}

/// Whether the primitives of this thread make this mistake.
#[inline]
pub fn injected(bug: InjectedBug) -> bool {
    cfg!(motet_injected_bug) && INJECTED.get() == Some(bug)
}

/// The `strong` ordering, or the `weak` one where that is planted.
#[inline]
pub fn ordering(bug: InjectedBug, strong: Ordering, weak: Ordering) -> Ordering {
    if injected(bug) { weak } else { strong }
}

/// A sequentially consistent fence, unless its absence is planted.
#[inline]
pub fn full_fence(absent: InjectedBug) {
    if !injected(absent) {
        fence(Ordering::SeqCst);
    }
}
