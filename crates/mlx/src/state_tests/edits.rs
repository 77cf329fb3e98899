//! Cuts, removals and failures leave the state of each group as it is, or as it must be.

use std::rc::Rc;

use mlx_rs::transforms;

use super::network::{self, FAILING_TOKEN, Means, model};
use super::{Slot, assert_close, mixes, one_at_a_time, packed, tokens};
use motet_model::{CacheKind, Model, Segment};
use motet_protocol::ModelError;

/// A segment shares its recurrent state with the tails before and after it. None of them changes
/// it.
#[test]
fn sealed_state_does_not_change() {
    let _serial = one_at_a_time();
    let (_, mixers) = mixes().pop().expect("mixes");
    let prompt = tokens(8, 20);
    for (means, kind, tolerance) in Means::with_kinds() {
        let mut model = model(&mixers, means, kind);
        let all = Slot::new(&mut model, &[]).step(&mut model, &prompt);
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &prompt[..8]);
        slot.seal(&mut model, 8);
        let before = packed(&mut model, &slot.path[0]);
        let mut fork = Slot::new(&mut model, &slot.path);
        let mut other = Slot::new(&mut model, &slot.path);
        other.step(&mut model, &tokens(9, 5));
        for slot in [&mut slot, &mut fork] {
            let row = all.len() / prompt.len();
            let found = slot.step(&mut model, &prompt[8..14]);
            assert_close(&found, &all[8 * row..14 * row], tolerance, "after the seal");
            let found = slot.step(&mut model, &prompt[14..]);
            assert_close(
                &found,
                &all[14 * row..],
                tolerance,
                "two steps after the seal",
            );
        }
        assert_eq!(packed(&mut model, &slot.path[0]), before, "{means:?}");
        // Sealed in place, the last segment takes the tail's state over.
        let Slot { path, tail } = fork;
        let last = model.seal_in_place(tail, 0..12).expect("a segment");
        let bytes = packed(&mut model, &last);
        let mut slot = Slot::new(&mut model, &[&path[..], &[Rc::new(last)]].concat());
        slot.step(&mut model, &prompt[..4]);
        assert_eq!(packed(&mut model, &slot.path[1]), bytes, "{means:?}");
    }
}

/// A step that fails leaves sealed segments as they are, and the model usable.
#[test]
fn a_failed_step_leaves_sealed_state_untouched() {
    let _serial = one_at_a_time();
    let (_, mixers) = mixes().pop().expect("mixes");
    let prompt = tokens(10, 12);
    for means in [Means::Kernels, Means::MixedAttention] {
        let mut model = model(&mixers, means, CacheKind::F32);
        let all = Slot::new(&mut model, &[]).step(&mut model, &prompt);
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &prompt[..7]);
        slot.seal(&mut model, 7);
        let before = packed(&mut model, &slot.path[0]);
        let mut failing = Slot::new(&mut model, &slot.path);
        let failed = failing.try_step(&mut model, &[3, FAILING_TOKEN]);
        assert!(matches!(failed, Err(ModelError::Device(_))), "{failed:?}");
        drop(failing);
        assert_eq!(packed(&mut model, &slot.path[0]), before);
        let found = slot.step(&mut model, &prompt[7..]);
        let row = all.len() / prompt.len();
        assert_close(&found, &all[7 * row..], 2e-5, "after a failed step");
    }
}

#[test]
fn state_that_cannot_move_is_neither_removed_nor_copied_out() {
    let _serial = one_at_a_time();
    for (what, mixers) in mixes() {
        let is_full = what == "full";
        let mut model = model(&mixers, Means::Kernels, CacheKind::F32);
        assert_eq!(model.spec().can_shift, is_full, "{what}");
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &tokens(14, 8));
        let copied = model.copy_out(&mut slot.tail, 0..8).expect("no error");
        assert_eq!(copied.is_some(), is_full, "{what}");
        for removed in [3..5, 4..6] {
            let result = model.remove(&[], 0, &mut slot.tail, removed);
            if is_full {
                result.expect("full attention's state can move");
            } else {
                assert!(matches!(result, Err(ModelError::Remove { .. })), "{what}");
            }
        }
        slot.step(&mut model, &tokens(15, 3));
    }
}

/// Keys of a first layer depend on their position only, and other state is not there: a shift
/// gives what the shorter text gives. Layers without rotary embeddings keep their keys.
#[test]
fn a_shift_turns_the_keys_of_each_kind_by_its_own_rotation() {
    let _serial = one_at_a_time();
    let all = tokens(16, 40);
    for turned in [true, false] {
        for (means, kind, tolerance) in Means::with_kinds() {
            let mixers = [network::attention(None, turned)];
            let mut model = model(&mixers, means, kind);
            let mut slot = Slot::new(&mut model, &[]);
            slot.step(&mut model, &all[..30]);
            slot.seal(&mut model, 12);
            let path = std::mem::take(&mut slot.path);
            let removed = model.remove(&path, 0, &mut slot.tail, 5..20);
            removed.expect("removed");
            let shorter = [&all[..5], &all[20..]].concat();
            let expected = Slot::new(&mut model, &[]).step(&mut model, &shorter);
            let found = slot.step(&mut model, &all[30..]);
            let row = expected.len() / shorter.len();
            let what = format!("{means:?}, {kind}, turned: {turned}");
            // An angle is known to 2^-24 of itself.
            assert_close(&found, &expected[15 * row..], tolerance + 8e-5, &what);
        }
    }
}

/// Stripped of the state at its end, a segment serves all paths that go on below it.
#[test]
fn a_stripped_segment_holds_what_the_upper_part_of_a_cut_holds() {
    let _serial = one_at_a_time();
    let prompt = tokens(18, 14);
    for (what, mixers) in mixes() {
        for (means, kind, tolerance) in Means::with_kinds() {
            let mut model = model(&mixers, means, kind);
            let all = Slot::new(&mut model, &[]).step(&mut model, &prompt);
            let row = all.len() / prompt.len();
            for below in [1, 3, 6] {
                let mut slot = Slot::new(&mut model, &[]);
                for tokens in [&prompt[..6], &prompt[6..6 + below]] {
                    slot.step(&mut model, tokens);
                    slot.seal(&mut model, tokens.len());
                }
                let [upper, lower] = &slot.path[..] else {
                    panic!("two segments");
                };
                let groups = &model.groups;
                let stripped = upper.stripped(groups, lower).expect("stripped");
                let merged = upper.merged(groups, lower).expect("merged");
                let (expected, _) = merged.split(groups, 6).expect("two parts");
                assert_eq!(stripped.segment_size(), expected.segment_size());
                let lengths = [&stripped, &expected].map(|segment| {
                    transforms::eval(segment.arrays()).expect("evaluated");
                    assert_eq!(
                        segment.bytes(),
                        model.spec().segment_bytes(segment.segment_size())
                    );
                    segment.bytes()
                });
                assert_eq!(lengths[0], lengths[1], "{what}");
                let [stripped, expected] =
                    [stripped, expected].map(|segment| (packed(&mut model, &segment), segment));
                assert_eq!(stripped.0, expected.0, "{what}, {means:?}, {below} below");
                let path = [Rc::new(stripped.1), Rc::clone(&slot.path[1])];
                let rest = &prompt[6 + below..];
                let found = Slot::new(&mut model, &path).step(&mut model, rest);
                assert_close(&found, &all[(6 + below) * row..], tolerance, what);
            }
        }
    }
}
