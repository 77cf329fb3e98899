//! Cached state of tiny models. However it is cut, merged, moved and shifted, the logits match
//! the naive implementation.

use std::collections::HashSet;
use std::ops::Range;
use std::rc::Rc;

use motet::model::mlx::{
    MlxDetachedState, MlxDevice, MlxModel, MlxOptions, MlxSegment, RetainedWeights,
};
use motet::model::weights::ModelFiles;
use motet::model::{CacheKind, Model, ModelError, SegmentSize};
use motet_model::{OutputKind, Packer, Segment, Span, Tail, TokenSource, conformance};

use crate::harness::{Slot, assert_close, one_at_a_time};
use crate::naive::{NaiveSlot, Scaling, Shape, Tiny};
use crate::tiny::{
    PLAIN, TOLERANCE, WINDOWED, both, expected, load, load_cached, models_of_every_cache_kind,
    tokens,
};

#[test]
fn the_backend_conforms() {
    let _serial = one_at_a_time();
    for shape in [PLAIN, WINDOWED] {
        let tiny = Tiny::new(shape, 30);
        for (mut model, tolerance) in models_of_every_cache_kind(&tiny) {
            let near = |found: &[f32], reference_logits: &[f32]| {
                let mut pairs = found.iter().zip(reference_logits);
                pairs.all(|(found, reference_logits)| (found - reference_logits).abs() <= tolerance)
            };
            let prompts = [tokens(30, 13), tokens(31, 6), tokens(32, 22)];
            conformance::check(&mut model, &prompts, near);
        }
    }
}

pub(crate) fn packed(model: &mut MlxModel, segment: &MlxSegment) -> Vec<u8> {
    let packer = model.packer();
    let mut bytes = vec![0; packer.packed_bytes(segment.segment_size())];
    let detached_state = model.export(segment).expect("a detached state");
    packer
        .pack(&detached_state, &mut bytes)
        .expect("the buffer has the packed size");
    bytes
}

fn unpacked(model: &mut MlxModel, segment_size: SegmentSize, bytes: &[u8]) -> MlxSegment {
    let detached_state = model.packer().unpack(segment_size, bytes);
    let segment = model.import(detached_state.expect("the detached state is unpacked"));
    let segment = segment.expect("a segment");
    assert_eq!(segment.segment_size(), segment_size);
    segment
}

/// Evaluates `tokens` after the state that `cut` makes of the first `at` of them.
fn check_cut(shape: Shape, at: usize, cut: impl Fn(&mut MlxModel, Slot) -> Slot) {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(shape, 5);
    let tokens = tokens(5, 60);
    let all = expected(&tiny, &tokens);
    for (mut model, tolerance) in models_of_every_cache_kind(&tiny) {
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &tokens[..at], OutputKind::Nothing);
        let mut slot = cut(&mut model, slot);
        let from = slot.tokens();
        let mut found = slot.logits(&mut model, &tokens[from..from + 10]);
        found.append(&mut slot.logits(&mut model, &tokens[from + 10..]));
        assert_close(&found, &all[from..], tolerance, "after the cut");
    }
}

#[test]
fn sealed_state_can_be_continued() {
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
fn split_state_can_be_continued() {
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
fn merged_state_can_be_continued() {
    for shape in [PLAIN, WINDOWED] {
        for at in [1, 15, 34, 39] {
            check_cut(shape, 40, |model, mut slot| {
                slot.seal(model, at);
                slot.seal(model, 40 - at);
                let merged = model.merge(&slot.path[0], &slot.path[1]).expect("merged");
                let bytes = model.spec().segment_bytes(SegmentSize::whole(40));
                assert_eq!((merged.tokens(), merged.bytes()), (40, bytes));
                slot.path = vec![Rc::new(merged)];
                slot
            });
        }
    }
}

#[test]
fn sealed_state_becomes_private_again() {
    for retained in 0..3 {
        check_cut(PLAIN, 40, |model, mut slot| {
            slot.seal(model, 12);
            slot.seal(model, 20);
            model
                .remove(&slot.path, retained, &mut slot.tail, 40..40)
                .expect("the tail owns its tokens");
            slot.path.truncate(retained);
            assert_eq!(slot.tokens(), 40);
            slot
        });
    }
}

/// Tails made from segments must not share full buffers with them.
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
        origin.step(&mut model, &tokens[..256], OutputKind::Nothing);
        assert_eq!(origin.tail.bytes(), model.spec().tail_bytes(256));
        origin.seal(&mut model, 256);
        let mut copies = [(); 2].map(|()| {
            let mut slot = Slot::new(&mut model, &origin.path);
            let removed = model.remove(&slot.path, 0, &mut slot.tail, 256..256);
            removed.expect("the tail owns its tokens");
            slot.path.clear();
            slot
        });
        copies[0].step(&mut model, &stray, OutputKind::Nothing);
        for slot in [&mut copies[1], &mut origin] {
            let found = slot.logits(&mut model, &tokens[256..]);
            assert_close(&found, &plain, TOLERANCE, "copies");
        }
    }
}

