//! The cost of rewriting the schemas of one request, before anything else judges it.

/// Most bytes of JSON that rewriting adds to the schemas. In memory they take up to 40 times as much.
const COPIED_BYTES_MAX: usize = 512 << 10;
/// Most names that rewriting compares, and steps of references that it follows: a second's work at most.
const STEPS_MAX: usize = 1_000_000;

/// The cost of one request's schemas so far.
#[derive(Debug, Default)]
pub(in crate::grammar) struct Budget {
    copied_bytes: usize,
    steps: usize,
}

impl Budget {
    /// Charges for JSON that is copied. The error says that it is too much.
    pub(super) fn copy(&mut self, bytes: usize) -> Result<(), String> {
        self.copied_bytes = self.copied_bytes.saturating_add(bytes);
        if self.copied_bytes <= COPIED_BYTES_MAX {
            return Ok(());
        }
        Err(format!(
            "its `propertyNames`, sets of members and references outside of `$defs` are too large \
             when they are written out; expected at most {COPIED_BYTES_MAX} bytes"
        ))
    }

    /// Charges for names that are compared, or steps of references. The error says that they are
    /// too many.
    pub(super) fn step(&mut self, steps: usize) -> Result<(), String> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps <= STEPS_MAX {
            return Ok(());
        }
        Err(format!(
            "its references, and the names that they lead to, are too many; expected at most \
             {STEPS_MAX} steps"
        ))
    }
}
