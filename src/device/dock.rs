//! Where the device hands segments over, and takes them in.
//!
//! Only handles change hands: the device thread never waits here, and no bytes are
//! copied on it.

use std::sync::{Arc, Mutex, MutexGuard};

use crossbeam_channel::{Receiver, Sender, bounded};
use rustc_hash::FxHashMap;

use crate::CopyId;
use crate::model::ModelError;

/// Parcels that may leave at once: more than are ever asked for.
const LEAVING_MAX: usize = 64;

/// The device's end.
#[derive(Debug)]
pub struct Dock<P> {
    leaving: Sender<Leaving<P>>,
    arrived: Arrived<P>,
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
pub struct Arrived<P>(Arc<Mutex<FxHashMap<CopyId, Vec<P>>>>);

impl<P> Clone for Arrived<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Both ends of a dock.
#[must_use]
pub fn dock<P>() -> (Dock<P>, Quay<P>) {
    let (sender, leaving) = bounded(LEAVING_MAX);
    let arrived = Arrived(Arc::default());
    let dock = Dock {
        leaving: sender,
        arrived: arrived.clone(),
    };
    (dock, Quay { leaving, arrived })
}

impl<P> Arrived<P> {
    /// Puts a parcel there.
    pub fn put(&self, copy: CopyId, parcel: P) {
        self.parcels().entry(copy).or_default().push(parcel);
    }

    /// Takes one of the copy's parcels.
    #[must_use]
    pub fn take(&self, copy: CopyId) -> Option<P> {
        let mut parcels = self.parcels();
        let all = parcels.get_mut(&copy)?;
        let parcel = all.pop();
        if all.is_empty() {
            parcels.remove(&copy);
        }
        parcel
    }

    /// Parcels that nobody has taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parcels().values().map(Vec::len).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Throws all of them away.
    pub fn clear(&self) {
        self.parcels().clear();
    }

    /// A panic elsewhere leaves a map that is whole.
    fn parcels(&self) -> MutexGuard<'_, FxHashMap<CopyId, Vec<P>>> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<P> Dock<P> {
    /// Hands a parcel over. Without anybody there it is dropped.
    pub(super) fn leave(&self, copy: CopyId, parcel: Result<P, ModelError>) {
        // Never full: fewer are asked for than fit.
        self.leaving.try_send(Leaving { copy, parcel }).ok();
    }

    pub(super) fn take(&self, copy: CopyId) -> Option<P> {
        self.arrived.take(copy)
    }

    /// The device has lost everything: nothing is taken in any more of what was to be.
    pub(super) fn clear(&self) {
        self.arrived.clear();
    }
}
