//! Prompts as token ids, so that no side's tokenizer matters.

/// Tokens of a phrase that a prompt repeats. Models continue such a phrase with little doubt, so
/// that two implementations sample the same tokens despite rounding.
const PHRASE_TOKENS: usize = 16;

/// A prompt of `tokens` tokens, different for each seed.
pub(crate) fn prompt(seed: u64, tokens: usize, vocab_size: usize) -> Vec<u32> {
    // The first ids are special tokens and single bytes, the last ones rare words.
    let (first, count) = (vocab_size / 50, vocab_size / 2);
    let mut state = seed;
    let phrase: Vec<u32> = (0..PHRASE_TOKENS)
        .map(|_| first as u32 + (split_mix(&mut state) % count as u64) as u32)
        .collect();
    phrase.into_iter().cycle().take(tokens).collect()
}

/// `count` prompts, all different.
pub(crate) fn prompts(count: usize, tokens: usize, vocab_size: usize) -> Vec<Vec<u32>> {
    (1..=count as u64)
        .map(|seed| prompt(seed, tokens, vocab_size))
        .collect()
}

/// SplitMix64 (Steele et al. 2014).
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_differ_from_their_first_tokens_on_and_stay_in_the_vocabulary() {
        let prompts = prompts(16, 40, 49_152);
        let mut firsts: Vec<u32> = prompts.iter().map(|prompt| prompt[0]).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), 16);
        for prompt in prompts {
            assert_eq!(prompt.len(), 40);
            assert_eq!(
                prompt[..PHRASE_TOKENS],
                prompt[PHRASE_TOKENS..2 * PHRASE_TOKENS]
            );
            assert!(prompt.iter().all(|token| (900..49_152).contains(token)));
        }
    }
}
