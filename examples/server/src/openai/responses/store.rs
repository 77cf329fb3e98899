//! A bounded store of responses, in memory.
//!
//! A response is kept with the items of its turn and a reference to the turn before it, so that
//! a conversation's text is kept once. The store forgets a response when it keeps too many, or
//! too many bytes: the oldest one of the key that has the most. One key's responses therefore
//! never displace those of a key that has fewer. A turn that a later response continues stays in
//! memory, and counts, until that response is forgotten as well.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;

use super::items::Item;
use crate::arguments::StoreSettings;

/// Bytes that a response takes beside its items and its body: the entries of the maps.
const ENTRY_BYTES: usize = 256;

/// The key that a response belongs to; `None` on a server without keys.
pub(crate) type Owner = Option<Arc<str>>;

/// Responses by id, those of each key apart.
#[derive(Debug)]
pub(crate) struct ResponseStore {
    settings: StoreSettings,
    /// Bytes of all turns, of forgotten responses too where a later one continues them.
    bytes: Arc<AtomicUsize>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of the next response.
    next: u64,
    owned: HashMap<Owner, Owned>,
}

/// The responses of one owner.
#[derive(Debug, Default)]
struct Owned {
    /// The turns by number, the oldest first.
    turns: BTreeMap<u64, Arc<Turn>>,
    numbers: HashMap<String, u64>,
    /// Bytes of the owner's turns.
    bytes: Arc<AtomicUsize>,
}

/// A response to keep.
#[derive(Debug)]
pub(crate) struct NewTurn {
    pub(crate) id: String,
    pub(crate) previous: Option<Arc<Turn>>,
    /// The items of the request, with ids.
    pub(crate) input: Vec<Item>,
    pub(crate) output: Vec<Item>,
    /// The response as JSON.
    pub(crate) body: Bytes,
}

/// A response and the items of its turn.
#[derive(Debug)]
pub(crate) struct Turn {
    turn: NewTurn,
    /// Bytes of this turn and of those before it.
    history_bytes: usize,
    /// Turns before this one.
    depth: usize,
    _charge: Charge,
}

/// A turn's bytes, counted until the turn is dropped.
#[derive(Debug)]
struct Charge {
    bytes: usize,
    of_all: Arc<AtomicUsize>,
    of_owner: Arc<AtomicUsize>,
}

impl ResponseStore {
    pub(crate) fn new(settings: StoreSettings) -> Self {
        Self {
            settings,
            bytes: Arc::default(),
            state: Mutex::default(),
        }
    }

    /// Whether the settings let the store keep anything.
    pub(crate) fn keeps_any(&self) -> bool {
        self.settings.stored_responses_max > 0 && self.settings.stored_bytes_max > 0
    }

    /// The bounds, as an error quotes them.
    pub(crate) fn bounds(&self) -> String {
        format!(
            "{} responses / {} bytes",
            self.settings.stored_responses_max, self.settings.stored_bytes_max
        )
    }

    /// Keeps a response, and forgets others until both bounds hold. Returns false, and forgets
    /// none, if its conversation alone is longer than the store.
    pub(crate) fn insert(&self, owner: &Owner, turn: NewTurn) -> bool {
        let bytes = turn.bytes();
        let previous = turn.previous.as_ref();
        let history_bytes = bytes + previous.map_or(0, |previous| previous.history_bytes);
        let depth = previous.map_or(0, |previous| previous.depth + 1);
        if !self.keeps_any() || history_bytes > self.settings.stored_bytes_max {
            return false;
        }
        let mut state = self.state();
        if !self.make_space(&mut state, bytes) {
            return false;
        }
        let number = state.next;
        state.next += 1;
        let owned = state.owned.entry(owner.clone()).or_default();
        let charge = Charge::new(bytes, &self.bytes, &owned.bytes);
        owned.numbers.insert(turn.id.clone(), number);
        let turn = Turn {
            turn,
            history_bytes,
            depth,
            _charge: charge,
        };
        owned.turns.insert(number, Arc::new(turn));
        true
    }

    /// The response with this id, if the owner has one.
    pub(crate) fn get(&self, owner: &Owner, id: &str) -> Option<Arc<Turn>> {
        let state = self.state();
        let owned = state.owned.get(owner)?;
        let number = owned.numbers.get(id)?;
        owned.turns.get(number).cloned()
    }

    /// Forgets the owner's response with this id. Returns false if there is none.
    pub(crate) fn remove(&self, owner: &Owner, id: &str) -> bool {
        let mut state = self.state();
        let Some(owned) = state.owned.get_mut(owner) else {
            return false;
        };
        let Some(number) = owned.numbers.remove(id) else {
            return false;
        };
        owned.turns.remove(&number);
        state.drop_owner_without_responses(owner);
        true
    }

