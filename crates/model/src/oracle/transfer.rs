//! Segments as bytes: what goes to the host and to the disk.
//!
//! Little-endian words of eight bytes: the link before the range, the links of its
//! tokens, then of each layer the entries that it keeps.

use std::iter;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::counters::OracleCounters;
use super::faults::Hang;
use super::state::{LayerState, RangeState, Sealed, entries_kept};
use crate::{Floats, Packer, legal};
use motet_core::protocol::{Extent, LayerKind, ModelError, ModelSpec};

const WORD: usize = size_of::<u64>();
/// How often it is looked whether a parcel is computed.
const WATCH: Duration = Duration::from_micros(50);
/// A device would be waited for without an end; a test that does is to fail.
const PATIENCE: Duration = Duration::from_secs(2);

/// Packs the oracle's parcels.
#[derive(Clone, Debug)]
pub struct OraclePacker {
    layers: Arc<[LayerKind]>,
    spec: Arc<ModelSpec>,
    counters: OracleCounters,
}

/// State of the oracle that was handed over, or is to be taken in. It counts as a
/// living segment wherever it is.
#[derive(Debug)]
pub struct OracleParcel {
    pub(super) sealed: Arc<Sealed>,
    /// Over when it is computed; none where it is from the beginning.
    pub(super) hang: Option<Arc<Hang>>,
}

impl OraclePacker {
    pub(super) fn new(
        layers: &[LayerKind],
        spec: &ModelSpec,
        counters: &OracleCounters,
    ) -> OraclePacker {
        OraclePacker {
            layers: layers.into(),
            spec: Arc::new(spec.clone()),
            counters: counters.clone(),
        }
    }
}

impl Packer for OraclePacker {
    type Parcel = OracleParcel;

    fn packed_bytes(&self, extent: Extent) -> usize {
        let links = extent.tokens.saturating_add(1);
        let kept = self.layers.iter().map(|kind| entries_kept(*kind, extent));
        kept.fold(links, usize::saturating_add).saturating_mul(WORD)
    }

    fn is_computed(&self, parcel: &OracleParcel) -> bool {
        parcel.hang.as_ref().is_none_or(|hang| hang.is_over())
    }

    fn pack(&self, parcel: &OracleParcel, into: &mut [u8]) -> Result<(), ModelError> {
        let begun = Instant::now();
        if let (Some(hang), false) = (&parcel.hang, self.is_computed(parcel)) {
            hang.is_waited_for();
        }
        while !self.is_computed(parcel) {
            if begun.elapsed() > PATIENCE {
                return Err(ModelError::Device("never computed (injected)".into()));
            }
            thread::sleep(WATCH);
        }
        let range = &parcel.sealed.range;
        let expected = self.packed_bytes(range.extent());
        assert_eq!(into.len(), expected, "room for the parcel's bytes");
        let links = iter::once(&range.before).chain(&range.links);
        let entries = range.layers.iter().flat_map(|layer| &layer.entries);
        let (places, _) = into.as_chunks_mut::<WORD>();
        for (place, word) in places.iter_mut().zip(links.chain(entries)) {
            *place = word.to_le_bytes();
        }
        Ok(())
    }

    fn unpack(&self, extent: Extent, bytes: &[u8]) -> Result<OracleParcel, ModelError> {
        legal::unpack(extent, self.packed_bytes(extent), bytes.len())?;
        let (words, _) = bytes.as_chunks::<WORD>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let before = words.next().expect("there are as many as were counted");
        let links = words.by_ref().take(extent.tokens).collect();
        let layer = |kind: &LayerKind| {
            let kept = entries_kept(*kind, extent);
            LayerState::new(words.by_ref().take(kept).collect())
        };
        let range = RangeState {
            beyond: extent.beyond,
            before,
            links,
            layers: self.layers.iter().map(layer).collect(),
        };
        let sealed = Sealed::new(range, &self.spec, &self.counters);
        Ok(OracleParcel {
            sealed: Arc::new(sealed),
            hang: None,
        })
    }

    fn floats(&self, _extent: Extent) -> Option<Floats> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::OracleConfig;

    fn packer() -> OraclePacker {
        let window = LayerKind::Window { tokens: 2 };
        let config = OracleConfig::with_layers(&[LayerKind::Full, window, LayerKind::Recurrent]);
        OraclePacker::new(&config.layers, &config.spec(), &config.counters)
    }

    #[test]
    fn bytes_come_back_as_they_went() {
        let packer = packer();
        for tokens in 1..6 {
            for beyond in 0..4 {
                let extent = Extent { tokens, beyond };
                let bytes: Vec<u8> = (0..packer.packed_bytes(extent) as u32)
                    .map(|at| (at * 37 + at / 251) as u8)
                    .collect();
                let parcel = packer.unpack(extent, &bytes).expect("as many as asked for");
                assert_eq!(parcel.sealed.range.extent(), extent);
                let mut packed = vec![0; bytes.len()];
                packer.pack(&parcel, &mut packed).expect("room");
                assert_eq!(packed, bytes);
            }
        }
    }

    #[test]
    fn kinds_of_layers_keep_what_is_theirs() {
        let check = |tokens, beyond, words| {
            let bytes = packer().packed_bytes(Extent { tokens, beyond });
            assert_eq!(bytes, words * WORD, "{tokens}, {beyond}");
        };
        check(1, 0, 1 + 1 + 1 + 1 + 1);
        check(5, 0, 1 + 5 + 5 + 2 + 1);
        check(5, 1, 1 + 5 + 5 + 1);
        check(5, 2, 1 + 5 + 5);
        assert_eq!(packer().packed_bytes(Extent::whole(usize::MAX)), usize::MAX);
    }

    #[test]
    fn other_lengths_and_extents_are_refused() {
        let (packer, extent) = (packer(), Extent::whole(5));
        let bytes = vec![7; packer.packed_bytes(extent) + WORD];
        let whole = bytes.len() - WORD;
        for found in [0, 1, WORD, whole - WORD, whole - 1, whole + 1, whole + WORD] {
            let refused = packer.unpack(extent, &bytes[..found]);
            assert!(matches!(refused, Err(ModelError::Import(_))), "{found}");
        }
        for (tokens, beyond) in [(0, 0), (4, 0), (5, 1), (usize::MAX, 0), (5, usize::MAX)] {
            let refused = packer.unpack(Extent { tokens, beyond }, &bytes[..whole]);
            assert!(matches!(refused, Err(ModelError::Import(_))), "{tokens}");
        }
    }
}
