//! The oracle's arithmetic: one mixing function and one fold of entries.

use motet_protocol::TokenId;

/// Odd and 5 modulo 8, so that its powers modulo 2^64 repeat as late as can be.
pub(super) const BASE: u64 = 0x9E37_79B9_7F4A_7C15;
const BASE_INVERSE: u64 = inverse(BASE);
/// Change of an entry from one position to the next. Odd, so that entries at different distances
/// never change alike.
const TURN: u64 = 0xD6E8_FEB8_6659_FD93;

/// A hash of `words`, in order: SplitMix64's finaliser (Steele et al. 2014) over
/// each word in turn.
#[inline]
pub(super) fn mix(words: &[u64]) -> u64 {
    words.iter().fold(0, |hash, word| {
        let mut z = hash.wrapping_add(BASE) ^ word;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}

/// The input of the lowest layer: the token and its position.
#[inline]
pub(super) fn embed(seed: u64, token: TokenId, position: u64) -> u64 {
    mix(&[seed, u64::from(token), position])
}

/// A layer's entry for one token, which is also the input of the next layer: a hash of the
/// layer's input and of the past that the layer sees.
///
/// Entries therefore depend on the whole prefix, as keys and values above a transformer's first
/// layer do: equal tokens at equal positions have other entries under another prefix.
#[inline]
pub(super) fn entry(layer: usize, input: u64, past: u64) -> u64 {
    mix(&[layer as u64, input, past])
}

/// An entry moved by `tokens` tokens towards the start. Moves add up, as those of rotary
/// embeddings do.
#[inline]
pub(super) fn turned_back(entry: u64, tokens: usize) -> u64 {
    entry.wrapping_sub(TURN.wrapping_mul(tokens as u64))
}

/// Numbers in a row's hidden state.
pub(super) const HIDDEN_SIZE: usize = 12;
const HIDDEN: u64 = 0x6869_6464;

/// A row's hidden state: whole numbers from -2048 to 2047. Their sums are exact in any order.
pub(super) fn hidden_state(row: u64) -> [f64; HIDDEN_SIZE] {
    std::array::from_fn(|index| {
        let bits = mix(&[row, HIDDEN, index as u64]) >> 52;
        bits as f64 - 2048.0
    })
}

/// The link of all tokens up to and including `token`, computed from the link before it.
#[inline]
pub(super) fn link(before: u64, token: TokenId) -> u64 {
    mix(&[before, u64::from(token)])
}

/// The link of a token that moved `tokens` tokens towards the start, computed from its old link
/// and the new link before it.
pub(super) fn moved_link(before: u64, link: u64, tokens: usize) -> u64 {
    mix(&[before, link, tokens as u64])
}

/// Entries in order, as one number: a polynomial rolling hash (Karp and Rabin
/// 1987) modulo 2^64. Folds of neighbouring ranges join in constant time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fold {
    value: u64,
    /// `BASE` to the power of the number of entries.
    scale: u64,
}

impl Fold {
    pub(super) const EMPTY: Fold = Fold { value: 0, scale: 1 };

    /// The fold of `entries`, oldest first.
    pub(super) fn of<'a>(entries: impl IntoIterator<Item = &'a u64>) -> Fold {
        entries
            .into_iter()
            .fold(Fold::EMPTY, |fold, entry| fold.push(*entry))
    }

    pub(super) fn value(self) -> u64 {
        self.value
    }

    #[inline]
    pub(super) fn push(self, entry: u64) -> Fold {
        self.then(Fold {
            value: entry,
            scale: BASE,
        })
    }

    /// Undoes the first push, which pushed `oldest`.
    #[inline]
    pub(super) fn without_oldest(self, oldest: u64) -> Fold {
        let scale = self.scale.wrapping_mul(BASE_INVERSE);
        Fold {
            value: self.value.wrapping_sub(oldest.wrapping_mul(scale)),
            scale,
        }
    }

    /// The fold of this range and the one after it.
    #[inline]
    pub(super) fn then(self, newer: Fold) -> Fold {
        Fold {
            value: self
                .value
                .wrapping_mul(newer.scale)
                .wrapping_add(newer.value),
            scale: self.scale.wrapping_mul(newer.scale),
        }
    }
}

/// The inverse of an odd number modulo 2^64, by Newton's iteration. Each round doubles the number
/// of correct bits; `odd` itself has three.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut round = 0;
    while round < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_join_at_any_offset_and_drop_their_oldest() {
        let entries: Vec<u64> = (0..40).map(|i| mix(&[i])).collect();
        let whole = Fold::of(&entries);
        for at in 0..=entries.len() {
            let (older, newer) = entries.split_at(at);
            assert_eq!(Fold::of(older).then(Fold::of(newer)), whole, "cut at {at}");
            let rest = older.iter().fold(whole, |fold, e| fold.without_oldest(*e));
            assert_eq!(rest, Fold::of(newer), "without the oldest {at}");
        }
    }

    #[test]
    fn turns_add_up() {
        let entry = mix(&[1]);
        let twice = turned_back(turned_back(entry, 2), 3);
        assert_eq!(twice, turned_back(entry, 5));
        for tokens in 1..100 {
            assert_ne!(turned_back(entry, tokens), entry, "{tokens} tokens");
        }
    }

    #[test]
    fn folds_depend_on_the_order() {
        let entries: Vec<u64> = (0..8).map(|i| mix(&[i])).collect();
        let whole = Fold::of(&entries);
        for i in 0..entries.len() {
            for j in 0..i {
                let mut swapped = entries.clone();
                swapped.swap(i, j);
                assert_ne!(Fold::of(&swapped), whole, "{i} and {j} swapped");
            }
        }
    }
}
