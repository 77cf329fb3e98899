//! The bytes of each group: on the device, by the spec, and packed.

use mlx_rs::with_stream;

use super::network::{self, Means, model};
use super::{Slot, mixes, one_at_a_time, packed, tokens};
use crate::state::groups::{Cached, LayerGroups, Place};
use crate::{MlxDetachedState, MlxModel};
use motet_model::{CacheKind, FloatKind, Floats, Model, Packer, Segment, Tail};
use motet_protocol::{LayerKind, SegmentSize};
use motet_weights::{DeltaNet, Mamba2, Mixer, ShortConv};

#[test]
fn bytes_are_those_of_the_spec() {
    let _serial = one_at_a_time();
    for (what, mixers) in mixes() {
        let has_window = what.contains("window") || what == "all kinds";
        for (means, kind, _) in Means::with_kinds() {
            let mut model = model(&mixers, means, kind);
            let spec = model.spec().clone();
            let recurrent: usize = spec
                .layer_groups
                .iter()
                .filter(|group| group.kind == LayerKind::Recurrent)
                .map(|group| group.bytes)
                .sum();
            let mut slot = Slot::new(&mut model, &[]);
            assert_eq!(slot.tail.bytes(), recurrent, "{what}: an empty tail");
            assert_eq!(slot.tail.bytes(), spec.tail_bytes(0));
            for chunk in [20, 30, 50] {
                slot.step(&mut model, &tokens(11, chunk));
                let (found, expected) = (slot.tail.bytes(), spec.tail_bytes(slot.tail.tokens()));
                if has_window {
                    assert!(found <= expected, "{what}: {found} above {expected}");
                } else {
                    assert_eq!(found, expected, "{what}, {means:?}, {kind}");
                }
            }
            slot.seal(&mut model, 70);
            slot.seal(&mut model, 30);
            for (segment, state_lag) in slot.path.iter().zip([30, 0]) {
                let tokens = segment.tokens();
                let expected = spec.segment_bytes(SegmentSize { tokens, state_lag });
                assert_eq!(segment.bytes(), expected, "{what}, {means:?}, {kind}");
                assert_eq!(packed(&mut model, segment).len(), expected);
            }
            assert_eq!(slot.tail.bytes(), recurrent, "{what}: sealed as a whole");
        }
    }
}

/// The device has as many bytes as are counted: a tail has one recurrent state, and so has each
/// segment that ends where a tail ended.
#[test]
fn recurrent_state_is_copied_once_for_each_segment() {
    let _serial = one_at_a_time();
    let delta = DeltaNet {
        key_heads: 4,
        value_heads: 4,
        key_dim: 128,
        value_dim: 128,
        kernel: 4,
    };
    let mut model = model(
        &[Mixer::DeltaNet(delta), Mixer::DeltaNet(delta)],
        Means::Kernels,
        CacheKind::F32,
    );
    let state = model.spec().tail_bytes(0);
    assert!(state > 500_000);
    let mut slot = Slot::new(&mut model, &[]);
    let before = model.memory().active_bytes;
    let states = |model: &MlxModel| {
        let bytes = model.memory().active_bytes.saturating_sub(before);
        (bytes + state / 2) / state
    };
    let prompt = tokens(12, 3);
    slot.step(&mut model, &prompt);
    assert_eq!(states(&model), 1, "a tail");
    slot.seal(&mut model, 3);
    assert_eq!(states(&model), 1, "the segment shares it");
    slot.step(&mut model, &prompt);
    assert_eq!(states(&model), 2, "the tail has its own again");
    slot.step(&mut model, &prompt);
    assert_eq!(states(&model), 2, "which changes in place");
    slot.seal(&mut model, 4);
    assert_eq!(states(&model), 2, "a segment that ends earlier has none");
    let Slot { path, tail } = slot;
    let last = model.seal_in_place(tail, 0..2).expect("a segment");
    assert_eq!(states(&model), 2, "the last segment takes it over");
    drop(path);
    assert_eq!(states(&model), 1);
    drop(last);
    assert_eq!(states(&model), 0);
}

/// On a GPU the host reads a copy of exported state, which computes elsewhere too.
#[test]
fn a_copy_for_the_host_packs_the_same_bytes() {
    let _serial = one_at_a_time();
    for (what, mixers) in mixes() {
        for (means, kind, _) in Means::with_kinds() {
            let mut model = model(&mixers, means, kind);
            let mut slot = Slot::new(&mut model, &[]);
            slot.step(&mut model, &tokens(14, 12));
            slot.seal(&mut model, 7);
            slot.seal(&mut model, 5);
            for segment in &slot.path {
                let expected = packed(&mut model, segment);
                let stream = &model.backend.stream;
                let copied = with_stream(stream, || MlxDetachedState::with_copy(segment));
                let mut found = vec![0xA5; expected.len()];
                let result = model.packer().pack(&copied.expect("a copy"), &mut found);
                result.expect("packed");
                assert!(found == expected, "{what}, {means:?}, {kind}");
            }
        }
    }
}