    /// Forgets responses until there is space for one more of this length.
    fn make_space(&self, state: &mut State, bytes: usize) -> bool {
        while state.count() >= self.settings.stored_responses_max {
            if !state.forget_oldest_of(|owned| owned.turns.len()) {
                return false;
            }
        }
        // Requests that are answered hold turns, too, so that forgetting all may not be enough.
        while self.bytes.load(Ordering::Relaxed) + bytes > self.settings.stored_bytes_max {
            if !state.forget_oldest_of(|owned| owned.bytes.load(Ordering::Relaxed)) {
                return false;
            }
        }
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock with a map half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn count(&self) -> usize {
        self.owned.values().map(|owned| owned.turns.len()).sum()
    }

    /// Forgets the oldest response of the owner that has the most by this measure. Returns false
    /// if there is no response.
    fn forget_oldest_of(&mut self, measure: impl Fn(&Owned) -> usize) -> bool {
        let most = self.owned.iter().max_by_key(|(_, owned)| measure(owned));
        let Some(owner) = most.map(|(owner, _)| owner.clone()) else {
            return false;
        };
        let oldest = self.owned.get_mut(&owner).and_then(|owned| {
            let (_, turn) = owned.turns.pop_first()?;
            owned.numbers.remove(turn.id())
        });
        self.drop_owner_without_responses(&owner);
        oldest.is_some()
    }

    fn drop_owner_without_responses(&mut self, owner: &Owner) {
        if self
            .owned
            .get(owner)
            .is_some_and(|owned| owned.turns.is_empty())
        {
            self.owned.remove(owner);
        }
    }
}

impl NewTurn {
    /// Bytes that it takes in the store.
    fn bytes(&self) -> usize {
        let items = self.input.iter().chain(&self.output);
        let items: usize = items.map(Item::bytes).sum();
        ENTRY_BYTES + 2 * self.id.len() + self.body.len() + items
    }
}

impl Turn {
    pub(crate) fn id(&self) -> &str {
        &self.turn.id
    }

    /// The response as JSON.
    pub(crate) fn body(&self) -> Bytes {
        self.turn.body.clone()
    }

    /// This turn and those before it, the newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |turn| turn.turn.previous.as_deref())
    }

    /// The items of this turn's request.
    pub(crate) fn input(&self) -> &[Item] {
        &self.turn.input
    }

    /// The items of this turn's answer.
    pub(crate) fn output(&self) -> &[Item] {
        &self.turn.output
    }

    /// All items up to the end of this turn, the oldest first.
    pub(crate) fn history(&self) -> Vec<&Item> {
        let mut turns = Vec::with_capacity(self.depth + 1);
        turns.extend(self.newest_first());
        let oldest_first = turns.into_iter().rev();
        oldest_first
            .flat_map(|turn| turn.turn.input.iter().chain(&turn.turn.output))
            .collect()
    }
}

/// A long conversation is dropped turn by turn, not each turn within the drop of the next, which
/// could overflow the stack.
impl Drop for Turn {
    fn drop(&mut self) {
        let mut previous = self.turn.previous.take();
        while let Some(turn) = previous.and_then(Arc::into_inner) {
            let mut turn = turn;
            previous = turn.turn.previous.take();
        }
    }
}

