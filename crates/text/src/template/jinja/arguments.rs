//! Arguments of calls.

use super::ast::Name;
use super::error::Error;
use super::value::Value;

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Name, Value)>,
}

impl Args {
    /// The arguments by these names, in their order.
    pub(super) fn bind<const N: usize>(
        self,
        of: &str,
        names: [&str; N],
    ) -> Result<[Option<Value>; N], Error> {
        let mut bound = [const { None }; N];
        if self.positional.len() > N {
            let what = format!(
                "{of}() takes at most {N} arguments ({} given)",
                self.positional.len()
            );
            return Err(Error::new(what));
        }
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            let at = names.iter().position(|known| **known == *name);
            let Some(at) = at else {
                let what = format!("{of}() got an unexpected keyword argument '{name}'");
                return Err(Error::new(what));
            };
            if bound[at].replace(value).is_some() {
                let what = format!("{of}() got multiple values for argument '{name}'");
                return Err(Error::new(what));
            }
        }
        Ok(bound)
    }

    /// No arguments.
    pub(super) fn none(self, of: &str) -> Result<(), Error> {
        self.bind::<0>(of, []).map(|_| ())
    }
}

/// An argument that must be there.
pub(super) fn needed(of: &str, name: &str, value: Option<Value>) -> Result<Value, Error> {
    value.ok_or_else(|| Error::new(format!("{of}() missing required argument '{name}'")))
}

/// An argument that is an integer, if it is there.
pub(super) fn integer(of: &str, value: Option<Value>) -> Result<Option<i128>, Error> {
    let Some(value) = value else {
        return Ok(None);
    };
    match value.as_int() {
        Some(int) => Ok(Some(int)),
        None => Err(value.refuse(format!(
            "{of}(): '{}' object cannot be interpreted as an integer",
            value.type_name()
        ))),
    }
}