/// For every way of sealing, logits after a removal match a naive cache with rotated keys.
#[test]
fn removed_tokens_are_as_if_turned_by_hand() {
    let _serial = one_at_a_time();
    for (seed, scaling) in [(20, Scaling::None), (21, Scaling::Llama3)] {
        let tiny = Tiny::new(Shape { scaling, ..PLAIN }, seed);
        let tokens = tokens(seed as usize, 60);
        for (mut model, tolerance) in models_of_every_cache_kind(&tiny) {
            for removed in [0..1, 4..20, 13..39, 0..39, 20..40, 0..40] {
                for sealed in [&[][..], &[13, 7], &[4, 30, 6]] {
                    check_removal(&tiny, &mut model, tolerance, &tokens, &removed, sealed);
                }
            }
        }
    }
}

fn check_removal(
    tiny: &Tiny,
    model: &mut MlxModel,
    tolerance: f32,
    tokens: &[u32],
    removed: &Range<usize>,
    sealed: &[usize],
) {
    let (before, after) = tokens.split_at(40);
    let mut naive = NaiveSlot::new(tiny);
    let mut slot = Slot::new(model, &[]);
    before.iter().for_each(|token| drop(naive.evaluate(*token)));
    slot.step(model, before, OutputKind::Nothing);
    let mut retained = 0;
    let mut end = 0;
    for tokens in sealed {
        slot.seal(model, *tokens);
        end += tokens;
        retained += usize::from(end <= removed.start);
    }
    // Twice, because rotated keys can be rotated again.
    for (removed, after) in [removed.clone(), 1..3].into_iter().zip(after.chunks(10)) {
        naive.remove(removed.clone());
        let what = format!("{removed:?} of {sealed:?}");
        (model.remove(&slot.path, retained, &mut slot.tail, removed)).expect("removed");
        slot.path.truncate(retained);
        retained = 0;
        let expected: Vec<Vec<f32>> = after
            .iter()
            .map(|token| naive.evaluate(*token))
            .map(|row| row.iter().map(|x| *x as f32).collect())
            .collect();
        assert_close(&slot.logits(model, after), &expected, tolerance, &what);
    }
}

/// Keys of a first layer depend on token and position only. With one layer, a shift therefore
/// gives the same logits as the shorter text, over any distance.
#[test]
fn a_shift_of_one_layer_is_exact() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(Shape { layers: 1, ..PLAIN }, 22);
    let all = tokens(22, 2000);
    for mut model in both(&tiny) {
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &all[..1990], OutputKind::Nothing);
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

/// A removal rebuilds one layer's buffers after another.
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
    slot.step(&mut model, &tokens(23, 700), OutputKind::Nothing);
    let layer = slot.tail.bytes() / shape.layers;
    let before = model.memory().active_bytes;
    motet::model::mlx::mlx_rs::memory::reset_peak_memory().expect("a counter");
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
fn packed_state_round_trips() {
    for shape in [PLAIN, WINDOWED] {
        check_cut(shape, 40, |model, mut slot| {
            slot.seal(model, 40);
            let bytes = packed(model, &slot.path[0]);
            let back = unpacked(model, slot.path[0].segment_size(), &bytes);
            assert_eq!(back.bytes(), slot.path[0].bytes());
            assert_eq!(packed(model, &back), bytes);
            let (upper, lower) = model.split(&back, 35).expect("split");
            let again = [upper, lower].map(|part| {
                let bytes = packed(model, &part);
                Rc::new(unpacked(model, part.segment_size(), &bytes))
            });
            slot.path = again.to_vec();
            slot
        });
    }
}

