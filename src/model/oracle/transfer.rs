//! Segments as bytes: what goes to the host and to the disk.
//!
//! Little-endian words of eight bytes: magic, version, the model's shape, tokens;
//! then of each layer the entry before the range and the entries it keeps; at
//! last a checksum of all that.

use super::hash::mix;
use super::state::{LayerState, Range, entries_kept};
use crate::model::{LayerKind, ModelError};

const MAGIC: u64 = u64::from_le_bytes(*b"motetorc");
const VERSION: u64 = 1;
const WORD: usize = size_of::<u64>();

pub(super) fn encode(range: &Range, shape: u64) -> Vec<u8> {
    let mut words = vec![MAGIC, VERSION, shape, range.tokens as u64];
    for layer in &range.layers {
        words.push(layer.before);
        words.extend(&layer.entries);
    }
    words.push(mix(&words));
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// The inverse of [`encode`], for a model of these layers and this shape.
pub(super) fn decode(bytes: &[u8], layers: &[LayerKind], shape: u64) -> Result<Range, ModelError> {
    let words = checked_words(bytes)?;
    let [MAGIC, VERSION, found_shape, tokens, states @ ..] = &words[..] else {
        return Err(import(format!(
            "the header is {:x?}; expected magic, version {VERSION}, shape and tokens",
            &words[..words.len().min(4)]
        )));
    };
    if *found_shape != shape {
        return Err(import(format!(
            "exported by a model of shape {found_shape:016x}; this one's is {shape:016x}"
        )));
    }
    let tokens = usize::try_from(*tokens).unwrap_or(usize::MAX);
    let kept = |kind: &LayerKind| tokens.min(entries_kept(*kind));
    let expected = layers.iter().try_fold(0usize, |sum, kind| {
        sum.checked_add(kept(kind))?.checked_add(1)
    });
    if tokens == 0 || expected != Some(states.len()) {
        return Err(import(format!(
            "{} words of state for {tokens} tokens in {} layers",
            states.len(),
            layers.len()
        )));
    }
    let mut rest = states;
    let mut state = |kind: &LayerKind| {
        let (words, others) = rest.split_at(1 + kept(kind));
        rest = others;
        LayerState::new(words[0], words[1..].iter().copied().collect())
    };
    Ok(Range {
        tokens,
        layers: layers.iter().map(&mut state).collect(),
    })
}

/// All words but the checksum, which holds.
fn checked_words(bytes: &[u8]) -> Result<Vec<u64>, ModelError> {
    let (words, left_over) = bytes.as_chunks::<WORD>();
    let mut words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let checksum = words.pop();
    if !left_over.is_empty() || checksum != Some(mix(&words)) {
        return Err(import(format!(
            "the checksum of {} bytes does not hold",
            bytes.len()
        )));
    }
    Ok(words)
}

fn import(what: String) -> ModelError {
    ModelError::Import(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const LAYERS: [LayerKind; 3] = [
        LayerKind::Full,
        LayerKind::Window { tokens: 2 },
        LayerKind::Recurrent,
    ];
    const SHAPE: u64 = 77;

    fn exported(tokens: usize) -> Vec<u8> {
        let state = |kind: &LayerKind| {
            let entries: VecDeque<u64> = (0..tokens.min(entries_kept(*kind)) as u64).collect();
            LayerState::new(9, entries)
        };
        let range = Range {
            tokens,
            layers: LAYERS.iter().map(state).collect(),
        };
        encode(&range, SHAPE)
    }

    #[test]
    fn bytes_come_back_as_they_went() {
        for tokens in 1..6 {
            let bytes = exported(tokens);
            let range = decode(&bytes, &LAYERS, SHAPE).expect("whole bytes");
            assert_eq!(range.tokens, tokens);
            assert_eq!(encode(&range, SHAPE), bytes);
        }
    }

    #[test]
    fn every_damaged_byte_and_every_truncation_is_found() {
        let bytes = exported(3);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            for bytes in [&damaged[..], &bytes[..at]] {
                let error = decode(bytes, &LAYERS, SHAPE).expect_err("damaged");
                assert!(matches!(error, ModelError::Import(_)), "byte {at}: {error}");
            }
        }
    }

    #[test]
    fn well_formed_but_foreign_bytes_are_refused() {
        let sealed = |words: &[u64]| {
            let checksum = mix(words);
            let words = words.iter().chain([&checksum]);
            words
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let cases: [(&str, &[u64]); 7] = [
            ("nothing", &[]),
            ("another magic", &[1, VERSION, SHAPE, 1, 9, 0, 9, 0, 9, 0]),
            ("another version", &[MAGIC, 2, SHAPE, 1, 9, 0, 9, 0, 9, 0]),
            ("another shape", &[MAGIC, VERSION, 78, 1, 9, 0, 9, 0, 9, 0]),
            ("no tokens", &[MAGIC, VERSION, SHAPE, 0, 9, 9, 9]),
            (
                "too few words",
                &[MAGIC, VERSION, SHAPE, 2, 9, 0, 9, 0, 9, 0],
            ),
            ("countless tokens", &[MAGIC, VERSION, SHAPE, u64::MAX, 9]),
        ];
        for (what, words) in cases {
            let error = decode(&sealed(words), &LAYERS, SHAPE).expect_err(what);
            assert!(matches!(error, ModelError::Import(_)), "{what}: {error}");
        }
        let whole = [MAGIC, VERSION, SHAPE, 1, 9, 0, 9, 0, 9, 0];
        assert!(decode(&sealed(&whole), &LAYERS, SHAPE).is_ok());
    }
}
