//! Preconditions on cached state: the checks that every model makes before it changes anything.

use std::ops::Range;

use motet_protocol::{LayerKind, ModelError, ModelSpec, SegmentSize};

/// Checks that the first `at` of a tail's `tokens` tokens can be sealed.
///
/// # Errors
///
/// [`ModelError::Cut`] unless `0 < at <= tokens`.
pub fn seal(tokens: usize, at: usize) -> Result<(), ModelError> {
    let why = if at == 0 {
        "a segment holds at least one token"
    } else if at > tokens {
        "it does not hold as many"
    } else {
        return Ok(());
    };
    Err(ModelError::Cut { tokens, at, why })
}

/// Checks that a segment can be made of `part` of a tail of `tokens` tokens that ends.
///
/// # Errors
///
/// [`ModelError::Cut`] unless `part` is a range within the tail and not empty.
pub fn seal_in_place(tokens: usize, part: &Range<usize>) -> Result<(), ModelError> {
    seal(tokens, part.end)?;
    if part.start < part.end {
        return Ok(());
    }
    Err(ModelError::Cut {
        tokens,
        at: part.start,
        why: "a segment holds at least one token",
    })
}

/// Checks that a segment of `tokens` tokens can be split after `at`.
///
/// # Errors
///
/// [`ModelError::Cut`] unless `0 < at < tokens`.
pub fn split(tokens: usize, at: usize) -> Result<(), ModelError> {
    if 0 < at && at < tokens {
        return Ok(());
    }
    let why = "both parts hold at least one token";
    Err(ModelError::Cut { tokens, at, why })
}

/// Checks that two segments of these sizes can be merged.
///
/// # Errors
///
/// [`ModelError::Merge`] unless [`ModelSpec::can_merge`].
pub fn merge(spec: &ModelSpec, upper: SegmentSize, lower: SegmentSize) -> Result<(), ModelError> {
    if spec.can_merge(upper, lower) {
        return Ok(());
    }
    Err(ModelError::Merge {
        upper: upper.tokens,
        lower: lower.tokens,
        why: "the upper one holds too little of a window",
    })
}

/// Checks that a segment of `segment_size`, which packs into `expected` bytes, can be unpacked
/// from `found` bytes.
///
/// # Errors
///
/// [`ModelError::Import`] unless the numbers are equal and the segment size is possible for a
/// context.
pub fn unpack(segment_size: SegmentSize, expected: usize, found: usize) -> Result<(), ModelError> {
    let SegmentSize { tokens, state_lag } = segment_size;
    let why = if tokens == 0 {
        "a segment holds at least one token".to_owned()
    } else if tokens.saturating_add(state_lag) > UNPACKED_TOKENS_MAX {
        format!(
            "{tokens} tokens, {state_lag} before the end; expected at most {UNPACKED_TOKENS_MAX}"
        )
    } else if found != expected {
        format!("{found} bytes; expected {expected} of {tokens} tokens, {state_lag} before the end")
    } else {
        return Ok(());
    };
    Err(ModelError::Import(why))
}

/// More than any context holds, and less than array sizes are counted with.
const UNPACKED_TOKENS_MAX: usize = i32::MAX as usize;