#[test]
fn packed_numbers_are_planes_of_heads() {
    let _serial = one_at_a_time();
    for mut model in both(&Tiny::new(WINDOWED, 7)) {
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &tokens(7, 9), OutputKind::Nothing);
        slot.seal(&mut model, 5);
        let segment_size = slot.path[0].segment_size();
        let packer = model.packer();
        let [floats] = packer.floats(segment_size)[..] else {
            panic!("layers of one kind make one section");
        };
        // With a window of 7 and a lag of 4 tokens, the last 3 tokens are retained.
        let (rows, channels) = (3, WINDOWED.head_dim);
        assert_eq!((floats.rows, floats.channels), (rows, channels));
        let planes = 2 * WINDOWED.layers * WINDOWED.kv_heads;
        assert_eq!(floats.planes, planes);
        let plane_bytes = rows * channels * floats.kind.bytes();
        assert_eq!(packer.packed_bytes(segment_size), planes * plane_bytes);
        let state_lag = 9;
        assert_eq!(
            packer.floats(SegmentSize {
                tokens: 5,
                state_lag
            }),
            []
        );
        assert_eq!(
            packer.packed_bytes(SegmentSize {
                tokens: 5,
                state_lag
            }),
            0
        );
        let nothing = unpacked(
            &mut model,
            SegmentSize {
                tokens: 5,
                state_lag,
            },
            &[],
        );
        assert_eq!(nothing.bytes(), 0);
    }
}

#[test]
fn other_weights_have_another_identity() {
    let _serial = one_at_a_time();
    let identity = |shape, seed| load(&Tiny::new(shape, seed), true).packer().identity();
    let known = identity(PLAIN, 7);
    assert_eq!(identity(PLAIN, 7), known);
    let window = Some(64);
    let scaling = Scaling::Linear;
    for other in [
        identity(PLAIN, 8),
        identity(Shape { window, ..PLAIN }, 7),
        identity(Shape { scaling, ..PLAIN }, 7),
    ] {
        assert_ne!(other, known);
    }
}

/// State that was computed in another way has other last bits, so its identity differs.
#[test]
fn attention_backend_and_options_are_in_the_identity() {
    let _serial = one_at_a_time();
    // With widths that the kernels support.
    let whole = Shape {
        hidden: 48,
        inner: 80,
        ..PLAIN
    };
    let tiny = Tiny::new(whole, 7);
    let identity = |change: fn(&mut MlxOptions)| {
        let mut options = MlxOptions {
            device: Some(MlxDevice::Cpu),
            ..MlxOptions::default()
        };
        change(&mut options);
        let files = ModelFiles::open(tiny.folder()).expect("a complete model");
        let model = MlxModel::load(&files, options).expect("a model");
        model.packer().identity()
    };
    let plain = identity(|_| {});
    let composed = identity(|options| options.kernels = false);
    let deterministic = identity(|options| options.deterministic = true);
    assert_ne!(plain, composed);
    assert_ne!(plain, deterministic);
    assert_ne!(composed, deterministic);
    let kinds = CacheKind::ALL.map(|kind| {
        let model = load_cached(&tiny, true, kind);
        model.packer().identity()
    });
    assert_eq!(kinds[0], plain, "the default");
    let distinct: HashSet<u64> = kinds.into_iter().collect();
    assert_eq!(distinct.len(), kinds.len());
    // Options that change no bit are not part of the identity.
    assert_eq!(
        identity(|options| options.cache_dtype = Some(CacheKind::F32)),
        plain
    );
    assert_eq!(identity(|options| options.cache_bytes_max = 1 << 20), plain);
    assert_eq!(identity(|options| options.idle_bytes_max = 0), plain);
}

/// A step is in flight with a seal queued behind it, and another thread packs the sealed state.
#[test]
fn state_in_flight_is_packed_once_computed() {
    let _serial = one_at_a_time();
    // With one head, MLX would return the sealed rows as a view of the buffer.
    let shape = Shape {
        window: None,
        ..WINDOWED
    };
    for mut model in both(&Tiny::new(shape, 4)) {
        let (sender, received) = std::sync::mpsc::sync_channel::<(MlxDetachedState, usize)>(4);
        let (packer, step) = (model.packer(), tokens(4, 200));
        let copier = std::thread::spawn(move || {
            let copies = received.into_iter().map(|(detached_state, bytes)| {
                let mut copy = vec![0; bytes];
                packer.pack(&detached_state, &mut copy).map(|()| copy)
            });
            copies.collect::<Result<Vec<_>, _>>()
        });
        let mut segments = Vec::new();
        for round in 0..60 {
            let mut ahead = Slot::new(&mut model, &[]);
            let mut sealed = Slot::new(&mut model, &[]);
            sealed.step(&mut model, &tokens(round, 20), OutputKind::Nothing);
            let mut spans = [Span {
                tokens: TokenSource::Known(&step),
                path: &[],
                tail: &mut ahead.tail,
                output_kind: OutputKind::Nothing,
            }];
            let mut in_flight = model.submit(&mut spans).expect("launched");
            model
                .sample(&mut in_flight, Vec::new())
                .expect("the step samples nothing");
            sealed.seal(&mut model, 20);
            let segment = sealed.path.remove(0);
            let detached_state = model.export(&segment).expect("a detached state");
            sender
                .send((detached_state, segment.bytes()))
                .expect("the copying thread is running");
            model.finish(in_flight).expect("landed");
            segments.push(segment);
        }
        drop(sender);
        let copies = copier.join().expect("no panic").expect("packed");
        // No step is in flight any more.
        let later = |segment: &Rc<MlxSegment>| packed(&mut model, segment);
        let expected: Vec<_> = segments.iter().map(later).collect();
        assert!(
            copies == expected,
            "state was packed before it was computed"
        );
    }
}

