//! The adapters that have computed state, by number.

use motet_protocol::AdapterKey;
use rustc_hash::FxHashMap;

/// The adapter that computes a node's state, by its number in the trie; 0 is the base model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Adapter(u32);

/// The adapters that have computed state. They take little, and are kept.
#[derive(Debug, Default)]
pub(super) struct Adapters {
    /// In the order of their numbers, from 1 on.
    keys: Vec<AdapterKey>,
    numbers: FxHashMap<AdapterKey, Adapter>,
}

impl Adapters {
    /// The number of an adapter, if it has one.
    pub(super) fn get(&self, key: &AdapterKey) -> Option<Adapter> {
        self.numbers.get(key).copied()
    }

    /// The number of an adapter, which it gets if it has none.
    pub(super) fn get_or_new(&mut self, key: &AdapterKey) -> Adapter {
        *self.numbers.entry(*key).or_insert_with(|| {
            self.keys.push(*key);
            Adapter(self.keys.len() as u32)
        })
    }

    /// The key of a number; `None` for the base model.
    pub(super) fn key(&self, Adapter(number): Adapter) -> Option<AdapterKey> {
        let at = (number as usize).checked_sub(1)?;
        Some(self.keys[at])
    }
}
