//! Which responses are forgotten for a new one.
//!
//! A turn that a request or a later turn holds stays in memory when it is forgotten. The plan
//! therefore counts what would be freed before anything is forgotten. Where that is too little,
//! nothing is.

use std::collections::{BTreeMap, HashMap, btree_map};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Owner, ResponseStore, State, Turn};

/// Responses that would be forgotten, and what would be left.
pub(super) struct Plan<'a> {
    owners: Vec<Left<'a>>,
    /// References to each turn that would be gone, by the turn's address.
    dropped: HashMap<*const Turn, usize>,
    forgotten: Vec<Forgotten<'a>>,
    responses: usize,
    bytes: usize,
}

/// Turns and bytes that one owner would have left.
struct Left<'a> {
    owner: &'a Owner,
    oldest_first: btree_map::Iter<'a, u64, Arc<Turn>>,
    bytes: usize,
}

struct Forgotten<'a> {
    owner: &'a Owner,
    number: u64,
    turn: &'a Arc<Turn>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(store: &ResponseStore, state: &'a State) -> Self {
        let owners = state.owned.iter().map(|(owner, owned)| Left {
            owner,
            oldest_first: owned.turns.iter(),
            bytes: owned.bytes(),
        });
        Self {
            owners: owners.collect(),
            dropped: HashMap::new(),
            forgotten: Vec::new(),
            responses: state.owned.values().map(|owned| owned.turns.len()).sum(),
            bytes: store.bytes.load(Ordering::Relaxed),
        }
    }

    /// The responses of each owner to forget until there is space for one more of so many bytes.
    /// Returns `None` where the owner may take no more from others.
    pub(super) fn numbers(
        mut self,
        store: &ResponseStore,
        owner: &Owner,
        bytes: usize,
    ) -> Option<BTreeMap<Owner, Vec<u64>>> {
        while self.responses >= store.settings.stored_responses_max {
            self.forget_for(owner, 1, |left| left.responses())?;
        }
        let for_their_number = self.forgotten.len();
        while self.bytes + bytes > store.settings.stored_bytes_max {
            self.forget_for(owner, bytes, |left| left.bytes)?;
        }
        let mut numbers = BTreeMap::<Owner, Vec<u64>>::new();
        for (at, forgotten) in self.forgotten.iter().enumerate() {
            // A turn that would stay in memory is forgotten in vain.
            if at < for_their_number || self.is_freed(forgotten.turn) {
                let of_owner = numbers.entry(forgotten.owner.clone()).or_default();
                of_owner.push(forgotten.number);
            }
        }
        Some(numbers)
    }

    /// Forgets the oldest response of the owner that has the most by this measure, for a new one of
    /// `more`. Another owner is displaced only if it has at least as much as this one will have.
    /// Turns that requests hold count as their owner's. Returns `None` if none may be displaced.
    fn forget_for(
        &mut self,
        owner: &Owner,
        more: usize,
        measure: impl Fn(&Left<'_>) -> usize,
    ) -> Option<()> {
        let own = self.owners.iter().find(|left| left.owner == owner);
        let own = more + own.map_or(0, &measure);
        let candidates = self.owners.iter_mut().filter_map(|left| {
            let is_own = left.owner == owner;
            let measured = if is_own { own } else { measure(left) };
            (measured >= own && left.responses() > 0).then_some((measured, is_own, left))
        });
        let most = candidates.max_by_key(|(measured, is_own, _)| (*measured, *is_own));
        let (.., most) = most?;
        let (&number, turn) = most.oldest_first.next()?;
        let freed_bytes = free(&mut self.dropped, turn);
        most.bytes = most.bytes.saturating_sub(freed_bytes);
        self.bytes = self.bytes.saturating_sub(freed_bytes);
        self.responses -= 1;
        self.forgotten.push(Forgotten {
            owner: most.owner,
            number,
            turn,
        });
        Some(())
    }

    fn is_freed(&self, turn: &Arc<Turn>) -> bool {
        let dropped = self.dropped.get(&Arc::as_ptr(turn));
        dropped.is_some_and(|dropped| *dropped >= Arc::strong_count(turn))
    }
}

impl Left<'_> {
    fn responses(&self) -> usize {
        self.oldest_first.len()
    }
}

/// Drops one reference to a turn. Returns the bytes of the turns that nothing else holds then.
///
/// Turns are found under the store's lock, so that a turn that only the store holds gets no other
/// reference meanwhile.
fn free(dropped: &mut HashMap<*const Turn, usize>, turn: &Arc<Turn>) -> usize {
    let (mut freed_bytes, mut next) = (0, Some(turn));
    while let Some(turn) = next {
        let references = dropped.entry(Arc::as_ptr(turn)).or_default();
        *references += 1;
        if *references < Arc::strong_count(turn) {
            break;
        }
        freed_bytes += turn.charge.bytes;
        next = turn.turn.previous.as_ref();
    }
    freed_bytes
}
