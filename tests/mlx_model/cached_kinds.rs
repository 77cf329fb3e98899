//! State in each kind of cached numbers: its bytes, and what they are.

use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet::model::{CacheKind, Model, ModelError, SegmentSize};
use motet_model::{OutputKind, Packer, Segment, Tail};

use crate::harness::{Slot, one_at_a_time};
use crate::naive::Tiny;
use crate::state::packed;
use crate::tiny::{PLAIN, load_cached, tokens};

/// Cached state in fewer bits takes fewer bytes in every count.
#[test]
fn fewer_bits_take_fewer_bytes() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(PLAIN, 8);
    for kernels in [true, false] {
        let [whole, bf16, f16] = [CacheKind::F32, CacheKind::Bf16, CacheKind::F16]
            .map(|kind| counted_bytes(&mut load_cached(&tiny, kernels, kind), kind));
        let half = whole.map(|bytes| bytes / 2);
        assert_eq!((bf16, f16), (half, half), "{kernels}");
    }
    let kind = CacheKind::Int8;
    let eight = counted_bytes(&mut load_cached(&tiny, true, kind), kind);
    // For each head of 48 numbers, a byte for each and two scales.
    let bytes = 640 * PLAIN.layers * 2 * PLAIN.kv_heads * (48 + 2 * 2);
    let [counts @ .., held] = eight;
    assert_eq!((counts, held), ([bytes; 5], whole_pages(bytes)));
}

/// Bytes of the spec, of a tail, of a segment, of a packed segment, and of the model's memory.
fn counted_bytes(model: &mut MlxModel, kind: CacheKind) -> [usize; 6] {
    let segment_size = SegmentSize::whole(640);
    let outline = model.spec().clone();
    let before = model.memory().active_bytes;
    let mut slot = Slot::new(model, &[]);
    slot.step(model, &tokens(8, 640), OutputKind::Nothing);
    let tail = slot.tail.bytes();
    slot.seal(model, 640);
    let held = model.memory().active_bytes - before;
    let packer = model.packer();
    let floats = packer.floats(segment_size);
    let floats = floats.first().map(|floats| floats.kind);
    assert_eq!(floats, kind.float());
    let bytes = packed(model, &slot.path[0]);
    [
        outline.segment_bytes(segment_size),
        outline.tail_bytes(640),
        tail,
        slot.path[0].bytes(),
        bytes.len(),
        whole_pages(held),
    ]
}

/// A pool's blocks are whole pages, with cache lines between their arrays.
fn whole_pages(bytes: usize) -> usize {
    bytes.next_multiple_of(1 << 16) & !((1 << 17) - 1)
}

/// The packed state of 40 tokens, cached in this kind.
fn packed_tokens(tiny: &Tiny, kernels: bool, kind: CacheKind) -> Vec<u8> {
    let mut model = load_cached(tiny, kernels, kind);
    let mut slot = Slot::new(&mut model, &[]);
    slot.step(&mut model, &tokens(8, 40), OutputKind::Nothing);
    slot.seal(&mut model, 40);
    packed(&mut model, &slot.path[0])
}

/// Packed state in eight bits is the rows that attention read: groups of 32 and of 16 numbers, each
/// rounded to a multiple of its group's scale.
#[test]
fn eight_bits_are_packed_with_their_scales() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(PLAIN, 8);
    let whole = packed_tokens(&tiny, true, CacheKind::F32);
    let whole = whole.as_chunks::<4>().0.iter();
    let whole: Vec<f32> = whole.map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let eight = packed_tokens(&tiny, true, CacheKind::Int8);
    // The first layer's keys and values do not depend on earlier cached state.
    let first_layer = 2 * PLAIN.kv_heads * 40;
    let rows = whole.chunks_exact(48).zip(eight.chunks_exact(52));
    for (whole, row) in rows.take(first_layer) {
        for (numbers, group) in whole.chunks(32).zip(row.chunks(34)) {
            let scale = half::bf16::from_le_bytes([group[0], group[1]]).to_f32();
            let largest = numbers.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
            let exact = largest / 127.0;
            assert!(
                (exact..exact * (1.0 + 1.0 / 128.0)).contains(&scale),
                "{scale}"
            );
            for (x, code) in numbers.iter().zip(&group[2..]) {
                let found = f32::from(*code as i8) * scale;
                assert!((found - x).abs() <= scale * 0.500_1, "{found}, not {x}");
            }
        }
    }
}

/// Packed numbers are those that attention read: rounded once, to the type that the packer
/// reports.
#[test]
fn half_precision_state_is_packed_in_half_precision() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(PLAIN, 8);
    for kernels in [true, false] {
        let [whole, bf16, f16] = [CacheKind::F32, CacheKind::Bf16, CacheKind::F16]
            .map(|kind| packed_tokens(&tiny, kernels, kind));
        let numbers = |bytes: &[u8], size: usize| -> Vec<[u8; 4]> {
            let wide = |number: &[u8]| {
                let mut wide = [0; 4];
                wide[..size].copy_from_slice(number);
                wide
            };
            bytes.chunks_exact(size).map(wide).collect()
        };
        let whole = numbers(&whole, 4).into_iter().map(f32::from_le_bytes);
        let of_bf16 = |[a, b, ..]: [u8; 4]| half::bf16::from_le_bytes([a, b]).to_f32();
        let of_f16 = |[a, b, ..]: [u8; 4]| half::f16::from_le_bytes([a, b]).to_f32();
        let halves = numbers(&bf16, 2).into_iter().map(of_bf16);
        let halves = halves.zip(numbers(&f16, 2).into_iter().map(of_f16));
        // The first layer's keys and values do not depend on earlier cached state.
        let first_layer = 2 * PLAIN.kv_heads * 40 * PLAIN.head_dim;
        for (whole, (bf16, f16)) in whole.zip(halves).take(first_layer) {
            assert_eq!(bf16, half::bf16::from_f32(whole).to_f32(), "{whole}");
            assert_eq!(f16, half::f16::from_f32(whole).to_f32(), "{whole}");
        }
    }
}

/// Without kernels nothing could read them.
#[test]
fn eight_bits_without_kernels_are_rejected() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(PLAIN, 8);
    let files = ModelFiles::open(tiny.folder()).expect("a complete model");
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        kernels: false,
        cache_dtype: Some(CacheKind::Int8),
        ..MlxOptions::default()
    };
    let outlined = MlxModel::outline(&files, &options).map(|_| ());
    let loaded = MlxModel::load(&files, options).map(|_| ());
    for result in [outlined, loaded] {
        let error = result.expect_err("MLX's operations read floating-point numbers only");
        assert!(
            matches!(
                &error,
                ModelError::Option {
                    field: "cache_dtype",
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("`kernels: true`"), "{error}");
    }
}
