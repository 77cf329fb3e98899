//! Shapes at the limits of what is supported, on every instruction set, on one thread and on
//! several.

use super::*;

/// Head sizes that are not a power of two, and odd numbers of heads.
const ODD_HEADS: [(usize, usize, usize); 4] = [(5, 1, 48), (7, 7, 48), (10, 2, 80), (3, 3, 112)];

#[test]
fn unsupported_heads_are_detected() {
    let supported = |query, kv, dim| Heads { query, kv, dim }.supported();
    for (query, kv, dim) in ODD_HEADS.into_iter().chain([(1, 1, 16), (9, 3, 64)]) {
        assert!(supported(query, kv, dim), "{query}/{kv} of {dim}");
    }
    for dim in [0, 1, 8, 20, 24, 40, 72, 100] {
        assert!(!supported(2, 1, dim), "{dim}");
    }
    for (query, kv) in [(0, 1), (1, 0), (3, 2), (2, 3)] {
        assert!(!supported(query, kv, 64), "{query}/{kv}");
    }
}

#[test]
fn tails_are_empty_and_spans_a_token_long() {
    for (query, kv, dim) in ODD_HEADS {
        for window in [None, Some(1), Some(8)] {
            // On shared segments, on the span's own segments, and without segments.
            let spans: &[(&[usize], usize, usize)] =
                &[(&[0, 1], 0, 1), (&[0], 0, 1), (&[2], 0, 1), (&[], 0, 1)];
            check(attention(query, kv, dim, window), &[40, 1, 7], spans);
        }
    }
}

#[test]
fn windows_are_shorter_than_a_chunk() {
    for (query, kv, dim) in ODD_HEADS {
        for window in [1, 3, 17] {
            let spans: &[(&[usize], usize, usize)] = &[(&[0], 2, 75), (&[], 0, 90), (&[0], 0, 1)];
            check(attention(query, kv, dim, Some(window)), &[33], spans);
        }
    }
}

/// Positions as at the end of a long context, after a window or a shift has dropped most of it.
#[test]
fn last_position_of_the_context() {
    check_at_the_end::<f32>();
    check_at_the_end::<bf16>();
    check_at_the_end::<f16>();
    check_at_the_end::<Int8>();
}

fn check_at_the_end<N: CachedNumber>() {
    for (query, kv, dim) in ODD_HEADS {
        for (before, window) in [(4_060, None), (131_035, Some(29))] {
            let attention = attention(query, kv, dim, window);
            let mut case = Case::<N>::new(attention, &[30], &[(&[0], 4, 2), (&[0], 0, 1)]);
            for span in &mut case.spans {
                for part in &mut span.path {
                    part.start += before;
                }
                span.tail.start += before;
            }
            case.check();
        }
    }
}
