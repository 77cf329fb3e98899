//! The values of a template: those of Python that JSON and Jinja have.
//!
//! Lists and dictionaries do not change once they are made, as in the sandbox of `transformers`.
//! Only a namespace does.
//!
//! | file | content |
//! |---|---|
//! | `containers.rs` | lists, tuples, generators and dictionaries |
//! | `namespace.rs`, `state.rs` | namespaces; macros, loops, cyclers and joiners |
//! | `compare.rs` | equality, order, and the hashes of keys |
//! | `items.rs` | the items that `for` visits |

pub(super) mod compare;
mod containers;
mod items;
mod namespace;
mod state;

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;

use super::error::Error;
use super::text::{Budget, Str};
pub(super) use containers::{Dict, Seq};
pub(super) use namespace::Namespace;
pub(super) use state::{Cycler, Frame, Joiner, Loop, Macro};

/// Characters of a name in the message of a missing value.
const NAME_MAX: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeqKind {
    List,
    Tuple,
    /// The result of `map`, `select` and others: it has neither length nor items.
    Generator,
    /// The keys, values or items of a dictionary: they have no items by number.
    View(&'static str),
}

#[derive(Clone)]
pub(super) enum Value {
    /// A missing value, and the message of an error where it is used.
    Undefined(Arc<str>),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Str),
    Seq(Rc<Seq>),
    Dict(Rc<Dict>),
    Namespace(Rc<Namespace>),
    Macro(Rc<Macro>),
    Function(Function),
    Method(Rc<(Value, Arc<str>)>),
    Loop(Rc<Loop>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

/// A name in a message: its first characters, if it is long.
pub(super) struct Shown<'a>(pub(super) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(NAME_MAX) {
            Some((end, _)) => write!(f, "{}…", &self.0[..end]),
            None => f.write_str(self.0),
        }
    }
}

impl Value {
    pub(super) fn undefined(what: impl Into<Arc<str>>) -> Self {
        Self::Undefined(what.into())
    }

    /// A text of this crate's own.
    pub(super) fn own(text: &str) -> Self {
        Self::Str(text.into())
    }

    /// A caller's value. Its texts, names included, are marked as the caller's.
    pub(super) fn of_caller(json: &Json, budget: &Rc<Budget>) -> Result<Self, Error> {
        Ok(match json {
            Json::Null => Self::None,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(int), ..) => Self::Int(int.into()),
                (None, Some(int), _) => Self::Int(int.into()),
                (None, None, float) => Self::Float(float.unwrap_or(f64::NAN)),
            },
            Json::String(text) => Self::Str(Str::of_caller(text)),
            Json::Array(items) => {
                let items = items.iter().map(|item| Self::of_caller(item, budget));
                Self::list(items.collect::<Result<_, _>>()?, budget)?
            }
            Json::Object(members) => {
                let entries = members.iter().map(|(name, value)| {
                    let name = Self::Str(Str::of_caller(name));
                    Ok((name, Self::of_caller(value, budget)?))
                });
                Self::dict_of(entries.collect::<Result<_, Error>>()?, budget)?
            }
        })
    }

    fn depth(&self) -> u32 {
        match self {
            Self::Seq(seq) => seq.depth,
            Self::Dict(dict) => dict.depth,
            Self::Method(method) => method.0.depth() + 1,
            Self::Loop(state) => state.items.depth + 1,
            Self::Cycler(cycler) => cycler.depth,
            Self::Joiner(joiner) => joiner.depth,
            // The meter empties namespaces and the variables of macros. The others contain nothing.
            _ => 0,
        }
    }

    /// Python's name of its type.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) => "str",
            Self::Seq(seq) => match seq.kind {
                SeqKind::List => "list",
                SeqKind::Tuple => "tuple",
                SeqKind::Generator => "generator",
                SeqKind::View(name) => name,
            },
            Self::Dict(_) => "dict",
            Self::Namespace(_) => "Namespace",
            Self::Macro(_) => "Macro",
            Self::Function(_) => "function",
            Self::Method(_) => "builtin_function_or_method",
            Self::Loop(_) => "LoopContext",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Str(text) => !text.text().is_empty(),
            Self::Seq(seq) => seq.kind == SeqKind::Generator || !seq.items.is_empty(),
            Self::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    pub(super) fn as_str(&self) -> Option<&Str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// An integer, or a truth value as one.
    pub(super) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(value) => Some(*value),
            Self::Bool(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    pub(super) fn as_number(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    /// The error of a missing value that is used; an error of its type otherwise.
    pub(super) fn refuse(&self, what: impl Into<String>) -> Error {
        match self {
            Self::Undefined(missing) => Error::new(&**missing),
            _ => Error::new(what),
        }
    }

    pub(super) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}
