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
use motet_sync::primitives::plant::{Plant, planted};
use motet_sync::primitives::{Arc, Bell, Mutex, MutexGuard, Ringer, bell};

/// Exports that may wait at once: more than are ever asked for before the device loses
/// everything.
const LEAVING_MAX: usize = 64;

/// The device's end.
#[derive(Debug)]
pub struct Dock<P> {
    arrived: Arrived<P>,
    /// Rung when there is something to take.
    ringer: Ringer,
    /// Which thread it serves, counted from the first.
    thread: u64,
}

/// The copy threads' end.
#[derive(Debug)]
pub struct Quay<P> {
    /// What the device hands over.
    pub leaving: ExportQueue<P>,
    /// What it is to take in.
    pub arrived: Arrived<P>,
}

/// What the device hands over.
#[derive(Debug)]
pub struct Leaving<P> {
    /// The copy that it becomes.
    pub copy: CopyId,
    /// The parcel, or why there is none.
    pub parcel: Result<P, ModelError>,
}

/// Exports that wait for the copy thread, oldest first.
#[derive(Debug)]
pub struct ExportQueue<P> {
    shelf: Arrived<P>,
    bell: Bell,
}

/// The next export, if there is one.
#[derive(Debug)]
pub enum NextExport<P> {
    /// Nothing was handed over.
    Nothing,
    /// The device has not computed the oldest yet, which was handed over so long ago.
    NotComputed(Duration),
    /// The oldest, which is no longer in the queue.
    Ready(Leaving<P>),
}

/// Parcels that the device is to take in, each once. A copy may have several, which are
/// all alike.
#[derive(Debug)]
pub struct Arrived<P>(Arc<Mutex<Shelf<P>>>);

#[derive(Debug)]
struct Shelf<P> {
    parcels: FxHashMap<CopyId, Vec<P>>,
    /// What the thread that the dock serves has handed over, and when.
    leaving: VecDeque<(Instant, Leaving<P>)>,
    /// The thread that the dock serves.
    thread: u64,
}

/// What was on a shelf. It is dropped when the shelf is free for others again.
type Cleared<P> = (FxHashMap<CopyId, Vec<P>>, VecDeque<(Instant, Leaving<P>)>);

impl<P> Clone for Arrived<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Both ends of a dock.
#[must_use]
pub fn dock<P>() -> (Dock<P>, Quay<P>) {
    let (ringer, bell) = bell();
    let arrived = Arrived(Arc::new(Mutex::new(Shelf {
        parcels: FxHashMap::default(),
        leaving: VecDeque::new(),
        thread: 0,
    })));
    let dock = Dock {
        arrived: arrived.clone(),
        ringer,
        thread: 0,
    };
    let leaving = ExportQueue {
        shelf: arrived.clone(),
        bell,
    };
    (dock, Quay { leaving, arrived })
}

impl<P> ExportQueue<P> {
    /// Takes the oldest export, unless `is_computed` says that its parcel is not. One without
    /// a parcel always is. Never waits: what is not computed may never be. What is not after
    /// `patience` is given up: then there is an error in its parcel's place.
    pub fn next(&self, patience: Duration, is_computed: impl FnOnce(&P) -> bool) -> NextExport<P> {
        let mut shelf = self.shelf.shelf();
        let Some((since, oldest)) = shelf.leaving.front() else {
            return NextExport::Nothing;
        };
        let is_late = !oldest.parcel.as_ref().map_or(true, is_computed);
        let waited = since.elapsed();
        if is_late && waited < patience {
            return NextExport::NotComputed(waited);
        }
        let oldest = shelf.leaving.pop_front();
        drop(shelf);
        let (_, mut oldest) = oldest.expect("it was at the front");
        if is_late {
            let why = format!("an export was not computed within {patience:?}");
            oldest.parcel = Err(ModelError::Device(why));
        }
        NextExport::Ready(oldest)
    }

    /// Exports that nobody has taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shelf.shelf().leaving.len()
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
        self.bell.wait()
    }

    /// Rung after each export, perhaps once for several. It is closed when the device is gone.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }
}

