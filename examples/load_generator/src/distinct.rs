//! The smallest number of tokens that had to be computed.

use motet::TokenId;

/// Token counts of many sequences, in which equal prefixes count once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Distinct {
    /// Tokens of the sequences' prefix trie.
    pub(crate) tokens: usize,
    /// Tokens that all sequences begin with.
    pub(crate) shared_start: usize,
}

/// Counts the tokens of the prefix trie of `sequences` without building it: in
/// lexical order a sequence adds what it does not share with the one before.
pub(crate) fn count(mut sequences: Vec<Vec<TokenId>>) -> Distinct {
    sequences.sort_unstable();
    let added = sequences
        .windows(2)
        .map(|pair| pair[1].len() - common(&pair[0], &pair[1]));
    match (sequences.first(), sequences.last()) {
        (Some(first), Some(last)) => Distinct {
            tokens: first.len() + added.sum::<usize>(),
            shared_start: common(first, last),
        },
        _ => Distinct::default(),
    }
}

/// Length of the longest common prefix.
fn common(one: &[TokenId], other: &[TokenId]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn prefixes_count_once() {
        let check = |sequences: &[&[TokenId]], tokens, shared_start| {
            let sequences = sequences.iter().map(|s| s.to_vec()).collect();
            let expected = Distinct {
                tokens,
                shared_start,
            };
            assert_eq!(count(sequences), expected);
        };
        check(&[], 0, 0);
        check(&[&[1, 2, 3]], 3, 3);
        check(&[&[1, 2, 3], &[1, 2, 4]], 4, 2);
        check(&[&[1, 2], &[1, 2, 3, 4], &[1, 2]], 4, 2);
        check(&[&[1], &[2], &[]], 2, 0);
    }

    proptest! {
        #[test]
        fn agrees_with_the_set_of_all_prefixes(
            sequences in prop::collection::vec(prop::collection::vec(0_u32..3, 0..6), 0..9)
        ) {
            let prefixes: BTreeSet<&[TokenId]> = sequences
                .iter()
                .flat_map(|sequence| (1..=sequence.len()).map(|end| &sequence[..end]))
                .collect();
            prop_assert_eq!(count(sequences.clone()).tokens, prefixes.len());
        }
    }
}
