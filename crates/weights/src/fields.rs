//! Reading of named fields, with errors that name them, for JSON objects and GGUF metadata
//! alike.

use std::path::Path;

use super::ModelError;
use motet_protocol::TokenId;

/// Named, typed fields of a file. An absent (or `null`) field is `None`; a field of another
/// type is a [`ModelError::Field`].
pub(super) trait Fields {
    /// The file that contains them.
    fn path(&self) -> &Path;

    /// The field's name in errors.
    fn spelled(&self, name: &str) -> String {
        name.to_owned()
    }

    /// A whole number, 0 or more.
    fn integer(&self, name: &str) -> Result<Option<u64>, ModelError>;

    /// Any number.
    fn number(&self, name: &str) -> Result<Option<f64>, ModelError>;

    /// A text.
    fn text(&self, name: &str) -> Result<Option<&str>, ModelError>;

    /// True or false.
    fn flag(&self, name: &str) -> Result<Option<bool>, ModelError>;

    /// The error of a field with an invalid value.
    fn wrong(
        &self,
        name: &str,
        what: impl Into<String>,
        expected: impl Into<String>,
    ) -> ModelError {
        ModelError::Field {
            path: self.path().to_owned(),
            field: self.spelled(name),
            what: what.into(),
            expected: expected.into(),
        }
    }

    /// `found`, or the error for a missing field.
    fn required<T>(
        &self,
        name: &str,
        found: Option<T>,
        expected: &'static str,
    ) -> Result<T, ModelError> {
        found.ok_or_else(|| self.wrong(name, "is missing", expected))
    }

    /// A whole number from 1 to `max`.
    fn count(&self, name: &str, max: usize) -> Result<Option<usize>, ModelError> {
        let Some(found) = self.integer(name)? else {
            return Ok(None);
        };
        match usize::try_from(found) {
            Ok(count) if (1..=max).contains(&count) => Ok(Some(count)),
            _ => Err(self.wrong(
                name,
                format!("found {found}"),
                format!("a whole number from 1 to {max}"),
            )),
        }
    }

    /// Like [`count`](Self::count), for a required field.
    fn count_required(&self, name: &str, max: usize) -> Result<usize, ModelError> {
        let found = self.count(name, max)?;
        self.required(name, found, "a whole number, 1 or more")
    }

    /// A finite number above 0.
    fn positive(&self, name: &str) -> Result<Option<f32>, ModelError> {
        let Some(found) = self.number(name)? else {
            return Ok(None);
        };
        let number = found as f32;
        if number.is_finite() && number > 0.0 {
            Ok(Some(number))
        } else {
            Err(self.wrong(name, format!("found {found}"), "a finite number above 0"))
        }
    }

    /// Like [`positive`](Self::positive), for a required field.
    fn positive_required(&self, name: &str) -> Result<f32, ModelError> {
        let found = self.positive(name)?;
        self.required(name, found, "a finite number above 0")
    }

    /// A token's id. Not checked against the vocabulary.
    fn token(&self, name: &str) -> Result<Option<TokenId>, ModelError> {
        let Some(found) = self.integer(name)? else {
            return Ok(None);
        };
        let token = TokenId::try_from(found)
            .map_err(|_| self.wrong(name, format!("found {found}"), "a token id"))?;
        Ok(Some(token))
    }
}