impl<P> Arrived<P> {
    /// Puts a parcel there.
    pub fn put(&self, copy: CopyId, parcel: P) {
        if planted(Plant::DockPutInTwoSteps) {
            // Takes the others away to add one, but not in one step: another thread that
            // comes between finds none.
            let mut all = self.shelf().parcels.remove(&copy).unwrap_or_default();
            all.push(parcel);
            self.shelf().parcels.insert(copy, all);
            return;
        }
        self.shelf().parcels.entry(copy).or_default().push(parcel);
    }

    /// Takes one of the copy's parcels.
    #[must_use]
    pub fn take(&self, copy: CopyId) -> Option<P> {
        self.shelf().take(copy)
    }

    /// Parcels that nobody has taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shelf().parcels.values().map(Vec::len).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Throws all of them away.
    pub fn clear(&self) {
        let cleared = mem::take(&mut self.shelf().parcels);
        drop(cleared);
    }

    /// A panic elsewhere leaves a shelf that is whole.
    fn shelf(&self) -> MutexGuard<'_, Shelf<P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P> Shelf<P> {
    fn take(&mut self, copy: CopyId) -> Option<P> {
        let all = self.parcels.get_mut(&copy)?;
        let parcel = all.pop();
        if all.is_empty() {
            self.parcels.remove(&copy);
        }
        parcel
    }

    /// The device holds nothing any more: what was to come or to go is of no use.
    fn clear(&mut self) -> Cleared<P> {
        (mem::take(&mut self.parcels), mem::take(&mut self.leaving))
    }
}

impl<P> Dock<P> {
    /// The same dock for another device thread, which holds nothing. From now on it serves
    /// nobody else, and what the thread before it handed over is dropped.
    #[must_use]
    pub fn successor(&self) -> Self {
        let mut shelf = self.arrived.shelf();
        let cleared = shelf.clear();
        shelf.thread += 1;
        let thread = shelf.thread;
        drop(shelf);
        drop(cleared);
        Self {
            arrived: self.arrived.clone(),
            ringer: self.ringer.clone(),
            thread,
        }
    }

    /// Hands a parcel over. Without anybody there it is dropped.
    ///
    /// # Errors
    ///
    /// [`ModelError::Dock`] when as many wait as may. The pager waits for each: a device that
    /// cannot hand one over has to begin anew, as after any other edit that fails.
    pub fn leave(&self, copy: CopyId, parcel: Result<P, ModelError>) -> Result<(), ModelError> {
        let Some(mut shelf) = self.own_shelf() else {
            return Ok(());
        };
        if shelf.leaving.len() >= LEAVING_MAX {
            drop(shelf);
            return match self.ring() {
                true => Err(ModelError::Dock {
                    copy,
                    waiting: LEAVING_MAX,
                }),
                false => Ok(()),
            };
        }
        if planted(Plant::DockLeaveInTwoSteps) {
            // Looks whom it serves, but hands over in another step: that may have changed.
            drop(shelf);
            shelf = self.arrived.shelf();
        }
        let leaving = Leaving { copy, parcel };
        shelf.leaving.push_back((Instant::now(), leaving));
        drop(shelf);
        self.ring();
        Ok(())
    }

    /// Takes one of the copy's parcels in.
    #[must_use]
    pub fn take(&self, copy: CopyId) -> Option<P> {
        self.own_shelf()?.take(copy)
    }

    /// The device has lost everything: nothing is taken in any more of what was to be, and
    /// what was handed over is of no use, since the pager gives it up.
    pub fn clear(&self) {
        if planted(Plant::DockClearInTwoSteps) {
            // Looks whom it serves, but clears in another step: that may have changed.
            let is_own = self.own_shelf().is_some();
            if is_own {
                self.arrived.clear();
            }
            return;
        }
        let cleared = self.own_shelf().map(|mut shelf| shelf.clear());
        drop(cleared);
    }

    /// Says that there is something to take. False, and what there was is dropped, where nobody
    /// will take it.
    fn ring(&self) -> bool {
        let is_heard = self.ringer.ring();
        if !is_heard {
            let unwanted = mem::take(&mut self.arrived.shelf().leaving);
            drop(unwanted);
        }
        is_heard
    }

