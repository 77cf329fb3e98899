//! Segments as bytes, for the host and the disk.
//!
//! The format is little-endian words of eight bytes: the link before the range, the links of its
//! tokens, then for each layer the entries that it keeps.

use std::iter;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::config::OracleConfig;
use super::counters::OracleCounters;
use super::faults::Stall;
use super::state::{LayerState, RangeState, Sealed, retained_entries};
use crate::{Floats, Packer, preconditions};
use motet_protocol::{LayerKind, ModelError, ModelSpec, SegmentSize};

const WORD: usize = size_of::<u64>();
/// Interval between checks whether detached state is computed.
const POLL_INTERVAL: Duration = Duration::from_micros(50);
/// A real device would be waited for without end; a test that waits so long fails.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Packs the oracle's detached state.
#[derive(Clone, Debug)]
pub struct OraclePacker {
    layers: Arc<[LayerKind]>,
    spec: Arc<ModelSpec>,
    identity: u64,
    counters: OracleCounters,
}

/// State of the oracle that was exported, or is to be imported. It counts as a living segment
/// wherever it is.
#[derive(Debug)]
pub struct OracleDetachedState {
    pub(super) sealed: Arc<Sealed>,
    /// Ends when the state is computed; `None` if it is computed from the beginning.
    pub(super) stall: Option<Arc<Stall>>,
}

impl OraclePacker {
    pub(super) fn new(config: &OracleConfig, spec: &ModelSpec) -> OraclePacker {
        OraclePacker {
            layers: config.layers.as_slice().into(),
            spec: Arc::new(spec.clone()),
            identity: config.identity(),
            counters: config.counters.clone(),
        }
    }
}

impl Packer for OraclePacker {
    type DetachedState = OracleDetachedState;

    fn identity(&self) -> u64 {
        self.identity
    }

    fn packed_bytes(&self, segment_size: SegmentSize) -> usize {
        let links = segment_size.tokens.saturating_add(1);
        let retained = self
            .layers
            .iter()
            .map(|kind| retained_entries(*kind, segment_size));
        retained
            .fold(links, usize::saturating_add)
            .saturating_mul(WORD)
    }

    fn is_computed(&self, detached_state: &OracleDetachedState) -> bool {
        detached_state
            .stall
            .as_ref()
            .is_none_or(|stall| stall.is_finished())
    }

    fn pack(
        &self,
        detached_state: &OracleDetachedState,
        into: &mut [u8],
    ) -> Result<(), ModelError> {
        let started_at = Instant::now();
        if let (Some(stall), false) = (&detached_state.stall, self.is_computed(detached_state)) {
            stall.count_waiter();
        }
        while !self.is_computed(detached_state) {
            if started_at.elapsed() > TIMEOUT {
                return Err(ModelError::Device("never computed (injected)".into()));
            }
            thread::sleep(POLL_INTERVAL);
        }
        let range = &detached_state.sealed.range;
        let expected = self.packed_bytes(range.segment_size());
        assert_eq!(
            into.len(),
            expected,
            "the buffer has as many bytes as the state"
        );
        let links = iter::once(&range.before).chain(&range.links);
        let entries = range.layers.iter().flat_map(|layer| &layer.entries);
        let (chunks, _) = into.as_chunks_mut::<WORD>();
        for (chunk, word) in chunks.iter_mut().zip(links.chain(entries)) {
            *chunk = word.to_le_bytes();
        }
        Ok(())
    }

    fn unpack(
        &self,
        segment_size: SegmentSize,
        bytes: &[u8],
    ) -> Result<OracleDetachedState, ModelError> {
        preconditions::unpack(segment_size, self.packed_bytes(segment_size), bytes.len())?;
        let (words, _) = bytes.as_chunks::<WORD>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let before = words.next().expect("there are as many as were counted");
        let links = words.by_ref().take(segment_size.tokens).collect();
        let layer = |kind: &LayerKind| {
            let retained = retained_entries(*kind, segment_size);
            LayerState::new(words.by_ref().take(retained).collect())
        };
        let range = RangeState {
            state_lag: segment_size.state_lag,
            before,
            links,
            layers: self.layers.iter().map(layer).collect(),
        };
        let sealed = Sealed::new(range, &self.spec, &self.counters);
        Ok(OracleDetachedState {
            sealed: Arc::new(sealed),
            stall: None,
        })
    }

    fn floats(&self, _segment_size: SegmentSize) -> Vec<Floats> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::OracleConfig;

    fn packer() -> OraclePacker {
        let window = LayerKind::Window { tokens: 2 };
        let config = OracleConfig::with_layers(&[LayerKind::Full, window, LayerKind::Recurrent]);
        OraclePacker::new(&config, &config.spec())
    }

    #[test]
    fn packed_bytes_round_trip() {
        let packer = packer();
        for tokens in 1..6 {
            for state_lag in 0..4 {
                let segment_size = SegmentSize { tokens, state_lag };
                let bytes: Vec<u8> = (0..packer.packed_bytes(segment_size) as u32)
                    .map(|at| (at * 37 + at / 251) as u8)
                    .collect();
                let detached_state = packer
                    .unpack(segment_size, &bytes)
                    .expect("as many as asked for");
                assert_eq!(detached_state.sealed.range.segment_size(), segment_size);
                let mut packed = vec![0; bytes.len()];
                packer.pack(&detached_state, &mut packed).expect("it packs");
                assert_eq!(packed, bytes);
            }
        }
    }

    #[test]
    fn layer_kinds_pack_their_own_entries() {
        let check = |tokens, state_lag, words| {
            let bytes = packer().packed_bytes(SegmentSize { tokens, state_lag });
            assert_eq!(bytes, words * WORD, "{tokens}, {state_lag}");
        };
        check(1, 0, 1 + 1 + 1 + 1 + 1);
        check(5, 0, 1 + 5 + 5 + 2 + 1);
        check(5, 1, 1 + 5 + 5 + 1);
        check(5, 2, 1 + 5 + 5);
        assert_eq!(
            packer().packed_bytes(SegmentSize::whole(usize::MAX)),
            usize::MAX
        );
    }

    #[test]
    fn mismatched_lengths_and_segment_sizes_are_rejected() {
        let (packer, segment_size) = (packer(), SegmentSize::whole(5));
        let bytes = vec![7; packer.packed_bytes(segment_size) + WORD];
        let whole = bytes.len() - WORD;
        for found in [0, 1, WORD, whole - WORD, whole - 1, whole + 1, whole + WORD] {
            let rejected = packer.unpack(segment_size, &bytes[..found]);
            assert!(matches!(rejected, Err(ModelError::Import(_))), "{found}");
        }
        for (tokens, state_lag) in [(0, 0), (4, 0), (5, 1), (usize::MAX, 0), (5, usize::MAX)] {
            let rejected = packer.unpack(SegmentSize { tokens, state_lag }, &bytes[..whole]);
            assert!(matches!(rejected, Err(ModelError::Import(_))), "{tokens}");
        }
    }
}
