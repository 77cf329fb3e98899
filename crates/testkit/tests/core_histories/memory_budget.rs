//! Device memory that another part leases, or that is reserved for a copy.

use std::time::Duration;

use motet_core::cache::{CacheCore, Effect, Message, OpenSlot, Pin};
use motet_core::cache::{CacheError, PrefixKey};
use motet_core::config::{CacheConfig, PagerConfig};
use motet_core::pager::{self, CopyRange, PagerEvent};
use motet_model::oracle::OracleConfig;
use motet_model::{LayerKind, ModelSpec, SegmentSize};
use motet_protocol::Edit;
use motet_protocol::{CopyId, PinId, SequenceId, TokenId};

/// The segment that the pager reads cannot be evicted, and without its memory the prefix to pin
/// cannot be cut. The cache knows that before it evicts anything for it.
#[test]
fn pin_without_memory_evicts_nothing() {
    let spec = spec();
    let config = CacheConfig {
        device_bytes_max: spec.segment_bytes(SegmentSize::whole(26)),
        pinned_bytes_max: Some(spec.segment_bytes(SegmentSize::whole(26))),
        ..CacheConfig::default()
    };
    let mut cache = CacheCore::new(spec, config).with_pager(&offload_all(), false);
    let mut offloads = Vec::new();
    // The pager reads the first, and a part of the second is to be pinned.
    for (name, tokens) in [(1, 12), (2, 8), (3, 4)] {
        let prompt: Vec<TokenId> = (0..tokens).map(|token| 100 * name + token).collect();
        offloads.extend(leave(&mut cache, SequenceId(u64::from(name)), prompt));
    }
    let is_candidate =
        |message: &pager::Message| matches!(message, pager::Message::OffloadCandidate(_));
    assert_eq!((offloads.len(), is_candidate(&offloads[0])), (1, true));
    let before = cache.stats();
    assert_eq!(before.segments, 3);
    let pin = |number| {
        Message::Pin(Pin {
            pin: PinId(number),
            key: PrefixKey::default(),
            tokens: (200..204).collect(),
            time_to_live: None,
        })
    };
    let rejected = cache.handle(Duration::ZERO, pin(1));
    assert!(
        matches!(rejected, Err(CacheError::OutOfMemory { .. })),
        "{rejected:?}"
    );
    assert_eq!(cache.stats(), before, "nothing was evicted");
    // After the pager has released it, its memory is used.
    drop(offloads);
    cache.handle(Duration::ZERO, pin(2)).expect("it fits");
    cache.check_integrity();
    assert!(cache.stats().evicted_segments > 0);
}

/// The copy is on the device already when its place in the trie is cut. If both halves of a
/// large node do not fit beside it, nothing is cut.
#[test]
fn loaded_copy_counts_while_a_node_is_split_for_it() {
    assert!(!is_cut_for_a_copy(84), "40 + 40 tokens, and 8 of the copy");
    assert!(is_cut_for_a_copy(140), "all of them fit");
}

/// Whether a node of 40 tokens is cut for a loaded copy of 8 tokens, four of them new, on a
/// device of so many tokens.
fn is_cut_for_a_copy(budget_tokens: usize) -> bool {
    let spec = spec();
    let config = CacheConfig {
        device_bytes_max: spec.segment_bytes(SegmentSize::whole(budget_tokens)),
        share_tokens_min: 1,
        ..CacheConfig::default()
    };
    let mut cache = CacheCore::new(spec, config).with_pager(&offload_all(), false);
    let large: Vec<TokenId> = (0..40).collect();
    let offloads = leave(&mut cache, SequenceId(1), large);
    let [pager::Message::OffloadCandidate(candidate)] = &offloads[..] else {
        panic!("everything is an offload candidate: {offloads:?}");
    };
    let offloaded = PagerEvent::Offloaded {
        segment: candidate.lease.segment(),
        copy: CopyId(1),
    };
    drop(offloads);
    let pending_sequence = SequenceId(2);
    let prompt: Vec<TokenId> = (0..4).chain(100..120).collect();
    let mut send = |message| {
        let effects = cache.handle(Duration::ZERO, message);
        let effects = effects.expect("the message is valid");
        cache.check_integrity();
        (effects, cache.take_outbox())
    };
    send(Message::Paged(offloaded));
    let (_, asked) = send(Message::OpenSlot(OpenSlot::new(
        pending_sequence,
        prompt,
        1,
    )));
    assert!(
        matches!(asked[..], [pager::Message::Lookup(_)]),
        "{asked:?}"
    );
    let copy = CopyId(2);
    let copy_range = CopyRange {
        copy,
        start: 0,
        segment_size: SegmentSize::whole(8),
        end: 8,
    };
    let found = PagerEvent::Hit {
        sequence: pending_sequence,
        copy_ranges: vec![copy_range],
    };
    let (effects, _) = send(Message::Paged(found));
    let [Effect::Fence { number }] = effects[..] else {
        panic!("it fits beside the large one: {effects:?}");
    };
    let (_, asked) = send(Message::FencePassed { number });
    assert!(
        matches!(asked[..], [pager::Message::Load { .. }]),
        "{asked:?}"
    );
    let loaded = PagerEvent::Loaded {
        sequence: pending_sequence,
        copies: vec![copy],
    };
    let (effects, _) = send(Message::Paged(loaded));
    let is_cut = |effect: &Effect| matches!(effect, Effect::Edit(Edit::Split { .. }));
    effects.iter().any(is_cut)
}

/// Leased segments cannot be dropped. If too little of the rest would be free in good time, it
/// becomes an offload candidate.
#[test]
fn leased_segments_do_not_count_as_clean() {
    let spec = spec();
    let config = CacheConfig {
        device_bytes_max: spec.segment_bytes(SegmentSize::whole(40)),
        ..CacheConfig::default()
    };
    let pager = PagerConfig {
        clean_part: 0.5,
        ..PagerConfig::default()
    };
    let mut cache = CacheCore::new(spec, config).with_pager(&pager, false);
    let first: Vec<TokenId> = (0..16).collect();
    let offloads = leave(&mut cache, SequenceId(1), first.clone());
    assert!(
        offloads.is_empty(),
        "24 tokens of 40 are free: {offloads:?}"
    );
    let more = [first, vec![50, 51]].concat();
    let begin = Message::OpenSlot(OpenSlot::new(SequenceId(2), more, 1));
    cache.handle(Duration::ZERO, begin).expect("it fits");
    let offloads = leave(&mut cache, SequenceId(3), (300..308).collect());
    assert!(
        matches!(offloads[..], [pager::Message::OffloadCandidate(_)]),
        "less than half is free, and 16 tokens are leased: {offloads:?}"
    );
}

/// A model whose tail has the size of its tokens.
fn spec() -> ModelSpec {
    let oracle = OracleConfig {
        tail_block_tokens: 1,
        ..OracleConfig::with_layers(&[LayerKind::Full])
    };
    oracle.spec()
}

/// A pager that accepts every offload candidate.
fn offload_all() -> PagerConfig {
    PagerConfig {
        clean_part: 1.0,
        ..PagerConfig::default()
    }
}

/// Runs a sequence to its end and returns the messages to the pager.
fn leave(cache: &mut CacheCore, sequence: SequenceId, prompt: Vec<TokenId>) -> Vec<pager::Message> {
    let close = Message::Close {
        sequence,
        computed: prompt.len(),
        generated: Vec::new(),
    };
    for message in [Message::OpenSlot(OpenSlot::new(sequence, prompt, 1)), close] {
        let answer = cache.handle(Duration::ZERO, message);
        answer.expect("it fits");
    }
    cache.take_outbox()
}
