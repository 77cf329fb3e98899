//! Room for bodies, in shares.
//!
//! A caller may hold as much room as is left for others: one caller alone has half of it. A
//! caller that holds none may have room for one body of any length, so that the longest body
//! gets its turn.
//!
//! Bodies wait in the order of arrival. A body that waits for its own caller's share lets
//! those of other callers pass, and none of its own caller's.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::extract::Request;
use tokio::sync::oneshot;

use crate::addresses::Peer;
use crate::keys::Caller;

/// The caller that a body's room counts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Owner {
    Key(Arc<str>),
    /// Without keys, callers are told apart by address.
    Address(Peer),
    /// The request came by no socket.
    Unknown,
}

/// So many bytes, shared by all bodies that are received and read.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Bytes that each owner holds; an owner that holds none is not in it.
    held: HashMap<Owner, usize>,
    /// The first came first.
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    owner: Owner,
    bytes: usize,
    granted: oneshot::Sender<Held>,
}

/// Room of one body. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Held {
    room: Room,
    owner: Owner,
    bytes: usize,
}

/// A body that waited. It may have been the one that others waited behind.
struct Leaving<'a>(&'a Room);

impl Owner {
    pub(super) fn of(request: &Request) -> Self {
        let caller = request.extensions().get::<Caller>();
        let peer = request.extensions().get::<Peer>();
        match (caller.and_then(|caller| caller.name.as_ref()), peer) {
            (Some(name), _) => Self::Key(Arc::clone(name)),
            (None, Some(peer)) => Self::Address(*peer),
            (None, None) => Self::Unknown,
        }
    }
}

impl Room {
    pub(super) fn new(bytes: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: bytes,
            held: HashMap::new(),
            waiting: VecDeque::new(),
        })))
    }

    /// Waits for room for so many bytes. A caller that stops waiting leaves nothing behind.
    pub(super) async fn take(&self, owner: Owner, bytes: usize) -> Held {
        let _leaving = Leaving(self);
        let (granted, room) = oneshot::channel();
        self.locked().waiting.push_back(Waiting {
            owner,
            bytes,
            granted,
        });
        self.grant();
        room.await
            .expect("those that wait are granted room or gone")
    }

    /// Bytes that nobody holds.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.locked().free
    }

    /// Gives room to all whose turn it is.
    fn grant(&self) {
        let granted = self.locked().take_granted();
        // Room of a caller that has just left comes back here, which takes the lock.
        for Waiting {
            owner,
            bytes,
            granted,
        } in granted
        {
            let room = self.clone();
            granted.send(Held { room, owner, bytes }).ok();
        }
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

impl State {
    /// Those that have room now, and wait no more.
    fn take_granted(&mut self) -> Vec<Waiting> {
        let mut granted = Vec::new();
        let mut kept = VecDeque::new();
        let mut passed = HashSet::new();
        while let Some(next) = self.waiting.pop_front() {
            if next.granted.is_closed() {
                continue;
            }
            let held = self.held.get(&next.owner).copied().unwrap_or(0);
            let share = self.free.saturating_sub(next.bytes);
            if passed.contains(&next.owner) || (held > 0 && held + next.bytes > share) {
                passed.insert(next.owner.clone());
                kept.push_back(next);
            } else if next.bytes > self.free {
                // Others do not pass it, or it might never have its turn.
                kept.push_back(next);
                break;
            } else {
                self.free -= next.bytes;
                self.held.insert(next.owner.clone(), held + next.bytes);
                granted.push(next);
            }
        }
        kept.append(&mut self.waiting);
        self.waiting = kept;
        granted
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut state = self.room.locked();
        state.free += self.bytes;
        if let Some(held) = state.held.get_mut(&self.owner) {
            *held -= self.bytes;
            if *held == 0 {
                state.held.remove(&self.owner);
            }
        }
        drop(state);
        self.room.grant();
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.grant();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use futures_util::FutureExt;

    use super::*;

    type Taking = Pin<Box<dyn Future<Output = Held>>>;

    fn taking(room: &Room, owner: &str, bytes: usize) -> Taking {
        let (room, owner) = (room.clone(), Owner::Key(owner.into()));
        Box::pin(async move { room.take(owner, bytes).await })
    }

    fn take(room: &Room, owner: &str, bytes: usize) -> Option<Held> {
        taking(room, owner, bytes).now_or_never()
    }

    /// A body that waits, as there is no room for it yet.
    fn wait(room: &Room, owner: &str, bytes: usize) -> Taking {
        let mut taking = taking(room, owner, bytes);
        assert!((&mut taking).now_or_never().is_none(), "{owner} waits");
        taking
    }

    #[test]
    fn a_caller_has_as_much_as_is_left_for_others() {
        let room = Room::new(16);
        let ann: Vec<Held> = (0..8).filter_map(|_| take(&room, "ann", 4)).collect();
        assert_eq!((ann.len(), room.free()), (2, 8));
        let bob = take(&room, "bob", 4).expect("room is left");
        let carol = take(&room, "carol", 4).expect("room is left");
        assert_eq!(room.free(), 0);
        drop((ann, bob, carol));
        drop(take(&room, "ann", 16).expect("a first body may have all"));
        assert_eq!(room.free(), 16);
        let state = room.locked();
        assert!(state.held.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn those_that_wait_have_their_turn_and_block_nobody_once_they_left() {
        let room = Room::new(16);
        let first = take(&room, "ann", 12).expect("a first body");
        let own = wait(&room, "ann", 2);
        // It would fit, and does not pass the other body of its caller.
        let small = wait(&room, "ann", 1);
        drop(take(&room, "bob", 3).expect("others pass"));
        let long = wait(&room, "carol", 8);
        let behind = wait(&room, "bob", 3);
        drop(long);
        drop(behind.now_or_never().expect("nobody is before it"));
        drop(first);
        let own = own.now_or_never().expect("its turn");
        let small = small.now_or_never().expect("its turn");
        drop((own, small));
        assert_eq!(room.free(), 16);
    }
}
