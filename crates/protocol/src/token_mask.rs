//! Masks of the tokens that may come next.

use std::fmt;

use crate::TokenId;

/// A set of tokens, one bit each. Tokens beyond its length are not in the set, such as those
/// that pad a model's vocabulary.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask {
    /// Token `t` is bit `t % 32` of word `t / 32`; bits beyond the length are 0.
    words: Vec<u32>,
    len: usize,
}

const BITS: usize = u32::BITS as usize;

impl TokenMask {
    /// Creates the mask of these tokens among `0..len`.
    ///
    /// # Panics
    ///
    /// If a token is not below `len`.
    #[must_use]
    pub fn of(tokens: &[TokenId], len: usize) -> Self {
        let mut words = vec![0; len.div_ceil(BITS)];
        for &token in tokens {
            assert!((token as usize) < len, "token {token} of {len}");
            words[token as usize / BITS] |= 1 << (token as usize % BITS);
        }
        Self { words, len }
    }

    /// Creates the mask of these bits; bits from `len` on are ignored.
    pub fn from_words(mut words: Vec<u32>, len: usize) -> Self {
        words.resize(len.div_ceil(BITS), 0);
        if let Some(last) = words.last_mut()
            && !len.is_multiple_of(BITS)
        {
            *last &= (1 << (len % BITS)) - 1;
        }
        Self { words, len }
    }

    /// Returns the length of the mask: all its tokens are below.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.len
    }

    /// Whether the token may come next.
    #[must_use]
    pub fn allows(&self, token: TokenId) -> bool {
        let word = self.words.get(token as usize / BITS).copied().unwrap_or(0);
        word >> (token as usize % BITS) & 1 == 1
    }

    /// Returns the number of tokens that may come next.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Returns the tokens that may come next, ascending.
    pub fn tokens(&self) -> impl Iterator<Item = TokenId> {
        let words = self.words.iter().enumerate();
        words.flat_map(|(index, word)| {
            let bits = (0..BITS).filter(move |bit| word >> bit & 1 == 1);
            bits.map(move |bit| (index * BITS + bit) as TokenId)
        })
    }

    /// Returns the bits, for a device: token `t` is bit `t % 32` of word `t / 32`.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Sets the logit of every other token to minus infinity.
    pub fn apply(&self, logits: &mut [f32]) {
        let mut words = self.words.iter();
        for run in logits.chunks_mut(BITS) {
            match words.next().copied().unwrap_or(0) {
                u32::MAX => {}
                0 => run.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in run.iter_mut().enumerate() {
                        let allowed = word >> bit & 1 == 1;
                        *logit = if allowed { *logit } else { f32::NEG_INFINITY };
                    }
                }
            }
        }
    }
}

impl fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenMask({} of {})", self.count(), self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_tokens_cannot_be_sampled() {
        for len in [1, 31, 32, 33, 70] {
            let tokens: Vec<TokenId> = (0..len as TokenId).filter(|t| t % 3 == 0).collect();
            let mask = TokenMask::of(&tokens, len);
            assert_eq!(mask.tokens().collect::<Vec<_>>(), tokens);
            assert_eq!(mask.count(), tokens.len());
            let mut logits = vec![1.0; len + 40];
            mask.apply(&mut logits);
            for (token, logit) in logits.iter().enumerate() {
                let allowed = mask.allows(token as TokenId);
                assert_eq!(allowed, token < len && token % 3 == 0);
                assert_eq!(*logit, if allowed { 1.0 } else { f32::NEG_INFINITY });
            }
        }
    }

    #[test]
    fn bits_past_the_vocabulary_are_ignored() {
        let mask = TokenMask::from_words(vec![u32::MAX, u32::MAX], 33);
        assert_eq!(
            (mask.count(), mask.allows(32), mask.allows(33)),
            (33, true, false)
        );
        assert_eq!(mask, TokenMask::of(&(0..33).collect::<Vec<_>>(), 33));
    }
}
