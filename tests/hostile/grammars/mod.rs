//! Grammars that are made to be as expensive as possible: schemas, regular expressions and Lark texts.
//!
//! The module needs only the standard library, so that tests and the bench can include it by its path. No source
//! is longer than a request's grammar may be, so that none is rejected for its length alone.

mod expressions;
mod larks;
mod schemas;

/// One grammar of the corpus.
#[derive(Clone, Debug)]
pub(crate) struct HostileGrammar {
    /// Its name in reports; unique in the corpus.
    pub(crate) name: &'static str,
    /// `json_schema`, `regex` or `lark`.
    pub(crate) kind: &'static str,
    /// Its text.
    pub(crate) source: String,
}

/// The whole corpus, in a fixed order.
pub(crate) fn grammars() -> Vec<HostileGrammar> {
    [
        schemas::schemas(),
        expressions::expressions(),
        larks::larks(),
    ]
    .concat()
}

/// Texts made of `count` parts.
fn joined(count: usize, between: &str, part: impl Fn(usize) -> String) -> String {
    let parts: Vec<String> = (0..count).map(part).collect();
    parts.join(between)
}

/// Three bytes that are unique for each number below 17,576, so that the patterns are disjoint.
fn letters(number: usize) -> String {
    let letter = |of: usize| char::from(b'a' + (of % 26) as u8);
    [letter(number / 676), letter(number / 26), letter(number)]
        .iter()
        .collect()
}
