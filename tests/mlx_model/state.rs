//! Cached state of tiny models: however it was cut, merged, moved and shifted, what
//! comes of it is what the naive implementation says.

use std::ops::Range;
use std::rc::Rc;

use motet::model::mlx::MlxModel;
use motet::model::{Extent, Model, ModelError, Segment, Tail, Want, conformance};

use crate::harness::{Slot, assert_close, one_at_a_time};
use crate::naive::{NaiveSlot, Scaling, Shape, Tiny};
use crate::tiny::{PLAIN, TOLERANCE, WINDOWED, both, expected, load, tokens};

#[test]
fn the_backend_conforms() {
    let _serial = one_at_a_time();
    let near = |found: &[f32], truth: &[f32]| {
        let mut pairs = found.iter().zip(truth);
        pairs.all(|(found, truth)| (found - truth).abs() <= TOLERANCE)
    };
    for shape in [PLAIN, WINDOWED] {
        let tiny = Tiny::new(shape, 30);
        for mut model in both(&tiny) {
            let prompts = [tokens(30, 13), tokens(31, 6), tokens(32, 22)];
            conformance::check(&mut model, &prompts, near);
        }
    }
}

/// Runs `tokens` after the state that `cut` makes of the first `at` of them.
fn check_cut(shape: Shape, at: usize, cut: impl Fn(&mut MlxModel, Slot) -> Slot) {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(shape, 5);
    let tokens = tokens(5, 60);
    let all = expected(&tiny, &tokens);
    for mut model in both(&tiny) {
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &tokens[..at], Want::Nothing);
        let mut slot = cut(&mut model, slot);
        let from = slot.tokens();
        let mut found = slot.logits(&mut model, &tokens[from..from + 10]);
        found.append(&mut slot.logits(&mut model, &tokens[from + 10..]));
        assert_close(&found, &all[from..], TOLERANCE, "after the cut");
    }
}

#[test]
fn sealed_state_goes_on() {
    for at in [1, 20, 40] {
        check_cut(PLAIN, 40, |model, mut slot| {
            slot.seal(model, at);
            assert_eq!(slot.tail.tokens(), 40 - at);
            slot
        });
    }
    for at in [1, 3, 7, 12] {
        for total in [at, at + 1, at + 5, at + 9] {
            check_cut(WINDOWED, total, |model, mut slot| {
                slot.seal(model, at);
                assert_eq!(slot.tail.tokens(), total - at);
                slot
            });
        }
    }
}

#[test]
fn split_state_goes_on() {
    for shape in [PLAIN, WINDOWED] {
        for at in [1, 15, 33, 34, 39] {
            check_cut(shape, 40, |model, mut slot| {
                slot.seal(model, 40);
                let (head, rest) = model.split(&slot.path[0], at).expect("split");
                assert_eq!((head.tokens(), rest.tokens()), (at, 40 - at));
                assert_eq!(head.bytes() + rest.bytes(), slot.path[0].bytes());
                slot.path = vec![Rc::new(head), Rc::new(rest)];
                slot
            });
        }
    }
}

#[test]
fn merged_state_goes_on() {
    for shape in [PLAIN, WINDOWED] {
        for at in [1, 15, 34, 39] {
            check_cut(shape, 40, |model, mut slot| {
                slot.seal(model, at);
                slot.seal(model, 40 - at);
                let merged = model.merge(&slot.path[0], &slot.path[1]).expect("merged");
                let bytes = model.spec().segment_bytes(Extent::whole(40));
                assert_eq!((merged.tokens(), merged.bytes()), (40, bytes));
                slot.path = vec![Rc::new(merged)];
                slot
            });
        }
    }
}

#[test]
fn sealed_state_becomes_private_again() {
    for kept in 0..3 {
        check_cut(PLAIN, 40, |model, mut slot| {
            slot.seal(model, 12);
            slot.seal(model, 20);
            model
                .remove(&slot.path, kept, &mut slot.tail, 40..40)
                .expect("made private");
            slot.path.truncate(kept);
            assert_eq!(slot.tokens(), 40);
            slot
        });
    }
}

