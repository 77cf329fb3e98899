//! The transfer queue: segments that the device exports, and states that it imports.
//!
//! Only handles are passed: the device thread never waits here, and copies no bytes.
//!
//! A transfer queue serves one device thread at a time. An abandoned thread that returns
//! exports nothing more, and takes no import of its successor. Its exports that were not taken
//! are dropped when another thread takes its place, and so are those of a device that has lost
//! all state. No worker waits for them, and a device that hangs may never compute them.
//! Dropping them frees their entries for the next exports.

use std::collections::VecDeque;
use std::mem;
use std::sync::PoisonError;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use motet_protocol::CopyId;
use motet_protocol::ModelError;
use motet_sync::primitives::inject::{InjectedBug, injected};
use motet_sync::primitives::{Arc, Mutex, MutexGuard, WakeupReceiver, WakeupSender, wakeup};

/// Upper bound on the exports that wait at once: more than are ever requested before the device
/// loses all state.
const EXPORTS_MAX: usize = 64;

/// The device end of the transfer queue.
#[derive(Debug)]
pub struct DeviceEnd<P> {
    imports: ImportQueue<P>,
    /// Notified after each export.
    wakeup_sender: WakeupSender,
    /// Number of the device thread that this end belongs to.
    thread: u64,
}

/// The host end of the transfer queue, for the copy workers.
#[derive(Debug)]
pub struct HostEnd<P> {
    /// The segments that the device exports.
    pub exports: ExportQueue<P>,
    /// The detached states that the device imports.
    pub imports: ImportQueue<P>,
}

/// A segment exported by the device.
#[derive(Debug)]
pub struct Export<P> {
    /// The copy that it becomes.
    pub copy: CopyId,
    /// The detached state, or the reason why there is none.
    pub detached_state: Result<P, ModelError>,
}

/// Exports that wait for the copy worker, oldest first.
#[derive(Debug)]
pub struct ExportQueue<P> {
    state: ImportQueue<P>,
    wakeup: WakeupReceiver,
}

/// The next export, if there is one.
#[derive(Debug)]
pub enum NextExport<P> {
    /// The queue has no export.
    Nothing,
    /// The device has not computed the oldest export yet, which was queued so long ago.
    NotComputed(Duration),
    /// The oldest export, removed from the queue.
    Ready(Export<P>),
}

/// Detached states that the device imports, each once. A copy may have several, all equal.
#[derive(Debug)]
pub struct ImportQueue<P>(Arc<Mutex<State<P>>>);

#[derive(Debug)]
struct State<P> {
    detached_states: FxHashMap<CopyId, Vec<P>>,
    /// Exports of the current thread, with the time of each.
    exports: VecDeque<(Instant, Export<P>)>,
    /// The device thread that the transfer queue serves.
    thread: u64,
}

/// Contents removed from the queue, to be dropped after the lock is released.
type DroppedTransfers<P> = (FxHashMap<CopyId, Vec<P>>, VecDeque<(Instant, Export<P>)>);

impl<P> Clone for ImportQueue<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Creates a transfer queue and returns both ends.
#[must_use]
pub fn transfer_queue<P>() -> (DeviceEnd<P>, HostEnd<P>) {
    let (wakeup_sender, wakeup) = wakeup();
    let imports = ImportQueue(Arc::new(Mutex::new(State {
        detached_states: FxHashMap::default(),
        exports: VecDeque::new(),
        thread: 0,
    })));
    let transfer_queue = DeviceEnd {
        imports: imports.clone(),
        wakeup_sender,
        thread: 0,
    };
    let exports = ExportQueue {
        state: imports.clone(),
        wakeup,
    };
    (transfer_queue, HostEnd { exports, imports })
}

impl<P> ExportQueue<P> {
    /// Takes the oldest export, unless `is_computed` returns false for its detached state. An
    /// export without one counts as computed. Never waits: an export may never be computed. One
    /// that is not computed after `timeout` is given up: its detached state is replaced by an
    /// error.
    pub fn next(&self, timeout: Duration, is_computed: impl FnOnce(&P) -> bool) -> NextExport<P> {
        let mut state = self.state.state();
        let Some((since, oldest)) = state.exports.front() else {
            return NextExport::Nothing;
        };
        let is_late = !oldest.detached_state.as_ref().map_or(true, is_computed);
        let waited = since.elapsed();
        if is_late && waited < timeout {
            return NextExport::NotComputed(waited);
        }
        let oldest = state.exports.pop_front();
        drop(state);
        let (_, mut oldest) = oldest.expect("the queue has a front");
        if is_late {
            let why = format!("an export was not computed within {timeout:?}");
            oldest.detached_state = Err(ModelError::Device(why));
        }
        NextExport::Ready(oldest)
    }

