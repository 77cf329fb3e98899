//! Where the device hands segments over, and takes them in.
//!
//! Only handles change hands: the device thread never waits here, and no bytes are
//! copied on it.
//!
//! A dock serves one device thread at a time. One that was left behind and comes back
//! hands over nothing more, and takes nothing that is meant for its successor. Its exports
//! that were not taken are dropped when another thread takes its place, and so are those of
//! a device that has lost everything: nobody waits for them, and a device that hangs may
//! never compute them. The room that they took is free then.

use std::collections::VecDeque;
use std::mem;
use std::sync::PoisonError;
use std::time::Duration;

use rustc_hash::FxHashMap;
use tokio::time::Instant;

use motet_core::CopyId;
use motet_core::protocol::ModelError;
use motet_sync::primitives::inject::{InjectedBug, injected};
use motet_sync::primitives::{Arc, Mutex, MutexGuard, WakeupReceiver, WakeupSender, wakeup};

/// Exports that may wait at once: more than are ever asked for before the device loses
/// everything.
const EXPORTS_MAX: usize = 64;

/// The device's end.
#[derive(Debug)]
pub struct DeviceEnd<P> {
    imports: ImportQueue<P>,
    /// Rung when there is something to take.
    wakeup_sender: WakeupSender,
    /// Which thread it serves, counted from the first.
    thread: u64,
}

/// The copy threads' end.
#[derive(Debug)]
pub struct HostEnd<P> {
    /// What the device hands over.
    pub exports: ExportQueue<P>,
    /// What it is to take in.
    pub imports: ImportQueue<P>,
}

/// What the device hands over.
#[derive(Debug)]
pub struct Export<P> {
    /// The copy that it becomes.
    pub copy: CopyId,
    /// The parcel, or why there is none.
    pub detached_state: Result<P, ModelError>,
}

/// Exports that wait for the copy thread, oldest first.
#[derive(Debug)]
pub struct ExportQueue<P> {
    state: ImportQueue<P>,
    wakeup: WakeupReceiver,
}

/// The next export, if there is one.
#[derive(Debug)]
pub enum NextExport<P> {
    /// Nothing was handed over.
    Nothing,
    /// The device has not computed the oldest yet, which was handed over so long ago.
    NotComputed(Duration),
    /// The oldest, which is no longer in the queue.
    Ready(Export<P>),
}

/// Parcels that the device is to take in, each once. A copy may have several, which are
/// all alike.
#[derive(Debug)]
pub struct ImportQueue<P>(Arc<Mutex<State<P>>>);

#[derive(Debug)]
struct State<P> {
    detached_states: FxHashMap<CopyId, Vec<P>>,
    /// What the thread that the dock serves has handed over, and when.
    exports: VecDeque<(Instant, Export<P>)>,
    /// The thread that the dock serves.
    thread: u64,
}

/// What was on a shelf. It is dropped when the shelf is free for others again.
type DroppedTransfers<P> = (FxHashMap<CopyId, Vec<P>>, VecDeque<(Instant, Export<P>)>);

impl<P> Clone for ImportQueue<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Both ends of a dock.
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
    /// Takes the oldest export, unless `is_computed` says that its parcel is not. One without
    /// a parcel always is. Never waits: what is not computed may never be. What is not after
    /// `timeout` is given up: then there is an error in its parcel's place.
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
        let (_, mut oldest) = oldest.expect("it was at the front");
        if is_late {
            let why = format!("an export was not computed within {timeout:?}");
            oldest.detached_state = Err(ModelError::Device(why));
        }
        NextExport::Ready(oldest)
    }

    /// Exports that nobody has taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.state().exports.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until something was handed over since this was called last. False when the device
    /// is gone. What was handed over may have been dropped meanwhile.
    #[must_use]
    pub fn wait(&self) -> bool {
        self.wakeup.wait()
    }

    /// Rung after each export, perhaps once for several. It is closed when the device is gone.
    pub(crate) fn wakeup(&self) -> &WakeupReceiver {
        &self.wakeup
    }
}

