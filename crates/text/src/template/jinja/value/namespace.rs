//! The one value that changes: `namespace()`.

use std::cell::RefCell;
use std::sync::Arc;

use super::Value;
use crate::template::jinja::error::Error;
use crate::template::jinja::meter::{Empty, Meter};
use crate::template::jinja::text::Charge;

pub(in crate::template::jinja) struct Namespace {
    members: RefCell<Vec<(Arc<str>, Value)>>,
    /// Its members, without what their values take.
    charge: RefCell<Charge>,
}

impl Namespace {
    pub(in crate::template::jinja) fn new(meter: &Meter) -> Result<Self, Error> {
        Ok(Self {
            members: RefCell::default(),
            charge: RefCell::new(meter.budget.take(size_of::<Self>())?),
        })
    }

    pub(in crate::template::jinja) fn get(
        &self,
        meter: &Meter,
        name: &str,
    ) -> Result<Option<Value>, Error> {
        let members = self.members.borrow();
        meter.work_items(members.len())?;
        let member = members.iter().find(|(known, _)| **known == *name);
        Ok(member.map(|(_, value)| value.clone()))
    }

    pub(in crate::template::jinja) fn set(
        &self,
        meter: &Meter,
        name: &str,
        value: Value,
    ) -> Result<(), Error> {
        let mut members = self.members.borrow_mut();
        meter.work_items(members.len())?;
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
}

impl Empty for Namespace {
    fn empty(&self) {
        drop(self.members.take());
    }
}
