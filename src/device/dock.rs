//! Where the device hands segments over, and takes them in.
//!
//! Only handles change hands: the device thread never waits here, and no bytes are
//! copied on it.
//!
//! A dock serves one device thread at a time. One that was left behind and comes back
//! hands over nothing more, and takes nothing that is meant for its successor.

use std::sync::PoisonError;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rustc_hash::FxHashMap;

use crate::CopyId;
use crate::model::ModelError;
use crate::sync::{Arc, Mutex, MutexGuard};

/// Parcels that may leave at once: more than are ever asked for, unless what packs them hangs
/// while the device loses everything again and again.
const LEAVING_MAX: usize = 64;

/// The device's end.
#[derive(Debug)]
pub struct Dock<P> {
    leaving: Sender<Leaving<P>>,
    arrived: Arrived<P>,
    /// Which thread it serves, counted from the first.
    thread: u64,
}

/// The copy threads' end.
#[derive(Debug)]
pub struct Quay<P> {
    /// What the device hands over.
    pub leaving: Receiver<Leaving<P>>,
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

/// Parcels that the device is to take in, each once. A copy may have several, which are
/// all alike.
#[derive(Debug)]
pub struct Arrived<P>(Arc<Mutex<Shelf<P>>>);

#[derive(Debug)]
struct Shelf<P> {
    parcels: FxHashMap<CopyId, Vec<P>>,
    /// The thread that the dock serves.
    thread: u64,
}

impl<P> Clone for Arrived<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Both ends of a dock.
#[must_use]
pub fn dock<P>() -> (Dock<P>, Quay<P>) {
    let (sender, leaving) = bounded(LEAVING_MAX);
    let arrived = Arrived(Arc::new(Mutex::new(Shelf {
        parcels: FxHashMap::default(),
        thread: 0,
    })));
    let dock = Dock {
        leaving: sender,
        arrived: arrived.clone(),
        thread: 0,
    };
    (dock, Quay { leaving, arrived })
}

impl<P> Arrived<P> {
    /// Puts a parcel there.
    pub fn put(&self, copy: CopyId, parcel: P) {
        if cfg!(motet_planted_bug) {
            // Takes the others away to add one, but not in one step: who comes between
            // finds none.
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
        self.shelf().parcels.clear();
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
}

impl<P> Dock<P> {
    /// The same dock for another device thread, which holds nothing. From now on it serves
    /// nobody else.
    #[must_use]
    pub fn successor(&self) -> Self {
        let mut shelf = self.arrived.shelf();
        shelf.parcels.clear();
        shelf.thread += 1;
        Self {
            leaving: self.leaving.clone(),
            arrived: self.arrived.clone(),
            thread: shelf.thread,
        }
    }

    /// Hands a parcel over. Without anybody there it is dropped.
    ///
    /// # Errors
    ///
    /// [`ModelError::Dock`] when as many wait as may. Somebody waits for each: whoever cannot
    /// hand one over has to begin anew, as after any other edit that fails.
    pub fn leave(&self, copy: CopyId, parcel: Result<P, ModelError>) -> Result<(), ModelError> {
        if self.own_shelf().is_none() {
            return Ok(());
        }
        match self.leaving.try_send(Leaving { copy, parcel }) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => Ok(()),
            Err(TrySendError::Full(_)) => Err(ModelError::Dock {
                copy,
                waiting: LEAVING_MAX,
            }),
        }
    }

    /// Takes one of the copy's parcels in.
    #[must_use]
    pub fn take(&self, copy: CopyId) -> Option<P> {
        self.own_shelf()?.take(copy)
    }

    /// The device has lost everything: nothing is taken in any more of what was to be.
    pub fn clear(&self) {
        if cfg!(motet_planted_bug) {
            // Looks whom it serves, but clears in another step: that may have changed.
            let is_own = self.own_shelf().is_some();
            if is_own {
                self.arrived.clear();
            }
            return;
        }
        if let Some(mut shelf) = self.own_shelf() {
            shelf.parcels.clear();
        }
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
        quay.leaving.try_recv().expect("all others are there");
        leave(100).expect("there is room again");
        drop(quay);
        leave(101).expect("nobody waits for it");
    }
}
