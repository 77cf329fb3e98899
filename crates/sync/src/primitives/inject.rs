//! Injected bugs that model checks must find.
//!
//! With `--cfg motet_injected_bug` a model [injects](inject) one of them for its own thread and
//! must then fail. Loom runs all threads of a model on one thread of the system, so all of them
//! have the bug. Without that cfg there are none: `injected` is a constant `false`, and
//! `ordering` returns the strong one.

use std::cell::Cell;

use super::{Ordering, fence};

/// A bug of one primitive. Variants whose names end in an ordering remove that ordering from
/// one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InjectedBug {
    /// Admission checks and adds in two steps.
    AdmissionInTwoSteps,
    /// Admission of a request does not see writes before the release of another.
    AdmissionEnterAcquire,
    /// The release of a request does not publish the writes before it.
    AdmissionLeaveRelease,
    /// A drain does not see writes before the release of a request.
    AdmissionInsideAcquire,
    /// A user's share is read and changed under two locks.
    UsersTwoLocks,
    /// Each side checks whether a sequence is live, then ends it.
    CancelInTwoSteps,
    /// A cancelling caller does not publish its earlier writes.
    CancelRelease,
    /// A scheduler that sees a cancellation does not see the caller's earlier writes.
    CancelSeenAcquire,
    /// A sequence pauses without checking again how far it is ahead.
    CreditsPauseInTwoSteps,
    /// A read does not publish that the memory of the token is free.
    CreditsReadRelease,
    /// A sequence that continues does not see that the memory of a read token is free.
    CreditsPauseAcquire,
    /// A thread checks whether the gate is open, then enters.
    GateInTwoSteps,
    /// Opening does not publish the writes before it.
    GateOpenRelease,
    /// A thread that enters does not see the writes before the opening.
    GateEnterAcquire,
    /// A thread that leaves does not publish that it has ended its access.
    GateLeaveRelease,
    /// Closing does not see that all threads have ended their accesses.
    GateCloseAcquire,
    /// The heartbeat is idle for a moment while work is in flight.
    HeartbeatInTwoSteps,
    /// A beat does not publish the scheduler's earlier writes.
    HeartbeatRelease,
    /// A read of the heartbeat does not see the scheduler's earlier writes.
    HeartbeatAcquire,
    /// An eviction checks and evicts in two steps.
    LeaseEvictInTwoSteps,
    /// A lease is released in two steps.
    LeaseDropInTwoSteps,
    /// The release of a lease does not publish that its use has ended.
    LeaseDropRelease,
    /// An eviction does not see that all uses have ended.
    LeaseEvictAcquire,
    /// A waker publishes the work, and then reads the parked flags without a fence.
    ParkingWakerFence,
    /// A thread announces that it parks, and then looks for work without a fence.
    ParkingSleeperFence,
    /// A detached state is put into the transfer queue in two steps.
    TransferQueuePutInTwoSteps,
    /// A device thread checks which thread the transfer queue serves, then clears it.
    TransferQueueClearInTwoSteps,
    /// A device thread checks which thread the transfer queue serves, then exports.
    TransferQueueExportInTwoSteps,
    /// Host memory checks whether a copy is awaited, then stores it.
    HostKeepTwoLocks,
    /// A returned buffer is counted under two locks.
    BufferTwoLocks,
    /// The lock of a model excludes other threads and orders no memory.
    LockOrdersNothing,
}

thread_local!(static INJECTED: Cell<Option<InjectedBug>> = const { Cell::new(None) });

/// Sets the bug of this thread's primitives, or none.
pub fn inject(bug: Option<InjectedBug>) {
    INJECTED.set(bug);
}

/// Whether the primitives of this thread have this bug.
#[inline]
pub fn injected(bug: InjectedBug) -> bool {
    cfg!(motet_injected_bug) && INJECTED.get() == Some(bug)
}

/// Returns the `strong` ordering, or the `weak` one if `bug` is injected.
#[inline]
pub fn ordering(bug: InjectedBug, strong: Ordering, weak: Ordering) -> Ordering {
    if injected(bug) { weak } else { strong }
}

/// A sequentially consistent fence, unless the bug of its absence is injected.
#[inline]
pub fn full_fence(absent: InjectedBug) {
    if !injected(absent) {
        fence(Ordering::SeqCst);
    }
}
