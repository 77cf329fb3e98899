//! Attention against a plain double-precision reference.

mod case;
mod extras;
mod mutants;
mod odd_shapes;
mod reference;
mod sequence_order;
mod timings;
mod turn;

use half::{bf16, f16};
use motet_model::CacheKind;
use proptest::prelude::*;

use motet_formats::simd::InstructionSet;

use self::case::{CachedNumber, Case, ORDERS};
use super::*;
use crate::cached_int8::Int8;

/// Every type of cached keys and values gives the expected output.
fn check(attention: Attention, lengths: &[usize], spans: &[(&[usize], usize, usize)]) {
    Case::<f32>::new(attention.clone(), lengths, spans).check();
    Case::<bf16>::new(attention.clone(), lengths, spans).check();
    Case::<f16>::new(attention.clone(), lengths, spans).check();
    Case::<Int8>::new(attention, lengths, spans).check();
}

fn attention(query: usize, kv: usize, dim: usize, window: Option<usize>) -> Attention {
    let inverse_frequencies = (0..dim / 2).map(|i| 0.1_f32.powf(i as f32 / 4.0)).collect();
    Attention {
        heads: Heads { query, kv, dim },
        scale: (dim as f32).sqrt().recip(),
        window,
        rotary: Rotary {
            inverse_frequencies,
            magnitude: 1.0,
        },
        cached: CacheKind::F32,
        extras: Extras::default(),
    }
}

#[test]
fn one_token_sees_itself() {
    check(attention(1, 1, 16, None), &[], &[(&[], 0, 1)]);
}

#[test]
fn every_head_size_and_ratio() {
    for dim in [48, 64, 80, 96, 128] {
        for (query, kv) in [(1, 1), (3, 1), (9, 3), (8, 2)] {
            let spans: &[(&[usize], usize, usize)] = &[(&[0], 5, 1), (&[0, 1], 0, 7)];
            check(attention(query, kv, dim, None), &[30, 21], spans);
        }
    }
}

#[test]
fn shared_prefixes_and_private_tails() {
    // A trie: segment 0 belongs to all spans, 1 and 2 to some, 3 to one.
    let spans: &[(&[usize], usize, usize)] = &[
        (&[0, 1], 3, 1),
        (&[0, 1], 90, 1),
        (&[0, 1, 3], 0, 20),
        (&[0, 2], 17, 1),
        (&[0, 2], 64, 2),
        (&[0], 1, 1),
        (&[], 9, 1),
    ];
    check(attention(6, 2, 32, None), &[130, 70, 64, 5], spans);
}

#[test]
fn windows_hide_older_tokens() {
    for window in [1, 2, 17, 64, 100, 1000] {
        let spans: &[(&[usize], usize, usize)] = &[
            (&[0, 1], 3, 1),
            (&[0, 1], 30, 40),
            (&[0, 2], 17, 1),
            (&[], 0, 33),
            // Few enough rows for the kernel of few queries, each with its own window.
            (&[3], 1, 2),
            (&[], 70, 2),
        ];
        check(attention(4, 2, 16, Some(window)), &[100, 50, 9, 200], spans);
    }
}

#[test]
fn a_part_of_a_head_may_go_unrotated() {
    let mut attention = attention(4, 2, 64, None);
    attention.rotary = Rotary {
        inverse_frequencies: vec![0.3, 0.2, 0.1],
        magnitude: 1.25,
    };
    check(attention.clone(), &[20], &[(&[0], 3, 5)]);
    attention.rotary.inverse_frequencies.clear();
    check(attention, &[20], &[(&[0], 3, 5)]);
}

#[test]
fn large_scores_do_not_overflow() {
    fn check<N: CachedNumber>() {
        let mut case = Case::<N>::new(
            attention(4, 1, 16, None),
            &[40],
            &[(&[0], 3, 20), (&[0], 0, 1)],
        );
        case.packed.iter_mut().for_each(|x| *x *= 300.0);
        for order in ORDERS {
            let (output, _) = case.run(order, InstructionSet::best(), 2);
            assert!(output.iter().all(|x| x.is_finite() && x.abs() <= 904.0));
        }
    }

    check::<f32>();
    check::<bf16>();
    check::<f16>();
    check::<Int8>();
}

/// Keys and values beyond the range of half precision are clamped to its largest numbers.
#[test]
fn values_too_large_for_f16_stay_finite() {
    for &set in InstructionSet::available() {
        for rows in [1, 40] {
            let mut case = Case::<f16>::new(attention(2, 1, 16, None), &[40], &[(&[0], 3, rows)]);
            case.packed.iter_mut().for_each(|x| *x *= 1e6);
            for order in ORDERS {
                let (output, tails) = case.run(order, set, 2);
                assert!(output.iter().all(|x| x.is_finite()), "{set:?}, {order:?}");
                let largest = tails[0].values.iter().map(|x| x.to_f32().abs());
                assert_eq!(largest.fold(0.0, f32::max), 65_504.0);
            }
        }
    }
}

#[test]
fn nan_propagates() {
    fn check<N: CachedNumber>() {
        for rows in [1, 40] {
            let mut case = Case::<N>::new(attention(2, 1, 16, None), &[40], &[(&[0], 3, rows)]);
            let mut key = [0.5; 16];
            key[5] = f32::NAN;
            let key = N::row_of(&key);
            case.segments[0].keys[..key.len()].copy_from_slice(&key);
            for order in ORDERS {
                let (output, _) = case.run(order, InstructionSet::best(), 2);
                let all = output.iter().all(|x| x.is_nan());
                assert!(all, "{:?}, {rows} rows, {order:?}", N::KIND);
            }
        }
    }

    check::<f32>();
    check::<bf16>();
    check::<f16>();
    check::<Int8>();
}

#[test]
#[should_panic(expected = "left == right")]
fn lengths_are_checked() {
    let mut case = Case::<f32>::new(attention(2, 1, 16, None), &[40], &[(&[0], 3, 2)]);
    case.packed.pop();
    case.run(Order::PerStep, InstructionSet::best(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn any_step_equals_the_reference(
        (query, kv) in prop_oneof![Just((3, 1)), Just((4, 2)), Just((2, 2))],
        dim in prop_oneof![Just(16_usize), Just(48)],
        window in proptest::option::of(1_usize..150),
        lengths in proptest::collection::vec(1_usize..100, 4),
        spans in proptest::collection::vec((0_usize..5, 0_usize..90, 1_usize..24), 1..6),
    ) {
        // Paths of a trie: 0; 0-1; 0-1-2; 3.
        let paths: [&[usize]; 5] = [&[], &[0], &[0, 1], &[0, 1, 2], &[3]];
        let spans: Vec<_> =
            spans.iter().map(|&(path, tokens, rows)| (paths[path], tokens, rows)).collect();
        check(attention(query, kv, dim, window), &lengths, &spans);
    }
}
