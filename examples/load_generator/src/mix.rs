//! Kinds of users, and the number of users of each kind.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// The kind of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Asks the concierge, with the conversation so far.
    Chatty,
    /// Brings a document of its own, and asks about it.
    Long,
    /// Asks one question after another, each without the conversation before it.
    Batch,
    /// One request of a trace.
    Trace,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chatty => "chatty",
            Self::Long => "long",
            Self::Batch => "batch",
            Self::Trace => "trace",
        }
    }
}

/// The number of users of each kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mix(Vec<(Kind, usize)>);

impl Mix {
    /// All users are of one kind.
    pub(crate) fn only(kind: Kind, users: usize) -> Self {
        Self(vec![(kind, users)])
    }

    /// The kind of each user.
    pub(crate) fn kinds(&self) -> Vec<Kind> {
        let parts = self.0.iter();
        parts
            .flat_map(|(kind, users)| std::iter::repeat_n(*kind, *users))
            .collect()
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected for example chatty=8,long=4,batch=4".to_owned();
        let mut parts: Vec<(Kind, usize)> = Vec::new();
        for part in text.split(',') {
            let (name, users) = part.split_once('=').ok_or_else(expected)?;
            let kinds = [Kind::Chatty, Kind::Long, Kind::Batch].into_iter();
            let kind = kinds.into_iter().find(|kind| kind.name() == name.trim());
            let kind =
                kind.ok_or_else(|| format!("there is no kind of user `{name}`; {}", expected()))?;
            if parts.iter().any(|(named, _)| *named == kind) {
                return Err(format!("`{name}` is named twice"));
            }
            parts.push((kind, users.trim().parse().map_err(|_| expected())?));
        }
        if parts.iter().any(|(_, users)| *users > 0) {
            Ok(Self(parts))
        } else {
            Err("expected at least one user".to_owned())
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (kind, users)) in self.0.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{}={users}", kind.name())?;
        }
        Ok(())
    }
}

impl Serialize for Mix {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_read() {
        let mix: Mix = "chatty=2, batch=1".parse().expect("a mix");
        assert_eq!(mix.kinds(), [Kind::Chatty, Kind::Chatty, Kind::Batch]);
        assert_eq!(mix.to_string(), "chatty=2,batch=1");
        for text in [
            "",
            "chatty",
            "chatty=many",
            "chatty=1,chatty=2",
            "loud=3",
            "long=0",
        ] {
            assert!(text.parse::<Mix>().is_err(), "{text}");
        }
    }
}
