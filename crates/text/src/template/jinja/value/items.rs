//! The items of a value, as Python's `for` visits them.

use std::rc::Rc;

use super::SeqKind;
use super::Value;
use super::containers::Seq;
use crate::template::jinja::error::Error;
use crate::template::jinja::meter::Meter;
use crate::template::jinja::text::Str;

impl Value {
    /// The items that Python's `for` visits.
    pub(in crate::template::jinja) fn items(&self, meter: &Meter) -> Result<Vec<Value>, Error> {
        let items = match self {
            Value::Undefined(_) => Vec::new(),
            Value::Seq(seq) => seq.items.clone(),
            Value::Dict(dict) => dict.entries.iter().map(|(key, _)| key.clone()).collect(),
            Value::Str(text) => return single_characters(meter, text),
            other => {
                return Err(Error::new(format!(
                    "'{}' object is not iterable",
                    other.type_name()
                )));
            }
        };
        meter.work_items(items.len())?;
        Ok(items)
    }

    /// The items that Python's `for` visits, as a value.
    pub(in crate::template::jinja) fn sequence(&self, meter: &Meter) -> Result<Rc<Seq>, Error> {
        match self {
            Value::Seq(seq) => {
                meter.work_items(seq.items.len())?;
                Ok(Rc::clone(seq))
            }
            other => Seq::new(SeqKind::List, other.items(meter)?, &meter.budget),
        }
    }
}

fn single_characters(meter: &Meter, text: &Str) -> Result<Vec<Value>, Error> {
    let count = text.text().chars().count();
    meter.work_items(count)?;
    // Taken before the list exists.
    drop(meter.budget.take(count * size_of::<Value>())?);
    let mut items = Vec::with_capacity(count);
    for (part, is_caller) in text.parts(0..text.text().len()) {
        for c in part.chars() {
            items.push(Value::Str(meter.character(c, is_caller)?));
        }
    }
    Ok(items)
}
