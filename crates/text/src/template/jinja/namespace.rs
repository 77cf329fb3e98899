//! The one value that changes: `namespace()`.

use std::cell::RefCell;
use std::sync::Arc;

use super::error::Error;
use super::interpreter::Machine;
use super::text::Charge;
use super::value::Value;

pub(super) struct Namespace {
    members: RefCell<Vec<(Arc<str>, Value)>>,
    /// Its members, without what their values take.
    charge: RefCell<Charge>,
}

impl Namespace {
    pub(super) fn new(machine: &Machine<'_>) -> Result<Self, Error> {
        Ok(Self {
            members: RefCell::default(),
            charge: RefCell::new(machine.budget.take(size_of::<Self>())?),
        })
    }

    pub(super) fn get(&self, machine: &Machine<'_>, name: &str) -> Result<Option<Value>, Error> {
        let members = self.members.borrow();
        machine.work_items(members.len())?;
        let member = members.iter().find(|(known, _)| **known == *name);
        Ok(member.map(|(_, value)| value.clone()))
    }

    pub(super) fn set(&self, machine: &Machine<'_>, name: &str, value: Value) -> Result<(), Error> {
        let mut members = self.members.borrow_mut();
        machine.work_items(members.len())?;
        let member = members.iter_mut().find(|(known, _)| **known == *name);
        // The old value is dropped after the borrow.
        let _old = match member {
            Some((_, member)) => Some(std::mem::replace(member, value)),
            None => {
                let bytes = size_of::<(Arc<str>, Value)>() + name.len();
                self.charge.borrow_mut().grow(bytes)?;
                members.push((name.into(), value));
                None
            }
        };
        drop(members);
        Ok(())
    }

    /// Drops its members.
    pub(super) fn empty(&self) {
        drop(self.members.take());
    }
}
