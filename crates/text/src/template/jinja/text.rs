//! Strings that know which of their characters callers wrote, and the memory that they take.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::error::Error;

/// Bytes of a text.
pub(super) type Span = Range<usize>;

/// Bytes that a text takes beside its characters.
const TEXT_BYTES: usize = 128;

/// The bytes that the values of one rendering take, without what callers gave.
#[derive(Debug)]
pub(super) struct Budget {
    used: Cell<usize>,
    max: usize,
    exceeded: fn(usize) -> Error,
}

/// Bytes taken from a budget until they are dropped.
#[derive(Debug)]
pub(super) struct Charge {
    bytes: usize,
    budget: Rc<Budget>,
}

impl Budget {
    pub(super) fn new(max: usize, exceeded: fn(usize) -> Error) -> Rc<Self> {
        let used = Cell::new(0);
        Rc::new(Self {
            used,
            max,
            exceeded,
        })
    }

    pub(super) fn take(self: &Rc<Self>, bytes: usize) -> Result<Charge, Error> {
        let mut charge = Charge {
            bytes: 0,
            budget: Rc::clone(self),
        };
        charge.grow(bytes)?;
        Ok(charge)
    }
}

impl Charge {
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Error> {
        let budget = &self.budget;
        let used = budget.used.get();
        if bytes > budget.max.saturating_sub(used) {
            return Err((budget.exceeded)(budget.max));
        }
        budget.used.set(used + bytes);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let used = &self.budget.used;
        used.set(used.get() - self.bytes);
    }
}

/// A text, and where a caller wrote it.
#[derive(Clone)]
pub(super) enum Str {
    /// A constant of the template or of this crate.
    Own(Arc<str>),
    Made(Rc<Made>),
}

pub(super) struct Made {
    text: String,
    /// In order, apart from one another.
    callers: Vec<Span>,
    /// None for a caller's own text.
    _charge: Option<Charge>,
}

impl Str {
    /// A text that a caller wrote.
    pub(super) fn of_caller(text: &str) -> Self {
        let made = Made {
            text: text.to_owned(),
            callers: std::iter::once(0..text.len()).collect(),
            _charge: None,
        };
        Self::Made(Rc::new(made))
    }

    pub(super) fn text(&self) -> &str {
        match self {
            Self::Own(text) => text,
            Self::Made(made) => &made.text,
        }
    }

    pub(super) fn callers(&self) -> &[Span] {
        match self {
            Self::Own(_) => &[],
            Self::Made(made) => &made.callers,
        }
    }

    /// The callers' parts of a range.
    fn callers_within(&self, range: Span) -> impl Iterator<Item = Span> + '_ {
        let callers = self.callers();
        let first = callers.partition_point(|span| span.end <= range.start);
        let within = callers[first..].iter();
        let within = within.take_while(move |span| span.start < range.end);
        within.map(move |span| span.start.max(range.start)..span.end.min(range.end))
    }

    /// The parts of a range, each by one writer, and whether that is a caller.
    pub(super) fn parts(&self, range: Span) -> Vec<(&str, bool)> {
        let text = self.text();
        let mut parts = Vec::new();
        let mut done = range.start;
        for span in self.callers_within(range.clone()) {
            parts.push((&text[done..span.start], false));
            parts.push((&text[span.clone()], true));
            done = span.end;
        }
        parts.push((&text[done..range.end], false));
        parts.retain(|(part, _)| !part.is_empty());
        parts
    }
}

impl From<&str> for Str {
    fn from(text: &str) -> Self {
        Self::Own(text.into())
    }
}

impl fmt::Debug for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

/// Writes a text within a budget.
#[derive(Debug)]
pub(super) struct Builder {
    text: String,
    callers: Vec<Span>,
    charge: Charge,
}

impl Builder {
    /// A builder of a value: it takes some bytes by itself.
    pub(super) fn of_value(budget: &Rc<Budget>) -> Self {
        let mut builder = Self::new(budget);
        // If these are too many, the text that follows is rejected.
        budget.used.set(budget.used.get() + TEXT_BYTES);
        builder.charge.bytes = TEXT_BYTES;
        builder
    }

    pub(super) fn new(budget: &Rc<Budget>) -> Self {
        Self {
            text: String::new(),
            callers: Vec::new(),
            charge: Charge {
                bytes: 0,
                budget: Rc::clone(budget),
            },
        }
    }

    /// Adds the template's own text.
    pub(super) fn own(&mut self, text: &str) -> Result<(), Error> {
        self.charge.grow(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Adds text of either writer.
    pub(super) fn part(&mut self, text: &str, is_caller: bool) -> Result<(), Error> {
        let start = self.text.len();
        self.own(text)?;
        if is_caller {
            self.add_caller(start..start + text.len())?;
        }
        Ok(())
    }

    pub(super) fn push(&mut self, text: &Str) -> Result<(), Error> {
        self.range(text, 0..text.text().len())
    }

    /// Adds a range of a text.
    pub(super) fn range(&mut self, text: &Str, range: Span) -> Result<(), Error> {
        let start = self.text.len();
        self.own(&text.text()[range.clone()])?;
        for span in text.callers_within(range.clone()) {
            self.add_caller(span.start - range.start + start..span.end - range.start + start)?;
        }
        Ok(())
    }

    fn add_caller(&mut self, span: Span) -> Result<(), Error> {
        match self.callers.last_mut() {
            _ if span.is_empty() => {}
            Some(last) if last.end == span.start => last.end = span.end,
            _ => {
                self.charge.grow(size_of::<Span>())?;
                self.callers.push(span);
            }
        }
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn finish(self) -> Str {
        Str::Made(Rc::new(Made {
            text: self.text,
            callers: self.callers,
            _charge: Some(self.charge),
        }))
    }

    pub(super) fn into_parts(self) -> (String, Vec<Span>) {
        (self.text, self.callers)
    }
}
