//! Typed reading of free-form JSON, where a body's value is kept as it is.
//!
//! Templates get tools and calls unchanged, so these are not parsed into structs. Their known
//! members are checked here instead, and errors name them by their path in the body.

use std::borrow::Cow;

use serde_json::Value;

use crate::error::ApiError;

/// A value of the body and its path. `null` is as good as not there.
#[derive(Clone, Debug)]
pub(crate) struct Typed<'a> {
    value: Option<&'a Value>,
    path: Cow<'a, str>,
}

impl<'a> Typed<'a> {
    /// The value at this path of the body.
    pub(crate) fn new(value: &'a Value, path: impl Into<Cow<'a, str>>) -> Self {
        Self {
            value: Some(value).filter(|value| !value.is_null()),
            path: path.into(),
        }
    }

    /// The value's path.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// A member of an object.
    ///
    /// # Errors
    ///
    /// A value that is no object is an error. A member that is missing is not.
    pub(crate) fn member(&self, name: &str) -> Result<Typed<'a>, ApiError> {
        let members = self.value.and_then(Value::as_object);
        let members = members.ok_or_else(|| self.unexpected("an object"))?;
        Ok(Self {
            value: members.get(name).filter(|value| !value.is_null()),
            path: format!("{}.{name}", self.path).into(),
        })
    }

    /// The elements of a list.
    ///
    /// # Errors
    ///
    /// A value that is no list is an error.
    pub(crate) fn elements(&self) -> Result<Vec<Typed<'a>>, ApiError> {
        let elements = self.value.and_then(Value::as_array);
        let elements = elements.ok_or_else(|| self.unexpected("a list"))?;
        let typed = elements.iter().enumerate();
        let typed =
            typed.map(|(index, element)| Typed::new(element, format!("{}[{index}]", self.path)));
        Ok(typed.collect())
    }

    /// A text.
    pub(crate) fn text(&self) -> Result<&'a str, ApiError> {
        let text = self.optional_text()?;
        text.ok_or_else(|| self.unexpected("a string"))
    }

    /// A text, if there is one.
    pub(crate) fn optional_text(&self) -> Result<Option<&'a str>, ApiError> {
        self.optional("a string", Value::as_str)
    }

    /// A boolean, if there is one.
    pub(crate) fn optional_bool(&self) -> Result<Option<bool>, ApiError> {
        self.optional("true or false", Value::as_bool)
    }

    /// An object, if there is one.
    pub(crate) fn optional_object(&self) -> Result<Option<&'a Value>, ApiError> {
        self.optional("an object", |value| {
            Some(value).filter(|value| value.is_object())
        })
    }

    /// The value, if it has the kind that `read` reads.
    fn optional<T>(
        &self,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.value else {
            return Ok(None);
        };
        let read = read(value);
        read.map(Some).ok_or_else(|| self.unexpected(expected))
    }

    /// The error of a value of another kind.
    pub(crate) fn unexpected(&self, expected: &str) -> ApiError {
        let path = &self.path;
        let message = match self.value {
            None => format!("`{path}` is missing; expected {expected}"),
            Some(Value::String(text)) => format!("`{path}` is {text:?}; expected {expected}"),
            Some(value) => format!("`{path}` is {}; expected {expected}", kind(value)),
        };
        ApiError::field(path.as_ref(), message)
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_name_the_path_and_the_kind() {
        let value = json!({"a": {"b": 1, "n": null}, "t": "x"});
        let typed = Typed::new(&value, "tools[2]");
        let message = |error: ApiError| {
            let body = serde_json::to_value(error.body()).expect("JSON");
            body["error"]["message"].as_str().expect("text").to_owned()
        };
        let a = typed.member("a").expect("an object");
        let b = a.member("b").expect("an object");
        let error = b.text().expect_err("no text");
        assert_eq!(
            message(error),
            "`tools[2].a.b` is a number; expected a string"
        );
        let missing = a.member("n").expect("an object");
        assert_eq!(missing.optional_text().ok(), Some(None));
        let error = missing.text().expect_err("no text");
        assert_eq!(
            message(error),
            "`tools[2].a.n` is missing; expected a string"
        );
        let text = typed.member("t").expect("an object");
        assert_eq!(text.text().ok(), Some("x"));
        let error = text.member("x").expect_err("no object");
        assert_eq!(message(error), "`tools[2].t` is \"x\"; expected an object");
    }
}