/// Checks that tokens can be removed from a slot, as [`Model::remove`] says. `path` has the
/// number of tokens of each segment.
///
/// # Errors
///
/// [`ModelError::Remove`] names the rule that forbids it.
///
/// [`Model::remove`]: super::Model::remove
pub fn remove(
    spec: &ModelSpec,
    path: &[usize],
    retained: usize,
    tail: usize,
    removed: &Range<usize>,
) -> Result<(), ModelError> {
    let tokens = path.iter().sum::<usize>() + tail;
    let retained_tokens = path
        .get(..retained)
        .map(|retained| retained.iter().sum::<usize>());
    let full = |kind| kind == LayerKind::Full;
    let why = if removed.start > removed.end || removed.end > tokens {
        "it holds no such range"
    } else if retained_tokens.is_none_or(|retained| retained > removed.start) {
        "the retained part of the path must end before them"
    } else if !spec.layer_groups.iter().all(|group| full(group.kind)) {
        "only full attention's state is kept of every token"
    } else if removed.end < tokens && !removed.is_empty() && !spec.can_shift {
        "the model cannot shift what follows"
    } else {
        return Ok(());
    };
    Err(ModelError::Remove {
        removed: removed.clone(),
        tokens,
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(kinds: &[LayerKind], can_shift: bool) -> ModelSpec {
        ModelSpec {
            can_shift,
            ..ModelSpec::with_layer_kinds(kinds)
        }
    }

    #[test]
    fn cuts_are_inside_and_seals_may_take_the_whole_tail() {
        for (at, sealed, cut) in [
            (0, false, false),
            (1, true, true),
            (4, true, true),
            (5, true, false),
            (6, false, false),
        ] {
            assert_eq!(seal(5, at).is_ok(), sealed, "seal {at} of 5");
            assert_eq!(split(5, at).is_ok(), cut, "split after {at} of 5");
            assert_eq!(
                seal_in_place(5, &(0..at)).is_ok(),
                sealed,
                "retire {at} of 5"
            );
            assert!(
                seal_in_place(5, &(at..at)).is_err(),
                "seal none of 5 in place"
            );
        }
    }

    #[test]
    fn only_bytes_of_the_expected_length_are_unpacked() {
        let check = |tokens, state_lag, found, expected: &str| {
            let result = unpack(SegmentSize { tokens, state_lag }, 24, found);
            let found = result
                .err()
                .map_or(String::new(), |error| error.to_string());
            assert!(found.ends_with(expected), "{tokens}, {state_lag}: {found}");
            assert_eq!(
                found.is_empty(),
                expected.is_empty(),
                "{tokens}, {state_lag}"
            );
        };
        check(3, 0, 24, "");
        check(3, 9, 24, "");
        for found in [0, 23, 25] {
            let expected = format!("{found} bytes; expected 24 of 3 tokens, 9 before the end");
            check(3, 9, found, &expected);
        }
        check(0, 0, 24, "a segment holds at least one token");
        let at_most = "expected at most 2147483647";
        check(usize::MAX, 0, 24, at_most);
        check(1, usize::MAX, 24, at_most);
    }

    #[test]
    fn invalid_removal_is_rejected_by_name() {
        // A path of three and four tokens, and a tail of five.
        let check = |spec: &ModelSpec, retained, removed: Range<usize>, expected: &str| {
            let found = remove(spec, &[3, 4], retained, 5, &removed);
            let found = found.err().map_or(String::new(), |error| error.to_string());
            assert!(
                found.ends_with(expected),
                "{retained}, {removed:?}: {found}"
            );
            assert_eq!(
                found.is_empty(),
                expected.is_empty(),
                "{retained}, {removed:?}"
            );
        };
        let full = &spec(&[LayerKind::Full], true);
        for (retained, removed) in [(0, 0..12), (1, 3..4), (2, 7..12), (0, 5..5), (2, 12..12)] {
            check(full, retained, removed, "");
        }
        check(full, 0, 3..13, "of 12: it holds no such range");
        check(
            full,
            0,
            Range { start: 4, end: 3 },
            "it holds no such range",
        );
        let early = "the retained part of the path must end before them";
        check(full, 1, 2..4, early);
        check(full, 2, 6..6, early);
        check(full, 3, 7..8, early);
        let unshiftable = &spec(&[LayerKind::Full], false);
        check(unshiftable, 0, 3..12, "");
        check(unshiftable, 0, 3..3, "");
        check(unshiftable, 0, 3..11, "the model cannot shift what follows");
        let not_full_attention = "only full attention's state is kept of every token";
        for kind in [LayerKind::Recurrent, LayerKind::Window { tokens: 9 }] {
            let mixed = &spec(&[LayerKind::Full, kind], true);
            check(mixed, 2, 11..12, not_full_attention);
        }
    }
}
