//! Batch invariance: logits are the same to the last bit, however they were computed.

use std::rc::Rc;

use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions, MlxSegment};
use motet::model::weights::ModelFiles;
use motet::model::{CacheKind, Model, ModelError};
use motet_model::{OutputKind, Packer, Segment, Tail};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::harness::{Slot, one_at_a_time, rows, step};
use crate::naive::{Shape, Tiny};
use crate::tiny::{PLAIN, tokens};

/// With widths that the kernels support.
const WHOLE: Shape = Shape {
    hidden: 48,
    inner: 80,
    ..PLAIN
};

fn options() -> MlxOptions {
    MlxOptions {
        device: Some(MlxDevice::Cpu),
        deterministic: true,
        ..MlxOptions::default()
    }
}

fn load(tiny: &Tiny, options: MlxOptions) -> Result<MlxModel, ModelError> {
    let files = ModelFiles::open(tiny.folder()).expect("a complete model");
    MlxModel::load(&files, options)
}

/// A sequence, and the reference logits of each of its tokens, from a run alone.
struct Sequence {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

/// Sequences that begin with the same tokens, each up to where it diverges from the first.
fn sequences(model: &mut MlxModel, tokens_max: usize, rng: &mut ChaCha8Rng) -> Vec<Sequence> {
    let first = tokens(0, rng.random_range(tokens_max / 2..=tokens_max));
    let mut sequence = |index: usize| {
        let shared = rng.random_range(0..first.len());
        let own = tokens(index, rng.random_range(1..=tokens_max - shared));
        let tokens = [&first[..shared], &own].concat();
        let logits = Slot::new(model, &[]).logits(model, &tokens);
        Sequence { tokens, logits }
    };
    (1..4).map(&mut sequence).collect()
}

/// Runs sequences in random steps: with any chunking, beside any other sequences, and from
/// segments that were sealed, split, merged, packed and shared. Returns how many rows' logits
/// differ from those of a run alone, and the number of rows.
fn run(model: &mut MlxModel, tokens_max: usize, seed: u64) -> (usize, usize) {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let sequences = sequences(model, tokens_max, rng);
    let mut slots: Vec<(usize, Slot)> = Vec::new();
    let (mut different, mut all) = (0, 0);
    for _ in 0..30 {
        if slots.len() < 6 {
            let slot = start_slot(model, &sequences, &slots, rng);
            slots.push(slot);
        }
        for (_, slot) in &mut slots {
            change_path(model, slot, rng);
        }
        let mut members = Vec::new();
        for (index, slot) in &mut slots {
            let rest = &sequences[*index].tokens[slot.tokens()..];
            let most = *[1, 1, 9, 200]
                .get(rng.random_range(0..4))
                .expect("one of four");
            let size = rng.random_range(1..=most).min(rest.len());
            if size > 0 && rng.random_bool(0.7) {
                let expected = &sequences[*index].logits[slot.tokens()..][..size];
                members.push((expected, (slot, &rest[..size], OutputKind::Logits)));
            }
        }
        let (expected, mut spans): (Vec<_>, Vec<_>) = members.into_iter().unzip();
        let found = step(model, &mut spans);
        for (expected, found) in expected.into_iter().zip(found) {
            for (expected, found) in expected.iter().zip(rows(found, expected.len())) {
                let mut pairs = expected.iter().zip(&found);
                all += 1;
                different += usize::from(pairs.any(|(a, b)| a.to_bits() != b.to_bits()));
            }
        }
        slots.retain(|(index, slot)| slot.tokens() < sequences[*index].tokens.len());
    }
    (different, all)
}

/// A slot for some sequence, on segments that other slots have sealed of the same tokens.
fn start_slot(
    model: &mut MlxModel,
    sequences: &[Sequence],
    slots: &[(usize, Slot)],
    rng: &mut ChaCha8Rng,
) -> (usize, Slot) {
    let index = rng.random_range(0..sequences.len());
    let tokens = &sequences[index].tokens;
    let mut path = Vec::new();
    if let Some((other, slot)) = slots.get(rng.random_range(0..slots.len() + 1)) {
        let common = tokens.iter().zip(&sequences[*other].tokens);
        let common = common.take_while(|(own, others)| own == others).count();
        path.clone_from(&slot.path);
        let end = |path: &[Rc<MlxSegment>]| path.iter().map(|s| s.tokens()).sum::<usize>();
        // The last token is never taken from the cache.
        while end(&path) > common.min(tokens.len() - 1) || !is_whole(&path) {
            path.pop();
        }
    }
    (index, Slot::new(model, &path))
}

/// Whether everything that a window can still see is retained.
fn is_whole(path: &[Rc<MlxSegment>]) -> bool {
    let mut after = 0;
    path.iter().rev().all(|segment| {
        let is_retained = segment.segment_size().state_lag <= after;
        after += segment.tokens();
        is_retained
    })
}

/// Seals, splits, merges or moves some of a slot's state, or leaves it as it is.
fn change_path(model: &mut MlxModel, slot: &mut Slot, rng: &mut ChaCha8Rng) {
    let held = slot.tail.tokens();
    match rng.random_range(0..6) {
        0 | 1 if held > 0 => slot.seal(model, rng.random_range(1..=held)),
        2 => {
            let Some(last) = slot.path.pop() else { return };
            if last.tokens() == 1 {
                return slot.path.push(last);
            }
            let at = rng.random_range(1..last.tokens());
            let (upper, lower) = model.split(&last, at).expect("two segments");
            slot.path.extend([upper, lower].map(Rc::new));
        }
        3 if slot.path.len() > 1 => {
            let lower = slot.path.pop().expect("several");
            let upper = slot.path.pop().expect("several");
            let merged = model.merge(&upper, &lower).expect("one segment");
            slot.path.push(Rc::new(merged));
        }
        4 => {
            let Some(last) = slot.path.pop() else { return };
            let packer = model.packer();
            let mut bytes = vec![0; packer.packed_bytes(last.segment_size())];
            let detached_state = model.export(&last).expect("a detached state");
            packer
                .pack(&detached_state, &mut bytes)
                .expect("the buffer has the packed size");
            let detached_state = packer
                .unpack(last.segment_size(), &bytes)
                .expect("a detached state");
            slot.path
                .push(Rc::new(model.import(detached_state).expect("a segment")));
        }
        _ => {}
    }
}

#[test]
fn logits_are_the_same_to_the_last_bit_in_any_schedule() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(WHOLE, 70);
    let mut model = load(&tiny, options()).expect("a model");
    for seed in 0..12 {
        let (different, rows) = run(&mut model, 700, seed);
        assert_eq!(different, 0, "rows that differ, of {rows}, seed {seed}");
    }
    // Without determinism the schedules must make a difference; otherwise the check above
    // proves nothing.
    let fast = MlxOptions {
        deterministic: false,
        ..options()
    };
    let (different, _) = run(&mut load(&tiny, fast).expect("a model"), 700, 0);
    assert!(
        different > 0,
        "the logits do not depend on schedules even without `deterministic`"
    );
}

