//! A bounded store of responses, in memory.
//!
//! A response is kept with the items of its turn and a reference to the turn before it, so that
//! a conversation's text is kept once. The store forgets a response when it keeps too many, or
//! too many bytes: the oldest one of the key that has the most. One key's responses therefore
//! never displace those of a key that has fewer. A turn that a later response continues, or that a
//! request holds while it is answered, stays in memory and counts as its key's until it is
//! dropped. A key that has nothing else to forget keeps no new response, and forgets none for it.
//!
//! No crate for caches evicts by the key that has the most: they rank entries by age, use or weight alone.

mod space;

use std::collections::{BTreeMap, HashMap};
use std::iter;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::space::Plan;
use super::items::Item;
use super::response::ResponseBody;
use crate::arguments::StoreSettings;
use crate::pieces::{Deferred, Pieces};

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
    pub(crate) input: Vec<Arc<Item>>,
    pub(crate) output: Vec<Arc<Item>>,
    /// The response, which shares the items of the answer.
    pub(crate) body: Deferred<ResponseBody>,
    /// Bytes of the response beside those of the items.
    pub(crate) body_bytes: usize,
}

/// A response and the items of its turn.
#[derive(Debug)]
pub(crate) struct Turn {
    turn: NewTurn,
    /// Bytes of this turn and of those before it.
    history_bytes: usize,
    /// Bytes of the text of their items.
    text_bytes: usize,
    /// Turns before this one.
    depth: usize,
    charge: Charge,
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