/// Buffers that are full must not be shared by what is made of them.
#[test]
fn a_full_block_is_sealed_and_made_private() {
    let _serial = one_at_a_time();
    let shape = Shape { layers: 1, ..PLAIN };
    let tiny = Tiny::new(shape, 13);
    let tokens = tokens(13, 260);
    let mut stray = tokens.clone();
    stray.reverse();
    for mut model in both(&tiny) {
        let plain = Slot::new(&mut model, &[]).logits(&mut model, &tokens)[256..].to_vec();
        let mut origin = Slot::new(&mut model, &[]);
        origin.step(&mut model, &tokens[..256], Want::Nothing);
        assert_eq!(origin.tail.bytes(), model.spec().tail_bytes(256));
        origin.seal(&mut model, 256);
        let mut copies = [(); 2].map(|()| {
            let mut slot = Slot::new(&mut model, &origin.path);
            let removed = model.remove(&slot.path, 0, &mut slot.tail, 256..256);
            removed.expect("made private");
            slot.path.clear();
            slot
        });
        copies[0].step(&mut model, &stray, Want::Nothing);
        for slot in [&mut copies[1], &mut origin] {
            let found = slot.logits(&mut model, &tokens[256..]);
            assert_close(&found, &plain, TOLERANCE, "copies");
        }
    }
}

/// Whatever was sealed, what comes after a removal is what the naive cache gives
/// whose keys were turned.
#[test]
fn removed_tokens_are_as_if_turned_by_hand() {
    let _serial = one_at_a_time();
    for (seed, scaling) in [(20, Scaling::None), (21, Scaling::Llama3)] {
        let tiny = Tiny::new(Shape { scaling, ..PLAIN }, seed);
        let tokens = tokens(seed as usize, 60);
        for mut model in both(&tiny) {
            for removed in [0..1, 4..20, 13..39, 0..39, 20..40, 0..40] {
                for sealed in [&[][..], &[13, 7], &[4, 30, 6]] {
                    check_removal(&tiny, &mut model, &tokens, &removed, sealed);
                }
            }
        }
    }
}

fn check_removal(
    tiny: &Tiny,
    model: &mut MlxModel,
    tokens: &[u32],
    removed: &Range<usize>,
    sealed: &[usize],
) {
    let (before, after) = tokens.split_at(40);
    let mut naive = NaiveSlot::new(tiny);
    let mut slot = Slot::new(model, &[]);
    before.iter().for_each(|token| drop(naive.evaluate(*token)));
    slot.step(model, before, Want::Nothing);
    let mut kept = 0;
    let mut end = 0;
    for tokens in sealed {
        slot.seal(model, *tokens);
        end += tokens;
        kept += usize::from(end <= removed.start);
    }
    // Twice: what was turned can be turned again.
    for (removed, after) in [removed.clone(), 1..3].into_iter().zip(after.chunks(10)) {
        naive.remove(removed.clone());
        let what = format!("{removed:?} of {sealed:?}");
        (model.remove(&slot.path, kept, &mut slot.tail, removed)).expect("removed");
        slot.path.truncate(kept);
        kept = 0;
        let expected: Vec<Vec<f32>> = after
            .iter()
            .map(|token| naive.evaluate(*token))
            .map(|row| row.iter().map(|x| *x as f32).collect())
            .collect();
        assert_close(&slot.logits(model, after), &expected, TOLERANCE, &what);
    }
}

/// Keys of a first layer depend on token and position only, so that with one layer
/// a shift gives what the shorter text would, however far along.
#[test]
fn a_shift_of_one_layer_is_exact() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(Shape { layers: 1, ..PLAIN }, 22);
    let all = tokens(22, 2000);
    for mut model in both(&tiny) {
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &all[..1990], Want::Nothing);
        model
            .remove(&[], 0, &mut slot.tail, 40..1900)
            .expect("removed");
        let shorter = [&all[..40], &all[1900..]].concat();
        let expected = expected(&tiny, &shorter);
        let found = slot.logits(&mut model, &all[1990..]);
        // An angle of 1,990 radians is known to 1e-4 of one in single precision.
        assert_close(&found, &expected[130..], 1e-3, "2,000 tokens");
        assert!(slot.tail.bytes() <= model.spec().tail_bytes(140));
    }
}

