//! The values that a running template keeps its state in: macros, loops, cyclers and joiners.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::Value;
use super::containers::{Seq, deepened};
use crate::template::jinja::ast::{For, MacroDef};
use crate::template::jinja::error::Error;
use crate::template::jinja::meter::Empty;
use crate::template::jinja::text::{Budget, Charge};

/// Variables of one scope.
#[derive(Default)]
pub(in crate::template::jinja) struct Frame {
    variables: RefCell<Vec<(Arc<str>, Value)>>,
    /// Whether a macro sees it.
    pub(in crate::template::jinja) is_closure: Cell<bool>,
}

pub(in crate::template::jinja) struct Macro {
    pub(in crate::template::jinja) def: Arc<MacroDef>,
    /// The variables that it sees.
    pub(in crate::template::jinja) frames: Vec<Rc<Frame>>,
}

/// The arguments of a loop's last `changed`.
#[derive(Default)]
pub(in crate::template::jinja) struct Changed(
    pub(in crate::template::jinja) RefCell<Option<Vec<Value>>>,
);

/// The variable `loop`.
pub(in crate::template::jinja) struct Loop {
    pub(in crate::template::jinja) index0: usize,
    pub(in crate::template::jinja) items: Rc<Seq>,
    pub(in crate::template::jinja) depth0: usize,
    pub(in crate::template::jinja) changed: Rc<Changed>,
    /// The loop itself, if it may be called again.
    pub(in crate::template::jinja) body: Option<Arc<For>>,
}

pub(in crate::template::jinja) struct Cycler {
    pub(in crate::template::jinja) items: Vec<Value>,
    pub(in crate::template::jinja) at: Cell<usize>,
    pub(super) depth: u32,
    _charge: Charge,
}

pub(in crate::template::jinja) struct Joiner {
    pub(in crate::template::jinja) separator: Value,
    pub(in crate::template::jinja) is_used: Cell<bool>,
    pub(super) depth: u32,
}

impl Value {
    pub(in crate::template::jinja) fn cycler(
        items: Vec<Self>,
        budget: &Rc<Budget>,
    ) -> Result<Self, Error> {
        let charge = budget.take(items.capacity() * size_of::<Self>())?;
        let depth = deepened(items.iter())?;
        Ok(Self::Cycler(Rc::new(Cycler {
            items,
            at: Cell::new(0),
            depth,
            _charge: charge,
        })))
    }

    pub(in crate::template::jinja) fn joiner(separator: Self) -> Result<Self, Error> {
        let depth = deepened([&separator].into_iter())?;
        Ok(Self::Joiner(Rc::new(Joiner {
            separator,
            is_used: Cell::new(false),
            depth,
        })))
    }
}

impl Frame {
    pub(in crate::template::jinja) fn get(&self, name: &str) -> Option<Value> {
        let variables = self.variables.borrow();
        let variable = variables.iter().find(|(known, _)| **known == *name);
        variable.map(|(_, value)| value.clone())
    }

    pub(in crate::template::jinja) fn set(&self, name: &Arc<str>, value: Value) {
        let mut variables = self.variables.borrow_mut();
        let variable = variables.iter_mut().find(|(known, _)| known == name);
        let _old = match variable {
            Some((_, variable)) => Some(std::mem::replace(variable, value)),
            None => {
                variables.push((Arc::clone(name), value));
                None
            }
        };
        drop(variables);
    }
}

impl Empty for Frame {
    fn empty(&self) {
        drop(self.variables.take());
    }
}

impl Empty for Changed {
    fn empty(&self) {
        drop(self.0.take());
    }
}