/// Each cached number is rounded independently of the other tokens.
#[test]
fn state_in_fewer_bits_does_not_change_bits() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(WHOLE, 70);
    for kind in [CacheKind::Bf16, CacheKind::F16, CacheKind::Int8] {
        let options = MlxOptions {
            cache_dtype: Some(kind),
            ..options()
        };
        let mut model = load(&tiny, options).expect("a model");
        for seed in 0..6 {
            let (different, rows) = run(&mut model, 700, seed);
            assert_eq!(
                different, 0,
                "rows that differ, of {rows}, seed {seed}, {kind}"
            );
        }
    }
}

#[test]
fn sliding_window_does_not_change_bits() {
    let _serial = one_at_a_time();
    // Windows below and above the size of the kernel's chunk of keys.
    for (window, tokens_max) in [(90, 700), (900, 1_800)] {
        let windowed = Shape {
            window: Some(window),
            ..WHOLE
        };
        let tiny = Tiny::new(windowed, 71);
        let mut model = load(&tiny, options()).expect("a model");
        for seed in 100..106 {
            let (different, rows) = run(&mut model, tokens_max, seed);
            assert_eq!(
                different, 0,
                "rows that differ, of {rows}, window {window}, seed {seed}"
            );
        }
    }
}

#[test]
fn unsupported_deterministic_options_are_rejected() {
    let _serial = one_at_a_time();
    let narrow = Tiny::new(PLAIN, 72);
    let error = load(&narrow, options()).expect_err("the widths are not multiples of 16");
    assert!(
        matches!(error, ModelError::NotDeterministic { .. }),
        "{error}"
    );
    let composed = MlxOptions {
        kernels: false,
        ..options()
    };
    let error = load(&Tiny::new(WHOLE, 73), composed).expect_err("the kernels are off");
    assert!(
        matches!(error, ModelError::NotDeterministic { .. }),
        "{error}"
    );
}