/// Imported state counts as the device's memory until its last array is dropped, on any thread.
#[test]
fn imported_state_is_counted_and_released() {
    let _serial = one_at_a_time();
    for mut model in both(&Tiny::new(PLAIN, 6)) {
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &tokens(6, 700), OutputKind::Nothing);
        slot.seal(&mut model, 700);
        let segment = &slot.path[0];
        let bytes = packed(&mut model, segment);
        let (segment_size, packer) = (segment.segment_size(), model.packer());
        let before = model.memory().active_bytes;
        let detached_state = packer
            .unpack(segment_size, &bytes)
            .expect("the detached state is unpacked");
        let held = model.memory().active_bytes - before;
        let whole = segment.bytes();
        assert!(
            (whole..whole + whole / 8 + 65536).contains(&held),
            "{held} of {whole}"
        );
        let back = model.import(detached_state).expect("a segment");
        let detached_state = model.export(&back).expect("a detached state");
        drop(back);
        assert_eq!(model.memory().active_bytes - before, held);
        assert!(model.memory().peak_bytes >= before + held);
        let dropped = std::thread::spawn(move || drop(detached_state)).join();
        dropped.expect("a segment may be dropped on any thread");
        assert_eq!(model.memory().active_bytes, before);
    }
}

#[test]
fn cuts_out_of_range_are_rejected() {
    let _serial = one_at_a_time();
    let check_rejected = |result: Result<(), ModelError>, what: &str| {
        assert!(
            matches!(result, Err(ModelError::Cut { .. })),
            "{what}: {result:?}"
        );
    };
    for shape in [PLAIN, WINDOWED] {
        let mut model = load(&Tiny::new(shape, 9), true);
        let mut slot = Slot::new(&mut model, &[]);
        slot.step(&mut model, &tokens(9, 20), OutputKind::Nothing);
        check_rejected(model.seal(&mut slot.tail, 0).map(drop), "seal nothing");
        check_rejected(model.seal(&mut slot.tail, 21).map(drop), "seal too much");
        slot.seal(&mut model, 20);
        let segment = &slot.path[0];
        for at in [0, 20, 21] {
            check_rejected(model.split(segment, at).map(drop), "split at an end");
        }
    }
}

/// The next device thread takes over the weights of the one before it, unless they may be
/// corrupted. The test counts bytes: weights that are read again take as much memory again.
#[test]
fn weights_are_reused_and_not_read_again() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(PLAIN, 8);
    let files = ModelFiles::open(tiny.folder()).expect("a complete model");
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        ..MlxOptions::default()
    };
    let retained = RetainedWeights::default();
    let load = |watch: &MlxModel| {
        let before = watch.memory().active_bytes;
        let model = MlxModel::load_reusing(&files, options.clone(), &retained).expect("a model");
        (model, watch.memory().active_bytes - before)
    };
    let prompt = tokens(8, 20);
    let logits = |model: &mut MlxModel| {
        let mut slot = Slot::new(model, &[]);
        slot.step(model, &prompt, OutputKind::Logits)
    };
    let mut reference = MlxModel::load(&files, options.clone()).expect("a model");
    let reference_logits = logits(&mut reference);
    let (mut first, whole) = load(&reference);
    assert!(!retained.is_empty());
    assert_eq!(logits(&mut first), reference_logits);
    let (mut second, reused) = load(&reference);
    assert!(reused * 4 < whole, "{reused} of {whole} bytes");
    // The thread of the first model has ended by then.
    drop(first);
    assert_eq!(logits(&mut second), reference_logits);
    let (third, reused) = load(&reference);
    assert!(reused * 4 < whole, "{reused} of {whole} bytes");
    // The model has not finished a step, which may be the fault of the weights.
    drop(third);
    let (mut fourth, read) = load(&reference);
    assert!(read * 2 > whole, "{read} of {whole} bytes");
    assert_eq!(logits(&mut fourth), reference_logits);
    retained.corrupt();
    let (mut fifth, read) = load(&reference);
    assert!(read * 2 > whole, "{read} of {whole} bytes");
    assert_eq!(logits(&mut fifth), reference_logits);
}