    /// Keeps a response, and forgets others until both bounds hold. Returns false if there is no
    /// space that its owner may take: its conversation alone is longer than the store, or what its
    /// requests that are being answered hold.
    pub(crate) fn insert(&self, owner: &Owner, turn: NewTurn) -> bool {
        let bytes = turn.bytes();
        let previous = turn.previous.as_ref();
        let history_bytes = bytes + previous.map_or(0, |previous| previous.history_bytes);
        let text_bytes = turn.text_bytes() + previous.map_or(0, |previous| previous.text_bytes);
        let depth = previous.map_or(0, |previous| previous.depth + 1);
        if !self.keeps_any() || history_bytes > self.settings.stored_bytes_max {
            return false;
        }
        let mut state = self.state();
        state.owned.retain(|_, owned| !owned.is_empty());
        if !self.make_space(&mut state, owner, bytes) {
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
            text_bytes,
            depth,
            charge,
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

    /// Keeps the items of a conversation before a response, without an id. `None` if there is no space
    /// that its owner may take.
    pub(crate) fn hold(&self, owner: &Owner, id: &str, items: Vec<Arc<Item>>) -> Option<Arc<Turn>> {
        let turn = NewTurn {
            id: id.to_owned(),
            previous: None,
            input: items,
            output: Vec::new(),
            body: Deferred::<Vec<Item>>::list(iter::empty::<Item>).of_type(),
            body_bytes: 0,
        };
        let turn = self.insert(owner, turn).then(|| self.get(owner, id))?;
        self.remove(owner, id);
        turn
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
        true
    }

    /// Forgets responses until there is space for one more of this length. Returns false, and
    /// forgets none, where the owner may take no more from others.
    fn make_space(&self, state: &mut State, owner: &Owner, bytes: usize) -> bool {
        let Some(forgotten) = Plan::new(self, state).numbers(self, owner, bytes) else {
            return false;
        };
        for (owner, numbers) in forgotten {
            let owned = state.owned.get_mut(&owner).expect("the plan is of them");
            for number in numbers {
                let turn = owned.turns.remove(&number).expect("the plan is of them");
                owned.numbers.remove(turn.id());
            }
        }
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock with a map half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owned {
    fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether nothing of the owner's is in memory.
    fn is_empty(&self) -> bool {
        self.turns.is_empty() && self.bytes() == 0
    }
}

impl NewTurn {
    /// Bytes that it takes in the store.
    fn bytes(&self) -> usize {
        let items = self.input.iter().chain(&self.output);
        let items: usize = items.map(|item| item.bytes()).sum();
        ENTRY_BYTES + 2 * self.id.len() + self.body_bytes + items
    }

    /// Bytes of the text of its items.
    fn text_bytes(&self) -> usize {
        let items = self.input.iter().chain(&self.output);
        items.map(|item| item.text_bytes()).sum()
    }
}

impl Turn {
    pub(crate) fn id(&self) -> &str {
        &self.turn.id
    }

    /// The response as JSON.
    pub(crate) fn body(&self) -> Pieces {
        self.turn.body.pieces()
    }

    /// Bytes of the text of all items up to the end of this turn.
    pub(crate) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// This turn and those before it, the newest first.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |turn| turn.turn.previous.as_deref())
    }

    /// The items of this turn's request.
    pub(crate) fn input(&self) -> &[Arc<Item>] {
        &self.turn.input
    }

    /// The items of this turn's answer.
    pub(crate) fn output(&self) -> &[Arc<Item>] {
        &self.turn.output
    }

    /// All items up to the end of this turn, the oldest first.
    pub(crate) fn history(&self) -> Vec<Arc<Item>> {
        let mut turns = Vec::with_capacity(self.depth + 1);
        turns.extend(self.newest_first());
        let oldest_first = turns.into_iter().rev();
        oldest_first
            .flat_map(|turn| turn.turn.input.iter().chain(&turn.turn.output))
            .cloned()
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
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::responses::items::Role;

    fn store(stored_responses_max: usize, stored_bytes_max: usize) -> ResponseStore {
        ResponseStore::new(StoreSettings {
            stored_responses_max,
            stored_bytes_max,
            ..StoreSettings::default()
        })
    }

    fn owner(name: &str) -> Owner {
        Some(name.into())
    }

    fn turn(id: &str, text: &str, previous: Option<Arc<Turn>>) -> NewTurn {
        NewTurn {
            id: id.to_owned(),
            previous,
            input: vec![Arc::new(Item::message(
                format!("msg_{id}"),
                Role::User,
                text.to_owned(),
            ))],
            output: Vec::new(),
            body: Deferred::json(&id.to_owned()).0.of_type(),
            body_bytes: id.len(),
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
        let body: Vec<_> = store.get(&ann, "5").expect("kept").body().collect();
        assert_eq!(body.concat(), b"\"5\"");
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
        assert!(store.state().owned.values().all(Owned::is_empty));
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
        let texts: Vec<_> = last.history().iter().map(|item| item.text()).collect();
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
    fn what_requests_hold_displaces_no_other_key() {
        let one = turn("1", &"x".repeat(1000), None).bytes();
        let store = store(100, 4 * one + one / 8);
        let (ann, bob) = (owner("ann"), owner("bob"));
        for id in ["b1", "b2"] {
            assert!(store.insert(&bob, turn(id, &"x".repeat(1000), None)));
        }
        for id in ["1", "2"] {
            assert!(store.insert(&ann, turn(id, &"x".repeat(1000), None)));
        }
        let held = [store.get(&ann, "1"), store.get(&ann, "2")];
        // Forgetting turns that requests hold would free no memory.
        assert!(!store.insert(&ann, turn("3", &"x".repeat(1000), None)));
        assert_eq!(known(&store, &ann, &["1", "2", "3"]), ["1", "2"]);
        assert_eq!(known(&store, &bob, &["b1", "b2"]), ["b1", "b2"]);
        drop(held);
        assert!(store.insert(&ann, turn("4", &"x".repeat(1000), None)));
        assert_eq!(known(&store, &bob, &["b1", "b2"]), ["b1", "b2"]);
    }

    #[test]
    fn what_requests_hold_is_kept_while_other_turns_make_space() {
        let one = turn("1", &"x".repeat(1000), None).bytes();
        let store = store(100, 4 * one + one / 8);
        let ann = owner("ann");
        let mut last = None;
        for id in ["1", "2"] {
            assert!(store.insert(&ann, turn(id, &"x".repeat(1000), last)));
            last = store.get(&ann, id);
        }
        for id in ["3", "4", "5"] {
            assert!(store.insert(&ann, turn(id, &"x".repeat(1000), None)));
        }
        let ids = ["1", "2", "3", "4", "5"];
        assert_eq!(known(&store, &ann, &ids), ["1", "2", "4", "5"]);
        // A chain is forgotten as a whole, once nothing holds its end.
        drop(last);
        assert!(store.insert(&ann, turn("6", &"x".repeat(1000), None)));
        assert_eq!(
            known(&store, &ann, &["1", "2", "4", "5", "6"]),
            ["4", "5", "6"]
        );
    }

    /// Any order of insertions, deletions and requests: no key displaces one that has less.
    #[test]
    fn only_keys_that_have_as_much_are_displaced() {
        for seed in 0..64 {
            let mut random = StdRng::seed_from_u64(seed);
            let store = store(
                random.random_range(2..12),
                random.random_range(2_000..20_000),
            );
            let names = ["ann", "bob", "carol"].map(owner);
            let mut held = Vec::new();
            for number in 0..200 {
                let name = &names[random.random_range(0..names.len())];
                let id = number.to_string();
                let earlier = random.random_range(0..number.max(1)).to_string();
                let earlier = store.get(name, &earlier);
                match random.random_range(0..8) {
                    0 => held.extend(earlier),
                    1 if !held.is_empty() => {
                        drop(held.swap_remove(random.random_range(0..held.len())))
                    }
                    2 => drop(earlier.map(|turn| store.remove(name, turn.id()))),
                    _ => {
                        let text = "x".repeat(random.random_range(0..3_000));
                        insert(&store, &names, name, turn(&id, &text, earlier));
                    }
                }
                check(&store, &names);
            }
            drop(held);
            check(&store, &names);
        }
    }

    /// Responses and bytes of an owner.
    fn measured(store: &ResponseStore, owner: &Owner) -> (usize, usize) {
        let state = store.state();
        let owned = state.owned.get(owner);
        owned.map_or((0, 0), |owned| (owned.turns.len(), owned.bytes()))
    }

    /// Inserts a turn, and checks that each displaced owner had as much as this one has then.
    fn insert(store: &ResponseStore, names: &[Owner], name: &Owner, new: NewTurn) {
        let before: Vec<_> = names.iter().map(|name| measured(store, name)).collect();
        let bytes = new.bytes();
        let is_kept = store.insert(name, new);
        let mut own = measured(store, name);
        if !is_kept {
            own = (own.0 + 1, own.1 + bytes);
        }
        for (other, before) in names.iter().zip(before) {
            if other != name && measured(store, other).0 < before.0 {
                let had_less = before.0 < own.0 && before.1 < own.1;
                assert!(!had_less, "{other:?} had {before:?}, {name:?} has {own:?}");
            }
        }
    }

    fn check(store: &ResponseStore, names: &[Owner]) {
        let all: Vec<_> = names.iter().map(|name| measured(store, name)).collect();
        let bytes = store.bytes.load(Ordering::Relaxed);
        let sum: usize = all.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(bytes, sum, "counted once");
        assert!(bytes <= store.settings.stored_bytes_max);
        let responses: usize = all.iter().map(|(responses, _)| responses).sum();
        assert!(responses <= store.settings.stored_responses_max);
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
