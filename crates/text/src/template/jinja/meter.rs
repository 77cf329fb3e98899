//! The bounds of one rendering: its steps, its recursion, and the memory of its values.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::error::Error;
use super::text::{Budget, Builder, Str};

/// Steps of one rendering: a few seconds at most. A message costs some dozens.
const STEPS_MAX: u64 = 1_000_000;
/// Bytes that are examined, bytes that are copied, and items that are visited in one step.
const STEP_BYTES: usize = 256;
const STEP_BYTES_COPIED: usize = 4096;
const STEP_ITEMS: usize = 16;
/// Bytes of the values that a template makes, at any time.
pub(super) const VALUE_BYTES_MAX: usize = 64 << 20;
/// Deepest recursion of statements, expressions and macros, which take the stack of the thread.
const DEPTH_MAX: usize = 200;

/// A value that may contain itself, or a chain of any length, until it is emptied.
pub(super) trait Empty {
    /// Drops its values.
    fn empty(&self);
}

/// Counts what one rendering does and takes. At the end it empties what may contain itself.
pub(super) struct Meter {
    pub(super) budget: Rc<Budget>,
    steps: Cell<u64>,
    /// Items that were visited since the last step was counted for them.
    visits: Cell<usize>,
    depth: Cell<usize>,
    /// The texts of one character, and whether a caller wrote it.
    characters: RefCell<FxHashMap<(char, bool), Str>>,
    /// Namespaces, the variables that macros see, and the arguments that loops remember.
    emptied: RefCell<Vec<Rc<dyn Empty>>>,
}

impl Drop for Meter {
    fn drop(&mut self) {
        for emptied in self.emptied.take() {
            emptied.empty();
        }
    }
}

impl Meter {
    /// Values take at most `value_bytes_max`.
    pub(super) fn new(value_bytes_max: usize) -> Self {
        Self {
            budget: Budget::new(value_bytes_max, Error::too_much_memory),
            steps: Cell::new(STEPS_MAX),
            visits: Cell::new(0),
            depth: Cell::new(0),
            characters: RefCell::default(),
            emptied: RefCell::default(),
        }
    }

    pub(super) fn spend(&self, steps: u64) -> Result<(), Error> {
        let left = self.steps.get().checked_sub(steps);
        let left = left.ok_or_else(|| {
            Error::new(format!("out of fuel: it takes more than {STEPS_MAX} steps"))
        })?;
        self.steps.set(left);
        Ok(())
    }

    /// Counts the copying of so many bytes.
    pub(super) fn copy(&self, bytes: usize) -> Result<(), Error> {
        self.spend((bytes / STEP_BYTES_COPIED) as u64)
    }

    /// Counts the work on so many bytes.
    pub(super) fn work(&self, bytes: usize) -> Result<(), Error> {
        self.spend((bytes / STEP_BYTES) as u64)
    }

    /// Counts the work on so many items.
    pub(super) fn work_items(&self, items: usize) -> Result<(), Error> {
        self.spend((items / STEP_ITEMS) as u64)
    }

    /// Counts the work on one item.
    pub(super) fn visit(&self) -> Result<(), Error> {
        let visits = self.visits.get() + 1;
        self.visits.set(visits % STEP_ITEMS);
        self.work_items(if visits == STEP_ITEMS { visits } else { 0 })
    }

    pub(super) fn builder(&self) -> Builder {
        Builder::of_value(&self.budget)
    }

    /// Enters a statement, an expression or a macro. [`leave`](Self::leave) follows.
    pub(super) fn enter(&self) -> Result<(), Error> {
        let depth = self.depth.get();
        if depth == DEPTH_MAX {
            return Err(Error::new(format!(
                "recursion: more than {DEPTH_MAX} levels deep"
            )));
        }
        self.spend(1)?;
        self.depth.set(depth + 1);
        Ok(())
    }

    pub(super) fn leave(&self) {
        self.depth.set(self.depth.get() - 1);
    }

    pub(super) fn empty_at_end<E: Empty + 'static>(&self, emptied: &Rc<E>) {
        let emptied: Rc<E> = Rc::clone(emptied);
        self.emptied.borrow_mut().push(emptied);
    }

    /// One character as a text. Equal ones are the same.
    pub(super) fn character(&self, c: char, is_caller: bool) -> Result<Str, Error> {
        if let Some(known) = self.characters.borrow().get(&(c, is_caller)) {
            return Ok(known.clone());
        }
        let mut text = self.builder();
        text.part(c.encode_utf8(&mut [0; 4]), is_caller)?;
        let text = text.finish();
        let mut characters = self.characters.borrow_mut();
        characters.insert((c, is_caller), text.clone());
        Ok(text)
    }
}