    /// Returns the number of exports in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.state().exports.len()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until an export was queued since the last call. Returns false if the device is
    /// gone. The export may have been dropped meanwhile.
    #[must_use]
    pub fn wait(&self) -> bool {
        self.wakeup.wait()
    }

    /// Receiver that is notified after each export, perhaps once for several. It is closed when
    /// the device is gone.
    #[must_use]
    pub fn wakeup(&self) -> &WakeupReceiver {
        &self.wakeup
    }
}

impl<P> ImportQueue<P> {
    /// Adds a detached state of a copy.
    pub fn put(&self, copy: CopyId, detached_state: P) {
        if injected(InjectedBug::TransferQueuePutInTwoSteps) {
            // Removes the others to add one, in two steps: another thread finds none in
            // between.
            let mut all = self
                .state()
                .detached_states
                .remove(&copy)
                .unwrap_or_default();
            all.push(detached_state);
            self.state().detached_states.insert(copy, all);
            return;
        }
        self.state()
            .detached_states
            .entry(copy)
            .or_default()
            .push(detached_state);
    }

    /// Takes one detached state of the copy.
    #[must_use]
    pub fn take(&self, copy: CopyId) -> Option<P> {
        self.state().take(copy)
    }

    /// Returns the number of detached states in the queue.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state().detached_states.values().map(Vec::len).sum()
    }

    /// Whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all detached states.
    pub fn clear(&self) {
        let dropped = mem::take(&mut self.state().detached_states);
        drop(dropped);
    }

    /// A panic of another thread leaves a consistent state, so poisoning is ignored.
    fn state(&self) -> MutexGuard<'_, State<P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> State<P> {
    fn take(&mut self, copy: CopyId) -> Option<P> {
        let all = self.detached_states.get_mut(&copy)?;
        let detached_state = all.pop();
        if all.is_empty() {
            self.detached_states.remove(&copy);
        }
        detached_state
    }

    /// Removes all imports and exports: the device has lost its state, so they are of no use.
    fn clear(&mut self) -> DroppedTransfers<P> {
        (
            mem::take(&mut self.detached_states),
            mem::take(&mut self.exports),
        )
    }
}

impl<P> DeviceEnd<P> {
    /// Returns the device end for another device thread, which has no state yet. From now on
    /// the queue serves only that thread, and exports of the previous one are dropped.
    #[must_use]
    pub fn successor(&self) -> Self {
        let mut state = self.imports.state();
        let dropped = state.clear();
        state.thread += 1;
        let thread = state.thread;
        drop(state);
        drop(dropped);
        Self {
            imports: self.imports.clone(),
            wakeup_sender: self.wakeup_sender.clone(),
            thread,
        }
    }

    /// Exports a detached state. It is dropped if the host end is gone.
    ///
    /// # Errors
    ///
    /// [`ModelError::TransferQueueFull`] if the queue holds as many exports as it may. The
    /// pager waits for each export, so a device that cannot export must be reset, as after any
    /// other failed edit.
    pub fn export(
        &self,
        copy: CopyId,
        detached_state: Result<P, ModelError>,
    ) -> Result<(), ModelError> {
        let Some(mut state) = self.own_state() else {
            return Ok(());
        };
        if state.exports.len() >= EXPORTS_MAX {
            drop(state);
            if !self.notify() {
                return Ok(());
            }
            return Err(ModelError::TransferQueueFull {
                copy,
                waiting: EXPORTS_MAX,
            });
        }
        if injected(InjectedBug::TransferQueueExportInTwoSteps) {
            // Checks the served thread and exports in two steps: it may change in between.
            drop(state);
            state = self.imports.state();
        }
        let export = Export {
            copy,
            detached_state,
        };
        state.exports.push_back((Instant::now(), export));
        drop(state);
        self.notify();
        Ok(())
    }

    /// Takes one detached state of the copy for import.
    #[must_use]
    pub fn take(&self, copy: CopyId) -> Option<P> {
        self.own_state()?.take(copy)
    }

    /// Drops all imports and exports: the device has lost all state, and the pager gives the
    /// exports up.
    pub fn clear(&self) {
        if injected(InjectedBug::TransferQueueClearInTwoSteps) {
            // Checks the served thread and clears in two steps: it may change in between.
            let is_own = self.own_state().is_some();
            if is_own {
                self.imports.clear();
            }
            return;
        }
        let dropped = self.own_state().map(|mut state| state.clear());
        drop(dropped);
    }

    /// Notifies the host end. If that is gone, drops the exports and returns false.
    fn notify(&self) -> bool {
        let is_received = self.wakeup_sender.notify();
        if !is_received {
            let dropped_exports = mem::take(&mut self.imports.state().exports);
            drop(dropped_exports);
        }
        is_received
    }

    /// Returns `None` if the queue serves another thread by now.
    fn own_state(&self) -> Option<MutexGuard<'_, State<P>>> {
        let state = self.imports.state();
        (state.thread == self.thread).then_some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_TIMEOUT: Duration = Duration::MAX;

