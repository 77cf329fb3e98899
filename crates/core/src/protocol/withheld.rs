//! Words that may quote a request: errors carry them, and show them to nobody who does not
//! ask.

use std::fmt;

/// Words that may quote a request's text or tokens. Errors end up in logs: neither `Debug`
/// nor `Display` says more than how long they are.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Withheld(String);

impl Withheld {
    /// The words, for whoever may know what the request says: its caller.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Withheld {
    fn from(words: String) -> Self {
        Self(words)
    }
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({} bytes withheld)", self.0.len())
    }
}

impl fmt::Debug for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Withheld({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_shown_only_on_request() {
        let withheld = Withheld::from("a secret".to_owned());
        assert_eq!(withheld.to_string(), "(8 bytes withheld)");
        assert_eq!(format!("{withheld:?}"), "Withheld(8 bytes)");
        assert_eq!(withheld.reveal(), "a secret");
    }
}