impl<P> ImportQueue<P> {
    /// Puts a parcel there.
    pub fn put(&self, copy: CopyId, detached_state: P) {
        if injected(InjectedBug::TransferQueuePutInTwoSteps) {
            // Takes the others away to add one, but not in one step: another thread that
            // comes between finds none.
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

    /// Takes one of the copy's parcels.
    #[must_use]
    pub fn take(&self, copy: CopyId) -> Option<P> {
        self.state().take(copy)
    }

    /// Parcels that nobody has taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state().detached_states.values().map(Vec::len).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Throws all of them away.
    pub fn clear(&self) {
        let dropped = mem::take(&mut self.state().detached_states);
        drop(dropped);
    }

    /// A panic elsewhere leaves a shelf that is whole.
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

    /// The device holds nothing any more: what was to come or to go is of no use.
    fn clear(&mut self) -> DroppedTransfers<P> {
        (
            mem::take(&mut self.detached_states),
            mem::take(&mut self.exports),
        )
    }
}

impl<P> DeviceEnd<P> {
    /// The same dock for another device thread, which holds nothing. From now on it serves
    /// nobody else, and what the thread before it handed over is dropped.
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

    /// Hands a parcel over. Without anybody there it is dropped.
    ///
    /// # Errors
    ///
    /// [`ModelError::TransferQueueFull`] when as many wait as may. The pager waits for each: a device that
    /// cannot hand one over has to begin anew, as after any other edit that fails.
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
            return match self.notify() {
                true => Err(ModelError::TransferQueueFull {
                    copy,
                    waiting: EXPORTS_MAX,
                }),
                false => Ok(()),
            };
        }
        if injected(InjectedBug::TransferQueueExportInTwoSteps) {
            // Looks whom it serves, but hands over in another step: that may have changed.
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

    /// Takes one of the copy's parcels in.
    #[must_use]
    pub fn take(&self, copy: CopyId) -> Option<P> {
        self.own_state()?.take(copy)
    }

    /// The device has lost everything: nothing is taken in any more of what was to be, and
    /// what was handed over is of no use, since the pager gives it up.
    pub fn clear(&self) {
        if injected(InjectedBug::TransferQueueClearInTwoSteps) {
            // Looks whom it serves, but clears in another step: that may have changed.
            let is_own = self.own_state().is_some();
            if is_own {
                self.imports.clear();
            }
            return;
        }
        let dropped = self.own_state().map(|mut state| state.clear());
        drop(dropped);
    }

    /// Says that there is something to take. False, and what there was is dropped, where nobody
    /// will take it.
    fn notify(&self) -> bool {
        let is_received = self.wakeup_sender.notify();
        if !is_received {
            let dropped_exports = mem::take(&mut self.imports.state().exports);
            drop(dropped_exports);
        }
        is_received
    }

    /// None for a thread that the dock serves no more.
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
            "the second was never to have it"
        );
        host_end.imports.put(copy, "for the second");
        first.export(copy, Ok("late")).expect("nobody waits for it");
        assert!(host_end.exports.is_empty());
        first.clear();
        assert_eq!(first.take(copy), None);
        assert_eq!(second.take(copy), Some("for the second"));
        second
            .export(copy, Ok("handed over"))
            .expect("there is room");
        assert_eq!(host_end.exports.len(), 1);
    }

    /// A device that hangs is left behind with exports that it will never compute. Their room
    /// is free for the next one's.
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
                    .expect("room");
            }
            assert_eq!(host_end.exports.len(), 8, "those of this device only");
            let next = host_end.exports.next(NO_TIMEOUT, |_| false);
            assert!(matches!(next, NextExport::NotComputed(_)), "{next:?}");
        }
        // The same holds for a device that has lost everything and lives on.
        let transfer_queue = prototype.successor();
        for _ in 0..2 * EXPORTS_MAX {
            transfer_queue.export(CopyId(1), Ok(1)).expect("room");
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
        let failed = ModelError::Device("not handed over".into());
        transfer_queue.export(CopyId(1), Err(failed)).expect("room");
        transfer_queue.export(CopyId(2), Ok(2)).expect("room");
        let without_state = host_end.exports.next(NO_TIMEOUT, |_| false);
        let NextExport::Ready(Export {
            copy,
            detached_state,
        }) = without_state
        else {
            panic!("there is nothing to compute: {without_state:?}");
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
        transfer_queue.export(CopyId(1), Ok(1)).expect("room");
        let given_up = host_end.exports.next(Duration::ZERO, |_| false);
        let NextExport::Ready(Export {
            copy,
            detached_state,
        }) = given_up
        else {
            panic!("it was waited for long enough: {given_up:?}");
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
            export(number).expect("there is room");
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
        export(100).expect("there is room again");
        drop(host_end);
        export(101).expect("nobody waits for it");
    }
}
