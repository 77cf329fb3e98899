//! Reads what stands between a call's marks.

use super::named::NamedReader;
use super::object::ObjectReader;
use super::reader::{Calls, Progress};
use super::xml::XmlReader;

/// Reads calls after an opening mark, and the closing mark. Models write forms that their
/// template does not teach, so the first character decides on the form.
#[derive(Clone, Debug)]
pub(in crate::answer) struct MarkedReader {
    close: Option<String>,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    Before,
    Single(Single),
    List {
        item: Item,
    },
    Xml(XmlReader),
    After,
    /// This many bytes of the closing mark are there.
    Closing(usize),
}

/// A form that may stand in a list.
#[derive(Clone, Debug)]
enum Single {
    Object(ObjectReader),
    Named(NamedReader),
}

/// The position in a list.
#[derive(Clone, Debug)]
enum Item {
    /// An item, or the end of an empty list.
    First,
    /// An item must follow.
    Next,
    Reading(Box<Single>),
    After,
}

impl Single {
    fn begin(c: char) -> Option<Self> {
        match c {
            '{' => Some(Self::Object(ObjectReader::new())),
            c if c.is_ascii_alphabetic() || c == '_' => Some(Self::Named(NamedReader::new())),
            _ => None,
        }
    }

    fn read(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        match self {
            Self::Object(reader) => reader.read(c, calls),
            Self::Named(reader) => reader.read(c, calls),
        }
    }

    fn is_whole(&self) -> bool {
        match self {
            Self::Object(reader) => reader.is_whole(),
            Self::Named(_) => false,
        }
    }
}

impl MarkedReader {
    pub(in crate::answer) fn new(close: Option<&str>) -> Self {
        Self {
            close: close.map(str::to_owned),
            stage: Stage::Before,
        }
    }

    /// Whether the last call has ended, and only its own end or that of its marks is missing.
    pub(in crate::answer) fn is_whole(&self) -> bool {
        match &self.stage {
            Stage::After | Stage::Closing(_) => true,
            Stage::Single(single) => single.is_whole(),
            Stage::List { item } => match item {
                Item::After => true,
                Item::Reading(single) => single.is_whole(),
                Item::First | Item::Next => false,
            },
            Stage::Before | Stage::Xml(_) => false,
        }
    }

    /// Whether a value is read that is not passed on before it is whole.
    pub(in crate::answer) fn keeps_value(&self) -> bool {
        matches!(&self.stage, Stage::Xml(reader) if reader.keeps_value())
    }

    pub(in crate::answer) fn read(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        match &mut self.stage {
            Stage::Before | Stage::After if c.is_whitespace() => Progress::More,
            Stage::Before => self.begin(c, calls),
            Stage::Single(single) => {
                let progress = single.read(c, calls);
                self.after_body(progress)
            }
            Stage::List { item } => {
                let progress = item.read(c, calls);
                self.after_body(progress)
            }
            Stage::Xml(reader) => {
                let progress = reader.read(c, calls);
                if reader.is_closed() {
                    return progress;
                }
                self.after_body(progress)
            }
            Stage::After if c == '{' => self.begin(c, calls),
            Stage::After => {
                self.stage = Stage::Closing(0);
                self.close(c)
            }
            Stage::Closing(_) => self.close(c),
        }
    }

    /// Reads the end of the answer, where a call has not ended.
    pub(in crate::answer) fn finish(&mut self, calls: &mut Calls<'_>) {
        if let Stage::Xml(reader) = &mut self.stage {
            reader.finish(calls);
        }
    }

    fn begin(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        self.stage = match c {
            '[' => Stage::List { item: Item::First },
            '<' => Stage::Xml(XmlReader::new(self.close.clone())),
            c => match Single::begin(c) {
                Some(mut single) => {
                    single.read(c, calls);
                    Stage::Single(single)
                }
                None => return Progress::Failed,
            },
        };
        Progress::More
    }

    fn after_body(&mut self, progress: Progress) -> Progress {
        if progress != Progress::Done {
            return progress;
        }
        self.stage = Stage::After;
        if self.close.is_some() {
            Progress::More
        } else {
            Progress::Done
        }
    }

    fn close(&mut self, c: char) -> Progress {
        let (Stage::Closing(matched), Some(close)) = (&mut self.stage, &self.close) else {
            return Progress::Failed;
        };
        match close[*matched..].strip_prefix(c) {
            Some("") => Progress::Done,
            Some(rest) => {
                *matched = close.len() - rest.len();
                Progress::More
            }
            None => Progress::Failed,
        }
    }
}

impl Item {
    /// The list is done at its closing bracket.
    fn read(&mut self, c: char, calls: &mut Calls<'_>) -> Progress {
        match self {
            Self::Reading(single) => {
                let progress = single.read(c, calls);
                if progress == Progress::Done {
                    *self = Self::After;
                    return Progress::More;
                }
                return progress;
            }
            _ if c.is_whitespace() => {}
            Self::First | Self::After if c == ']' => return Progress::Done,
            Self::After if c == ',' => *self = Self::Next,
            Self::First | Self::Next => match Single::begin(c) {
                Some(mut single) => {
                    single.read(c, calls);
                    *self = Self::Reading(Box::new(single));
                }
                None => return Progress::Failed,
            },
            Self::After => return Progress::Failed,
        }
        Progress::More
    }
}
