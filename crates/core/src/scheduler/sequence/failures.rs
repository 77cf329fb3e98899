//! The failed steps of a sequence.

/// The failed steps since its last token, and how they affect its next ones.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct Failures {
    /// Failed steps that it was part of.
    steps: u32,
    /// Whether it was part of failed steps and must run alone until it has a new token.
    suspect: bool,
    /// Whether its caller has received tokens and waits until its lost state is computed again.
    resumes: bool,
}

impl Failures {
    pub(super) fn restored(resumes: bool) -> Self {
        Self {
            resumes,
            ..Self::default()
        }
    }

    /// Counts a failed step. After `alone_after` in a row the sequence runs alone.
    pub(super) fn blame(&mut self, alone_after: u32) {
        self.steps += 1;
        self.suspect |= self.steps >= alone_after;
    }

    /// Records that its state is lost, and whether its caller has received tokens.
    pub(super) fn lose_state(&mut self, has_output: bool) {
        self.resumes = has_output;
    }

    pub(in crate::scheduler) fn steps(&self) -> u32 {
        self.steps
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.suspect
    }

    pub(super) fn resumes(&self) -> bool {
        self.resumes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_runs_alone_after_failures_in_a_row() {
        let mut failures = Failures::default();
        failures.blame(2);
        assert!(!failures.is_suspect());
        failures.blame(2);
        assert!(failures.is_suspect());
        // A later loss that asks for more does not clear it.
        failures.blame(u32::MAX);
        assert!(failures.is_suspect());
    }
}
