//! Priority classes in the API and in settings.

use std::fmt;

use clap::ValueEnum;
use motet::request::Priority;
use schemars::JsonSchema;
use serde::Deserialize;

/// A request's priority class. A higher class starts first, and may preempt a lower one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Batch jobs.
    Background,
    /// Most requests.
    #[default]
    Normal,
    /// Work with precedence over all other.
    Urgent,
}

impl Class {
    /// All classes, the lowest first.
    pub(crate) const ALL: [Self; 3] = [Self::Background, Self::Normal, Self::Urgent];

    /// The class's name.
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

    /// The engine's priority for it.
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
