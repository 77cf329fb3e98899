//! Reads the facts from a file: suites of cases with their expectations.
//!
//! A [`Fact`] remembers which of its fields were read. A field that its rule has not read is a
//! field that the rule does not know.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::rc::Rc;

use motet::TokenId;
use serde_json::{Map, Value};

/// Cases that belong together.
#[derive(Clone, Debug)]
pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) cases: Vec<Case>,
}

/// One case: its inputs and its expectations.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) facts: Value,
}

/// A value of a case and its location, so that errors can name a field that is missing or of
/// another type than expected.
#[derive(Clone, Debug)]
pub(crate) struct Fact<'a> {
    value: &'a Value,
    location: String,
    seen: Rc<RefCell<Seen>>,
}

/// Locations that were read, and locations that are ignored together with all below them.
#[derive(Debug, Default)]
struct Seen {
    known: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

/// The largest number of tokens, layers and the like in a case: rules make lists as long, and compute them.
pub(crate) const NUMBER_MAX: usize = 8192;
/// The largest size in bytes, and the largest number that is only computed with.
const SIZE_MAX: usize = 1 << 24;

/// Fields that any case may have as notes for readers.
const NOTES: [&str; 5] = ["name", "note", "source", "test", "derived_only"];

/// Returns the suites of a file.
pub(crate) fn read(path: &Path) -> Vec<Suite> {
    let location = path.display().to_string();
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{location}: {error}"));
    let file: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{location}: {error}"));
    let file = Fact::new(&file, location);
    file.get("suites").items().iter().map(suite).collect()
}

/// Reads a suite. A case without a name is named by its number. When cases share a name, all
/// but the first have their number appended.
fn suite(fact: &Fact<'_>) -> Suite {
    let cases = fact.get("cases").items();
    let name_of = |(at, case): (usize, &Fact<'_>)| {
        let name = case.maybe("name").map(|name| name.text().to_owned());
        name.unwrap_or_else(|| format!("case {}", at + 1))
    };
    let names: Vec<String> = cases.iter().enumerate().map(name_of).collect();
    let case = |(at, case): (usize, &Fact<'_>)| {
        let own = &names[at];
        let before = names[..at].iter().filter(|name| *name == own).count();
        let name = match before {
            0 => own.clone(),
            before => format!("{own} ({})", before + 1),
        };
        let facts = case.value.clone();
        Case { name, facts }
    };
    Suite {
        name: fact.get("suite").text().to_owned(),
        cases: cases.iter().enumerate().map(case).collect(),
    }
}

impl<'a> Fact<'a> {
    pub(crate) fn new(value: &'a Value, location: impl Into<String>) -> Self {
        Self {
            value,
            location: location.into(),
            seen: Rc::default(),
        }
    }

    fn below(&self, value: &'a Value, location: String) -> Fact<'a> {
        let seen = Rc::clone(&self.seen);
        Self {
            value,
            location,
            seen,
        }
    }

    fn location_of(&self, field: &str) -> String {
        match self.location.as_str() {
            "" => field.to_owned(),
            location => format!("{location}.{field}"),
        }
    }

    /// A field that must be present.
    pub(crate) fn get(&self, field: &str) -> Fact<'a> {
        self.maybe(field)
            .unwrap_or_else(|| panic!("there is no field `{}`", self.location_of(field)))
    }

    /// An optional field; it may be null.
    pub(crate) fn maybe(&self, field: &str) -> Option<Fact<'a>> {
        let value = self.object().get(field)?;
        let location = self.location_of(field);
        self.seen.borrow_mut().known.insert(location.clone());
        Some(self.below(value, location))
    }

    /// Whether there is such a field, or a field of a field: `expect.error`.
    pub(crate) fn has(&self, path: &str) -> bool {
        let mut value = Some(self.value);
        for field in path.split('.') {
            value = value.and_then(|value| value.get(field));
        }
        value.is_some()
    }

