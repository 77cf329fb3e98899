//! A memory budget for bodies, shared among callers.
//!
//! A caller may hold as many bytes as it leaves free for others, so one caller alone gets half
//! of the budget. A caller that holds none may reserve one body of any length, so that the
//! longest body gets its turn.
//!
//! Bodies wait in the order of arrival. While a body waits for its own caller's share, bodies
//! of other callers may pass it, but none of its own caller.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::http::Extensions;
use tokio::sync::oneshot;

use crate::addresses::Peer;
use crate::keys::Caller;

/// The caller whose share a body counts against.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Key(Arc<str>),
    /// Without keys, callers are distinguished by address.
    Address(Peer),
    /// The request did not come through a socket.
    Unknown,
}

/// A number of bytes, shared by all bodies that are being received and read.
#[derive(Clone, Debug)]
pub(super) struct ByteBudget(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free_bytes: usize,
    /// Bytes that each owner holds; owners without any are removed.
    reserved: HashMap<Owner, usize>,
    /// Waiting bodies in the order of arrival.
    waiting: VecDeque<WaitingBody>,
}

#[derive(Debug)]
struct WaitingBody {
    owner: Owner,
    bytes: usize,
    granted: oneshot::Sender<Reservation>,
}

/// The bytes of one body. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: ByteBudget,
    owner: Owner,
    bytes: usize,
}

/// Grants bytes to other bodies when a body stops waiting.
struct WaitGuard<'a>(&'a ByteBudget);

impl Owner {
    pub(super) fn of(extensions: &Extensions) -> Self {
        let caller = extensions.get::<Caller>();
        let peer = extensions.get::<Peer>();
        match (caller.and_then(|caller| caller.name.as_ref()), peer) {
            (Some(name), _) => Self::Key(Arc::clone(name)),
            (None, Some(peer)) => Self::Address(*peer),
            (None, None) => Self::Unknown,
        }
    }
}

impl ByteBudget {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free_bytes: bytes,
            reserved: HashMap::new(),
            waiting: VecDeque::new(),
        })))
    }

    /// Waits for this many bytes. Dropping the future leaves nothing behind.
    pub(super) async fn acquire(&self, owner: Owner, bytes: usize) -> Reservation {
        let _wait_guard = WaitGuard(self);
        let (granted, reservation) = oneshot::channel();
        self.locked().waiting.push_back(WaitingBody {
            owner,
            bytes,
            granted,
        });
        self.grant();
        reservation
            .await
            .expect("a waiting body is granted or dropped")
    }

    /// Free bytes.
    #[cfg(test)]
    pub(super) fn free_bytes(&self) -> usize {
        self.locked().free_bytes
    }

    /// Grants bytes to all bodies whose turn it is.
    fn grant(&self) {
        let granted = self.locked().pop_granted();
        // Sending to a caller that is gone drops its reservation, which takes the lock.
        for WaitingBody {
            owner,
            bytes,
            granted,
        } in granted
        {
            let budget = self.clone();
            granted
                .send(Reservation {
                    budget,
                    owner,
                    bytes,
                })
                .ok();
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl State {
    /// Removes and returns the waiting bodies that now fit.
    fn pop_granted(&mut self) -> Vec<WaitingBody> {
        let mut granted = Vec::new();
        let mut still_waiting = VecDeque::new();
        let mut skipped_owners = HashSet::new();
        while let Some(next) = self.waiting.pop_front() {
            if next.granted.is_closed() {
                continue;
            }
            let reserved = self.reserved.get(&next.owner).copied().unwrap_or(0);
            let share = self.free_bytes.saturating_sub(next.bytes);
            if skipped_owners.contains(&next.owner)
                || (reserved > 0 && reserved + next.bytes > share)
            {
                skipped_owners.insert(next.owner.clone());
                still_waiting.push_back(next);
            } else if next.bytes > self.free_bytes {
                // Later bodies do not pass it, or it might never get its turn.
                still_waiting.push_back(next);
                break;
            } else {
                self.free_bytes -= next.bytes;
                self.reserved
                    .insert(next.owner.clone(), reserved + next.bytes);
                granted.push(next);
            }
        }
        still_waiting.append(&mut self.waiting);
        self.waiting = still_waiting;
        granted
    }
}

#[cfg(feature = "grpc")]
impl Reservation {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.budget.locked();
        state.free_bytes += self.bytes;
        if let Some(reserved) = state.reserved.get_mut(&self.owner) {
            *reserved -= self.bytes;
            if *reserved == 0 {
                state.reserved.remove(&self.owner);
            }
        }
        drop(state);
        self.budget.grant();
    }
}

impl Drop for WaitGuard<'_> {
    fn drop(&mut self) {
        self.0.grant();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::FutureExt;

    use super::*;

    type Acquiring = Pin<Box<dyn Future<Output = Reservation>>>;

    fn acquiring(budget: &ByteBudget, owner: &str, bytes: usize) -> Acquiring {
        let (budget, owner) = (budget.clone(), Owner::Key(owner.into()));
        Box::pin(async move { budget.acquire(owner, bytes).await })
    }

    fn acquire(budget: &ByteBudget, owner: &str, bytes: usize) -> Option<Reservation> {
        acquiring(budget, owner, bytes).now_or_never()
    }

    /// A body that has to wait.
    fn wait(budget: &ByteBudget, owner: &str, bytes: usize) -> Acquiring {
        let mut acquiring = acquiring(budget, owner, bytes);
        assert!((&mut acquiring).now_or_never().is_none(), "{owner} waits");
        acquiring
    }

    #[test]
    fn caller_gets_at_most_as_much_as_is_left_for_others() {
        let budget = ByteBudget::new(16);
        let ann: Vec<Reservation> = (0..8).filter_map(|_| acquire(&budget, "ann", 4)).collect();
        assert_eq!((ann.len(), budget.free_bytes()), (2, 8));
        let bob = acquire(&budget, "bob", 4).expect("bytes are left");
        let carol = acquire(&budget, "carol", 4).expect("bytes are left");
        assert_eq!(budget.free_bytes(), 0);
        drop((ann, bob, carol));
        drop(acquire(&budget, "ann", 16).expect("a first body may reserve all"));
        assert_eq!(budget.free_bytes(), 16);
        let state = budget.locked();
        assert!(state.reserved.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn waiting_bodies_go_in_order_and_cancelled_ones_do_not_block() {
        let budget = ByteBudget::new(16);
        let first = acquire(&budget, "ann", 12).expect("a first body");
        let own = wait(&budget, "ann", 2);
        // It would fit, but does not pass the other body of its caller.
        let small = wait(&budget, "ann", 1);
        drop(acquire(&budget, "bob", 3).expect("others pass"));
        let long = wait(&budget, "carol", 8);
        let behind = wait(&budget, "bob", 3);
        drop(long);
        drop(behind.now_or_never().expect("no body is before it"));
        drop(first);
        let own = own.now_or_never().expect("its turn");
        let small = small.now_or_never().expect("its turn");
        drop((own, small));
        assert_eq!(budget.free_bytes(), 16);
    }
}