#[test]
fn only_keys_and_values_may_be_rounded() {
    let _serial = one_at_a_time();
    let (_, mixers) = mixes().pop().expect("mixes");
    let mut model = model(&mixers, Means::Kernels, CacheKind::F32);
    let packer = model.packer();
    for (tokens, state_lag) in [(9, 0), (9, 2), (9, 4), (2, 0), (2, 9)] {
        let segment_size = SegmentSize { tokens, state_lag };
        let sections = packer.floats(segment_size);
        let bytes = |floats: &Floats| {
            assert_eq!(floats.kind, FloatKind::F32);
            floats.planes * floats.rows * floats.channels * floats.kind.bytes()
        };
        let rounded: usize = sections.iter().map(bytes).sum();
        let exact = packer.packed_bytes(segment_size) - rounded;
        let recurrent = model.spec().tail_bytes(0);
        let expected = if state_lag == 0 { recurrent } else { 0 };
        assert_eq!(exact, expected, "{segment_size:?}");
        let windows = [5, 3].map(|window| usize::from(segment_size.window_tokens(window) > 0));
        assert_eq!(sections.len(), 1 + windows.iter().sum::<usize>());
    }
    let recurrent = network::model(&[mixers[1].clone()], Means::Kernels, CacheKind::F32);
    assert_eq!(recurrent.packer().floats(SegmentSize::whole(9)), []);
    // The state is packed after all keys and values.
    let mut slot = Slot::new(&mut model, &[]);
    slot.step(&mut model, &tokens(13, 9));
    slot.seal(&mut model, 9);
    let (whole, part) = (slot.path[0].clone(), SegmentSize::whole(9));
    let (_, lower) = model.split(&whole, 8).expect("two parts");
    let [whole, lower] = [&*whole, &lower].map(|segment| packed(&mut model, segment));
    let recurrent = model.spec().tail_bytes(0);
    assert_eq!(whole.len(), packer.packed_bytes(part));
    assert_eq!(
        whole[whole.len() - recurrent..],
        lower[lower.len() - recurrent..]
    );
}

/// Memory that the process holds, not what the spec computes.
#[test]
fn a_cached_kind_holds_as_few_bytes_as_it_counts() {
    let _serial = one_at_a_time();
    let mixers = [network::wide_attention(None), network::wide_attention(None)];
    for (kind, _) in Means::Kernels.kinds() {
        let mut model = model(&mixers, Means::Kernels, kind);
        let before = model.memory().active_bytes;
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &tokens(20, 3_000));
        slot.seal(&mut model, 3_000);
        let held = model.memory().active_bytes - before;
        let counted = slot.path[0].bytes();
        // Two layers' keys and values of one head of 32 numbers.
        assert_eq!(counted, 3_000 * 4 * kind.row_bytes(32));
        // A block is whole pages, with a cache line before each array.
        let pages = counted..=counted + (1 << 16);
        assert!(
            pages.contains(&held),
            "{kind}: {held} held, {counted} counted"
        );
    }
}

/// Numbers that share a scale are packed as they are, so nothing of them may be rounded again.
#[test]
fn state_in_eight_bits_is_not_rounded_again() {
    let _serial = one_at_a_time();
    for (_, mixers) in mixes() {
        let model = model(&mixers, Means::Kernels, CacheKind::Int8);
        assert_eq!(model.packer().floats(SegmentSize::whole(9)), []);
    }
}

#[test]
fn layers_are_grouped_by_their_state() {
    let mamba = Mamba2 {
        heads: 4,
        head_dim: 16,
        state_size: 8,
        groups: 2,
        kernel: 4,
        conv_bias: true,
        bias: false,
        time_step: (0.0, f32::INFINITY),
    };
    let conv = ShortConv {
        kernel: 3,
        bias: false,
    };
    let mixers = [
        Mixer::Mamba2(mamba),
        network::attention(Some(5), true),
        network::attention(None, true),
        Mixer::ShortConv(conv),
        network::attention(Some(5), false),
        Mixer::ShortConv(ShortConv { bias: true, ..conv }),
        network::wide_attention(Some(5)),
        Mixer::ShortConv(ShortConv { kernel: 5, ..conv }),
        Mixer::DeltaNet(network::DELTA),
    ];
    let blueprint = network::blueprint(&mixers);
    let groups = LayerGroups::new(&blueprint, Cached::as_it_is(CacheKind::Bf16));
    let places: Vec<Place> = (0..mixers.len()).map(|layer| groups.place(layer)).collect();
    let kv = |group, index| Place::Kv { group, index };
    let recurrent = |group, index| Place::Recurrent { group, index };
    let expected = [
        recurrent(0, 0),
        kv(0, 0),
        kv(1, 0),
        recurrent(1, 0),
        kv(0, 1),
        recurrent(1, 1),
        kv(2, 0),
        recurrent(2, 0),
        recurrent(3, 0),
    ];
    assert_eq!(places, expected);
    let found = groups.spec_groups();
    let found: Vec<_> = found.iter().map(|g| (g.kind, g.layers, g.bytes)).collect();
    let window = LayerKind::Window { tokens: 5 };
    let expected = [
        // Keys and values of two heads of 16 dimensions, or of one of 32.
        (window, 2, 2 * 2 * 32 * 2),
        (LayerKind::Full, 1, 2 * 32 * 2),
        (window, 1, 2 * 32 * 2),
        // Three columns of 64 + 2 * 2 * 8 channels, and 4 * 16 * 8 numbers.
        (LayerKind::Recurrent, 1, 4 * (3 * 96 + 512)),
        (LayerKind::Recurrent, 2, 2 * 4 * 2 * network::HIDDEN),
        (LayerKind::Recurrent, 1, 4 * 4 * network::HIDDEN),
        // Three columns of 2 * 2 * 8 + 4 * 16 channels, and 4 * 8 * 16 numbers.
        (LayerKind::Recurrent, 1, 4 * (3 * 96 + 512)),
    ];
    assert_eq!(found, expected);
    assert!(!groups.all_full());
}
