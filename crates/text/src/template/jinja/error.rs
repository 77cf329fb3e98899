//! Errors of a template.

/// Why a template does not compile, or could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::template) struct Error {
    what: String,
    line: Option<usize>,
    /// Whether the text is longer than was asked for.
    pub(in crate::template) is_too_long: bool,
    /// Whether the template itself rejects the conversation, with `raise_exception`.
    pub(in crate::template) is_raised: bool,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            Some(line) => write!(f, "{} (line {line})", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl Error {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            line: None,
            is_too_long: false,
            is_raised: false,
        }
    }

    pub(super) fn at(mut self, line: usize) -> Self {
        self.line.get_or_insert(line);
        self
    }

    pub(super) fn raised(what: &str) -> Self {
        Self {
            is_raised: true,
            ..Self::new(what)
        }
    }

    pub(super) fn output_too_long(_bytes_max: usize) -> Self {
        Self {
            is_too_long: true,
            ..Self::new("the text is too long")
        }
    }

    pub(super) fn too_much_memory(bytes_max: usize) -> Self {
        Self::new(format!(
            "its values take more than {bytes_max} bytes; expected at most as many"
        ))
    }
}
