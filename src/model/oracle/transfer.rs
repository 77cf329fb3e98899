//! Segments as bytes: what goes to the host and to the disk.
//!
//! Little-endian words of eight bytes: magic, version, the model's shape, tokens,
//! tokens beyond, the link before the range; then the links; then of each layer the
//! entries that it keeps; at last a checksum of all that.

use super::hash::mix;
use super::state::{LayerState, RangeState, entries_kept};
use crate::model::{Extent, LayerKind, ModelError};

const MAGIC: u64 = u64::from_le_bytes(*b"motetorc");
const VERSION: u64 = 2;
const WORD: usize = size_of::<u64>();

pub(super) fn encode(range: &RangeState, shape: u64) -> Vec<u8> {
    let (tokens, beyond) = (range.tokens() as u64, range.beyond as u64);
    let mut words = vec![MAGIC, VERSION, shape, tokens, beyond, range.before];
    words.extend(&range.links);
    for layer in &range.layers {
        words.extend(&layer.entries);
    }
    words.push(mix(&words));
    words.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// The inverse of [`encode`], for a model of these layers and this shape.
pub(super) fn decode(
    bytes: &[u8],
    layers: &[LayerKind],
    shape: u64,
) -> Result<RangeState, ModelError> {
    let words = checked_words(bytes)?;
    let [
        MAGIC,
        VERSION,
        found_shape,
        tokens,
        beyond,
        before,
        states @ ..,
    ] = &words[..]
    else {
        return Err(import(format!(
            "the header is {:x?}; expected magic, version {VERSION}, shape, tokens, beyond and link",
            &words[..words.len().min(6)]
        )));
    };
    if *found_shape != shape {
        return Err(import(format!(
            "exported by a model of shape {found_shape:016x}; this one's is {shape:016x}"
        )));
    }
    let extent = Extent {
        tokens: usize::try_from(*tokens).unwrap_or(usize::MAX),
        beyond: usize::try_from(*beyond).unwrap_or(usize::MAX),
    };
    let kept = |kind: &LayerKind| entries_kept(*kind, extent);
    let expected = layers
        .iter()
        .try_fold(extent.tokens, |sum, kind| sum.checked_add(kept(kind)));
    // Both numbers come from contexts, whose lengths no machine's memory exceeds.
    let sane = extent.tokens > 0 && u32::try_from(extent.beyond).is_ok();
    if !sane || expected != Some(states.len()) {
        return Err(import(format!(
            "{} words of state for {tokens} tokens, {beyond} before its end, in {} layers",
            states.len(),
            layers.len()
        )));
    }
    let (links, mut rest) = states.split_at(extent.tokens);
    let mut state = |kind: &LayerKind| {
        let (entries, others) = rest.split_at(kept(kind));
        rest = others;
        LayerState::new(entries.iter().copied().collect())
    };
    Ok(RangeState {
        beyond: extent.beyond,
        before: *before,
        links: links.to_vec(),
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
    const LAYERS: [LayerKind; 3] = [
        LayerKind::Full,
        LayerKind::Window { tokens: 2 },
        LayerKind::Recurrent,
    ];
    const SHAPE: u64 = 77;

    fn exported(tokens: usize, beyond: usize) -> Vec<u8> {
        let state = |kind: &LayerKind| {
            let kept = entries_kept(*kind, Extent { tokens, beyond }) as u64;
            LayerState::new((0..kept).collect())
        };
        let range = RangeState {
            beyond,
            before: 9,
            links: (0..tokens as u64).collect(),
            layers: LAYERS.iter().map(state).collect(),
        };
        encode(&range, SHAPE)
    }

    #[test]
    fn bytes_come_back_as_they_went() {
        for tokens in 1..6 {
            for beyond in 0..4 {
                let bytes = exported(tokens, beyond);
                let range = decode(&bytes, &LAYERS, SHAPE).expect("whole bytes");
                assert_eq!(range.extent(), Extent { tokens, beyond });
                assert_eq!(encode(&range, SHAPE), bytes);
            }
        }
    }

    #[test]
    fn every_damaged_byte_and_every_truncation_is_found() {
        let bytes = exported(3, 1);
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
        let whole = [MAGIC, VERSION, SHAPE, 1, 0, 9, 5, 6, 7, 8];
        let check = |what: &str, change: fn(&mut Vec<u64>)| {
            let mut words = whole.to_vec();
            change(&mut words);
            let error = decode(&sealed(&words), &LAYERS, SHAPE).expect_err(what);
            assert!(matches!(error, ModelError::Import(_)), "{what}: {error}");
        };
        check("nothing", Vec::clear);
        check("a header cut short", |words| words.truncate(5));
        check("another magic", |words| words[0] = 1);
        check("another version", |words| words[1] = 1);
        check("another shape", |words| words[2] = 78);
        check("no tokens", |words| words[3] = 0);
        check("too few words", |words| words[3] = 2);
        check("countless tokens", |words| words[3] = u64::MAX);
        check("words that a cut segment has not", |words| words[4] = 1);
        check("countless tokens beyond", |words| {
            words[4] = u64::MAX;
            words.truncate(8);
        });
        assert!(decode(&sealed(&whole), &LAYERS, SHAPE).is_ok());
    }
}