    /// The fields' names without notes, in the order of the file or of the alphabet.
    pub(crate) fn names(&self) -> Vec<&'a str> {
        let names = self.object().keys().map(String::as_str);
        names.filter(|name| !NOTES.contains(name)).collect()
    }

    /// All fields, for a rule that knows each of them or fails.
    pub(crate) fn fields(&self) -> Vec<(&'a str, Fact<'a>)> {
        let names = self.names().into_iter();
        names.map(|name| (name, self.get(name))).collect()
    }

    /// Marks these fields as given and without effect here.
    pub(crate) fn skip(&self, fields: &[&str]) {
        let locations = fields.iter().map(|field| self.location_of(field));
        self.seen.borrow_mut().skipped.extend(locations);
    }

    /// The location of a field that was not read, and that is none of the fields `beside` the
    /// case.
    pub(crate) fn unseen(&self, beside: &[&str]) -> Option<String> {
        if let Value::Array(items) = self.value {
            let mut items = items.iter().enumerate();
            return items.find_map(|(i, item)| {
                let item = self.below(item, format!("{}[{i}]", self.location));
                item.unseen(beside)
            });
        }
        let mut fields = self.value.as_object()?.iter();
        fields.find_map(|(name, value)| {
            let location = self.location_of(name);
            let is_beside = NOTES.contains(&name.as_str()) || beside.contains(&name.as_str());
            if is_beside || self.seen.borrow().skipped.contains(&location) {
                return None;
            }
            if !self.seen.borrow().known.contains(&location) {
                return Some(location);
            }
            self.below(value, location).unseen(beside)
        })
    }

    pub(crate) fn items(&self) -> Vec<Fact<'a>> {
        let items = self.value.as_array();
        let items = items.unwrap_or_else(|| self.is_no("list"));
        let item = |(i, value)| self.below(value, format!("{}[{i}]", self.location));
        items.iter().enumerate().map(item).collect()
    }

    /// The JSON value.
    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }

    pub(crate) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    pub(crate) fn is_text(&self) -> bool {
        self.value.is_string()
    }

    /// A number of tokens, a position, a token, and whatever else a rule makes a list of.
    pub(crate) fn number(&self) -> usize {
        self.within(0..=NUMBER_MAX)
    }

    /// A number that is only computed with, such as one of bytes.
    pub(crate) fn size(&self) -> usize {
        self.within(0..=SIZE_MAX)
    }

    /// A whole number within bounds, which may follow from other fields.
    pub(crate) fn within(&self, bounds: RangeInclusive<usize>) -> usize {
        let number = self
            .value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok());
        let number = number.filter(|number| bounds.contains(number));
        let (least, most) = (bounds.start(), bounds.end());
        number.unwrap_or_else(|| self.is_no(&format!("whole number from {least} to {most}")))
    }

    pub(crate) fn integer(&self) -> i64 {
        let integer = self.value.as_i64();
        let integer = integer.filter(|integer| integer.unsigned_abs() <= SIZE_MAX as u64);
        integer.unwrap_or_else(|| self.is_no(&format!("whole number up to {SIZE_MAX}")))
    }

    pub(crate) fn token(&self) -> TokenId {
        self.number() as TokenId
    }

    /// Two numbers.
    pub(crate) fn pair(&self) -> [usize; 2] {
        let pair = <[usize; 2]>::try_from(self.numbers());
        pair.unwrap_or_else(|_| self.is_no("list of two numbers"))
    }

    /// A range of positions, its start and its end, with one position at least.
    pub(crate) fn range(&self) -> Range<usize> {
        match self.pair() {
            [start, end] if start < end => start..end,
            _ => self.is_no("list of a start and a later end"),
        }
    }

    pub(crate) fn number_or_null(&self) -> Option<usize> {
        (!self.is_null()).then(|| self.number())
    }

    pub(crate) fn flag(&self) -> bool {
        match self.value {
            Value::Number(_) => self.number() == 1,
            _ => self.value.as_bool().unwrap_or_else(|| self.is_no("flag")),
        }
    }

    pub(crate) fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_else(|| self.is_no("text"))
    }

    pub(crate) fn numbers(&self) -> Vec<usize> {
        self.items().iter().map(Fact::number).collect()
    }

    pub(crate) fn texts(&self) -> Vec<&'a str> {
        self.items().iter().map(Fact::text).collect()
    }

    pub(crate) fn tokens(&self) -> Vec<TokenId> {
        self.items().iter().map(Fact::token).collect()
    }

    fn object(&self) -> &'a Map<String, Value> {
        self.value
            .as_object()
            .unwrap_or_else(|| self.is_no("object"))
    }

    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.items().iter().map(Fact::size).collect()
    }

    /// Ends the case: the value is of another form than its rule knows.
    pub(crate) fn is_no(&self, what: &str) -> ! {
        let location = match self.location.as_str() {
            "" => "it",
            location => location,
        };
        panic!("{location} is {}; expected a {what}", self.value)
    }
}

/// A number in a text, such as the name of a field.
pub(crate) fn number_in(text: &str, most: usize) -> usize {
    let number = text.parse().ok().filter(|number| *number <= most);
    number.unwrap_or_else(|| panic!("`{text}` is no whole number up to {most}"))
}

/// The tokens of a range that a case names.
pub(crate) fn part(tokens: &[TokenId], range: Range<usize>) -> &[TokenId] {
    let count = tokens.len();
    let part = tokens.get(range.clone());
    part.unwrap_or_else(|| panic!("the tokens {range:?} of the case are not among its {count}"))
}
