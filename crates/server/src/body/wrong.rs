//! Errors of fields that are of another type than expected, in the words of JSON.

use crate::error::ApiError;

/// The error of the field at this path, from the words of `serde`.
pub(super) fn field_error(path: &str, what: &str) -> ApiError {
    let within = |name: &str| match path {
        "." => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    if let Some(name) = quoted(what, "missing field `") {
        let field = within(name);
        let message = format!("`{field}` is missing");
        return ApiError::field(field, message);
    }
    if let Some(name) = quoted(what, "duplicate field `") {
        let field = within(name);
        let message = format!("`{field}` is there twice");
        return ApiError::field(field, message);
    }
    let message = match found_and_expected(what) {
        Some((found, expected)) => format!("`{path}` is {found}; expected {expected}"),
        None if what.starts_with("number out of range") => {
            format!("`{path}` is a number that is too large; expected one of 64 bits")
        }
        None => format!("`{path}`: {what}"),
    };
    ApiError::field(path, message)
}

/// The text between a beginning and the next quote.
fn quoted<'a>(what: &'a str, beginning: &str) -> Option<&'a str> {
    what.strip_prefix(beginning)?.split('`').next()
}

fn found_and_expected(what: &str) -> Option<(String, &str)> {
    let (found, expected) = what.rsplit_once(", expected ")?;
    let found = match found.strip_prefix("unknown variant `") {
        Some(word) => format!("{:?}", word.strip_suffix('`')?),
        None => {
            let kinds = ["invalid type: ", "invalid value: "];
            found_in_words(kinds.iter().find_map(|kind| found.strip_prefix(kind))?)
        }
    };
    Some((found, expected_in_words(expected)))
}

/// A value as `serde` names it, in the words of JSON.
fn found_in_words(found: &str) -> String {
    let plain = [
        ("sequence", "a list"),
        ("map", "an object"),
        ("unit value", "null"),
    ];
    if let Some((_, words)) = plain.iter().find(|(kind, _)| *kind == found) {
        return (*words).to_owned();
    }
    for kind in ["boolean ", "integer ", "floating point "] {
        if let Some(value) = found.strip_prefix(kind) {
            return value.trim_matches('`').to_owned();
        }
    }
    found.strip_prefix("string ").unwrap_or(found).to_owned()
}

/// A type as `serde` names it, in the words of JSON.
fn expected_in_words(expected: &str) -> &str {
    match expected {
        "f32" | "f64" => "a number",
        "usize" | "u64" | "u32" => "a whole number of 0 or more",
        "i64" | "i32" => "a whole number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        kind if kind.starts_with("struct ") => "an object",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_in_the_words_of_json() {
        let check = |path: &str, what: &str, expected: (&str, &str)| {
            let error = field_error(path, what);
            let found = (error.param().expect("a field"), error.message());
            assert_eq!(found, expected);
        };
        let number = (
            "n",
            "`n` is \"3, expected f32\"; expected a whole number of 0 or more",
        );
        check(
            "n",
            "invalid type: string \"3, expected f32\", expected usize",
            number,
        );
        let list = (
            "stop",
            "`stop` is an object; expected a string or a list of at most 16",
        );
        check(
            "stop",
            "invalid type: map, expected a string or a list of at most 16",
            list,
        );
        let large = ("seed", "`seed` is 1e30; expected a whole number");
        check(
            "seed",
            "invalid type: floating point `1e30`, expected i64",
            large,
        );
        let word = ("a.type", "`a.type` is \"x\"; expected one of `b`, `c`");
        check(
            "a.type",
            "unknown variant `x`, expected one of `b`, `c`",
            word,
        );
        let missing = ("messages[0].role", "`messages[0].role` is missing");
        check("messages[0]", "missing field `role`", missing);
        check(".", "missing field `role`", ("role", "`role` is missing"));
        check("a", "duplicate field `b`", ("a.b", "`a.b` is there twice"));
        check(
            "a",
            "its elements differ",
            ("a", "`a`: its elements differ"),
        );
    }
}
