//! The reference with a mistake: the comparison notices each.

use super::super::*;
use super::attention;
use super::case::Case;
use super::extras::{ALL, PER_HEAD, WHOLE_ROW, alone};
use super::reference::Mistake;

fn case(extras: Extras) -> Case<f32> {
    let attention = Attention {
        extras,
        ..attention(4, 2, 16, Some(20))
    };
    let spans: &[(&[usize], usize, usize)] = &[(&[0], 5, 1), (&[0], 2, 13)];
    Case::new(attention, &[30], spans)
}

#[test]
fn missing_options_are_noticed() {
    for extras in alone() {
        let case = case(extras);
        let mut reference = case.reference();
        assert_eq!(case.compare(&reference), Ok(()), "{extras:?}");
        reference.attention.extras = Extras::default();
        assert!(case.compare(&reference).is_err(), "{extras:?}");
    }
    for missing in [
        Extras {
            qk_norm: QkNorm::None,
            ..ALL
        },
        Extras { clip: None, ..ALL },
        Extras {
            position_scale: None,
            ..ALL
        },
        Extras {
            softcap: None,
            ..ALL
        },
        Extras {
            sinks: false,
            ..ALL
        },
    ] {
        let case = case(ALL);
        let mut reference = case.reference();
        reference.attention.extras = missing;
        assert!(case.compare(&reference).is_err(), "{missing:?}");
    }
}

#[test]
fn mistakes_are_noticed() {
    use Mistake::*;
    let of_norms = [
        NormAfterRotation,
        NormWithoutWeights,
        NormWithoutEpsilon,
        NormOfKeysWithTheWeightsOfQueries,
        ClipBeforeNorm,
        ClipWithoutValues,
    ];
    let of_scores = [
        SinkTwice,
        SinkScaled,
        SinkOfTheKvHead,
        SinkAsExponentOfTwo,
        CapOfUnscaledScores,
        CapAsExponentOfTwo,
        CapAfterMask,
        PositionScaleOfTheNextPosition,
        PositionScaleNotInSteps,
        PositionScaleOfKeysToo,
        RowsWithoutTrailingColumns,
    ];
    for (qk_norm, mistakes) in [
        (PER_HEAD, &of_norms[..]),
        (WHOLE_ROW, &of_norms),
        (PER_HEAD, &of_scores),
    ] {
        let case = case(Extras { qk_norm, ..ALL });
        assert_eq!(case.compare(&case.reference()), Ok(()));
        for mistake in mistakes {
            let mut reference = case.reference();
            reference.mistake = Some(*mistake);
            let found = case.compare(&reference);
            assert!(found.is_err(), "{qk_norm:?}: {mistake:?} is not noticed");
        }
    }
}

/// The whole row and each head differ.
#[test]
fn norms_of_another_width_are_noticed() {
    let mut case = case(Extras {
        qk_norm: PER_HEAD,
        ..Extras::default()
    });
    case.query_norm.fill(1.0);
    case.key_norm.fill(1.0);
    let mut wide = self::case(Extras {
        qk_norm: WHOLE_ROW,
        ..Extras::default()
    });
    wide.query_norm.fill(1.0);
    wide.key_norm.fill(1.0);
    assert_eq!(case.compare(&case.reference()), Ok(()));
    assert!(case.compare(&wide.reference()).is_err());
}
