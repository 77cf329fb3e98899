//! The facts, read from a file: suites of cases, each with what is expected of it.

use std::path::{Path, PathBuf};

use motet::TokenId;
use serde_json::{Map, Value};

/// Cases that belong together.
#[derive(Clone, Debug)]
pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) cases: Vec<Case>,
}

/// One case: what is given and what is expected.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) facts: Value,
}

/// A value of a case, and where it stands, so that what is missing or of another type
/// than expected is named.
#[derive(Clone, Debug)]
pub(crate) struct Fact<'a> {
    value: &'a Value,
    place: String,
}

/// Our own file.
const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cache_cases.json");

/// The suites of the file that `MOTET_CASES` names, or else of our own.
pub(crate) fn suites() -> Vec<Suite> {
    let path = std::env::var_os("MOTET_CASES");
    read(&path.map_or_else(|| OWN.into(), PathBuf::from))
}

/// The suites of our own file.
pub(crate) fn own_suites() -> Vec<Suite> {
    read(Path::new(OWN))
}

/// The suites of a file.
pub(crate) fn read(path: &Path) -> Vec<Suite> {
    let place = path.display().to_string();
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{place}: {error}"));
    let file: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{place}: {error}"));
    let file = Fact::new(&file, place);
    file.get("suites").items().iter().map(suite).collect()
}

fn suite(fact: &Fact<'_>) -> Suite {
    let case = |case: &Fact<'_>| Case {
        name: case.get("name").text().to_owned(),
        facts: case.value.clone(),
    };
    Suite {
        name: fact.get("suite").text().to_owned(),
        cases: fact.get("cases").items().iter().map(case).collect(),
    }
}

impl<'a> Fact<'a> {
    pub(crate) fn new(value: &'a Value, place: impl Into<String>) -> Self {
        let place = place.into();
        Self { value, place }
    }

    /// A field that must be there.
    pub(crate) fn get(&self, field: &str) -> Fact<'a> {
        self.maybe(field)
            .unwrap_or_else(|| panic!("{}: there is no field `{field}`", self.place))
    }

    /// A field, if it is there; it may be null.
    pub(crate) fn maybe(&self, field: &str) -> Option<Fact<'a>> {
        let value = self.object().get(field)?;
        Some(Fact::new(value, format!("{}.{field}", self.place)))
    }

    /// The fields, in alphabetical order.
    pub(crate) fn fields(&self) -> Vec<(&'a str, Fact<'a>)> {
        let field = |(name, value): (&'a String, &'a Value)| {
            let fact = Fact::new(value, format!("{}.{name}", self.place));
            (name.as_str(), fact)
        };
        self.object().iter().map(field).collect()
    }

    pub(crate) fn items(&self) -> Vec<Fact<'a>> {
        let items = self.value.as_array();
        let items = items.unwrap_or_else(|| self.is_no("list"));
        let item = |(i, value)| Fact::new(value, format!("{}[{i}]", self.place));
        items.iter().enumerate().map(item).collect()
    }

    /// The value as it stands.
    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }

    pub(crate) fn is_null(&self) -> bool {
        self.value.is_null()
    }

    pub(crate) fn is_text(&self) -> bool {
        self.value.is_string()
    }

    pub(crate) fn number(&self) -> usize {
        let number = self.value.as_u64();
        number.unwrap_or_else(|| self.is_no("whole number, 0 or more")) as usize
    }

    pub(crate) fn integer(&self) -> i64 {
        let integer = self.value.as_i64();
        integer.unwrap_or_else(|| self.is_no("whole number"))
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
        let tokens = self.numbers().into_iter();
        tokens.map(|token| token as TokenId).collect()
    }

    fn object(&self) -> &'a Map<String, Value> {
        self.value
            .as_object()
            .unwrap_or_else(|| self.is_no("object"))
    }

    fn is_no(&self, what: &str) -> ! {
        panic!("{} is {}; expected a {what}", self.place, self.value)
    }
}
