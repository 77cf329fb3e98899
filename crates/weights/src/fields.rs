//! Reading named fields with errors that name them: the same for JSON objects
//! and GGUF metadata.

use std::path::Path;

use super::ModelError;
use motet_core::TokenId;

/// Named, typed fields of a file. A field that is absent (or `null`) is `None`;
/// one of another type is a [`ModelError::Field`].
pub(super) trait Fields {
    /// The file they are in.
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

    /// The error of a field that makes no sense.
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

    /// `found`, or the error of a field that is missing.
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

    /// [`count`](Self::count) of a field that must be there.
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

    /// [`positive`](Self::positive) of a field that must be there.
    fn positive_required(&self, name: &str) -> Result<f32, ModelError> {
        let found = self.positive(name)?;
        self.required(name, found, "a finite number above 0")
    }

    /// A token's id; whether the vocabulary has it is another question.
    fn token(&self, name: &str) -> Result<Option<TokenId>, ModelError> {
        let Some(found) = self.integer(name)? else {
            return Ok(None);
        };
        let token = TokenId::try_from(found)
            .map_err(|_| self.wrong(name, format!("found {found}"), "a token id"))?;
        Ok(Some(token))
    }
}