/// A removal makes one layer's buffers after another.
#[test]
fn a_removal_holds_one_layer_twice() {
    let _serial = one_at_a_time();
    let shape = Shape {
        layers: 8,
        heads: 4,
        kv_heads: 4,
        head_dim: 64,
        ..PLAIN
    };
    let tiny = Tiny::new(shape, 23);
    let mut model = load(&tiny, true);
    let mut slot = Slot::new(&mut model, &[]);
    slot.step(&mut model, &tokens(23, 700), Want::Nothing);
    let layer = slot.tail.bytes() / shape.layers;
    let before = model.memory().active_bytes;
    mlx_rs::memory::reset_peak_memory().expect("a counter");
    model
        .remove(&[], 0, &mut slot.tail, 10..20)
        .expect("removed");
    let peak = model.memory().peak_bytes - before;
    assert!(peak < 4 * layer, "{peak} bytes beside layers of {layer}");
    let before = model.memory().active_bytes;
    model
        .remove(&[], 0, &mut slot.tail, 650..690)
        .expect("removed");
    assert_eq!(slot.tail.tokens(), 650);
    assert_eq!(model.memory().active_bytes, before, "truncated in place");
}

#[test]
fn exported_state_comes_back() {
    for shape in [PLAIN, WINDOWED] {
        check_cut(shape, 40, |model, mut slot| {
            slot.seal(model, 40);
            let bytes = model.export(&slot.path[0]).expect("bytes");
            let back = model.import(&bytes).expect("a segment");
            assert_eq!(back.tokens(), 40);
            assert_eq!(back.bytes(), slot.path[0].bytes());
            assert_eq!(model.export(&back).expect("bytes"), bytes);
            let (upper, lower) = model.split(&back, 35).expect("split");
            let again = [upper, lower].map(|part| {
                let bytes = model.export(&part).expect("bytes");
                let back = model.import(&bytes).expect("a segment");
                assert_eq!(back.extent(), part.extent());
                Rc::new(back)
            });
            slot.path = again.to_vec();
            slot
        });
    }
}

#[test]
fn what_is_no_export_is_refused() {
    let _serial = one_at_a_time();
    let mut model = load(&Tiny::new(PLAIN, 7), true);
    let mut slot = Slot::new(&mut model, &[]);
    slot.step(&mut model, &tokens(7, 9), Want::Nothing);
    slot.seal(&mut model, 9);
    let bytes = model.export(&slot.path[0]).expect("bytes");
    let refused = |model: &mut MlxModel, bytes: &[u8], what: &str| match model.import(bytes) {
        Err(ModelError::Import(_)) => {}
        other => panic!("{what}: {other:?}"),
    };
    for end in [0, 10, 63, 64, 100, bytes.len() - 1] {
        refused(&mut model, &bytes[..end], "cut short");
    }
    refused(&mut model, &[&bytes[..], &[0]].concat(), "too long");
    for at in (0..64).chain([64, 1000, bytes.len() - 1]) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        refused(&mut model, &damaged, &format!("byte {at} changed"));
    }
    let mut other = load(&Tiny::new(PLAIN, 8), true);
    refused(&mut other, &bytes, "of other weights");
}

#[test]
fn cuts_outside_are_refused() {
    let _serial = one_at_a_time();
    let refused = |result: Result<(), ModelError>, what: &str| {
        assert!(
            matches!(result, Err(ModelError::Cut { .. })),
            "{what}: {result:?}"
        );
    };
    for shape in [PLAIN, WINDOWED] {
        let mut model = load(&Tiny::new(shape, 9), true);
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &tokens(9, 20), Want::Nothing);
        refused(model.seal(&mut slot.tail, 0).map(drop), "seal nothing");
        refused(model.seal(&mut slot.tail, 21).map(drop), "seal too much");
        slot.seal(&mut model, 20);
        let segment = &slot.path[0];
        for at in [0, 20, 21] {
            refused(model.split(segment, at).map(drop), "split at an end");
        }
    }
}
