//! The additions of families to plain attention: each alone, and together.

use half::{bf16, f16};
use proptest::prelude::*;

use motet_formats::simd::InstructionSet;

use super::super::*;
use super::case::{CachedNumber, Case, ORDERS};
use super::{attention, check};
use crate::cached_int8::Int8;

pub(super) const PER_HEAD: QkNorm = QkNorm::PerHead { epsilon: 1e-2 };
pub(super) const WHOLE_ROW: QkNorm = QkNorm::WholeRow { epsilon: 1e-2 };

/// Everything together, with numbers that matter in the tests' steps.
pub(super) const ALL: Extras = Extras {
    qk_norm: PER_HEAD,
    clip: Some(1.1),
    position_scale: Some(PositionScale {
        beta: 0.4,
        original_tokens: 7,
    }),
    softcap: Some(2.5),
    sinks: true,
    trailing_columns: 20,
};

/// Each option alone.
pub(super) fn alone() -> [Extras; 7] {
    let none = Extras::default();
    [
        Extras {
            qk_norm: PER_HEAD,
            ..none
        },
        Extras {
            qk_norm: WHOLE_ROW,
            ..none
        },
        Extras {
            clip: ALL.clip,
            ..none
        },
        Extras {
            position_scale: ALL.position_scale,
            ..none
        },
        Extras {
            softcap: ALL.softcap,
            ..none
        },
        Extras {
            sinks: true,
            ..none
        },
        Extras {
            trailing_columns: ALL.trailing_columns,
            ..none
        },
    ]
}

/// Any of the options.
pub(super) fn any_extras() -> impl Strategy<Value = Extras> {
    let norms = prop_oneof![Just(QkNorm::None), Just(PER_HEAD), Just(WHOLE_ROW)];
    let clips = proptest::option::of(0.3_f32..3.0);
    let scales = proptest::option::of((0.05_f32..0.5, 1_usize..100));
    let caps = proptest::option::of(prop_oneof![0.5_f32..5.0, Just(50.0)]);
    let trailing = prop_oneof![Just(0_usize), 1_usize..40];
    let all = (norms, clips, scales, caps, any::<bool>(), trailing);
    all.prop_map(
        |(qk_norm, clip, scale, softcap, sinks, trailing_columns)| Extras {
            qk_norm,
            clip,
            position_scale: scale.map(|(beta, original_tokens)| PositionScale {
                beta,
                original_tokens,
            }),
            softcap,
            sinks,
            trailing_columns,
        },
    )
}

fn with(attention: Attention, extras: Extras) -> Attention {
    Attention {
        extras,
        ..attention
    }
}

#[test]
fn options_alone_equal_the_reference() {
    // One row, several, and so many that both inner kernels run; shared and private segments.
    let spans: &[(&[usize], usize, usize)] = &[
        (&[0, 1], 3, 1),
        (&[0, 1], 0, 1),
        (&[0, 2], 5, 2),
        (&[0], 1, 37),
        (&[], 0, 9),
    ];
    for extras in alone() {
        for (heads, window) in [((6, 2), None), ((3, 3), Some(40)), ((4, 1), Some(1))] {
            let attention = attention(heads.0, heads.1, 32, window);
            check(with(attention, extras), &[90, 21, 64], spans);
        }
    }
}

