//! Values of a bounded number of salts. The least recently used one goes first.

use std::collections::BTreeMap;

use motet_protocol::Salt;

/// A value for each salt.
#[derive(Clone, Debug)]
pub(super) struct BySalt<T> {
    values: BTreeMap<Salt, Used<T>>,
    salts_max: usize,
    uses: u64,
}

#[derive(Clone, Debug)]
struct Used<T> {
    value: T,
    /// Its number in the order of uses.
    last_use: u64,
}

impl<T> BySalt<T> {
    /// Values of at most this many salts, none yet.
    ///
    /// # Panics
    ///
    /// If that is none.
    pub(super) fn new(salts_max: usize) -> Self {
        assert!(salts_max > 0, "the salt in use has a value");
        Self {
            values: BTreeMap::new(),
            salts_max,
            uses: 0,
        }
    }

    /// The value of a salt, which is used thereby.
    pub(super) fn get(&mut self, salt: &Salt) -> Option<&mut T> {
        self.uses += 1;
        let used = self.values.get_mut(salt)?;
        used.last_use = self.uses;
        Some(&mut used.value)
    }

    /// The value of a salt, which is used thereby. A new salt displaces the least recently used
    /// one if there are too many.
    pub(super) fn get_or_insert(&mut self, salt: &Salt, new: impl FnOnce() -> T) -> &mut T {
        if self.values.len() >= self.salts_max && !self.values.contains_key(salt) {
            self.remove_least_recently_used();
        }
        self.uses += 1;
        let last_use = self.uses;
        let used = self.values.entry(salt.clone()).or_insert_with(|| Used {
            value: new(),
            last_use,
        });
        used.last_use = last_use;
        &mut used.value
    }

    /// Removes the value of the salt that was used least recently.
    pub(super) fn remove_least_recently_used(&mut self) -> Option<T> {
        let least = self.values.iter().min_by_key(|(_, used)| used.last_use);
        let salt = least.map(|(salt, _)| salt.clone())?;
        self.values.remove(&salt).map(|used| used.value)
    }

    /// Removes the value of a salt.
    pub(super) fn remove(&mut self, salt: &Salt) -> Option<T> {
        self.values.remove(salt).map(|used| used.value)
    }

    /// The value of a salt, which is not used thereby.
    #[cfg(test)]
    pub(super) fn peek(&self, salt: &Salt) -> Option<&T> {
        self.values.get(salt).map(|used| &used.value)
    }

    /// All values, in no order that matters.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.values.values().map(|used| &used.value)
    }
}
