//! The policy of a step, as one pure function.
//!
//! Continuous batching with chunked prefill (Orca, Yu et al., OSDI'22; Sarathi,
//! Agrawal et al., OSDI'24): every decoding sequence gets its one token first,
//! then prompts take what is left of the step's token budget, first come first
//! served.

/// What the policy knows of one running sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Tokens that are known but not evaluated; at least 1.
    pub pending: usize,
    /// Whether it has produced a token: then `pending` is 1.
    pub decoding: bool,
    /// A prefill chunk may not go beyond this many tokens, because somebody waits
    /// for the state there; at least 1.
    pub stop_after: Option<usize>,
    /// Whether it was part of a step that failed, and must prove itself alone.
    pub suspect: bool,
}

/// One sequence's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the candidate.
    pub candidate: usize,
    /// Tokens it evaluates.
    pub tokens: usize,
}

/// Chooses what runs in the next step, of candidates in order of arrival, within
/// `step_tokens_max` tokens.
///
/// * A suspect runs alone, before all others.
/// * Every decoding candidate gets its token before any prompt gets one, as far as
///   the budget goes.
/// * Prompts take the rest in order; the last one may be cut.
#[must_use]
pub fn plan(candidates: &[Candidate], step_tokens_max: usize) -> Vec<Share> {
    if let Some(candidate) = candidates.iter().position(|c| c.suspect) {
        let tokens = chunk(&candidates[candidate], step_tokens_max);
        return vec![Share { candidate, tokens }];
    }
    let mut left = step_tokens_max;
    let mut shares = Vec::with_capacity(candidates.len().min(step_tokens_max));
    for wants_decode in [true, false] {
        for (candidate, c) in candidates.iter().enumerate() {
            if c.decoding == wants_decode && left > 0 {
                let tokens = chunk(c, left);
                left -= tokens;
                shares.push(Share { candidate, tokens });
            }
        }
    }
    shares
}

fn chunk(candidate: &Candidate, left: usize) -> usize {
    candidate
        .pending
        .min(left)
        .min(candidate.stop_after.unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DECODE: Candidate = Candidate {
        pending: 1,
        decoding: true,
        stop_after: None,
        suspect: false,
    };

    fn prompt(pending: usize) -> Candidate {
        Candidate {
            pending,
            decoding: false,
            ..DECODE
        }
    }

    fn check(candidates: &[Candidate], budget: usize, expected: &[(usize, usize)]) {
        let shares: Vec<_> = plan(candidates, budget)
            .iter()
            .map(|share| (share.candidate, share.tokens))
            .collect();
        assert_eq!(shares, expected);
    }

    #[test]
    fn decodes_come_first_and_prompts_share_the_rest_in_order() {
        check(&[], 8, &[]);
        check(&[DECODE, DECODE], 8, &[(0, 1), (1, 1)]);
        check(&[prompt(20), DECODE], 8, &[(1, 1), (0, 7)]);
        check(
            &[prompt(3), DECODE, prompt(9)],
            8,
            &[(1, 1), (0, 3), (2, 4)],
        );
        check(&[prompt(8), prompt(8)], 8, &[(0, 8)]);
    }

    #[test]
    fn chunks_end_where_somebody_waits() {
        let waited = Candidate {
            stop_after: Some(2),
            ..prompt(5)
        };
        check(&[waited, prompt(9)], 8, &[(0, 2), (1, 6)]);
    }

    #[test]
    fn a_suspect_runs_alone() {
        let suspect = Candidate {
            suspect: true,
            ..prompt(20)
        };
        check(&[DECODE, suspect, suspect], 8, &[(1, 8)]);
    }

    fn candidate() -> impl Strategy<Value = Candidate> {
        let stop_after = proptest::option::of(1usize..20);
        (
            1usize..40,
            any::<bool>(),
            stop_after,
            proptest::bool::weighted(0.02),
        )
            .prop_map(|(pending, decoding, stop_after, suspect)| Candidate {
                pending: if decoding { 1 } else { pending },
                decoding,
                stop_after: stop_after.filter(|_| !decoding),
                suspect,
            })
    }

    proptest! {
        #[test]
        fn budget_order_and_work_are_kept(
            candidates in proptest::collection::vec(candidate(), 0..60),
            budget in 1usize..80,
        ) {
            let shares = plan(&candidates, budget);
            let spent: usize = shares.iter().map(|s| s.tokens).sum();
            prop_assert!(spent <= budget);
            let mut seen = std::collections::HashSet::new();
            for share in &shares {
                let c = &candidates[share.candidate];
                prop_assert!(seen.insert(share.candidate), "scheduled once");
                prop_assert!(share.tokens >= 1 && share.tokens <= c.pending);
                prop_assert!(c.stop_after.is_none_or(|at| share.tokens <= at));
            }
            if candidates.iter().any(|c| c.suspect) {
                prop_assert_eq!(shares.len(), 1);
                return Ok(());
            }
            let decodes = candidates.iter().filter(|c| c.decoding).count();
            let served = shares.iter().filter(|s| candidates[s.candidate].decoding).count();
            prop_assert_eq!(served, decodes.min(budget), "decode comes first");
            // Work-conserving: budget is left only when nobody could use it.
            let wanted: usize = candidates.iter().map(|c| chunk(c, usize::MAX)).sum();
            prop_assert_eq!(spent, wanted.min(budget));
        }
    }
}
