//! Grammars, on an engine that was compiled without feature `grammar`.

/// The grammar of a request: none exists without feature `grammar`.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {}