#[test]
fn options_together_equal_the_reference() {
    let spans: &[(&[usize], usize, usize)] = &[(&[0], 5, 1), (&[0, 1], 0, 7), (&[], 3, 33)];
    let whole_row = Extras {
        qk_norm: WHOLE_ROW,
        ..ALL
    };
    for extras in [ALL, whole_row] {
        for dim in [16, 48, 64, 80, 96, 128, 256] {
            let attention = attention(4, 2, dim, Some(50));
            check(with(attention, extras), &[30, 21], spans);
        }
        check(with(attention(5, 1, 112, None), extras), &[30, 21], spans);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_step_with_any_options_equals_the_reference(
        extras in any_extras(),
        (query, kv) in prop_oneof![Just((3, 1)), Just((4, 2)), Just((2, 2))],
        dim in prop_oneof![Just(16_usize), Just(48)],
        window in proptest::option::of(1_usize..150),
        lengths in proptest::collection::vec(1_usize..100, 4),
        spans in proptest::collection::vec((0_usize..5, 0_usize..90, 1_usize..24), 1..6),
    ) {
        let paths: [&[usize]; 5] = [&[], &[0], &[0, 1], &[0, 1, 2], &[3]];
        let spans: Vec<_> =
            spans.iter().map(|&(path, tokens, rows)| (paths[path], tokens, rows)).collect();
        check(with(attention(query, kv, dim, window), extras), &lengths, &spans);
    }
}

/// With equal scores the weights follow by counting, without a reference.
#[test]
fn a_sink_counts_once_in_each_row() {
    let sinks = Extras {
        sinks: true,
        ..Extras::default()
    };
    for (lengths, rows) in [(&[700, 500][..], 1), (&[700, 500], 40), (&[3, 2], 1)] {
        let attention = with(attention(2, 1, 16, None), sinks);
        let spans: &[(&[usize], usize, usize)] = &[(&[0, 1], 7, rows), (&[0, 1], 2, 1)];
        let mut case = Case::<f32>::new(attention, lengths, spans);
        case.packed.fill(0.0);
        for of in case.segments.iter_mut().chain(&mut case.tails) {
            of.keys.fill(0.0);
            of.values.fill(1.0);
        }
        for row in case.packed.chunks_exact_mut(4 * 16) {
            row[3 * 16..].fill(1.0);
        }
        // As heavy as 100 keys, and as none.
        case.sinks = vec![100.0_f32.ln(), -1e4];
        let before: usize = lengths.iter().sum();
        let keys = (0..rows).map(|row| before + 8 + row).chain([before + 3]);
        let keys: Vec<usize> = keys.collect();
        for &set in InstructionSet::available() {
            for (order, threads) in ORDERS
                .into_iter()
                .flat_map(|order| [(order, 1), (order, 5)])
            {
                let (output, _) = case.run(order, set, threads);
                for (row, keys) in output.chunks_exact(2 * 16).zip(&keys) {
                    let keys = *keys as f32;
                    let (first, second) = row.split_at(16);
                    let near = |x: &f32, expected: f32| (x - expected).abs() < 1e-5;
                    assert!(first.iter().all(|x| near(x, keys / (keys + 100.0))));
                    assert!(second.iter().all(|x| near(x, 1.0)));
                }
            }
        }
    }
}

/// A sink that no score comes near takes everything.
#[test]
fn a_huge_sink_leaves_nothing() {
    for sink in [1e3, f32::MAX, f32::INFINITY] {
        let extras = Extras {
            sinks: true,
            ..Extras::default()
        };
        let attention = with(attention(2, 1, 16, None), extras);
        let spans: &[(&[usize], usize, usize)] = &[(&[0], 7, 40), (&[0], 2, 1)];
        let mut case = Case::<f32>::new(attention, &[600], spans);
        case.sinks = vec![sink; 2];
        for order in ORDERS {
            let (output, _) = case.run(order, InstructionSet::best(), 3);
            assert!(output.iter().all(|x| *x == 0.0), "{sink}, {order:?}");
        }
    }
}

/// Options that change nothing give the bits of plain attention.
#[test]
fn neutral_options_keep_every_bit() {
    fn check<N: CachedNumber>() {
        let spans: &[(&[usize], usize, usize)] = &[(&[0], 7, 40), (&[0], 2, 1)];
        let new = |extras| {
            let attention = with(attention(3, 1, 48, Some(500)), extras);
            Case::<N>::new(attention, &[600], spans)
        };
        let plain = new(Extras::default());
        let mut neutral = new(Extras {
            clip: Some(f32::INFINITY),
            position_scale: Some(PositionScale {
                beta: 0.0,
                original_tokens: 1,
            }),
            sinks: true,
            trailing_columns: 5,
            ..Extras::default()
        });
        neutral.sinks.fill(f32::NEG_INFINITY);
        let width = plain.attention.row_width();
        let rows = plain.packed.chunks_exact(width);
        for (to, from) in neutral.packed.chunks_exact_mut(width + 5).zip(rows) {
            to[..width].copy_from_slice(from);
        }
        for &set in InstructionSet::available() {
            for order in ORDERS {
                let (expected, expected_tails) = plain.run(order, set, 2);
                let (output, tails) = neutral.run(order, set, 2);
                assert!(output == expected && tails == expected_tails, "{set:?}");
            }
        }
    }

    check::<f32>();
    check::<bf16>();
    check::<f16>();
    check::<Int8>();
}

/// A head whose every number is zero has no direction: epsilon keeps it finite.
#[test]
fn a_head_of_zeros_stays_finite() {
    for qk_norm in [PER_HEAD, WHOLE_ROW] {
        let attention = with(attention(2, 1, 16, None), Extras { qk_norm, ..ALL });
        let mut case = Case::<f32>::new(attention, &[40], &[(&[0], 3, 5)]);
        case.packed.fill(0.0);
        case.check();
    }
}

fn small(extras: Extras) -> Case<f32> {
    let attention = with(attention(2, 1, 16, None), extras);
    Case::new(attention, &[40], &[(&[0], 3, 2)])
}

#[test]
#[should_panic(expected = "weights of the queries' norm")]
fn missing_weights_are_noticed() {
    let mut case = small(ALL);
    case.key_norm.clear();
    case.run(Order::PerStep, InstructionSet::best(), 1);
}

#[test]
#[should_panic(expected = "weights of the queries' norm")]
fn unexpected_sinks_are_noticed() {
    let mut case = small(Extras::default());
    case.sinks = vec![0.0; 2];
    case.run(Order::PerStep, InstructionSet::best(), 1);
}

#[test]
#[should_panic(expected = "softcap: Some(0.0)")]
fn a_softcap_of_zero_is_noticed() {
    let softcap = Some(0.0);
    let case = small(Extras { softcap, ..ALL });
    case.run(Order::PerStep, InstructionSet::best(), 1);
}
