//! Room on the device that is another's, or that a copy is to come into.

use std::time::Duration;

use motet::cache::{CacheError, Salt};
use motet::config::{CacheConfig, PagerConfig};
use motet::model::oracle::OracleConfig;
use motet::model::{LayerKind, ModelSpec, SegmentSize};
use motet::{CopyId, PinId, SequenceId, TokenId};
use motet_core::cache::{CacheCore, Effect, Message, OpenSlot, Pin};
use motet_core::pager::{self, CopyRange, PagerEvent};
use motet_core::protocol::Edit;

/// What the pager reads cannot go, and without that there is no room to cut what is to be
/// pinned: that is known before anything is evicted for it.
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
    // The first is what the pager reads, the second is to be pinned in part.
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
            salt: Salt::default(),
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
    // When the pager has done with it there is room, at its cost.
    drop(offloads);
    cache.handle(Duration::ZERO, pin(2)).expect("there is room");
    cache.check_integrity();
    assert!(cache.stats().evicted_segments > 0);
}

/// What comes is on the device already when its place in the trie is cut: where both halves
/// of a large node do not fit beside it, nothing is cut.
#[test]
fn loaded_copy_counts_while_a_node_is_split_for_it() {
    assert!(!is_cut_for_a_copy(84), "40 + 40 tokens, and 8 that come");
    assert!(is_cut_for_a_copy(140), "there is room for all of them");
}

/// Whether a node of 40 tokens is cut for a copy of 8 that has come, of which four are new,
/// on a device of so many tokens.
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
        panic!("all is offered: {offloads:?}");
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
        let effects = effects.expect("the message makes sense");
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
        panic!("there is room for it beside the large one: {effects:?}");
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

/// What is held cannot be dropped: where the rest is too little to be free in good time, it is
/// offered.
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
    cache.handle(Duration::ZERO, begin).expect("there is room");
    let offloads = leave(&mut cache, SequenceId(3), (300..308).collect());
    assert!(
        matches!(offloads[..], [pager::Message::OffloadCandidate(_)]),
        "less than half is free, and 16 tokens are held: {offloads:?}"
    );
}

/// A model of which a tail weighs what its tokens weigh.
fn spec() -> ModelSpec {
    let oracle = OracleConfig {
        tail_block_tokens: 1,
        ..OracleConfig::with_layers(&[LayerKind::Full])
    };
    oracle.spec()
}

/// A pager that is offered everything.
fn offload_all() -> PagerConfig {
    PagerConfig {
        clean_part: 1.0,
        ..PagerConfig::default()
    }
}

/// A sequence comes, is computed and goes; what the pager is told.
fn leave(cache: &mut CacheCore, sequence: SequenceId, prompt: Vec<TokenId>) -> Vec<pager::Message> {
    let close = Message::Close {
        sequence,
        computed: prompt.len(),
        generated: Vec::new(),
    };
    for message in [Message::OpenSlot(OpenSlot::new(sequence, prompt, 1)), close] {
        let answer = cache.handle(Duration::ZERO, message);
        answer.expect("there is room");
    }
    cache.take_outbox()
}
