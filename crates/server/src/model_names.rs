//! The names of the one model.

use crate::error::ApiError;

/// Names that requests may give the model. Answers carry the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelNames {
    first: String,
    others: Vec<String>,
    /// Whether any other name is the model's as well.
    any: bool,
}

impl ModelNames {
    /// The names in that order, each once, or `default` if there is none. With `any`, requests may
    /// give the model any other name, too.
    #[must_use]
    pub fn new(names: &[String], any: bool, default: impl FnOnce() -> String) -> Self {
        let mut names = names.iter();
        let first = names.next().cloned().unwrap_or_else(default);
        let mut others: Vec<String> = Vec::new();
        for name in names {
            if *name != first && !others.contains(name) {
                others.push(name.clone());
            }
        }
        Self { first, others, any }
    }

    /// The name that answers carry.
    #[must_use]
    pub fn first(&self) -> &str {
        &self.first
    }

    /// Every listed name, the first one first.
    pub(crate) fn listed(&self) -> impl Iterator<Item = &str> {
        let others = self.others.iter().map(String::as_str);
        std::iter::once(self.first.as_str()).chain(others)
    }

    /// Whether requests may give the model names that are not listed.
    pub(crate) fn is_any(&self) -> bool {
        self.any
    }

    /// Checks the model that a request names; none is the only one.
    pub(crate) fn check(&self, named: Option<&str>) -> Result<(), ApiError> {
        match named {
            Some(named) if !self.any && !self.listed().any(|known| known == named) => {
                Err(ApiError::model_not_found(named))
            }
            _ => Ok(()),
        }
    }
}

impl From<&str> for ModelNames {
    fn from(name: &str) -> Self {
        Self::new(&[], false, || name.to_owned())
    }
}
