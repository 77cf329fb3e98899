//! Error text that may quote a request, hidden from logs.

use std::fmt;

/// Text that may quote a request's prompt or output. Errors end up in logs, so `Debug` and
/// `Display` show only its length.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Withheld(String);

impl Withheld {
    /// Returns the text. Show it only to the caller of the request.
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