    /// None for a thread that the dock serves no more.
    fn own_shelf(&self) -> Option<MutexGuard<'_, Shelf<P>>> {
        let shelf = self.arrived.shelf();
        (shelf.thread == self.thread).then_some(shelf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVER: Duration = Duration::MAX;

    #[test]
    fn a_dock_serves_its_last_thread_only() {
        let copy = CopyId(1);
        let (prototype, quay) = dock::<&str>();
        let first = prototype.successor();
        quay.arrived.put(copy, "for the first");
        let second = prototype.successor();
        assert!(quay.arrived.is_empty(), "the second was never to have it");
        quay.arrived.put(copy, "for the second");
        first.leave(copy, Ok("late")).expect("nobody waits for it");
        assert!(quay.leaving.is_empty());
        first.clear();
        assert_eq!(first.take(copy), None);
        assert_eq!(second.take(copy), Some("for the second"));
        second
            .leave(copy, Ok("handed over"))
            .expect("there is room");
        assert_eq!(quay.leaving.len(), 1);
    }

    /// A device that hangs is left behind with exports that it will never compute. Their room
    /// is free for the next one's.
    #[test]
    fn exports_of_a_device_that_is_gone_take_no_room() {
        let (prototype, quay) = dock::<u64>();
        let mut number = 0;
        for _ in 0..4 * LEAVING_MAX {
            let dock = prototype.successor();
            for _ in 0..8 {
                number += 1;
                dock.leave(CopyId(number), Ok(number)).expect("room");
            }
            assert_eq!(quay.leaving.len(), 8, "those of this device only");
            let next = quay.leaving.next(EVER, |_| false);
            assert!(matches!(next, NextExport::NotComputed(_)), "{next:?}");
        }
        // The same holds for a device that has lost everything and lives on.
        let dock = prototype.successor();
        for _ in 0..2 * LEAVING_MAX {
            dock.leave(CopyId(1), Ok(1)).expect("room");
            dock.clear();
        }
        assert!(quay.leaving.is_empty());
    }

    #[test]
    fn exports_are_taken_in_order_once_they_are_computed() {
        let (prototype, quay) = dock::<u64>();
        let dock = prototype.successor();
        assert!(matches!(
            quay.leaving.next(EVER, |_| true),
            NextExport::Nothing
        ));
        let failed = ModelError::Device("not handed over".into());
        dock.leave(CopyId(1), Err(failed)).expect("room");
        dock.leave(CopyId(2), Ok(2)).expect("room");
        let without_parcel = quay.leaving.next(EVER, |_| false);
        let NextExport::Ready(Leaving { copy, parcel }) = without_parcel else {
            panic!("there is nothing to compute: {without_parcel:?}");
        };
        assert!(copy == CopyId(1) && parcel.is_err());
        let waits = quay.leaving.next(EVER, |parcel| *parcel != 2);
        assert!(matches!(waits, NextExport::NotComputed(_)), "{waits:?}");
        let ready = quay.leaving.next(EVER, |parcel| *parcel == 2);
        assert!(matches!(ready, NextExport::Ready(_)), "{ready:?}");
        assert!(quay.leaving.is_empty());
    }

    #[test]
    fn what_is_not_computed_in_time_is_given_up() {
        let (prototype, quay) = dock::<u64>();
        let dock = prototype.successor();
        dock.leave(CopyId(1), Ok(1)).expect("room");
        let given_up = quay.leaving.next(Duration::ZERO, |_| false);
        let NextExport::Ready(Leaving { copy, parcel }) = given_up else {
            panic!("it was waited for long enough: {given_up:?}");
        };
        assert!(copy == CopyId(1) && parcel.is_err(), "{parcel:?}");
        assert!(quay.leaving.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let (prototype, quay) = dock::<u64>();
        let dock = prototype.successor();
        let leave = |number| dock.leave(CopyId(number), Ok(number));
        for number in 0..LEAVING_MAX as u64 {
            leave(number).expect("there is room");
        }
        let full = leave(99);
        assert!(
            matches!(
                full,
                Err(ModelError::Dock {
                    copy: CopyId(99),
                    ..
                })
            ),
            "{full:?}"
        );
        let taken = quay.leaving.next(EVER, |_| true);
        assert!(matches!(taken, NextExport::Ready(_)), "{taken:?}");
        leave(100).expect("there is room again");
        drop(quay);
        leave(101).expect("nobody waits for it");
    }
}
