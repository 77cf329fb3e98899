//! Decides whether a sequence's masks are too costly for steps to wait for.

/// Work that a token's mask may take, in the units of
/// [`Matcher::take_work`](super::Matcher::take_work): about microseconds. Masks of ordinary
/// schemas take a tenth of it on average.
const ALLOWANCE: u64 = 500;
/// Work beyond the allowance that a sequence may do before it is slow: some large masks, such as
/// a lexer's first.
const BURST: u64 = 40_000;
/// Debt beyond this is forgotten: a sequence whose masks become cheap again soon counts as fast.
const DEBT_MAX: u64 = 60_000;

/// The account of one sequence. It depends on the sequence's own tokens only, and on no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pace {
    debt: u64,
    is_slow: bool,
}

impl Pace {
    /// Records the work of one mask.
    pub(super) fn record_work(&mut self, work: u64) {
        self.debt = (self.debt + work).saturating_sub(ALLOWANCE).min(DEBT_MAX);
        let debt_max = if self.is_slow { 0 } else { BURST };
        self.is_slow = self.debt > debt_max;
    }

    /// Whether no step waits for its masks.
    pub(super) fn is_slow(self) -> bool {
        self.is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costly_grammar_is_slow_until_its_debt_is_paid() {
        let mut pace = Pace::default();
        let mut masks = |work, count| {
            (0..count).for_each(|_| pace.record_work(work));
            pace.is_slow()
        };
        assert!(!masks(ALLOWANCE, 10_000), "it may go on like that for ever");
        assert!(!masks(14_000, 2), "some are large");
        assert!(masks(14_000, 2), "and not all");
        assert!(masks(0, 50), "it is in debt");
        assert!(!masks(0, 100), "it has paid");
        assert!(masks(14_000, 1000));
        assert!(
            !masks(0, (DEBT_MAX / ALLOWANCE) as usize),
            "old debt is forgotten"
        );
    }
}
