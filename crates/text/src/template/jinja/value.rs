//! The values of a template: those of Python that JSON and Jinja have.
//!
//! Lists and dictionaries do not change once they are made, as in the sandbox of `transformers`.
//! Only a namespace does.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value as Json;

use super::ast::MacroDef;
use super::error::Error;
use super::interpreter::{Frame, Machine};
use super::keys::{self, KeyIndex};
use super::namespace::Namespace;
use super::operators::is_equal;
use super::text::{Budget, Charge, Str};

/// Characters of a name in the message of a missing value.
const NAME_MAX: usize = 100;
/// Deepest nesting of a list or dictionary: values are compared, printed and dropped recursively.
/// JSON has at most 128 levels, and a conversation some more around it.
const DEPTH_MAX: u32 = 160;
/// Entries of a dictionary beyond which keys are looked up by their hash.
const SEARCHED_MAX: usize = 8;

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
pub(super) enum SeqKind {
    List,
    Tuple,
    /// The result of `map`, `select` and others: it has neither length nor items.
    Generator,
    /// The keys, values or items of a dictionary: they have no items by number.
    View(&'static str),
}

pub(super) struct Seq {
    pub(super) kind: SeqKind,
    pub(super) items: Vec<Value>,
    depth: u32,
    _charge: Charge,
}

pub(super) struct Dict {
    pub(super) entries: Vec<(Value, Value)>,
    index: OnceCell<KeyIndex>,
    depth: u32,
    _charge: Charge,
}

pub(super) struct Macro {
    pub(super) def: Arc<MacroDef>,
    /// The variables that it sees.
    pub(super) frames: Vec<Rc<Frame>>,
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

/// The arguments of a loop's last `changed`.
#[derive(Default)]
pub(super) struct Changed(pub(super) RefCell<Option<Vec<Value>>>);

/// The variable `loop`.
pub(super) struct Loop {
    pub(super) index0: usize,
    pub(super) items: Rc<Seq>,
    pub(super) depth0: usize,
    pub(super) changed: Rc<Changed>,
    /// The loop itself, if it may be called again.
    pub(super) body: Option<Arc<super::ast::For>>,
}

pub(super) struct Cycler {
    pub(super) items: Vec<Value>,
    pub(super) at: Cell<usize>,
    depth: u32,
    _charge: Charge,
}

pub(super) struct Joiner {
    pub(super) separator: Value,
    pub(super) is_used: Cell<bool>,
    depth: u32,
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

    pub(super) fn seq(kind: SeqKind, items: Vec<Self>, budget: &Rc<Budget>) -> Result<Self, Error> {
        Seq::new(kind, items, budget).map(Self::Seq)
    }

    pub(super) fn list(items: Vec<Self>, budget: &Rc<Budget>) -> Result<Self, Error> {
        Self::seq(SeqKind::List, items, budget)
    }

    /// A dictionary; the last of equal keys counts.
    pub(super) fn dict(machine: &Machine<'_>, entries: Vec<(Self, Self)>) -> Result<Self, Error> {
        let mut unique: Vec<(Self, Self)> = Vec::with_capacity(entries.len());
        let mut index = KeyIndex::default();
        for (key, value) in entries {
            keys::check(machine, &key)?;
            let hash = keys::hash(machine, &key)?;
            match index.find(machine, hash, &key, |at| &unique[at].0)? {
                Some(at) => unique[at].1 = value,
                None => {
                    index.push(hash);
                    unique.push((key, value));
                }
            }
        }
        Self::dict_of(unique, &machine.budget)
    }

    /// A dictionary whose keys are known to differ.
    pub(super) fn dict_of(entries: Vec<(Self, Self)>, budget: &Rc<Budget>) -> Result<Self, Error> {
        let charge = budget.take(entries.capacity() * size_of::<(Self, Self)>())?;
        let depth = deepened(entries.iter().map(|(_, value)| value))?;
        Ok(Self::Dict(Rc::new(Dict {
            entries,
            index: OnceCell::new(),
            depth,
            _charge: charge,
        })))
    }

    pub(super) fn cycler(items: Vec<Self>, budget: &Rc<Budget>) -> Result<Self, Error> {
        let charge = budget.take(items.capacity() * size_of::<Self>())?;
        let depth = deepened(items.iter())?;
        Ok(Self::Cycler(Rc::new(Cycler {
            items,
            at: Cell::new(0),
            depth,
            _charge: charge,
        })))
    }

    pub(super) fn joiner(separator: Self) -> Result<Self, Error> {
        let depth = deepened([&separator].into_iter())?;
        Ok(Self::Joiner(Rc::new(Joiner {
            separator,
            is_used: Cell::new(false),
            depth,
        })))
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
            // The machine empties namespaces and the variables of macros. The others contain nothing.
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

/// The depth of what contains these.
fn deepened<'a>(items: impl Iterator<Item = &'a Value>) -> Result<u32, Error> {
    let deepest = items.map(Value::depth).max().map_or(0, |depth| depth + 1);
    if deepest > DEPTH_MAX {
        let what = format!("a value is nested more than {DEPTH_MAX} deep");
        return Err(Error::new(what));
    }
    Ok(deepest)
}

impl Seq {
    pub(super) fn new(
        kind: SeqKind,
        items: Vec<Value>,
        budget: &Rc<Budget>,
    ) -> Result<Rc<Self>, Error> {
        let charge = budget.take(items.capacity() * size_of::<Value>())?;
        let depth = deepened(items.iter())?;
        Ok(Rc::new(Self {
            kind,
            items,
            depth,
            _charge: charge,
        }))
    }
}

impl Dict {
    pub(super) fn get(&self, machine: &Machine<'_>, key: &Value) -> Result<Option<&Value>, Error> {
        if self.entries.len() > SEARCHED_MAX {
            let hash = keys::hash(machine, key)?;
            let known = |at: usize| &self.entries[at].0;
            let at = self.index(machine)?.find(machine, hash, key, known)?;
            return Ok(at.map(|at| &self.entries[at].1));
        }
        for (known, value) in &self.entries {
            if is_equal(machine, known, key)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    fn index(&self, machine: &Machine<'_>) -> Result<&KeyIndex, Error> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let mut index = KeyIndex::default();
        for (key, _) in &self.entries {
            index.push(keys::hash(machine, key)?);
        }
        Ok(self.index.get_or_init(|| index))
    }

    pub(super) fn get_str(
        &self,
        machine: &Machine<'_>,
        key: &str,
    ) -> Result<Option<&Value>, Error> {
        if self.entries.len() > SEARCHED_MAX {
            return self.get(machine, &Value::own(key));
        }
        let is_key = |known: &Value| known.as_str().is_some_and(|known| known.text() == key);
        let entry = self.entries.iter().find(|(known, _)| is_key(known));
        Ok(entry.map(|(_, value)| value))
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}