impl Charge {
    fn new(bytes: usize, of_all: &Arc<AtomicUsize>, of_owner: &Arc<AtomicUsize>) -> Self {
        of_all.fetch_add(bytes, Ordering::Relaxed);
        of_owner.fetch_add(bytes, Ordering::Relaxed);
        Self {
            bytes,
            of_all: Arc::clone(of_all),
            of_owner: Arc::clone(of_owner),
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.of_all.fetch_sub(self.bytes, Ordering::Relaxed);
        self.of_owner.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::responses::items::Role;

    fn store(stored_responses_max: usize, stored_bytes_max: usize) -> ResponseStore {
        ResponseStore::new(StoreSettings {
            stored_responses_max,
            stored_bytes_max,
        })
    }

    fn owner(name: &str) -> Owner {
        Some(name.into())
    }

    fn turn(id: &str, text: &str, previous: Option<Arc<Turn>>) -> NewTurn {
        NewTurn {
            id: id.to_owned(),
            previous,
            input: vec![Item::message(
                format!("msg_{id}"),
                Role::User,
                text.to_owned(),
            )],
            output: Vec::new(),
            body: Bytes::from(id.to_owned()),
        }
    }

    fn known<'a>(store: &ResponseStore, owner: &Owner, ids: &[&'a str]) -> Vec<&'a str> {
        let ids = ids.iter().copied();
        ids.filter(|id| store.get(owner, id).is_some()).collect()
    }

    #[test]
    fn oldest_response_is_forgotten() {
        let store = store(3, 1 << 20);
        let ann = owner("ann");
        for id in ["1", "2", "3", "4"] {
            assert!(store.insert(&ann, turn(id, "x", None)));
        }
        assert_eq!(known(&store, &ann, &["1", "2", "3", "4"]), ["2", "3", "4"]);
        assert!(store.remove(&ann, "3"));
        assert!(!store.remove(&ann, "3") && !store.remove(&owner("bob"), "2"));
        assert!(store.insert(&ann, turn("5", "x", None)));
        assert_eq!(known(&store, &ann, &["2", "3", "4", "5"]), ["2", "4", "5"]);
        assert_eq!(store.get(&ann, "5").expect("kept").body(), "5");
    }

    #[test]
    fn bytes_are_bounded_and_freed() {
        let one = turn("1", &"x".repeat(1000), None).bytes();
        let store = store(100, 3 * one);
        let ann = owner("ann");
        for id in ["1", "2", "3", "4", "5"] {
            assert!(store.insert(&ann, turn(id, &"x".repeat(1000), None)));
            assert!(store.bytes.load(Ordering::Relaxed) <= 3 * one);
        }
        assert_eq!(
            known(&store, &ann, &["1", "2", "3", "4", "5"]),
            ["3", "4", "5"]
        );
        // A response that can never fit displaces no other.
        assert!(!store.insert(&ann, turn("6", &"x".repeat(4000), None)));
        assert_eq!(known(&store, &ann, &["3", "4", "5"]), ["3", "4", "5"]);
        for id in ["3", "4", "5"] {
            assert!(store.remove(&ann, id));
        }
        assert_eq!(store.bytes.load(Ordering::Relaxed), 0);
        assert!(store.state().owned.is_empty());
    }

    #[test]
    fn keys_see_and_displace_only_their_own() {
        let store = store(4, 1 << 20);
        let (ann, bob) = (owner("ann"), owner("bob"));
        assert!(store.insert(&bob, turn("b", "x", None)));
        for id in ["1", "2", "3", "4", "5", "6"] {
            assert!(store.insert(&ann, turn(id, "x", None)));
        }
        assert_eq!(known(&store, &bob, &["b", "6"]), ["b"]);
        assert_eq!(
            known(&store, &ann, &["b", "3", "4", "5", "6"]),
            ["4", "5", "6"]
        );
        assert!(store.get(&None, "b").is_none());
    }

    #[test]
    fn bytes_of_one_key_displace_only_its_own() {
        let one = turn("1", &"x".repeat(1000), None).bytes();
        let store = store(100, 4 * one);
        let (ann, bob) = (owner("ann"), owner("bob"));
        assert!(store.insert(&bob, turn("b", &"x".repeat(1000), None)));
        for id in ["1", "2", "3", "4", "5"] {
            assert!(store.insert(&ann, turn(id, &"x".repeat(1000), None)));
        }
        assert_eq!(known(&store, &bob, &["b"]), ["b"]);
        assert_eq!(
            known(&store, &ann, &["1", "2", "3", "4", "5"]),
            ["3", "4", "5"]
        );
    }

    #[test]
    fn turns_stay_while_later_responses_continue_them() {
        let store = store(2, 1 << 20);
        let ann = owner("ann");
        assert!(store.insert(&ann, turn("1", "one", None)));
        assert!(store.insert(&ann, turn("2", "two", store.get(&ann, "1"))));
        assert!(store.insert(&ann, turn("3", "three", store.get(&ann, "2"))));
        assert!(store.get(&ann, "1").is_none());
        let last = store.get(&ann, "3").expect("kept");
        let texts: Vec<_> = last.history().into_iter().map(Item::text).collect();
        assert_eq!(texts, ["one", "two", "three"]);
        let held = store.bytes.load(Ordering::Relaxed);
        assert_eq!(held, last.history_bytes);
        drop(last);
        assert!(store.remove(&ann, "2") && store.remove(&ann, "3"));
        assert_eq!(store.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn conversation_longer_than_the_store_is_not_kept() {
        let one = turn("1", "x", None).bytes();
        let store = store(100, 3 * one);
        let ann = owner("ann");
        for (id, previous, is_kept) in [
            ("1", "", true),
            ("2", "1", true),
            ("3", "2", true),
            ("4", "3", false),
        ] {
            let previous = store.get(&ann, previous);
            assert_eq!(store.insert(&ann, turn(id, "x", previous)), is_kept, "{id}");
        }
        assert_eq!(known(&store, &ann, &["1", "2", "3", "4"]), ["1", "2", "3"]);
        // Another conversation displaces it.
        assert!(store.insert(&ann, turn("5", "x", None)));
        assert_eq!(known(&store, &ann, &["1", "2", "3", "5"]), ["5"]);
    }

    #[test]
    fn long_conversations_are_dropped_without_recursion() {
        let store = store(2, usize::MAX);
        let ann = owner("ann");
        let mut previous = None;
        for number in 0..200_000 {
            let id = number.to_string();
            assert!(store.insert(&ann, turn(&id, "x", previous)));
            previous = store.get(&ann, &id);
        }
        drop(previous);
        assert!(store.remove(&ann, "199999") && store.remove(&ann, "199998"));
        assert_eq!(store.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn store_without_space_keeps_none() {
        for (responses, bytes) in [(0, 1 << 20), (1, 0)] {
            let store = store(responses, bytes);
            assert!(!store.keeps_any());
            assert!(!store.insert(&None, turn("1", "x", None)));
        }
    }
}
