//! Shapes of operations, and columns of fused projections.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use motet_kernels::spans;

use crate::device::bridge::View;

/// Neighbouring columns of a fused projection, which are read where they lie.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// `[rows, all columns]`.
    pub array: &'a Array,
    /// The first of the columns.
    pub first: usize,
}

impl<'a> Columns<'a> {
    /// All columns.
    #[must_use]
    pub fn all(array: &'a Array) -> Self {
        Self { array, first: 0 }
    }
}

/// Checks the arrays of an operation; its name goes into the errors.
pub(super) struct Check(pub(super) &'static str);

impl Check {
    pub(super) fn wrong(&self, what: &str) -> Exception {
        Exception::custom(format!("{}: {what}", self.0))
    }

    pub(super) fn reject<T>(
        &self,
        what: &str,
        found: &Array,
        expected: &str,
    ) -> Result<T, Exception> {
        let found = found.shape();
        Err(self.wrong(&format!("{what} is {found:?}, expected {expected}")))
    }

    pub(super) fn vector(&self, what: &str, found: &Array, length: usize) -> Result<(), Exception> {
        if found.shape() == [length as i32] {
            return Ok(());
        }
        self.reject(what, found, &format!("[{length}]"))
    }

    pub(super) fn columns(
        &self,
        what: &str,
        found: Columns<'_>,
        rows: usize,
        width: usize,
    ) -> Result<(), Exception> {
        let to = found.first.saturating_add(width);
        match found.array.shape() {
            &[count, columns] if count as usize == rows && to <= columns as usize => Ok(()),
            _ => {
                let expected = format!("{rows} rows with columns {}..{to}", found.first);
                self.reject(what, found.array, &expected)
            }
        }
    }
}

/// The columns as the kernels read them.
pub(super) fn columns<'a>(view: &'a View<'_>, first: usize) -> spans::Columns<'a> {
    spans::Columns {
        rows: &view.data,
        stride: view.shape[1],
        first,
    }
}