    #[test]
    fn transfer_queue_serves_its_last_thread_only() {
        let copy = CopyId(1);
        let (prototype, host_end) = transfer_queue::<&str>();
        let first = prototype.successor();
        host_end.imports.put(copy, "for the first");
        let second = prototype.successor();
        assert!(
            host_end.imports.is_empty(),
            "the successor does not get imports of the first thread"
        );
        host_end.imports.put(copy, "for the second");
        first
            .export(copy, Ok("late"))
            .expect("a dropped export is no error");
        assert!(host_end.exports.is_empty());
        first.clear();
        assert_eq!(first.take(copy), None);
        assert_eq!(second.take(copy), Some("for the second"));
        second
            .export(copy, Ok("exported"))
            .expect("the queue has capacity");
        assert_eq!(host_end.exports.len(), 1);
    }

    /// A device that hangs is abandoned with exports that it will never compute. Their entries
    /// are freed for those of the next device.
    #[test]
    fn exports_of_a_lost_device_are_dropped() {
        let (prototype, host_end) = transfer_queue::<u64>();
        let mut number = 0;
        for _ in 0..4 * EXPORTS_MAX {
            let transfer_queue = prototype.successor();
            for _ in 0..8 {
                number += 1;
                transfer_queue
                    .export(CopyId(number), Ok(number))
                    .expect("the queue has capacity");
            }
            assert_eq!(
                host_end.exports.len(),
                8,
                "only the exports of this device wait"
            );
            let next = host_end.exports.next(NO_TIMEOUT, |_| false);
            assert!(matches!(next, NextExport::NotComputed(_)), "{next:?}");
        }
        // The same holds for a device that has lost all state and continues.
        let transfer_queue = prototype.successor();
        for _ in 0..2 * EXPORTS_MAX {
            transfer_queue
                .export(CopyId(1), Ok(1))
                .expect("the queue has capacity");
            transfer_queue.clear();
        }
        assert!(host_end.exports.is_empty());
    }

    #[test]
    fn computed_exports_are_taken_in_order() {
        let (prototype, host_end) = transfer_queue::<u64>();
        let transfer_queue = prototype.successor();
        assert!(matches!(
            host_end.exports.next(NO_TIMEOUT, |_| true),
            NextExport::Nothing
        ));
        let failed = ModelError::Device("not exported".into());
        transfer_queue
            .export(CopyId(1), Err(failed))
            .expect("the queue has capacity");
        transfer_queue
            .export(CopyId(2), Ok(2))
            .expect("the queue has capacity");
        let without_state = host_end.exports.next(NO_TIMEOUT, |_| false);
        let NextExport::Ready(Export {
            copy,
            detached_state,
        }) = without_state
        else {
            panic!("an export without a state is ready: {without_state:?}");
        };
        assert!(copy == CopyId(1) && detached_state.is_err());
        let not_computed = host_end
            .exports
            .next(NO_TIMEOUT, |detached_state| *detached_state != 2);
        assert!(
            matches!(not_computed, NextExport::NotComputed(_)),
            "{not_computed:?}"
        );
        let ready = host_end
            .exports
            .next(NO_TIMEOUT, |detached_state| *detached_state == 2);
        assert!(matches!(ready, NextExport::Ready(_)), "{ready:?}");
        assert!(host_end.exports.is_empty());
    }

    #[test]
    fn export_not_computed_in_time_is_given_up() {
        let (prototype, host_end) = transfer_queue::<u64>();
        let transfer_queue = prototype.successor();
        transfer_queue
            .export(CopyId(1), Ok(1))
            .expect("the queue has capacity");
        let given_up = host_end.exports.next(Duration::ZERO, |_| false);
        let NextExport::Ready(Export {
            copy,
            detached_state,
        }) = given_up
        else {
            panic!("the timeout has passed: {given_up:?}");
        };
        assert!(
            copy == CopyId(1) && detached_state.is_err(),
            "{detached_state:?}"
        );
        assert!(host_end.exports.is_empty());
    }

    #[test]
    fn full_export_queue_is_an_error() {
        let (prototype, host_end) = transfer_queue::<u64>();
        let transfer_queue = prototype.successor();
        let export = |number| transfer_queue.export(CopyId(number), Ok(number));
        for number in 0..EXPORTS_MAX as u64 {
            export(number).expect("the queue has capacity");
        }
        let full = export(99);
        assert!(
            matches!(
                full,
                Err(ModelError::TransferQueueFull {
                    copy: CopyId(99),
                    ..
                })
            ),
            "{full:?}"
        );
        let taken = host_end.exports.next(NO_TIMEOUT, |_| true);
        assert!(matches!(taken, NextExport::Ready(_)), "{taken:?}");
        export(100).expect("the queue has capacity again");
        drop(host_end);
        export(101).expect("a dropped export is no error");
    }
}
