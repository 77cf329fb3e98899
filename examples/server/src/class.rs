//! Classes of requests, as clients and the operator name them.

use std::fmt;

use clap::ValueEnum;
use motet::request::Priority;
use serde::Deserialize;

/// A request's class; a higher one goes first, and may take the place of a lower one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Batch jobs.
    Background,
    /// Most requests.
    #[default]
    Normal,
    /// Work that goes before all other.
    Urgent,
}

impl Class {
    /// All of them, the lowest first.
    pub(crate) const ALL: [Self; 3] = [Self::Background, Self::Normal, Self::Urgent];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Background => "background",
            Self::Normal => "normal",
            Self::Urgent => "urgent",
        }
    }

    /// The class of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// The engine's name for it.
    pub(crate) fn priority(self) -> Priority {
        match self {
            Self::Background => Priority::Background,
            Self::Normal => Priority::Normal,
            Self::Urgent => Priority::Urgent,
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
