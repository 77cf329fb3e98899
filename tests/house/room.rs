//! Room on the device that is another's, or that a copy is to come into.

use std::time::Duration;

use motet::cache::{CacheError, Salt};
use motet::config::{CacheConfig, PagerConfig};
use motet::model::oracle::OracleConfig;
use motet::model::{Extent, LayerKind, ModelSpec};
use motet::{CopyId, PinId, SequenceId, TokenId};
use motet_core::cache::{Begin, CacheCore, Effect, Message, Pin};
use motet_core::pager::{self, Piece, Told};
use motet_core::protocol::Edit;

/// What the pager reads cannot go, and without that there is no room to cut what is to be
/// pinned: that is known before anything is evicted for it.
#[test]
fn a_pin_that_there_is_no_room_for_evicts_nothing() {
    let spec = spec();
    let config = CacheConfig {
        device_bytes_max: spec.segment_bytes(Extent::whole(26)),
        pinned_bytes_max: Some(spec.segment_bytes(Extent::whole(26))),
        ..CacheConfig::default()
    };
    let mut cache = CacheCore::new(spec, config).with_pager(&all_kept(), false);
    let mut offers = Vec::new();
    // The first is what the pager reads, the second is to be pinned in part.
    for (name, tokens) in [(1, 12), (2, 8), (3, 4)] {
        let prompt: Vec<TokenId> = (0..tokens).map(|token| 100 * name + token).collect();
        offers.extend(leave(&mut cache, SequenceId(u64::from(name)), prompt));
    }
    let is_offer = |message: &pager::Message| matches!(message, pager::Message::Offer(_));
    assert_eq!((offers.len(), is_offer(&offers[0])), (1, true));
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
    let refused = cache.handle(Duration::ZERO, pin(1));
    assert!(
        matches!(refused, Err(CacheError::NoRoom { .. })),
        "{refused:?}"
    );
    assert_eq!(cache.stats(), before, "nothing was evicted");
    // When the pager has done with it there is room, at its cost.
    drop(offers);
    cache.handle(Duration::ZERO, pin(2)).expect("there is room");
    cache.check_integrity();
    assert!(cache.stats().evicted_segments > 0);
}

/// What comes is on the device already when its place in the trie is cut: where both halves
/// of a large node do not fit beside it, nothing is cut.
#[test]
fn a_copy_that_comes_counts_while_a_node_is_cut_for_it() {
    assert!(!is_cut_for_a_copy(84), "40 + 40 tokens, and 8 that come");
    assert!(is_cut_for_a_copy(140), "there is room for all of them");
}

/// Whether a node of 40 tokens is cut for a copy of 8 that has come, of which four are new,
/// on a device of so many tokens.
fn is_cut_for_a_copy(budget_tokens: usize) -> bool {
    let spec = spec();
    let config = CacheConfig {
        device_bytes_max: spec.segment_bytes(Extent::whole(budget_tokens)),
        share_tokens_min: 1,
        ..CacheConfig::default()
    };
    let mut cache = CacheCore::new(spec, config).with_pager(&all_kept(), false);
    let large: Vec<TokenId> = (0..40).collect();
    let offers = leave(&mut cache, SequenceId(1), large);
    let [pager::Message::Offer(offer)] = &offers[..] else {
        panic!("all is offered: {offers:?}");
    };
    let kept = Told::Kept {
        segment: offer.lease.segment(),
        copy: CopyId(1),
    };
    drop(offers);
    let newcomer = SequenceId(2);
    let prompt: Vec<TokenId> = (0..4).chain(100..120).collect();
    let mut tell = |message| {
        let effects = cache.handle(Duration::ZERO, message);
        let effects = effects.expect("the message makes sense");
        cache.check_integrity();
        (effects, cache.take_outbox())
    };
    tell(Message::Paged(kept));
    let (_, asked) = tell(Message::Begin(Begin::new(newcomer, prompt, 1)));
    assert!(matches!(asked[..], [pager::Message::Want(_)]), "{asked:?}");
    let copy = CopyId(2);
    let piece = Piece {
        copy,
        start: 0,
        extent: Extent::whole(8),
        end: 8,
    };
    let found = Told::Found {
        sequence: newcomer,
        pieces: vec![piece],
    };
    let (effects, _) = tell(Message::Paged(found));
    let [Effect::Clears { number }] = effects[..] else {
        panic!("there is room for it beside the large one: {effects:?}");
    };
    let (_, asked) = tell(Message::Cleared { number });
    assert!(
        matches!(asked[..], [pager::Message::Fetch { .. }]),
        "{asked:?}"
    );
    let arrived = Told::Arrived {
        sequence: newcomer,
        copies: vec![copy],
    };
    let (effects, _) = tell(Message::Paged(arrived));
    let is_cut = |effect: &Effect| matches!(effect, Effect::Edit(Edit::Split { .. }));
    effects.iter().any(is_cut)
}

/// What is held cannot be dropped: where the rest is too little to be free in good time, it is
/// offered.
#[test]
fn what_is_held_does_not_count_as_what_could_go() {
    let spec = spec();
    let config = CacheConfig {
        device_bytes_max: spec.segment_bytes(Extent::whole(40)),
        ..CacheConfig::default()
    };
    let pager = PagerConfig {
        clean_part: 0.5,
        ..PagerConfig::default()
    };
    let mut cache = CacheCore::new(spec, config).with_pager(&pager, false);
    let first: Vec<TokenId> = (0..16).collect();
    let offers = leave(&mut cache, SequenceId(1), first.clone());
    assert!(offers.is_empty(), "24 tokens of 40 are free: {offers:?}");
    let more = [first, vec![50, 51]].concat();
    let begin = Message::Begin(Begin::new(SequenceId(2), more, 1));
    cache.handle(Duration::ZERO, begin).expect("there is room");
    let offers = leave(&mut cache, SequenceId(3), (300..308).collect());
    assert!(
        matches!(offers[..], [pager::Message::Offer(_)]),
        "less than half is free, and 16 tokens are held: {offers:?}"
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
fn all_kept() -> PagerConfig {
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
    for message in [Message::Begin(Begin::new(sequence, prompt, 1)), close] {
        let answer = cache.handle(Duration::ZERO, message);
        answer.expect("there is room");
    }
    cache.take_outbox()
}
