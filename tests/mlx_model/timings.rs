//! Cost of exporting and importing state, compared with a plain copy of the same size. Prints
//! the minimum of many times; run it in release: `cargo test --release --features mlx --test
//! mlx_model -- --ignored --nocapture`.

use std::time::Instant;

use motet::model::Model;
use motet::model::mlx::{Arithmetic, MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;
use motet_model::{OutputKind, Packer, Segment};

use crate::harness::{Slot, one_at_a_time, step};
use crate::naive::{Shape, Tiny};
use crate::tiny::{PLAIN, tokens};

/// The state size of SmolLM2 135M, with few other weights.
const SMOLLM2_STATE: Shape = Shape {
    layers: 30,
    heads: 3,
    kv_heads: 3,
    head_dim: 64,
    ..PLAIN
};

/// The result of a call, and its duration in microseconds.
fn timed<T>(call: impl FnOnce() -> T) -> (T, f64) {
    let start = Instant::now();
    let made = call();
    (made, start.elapsed().as_secs_f64() * 1e6)
}

/// Microseconds of the fastest of many calls. Dropping their results is not timed.
fn fastest<T>(mut call: impl FnMut() -> T) -> f64 {
    let times = (0..30).map(|_| timed(&mut call).1);
    times.fold(f64::MAX, f64::min)
}

/// Places for imported state.
const WAYS: [(&str, usize, bool); 3] = [
    ("memory from the pool", 256 << 20, true),
    ("memory from the system", 0, true),
    ("memory of MLX's own", 0, false),
];

fn load(tiny: &Tiny, idle_bytes_max: usize, kernels: bool) -> MlxModel {
    let files = ModelFiles::open(tiny.folder()).expect("a complete model");
    let options = MlxOptions {
        device: Some(MlxDevice::Cpu),
        idle_bytes_max,
        kernels,
        ..MlxOptions::default()
    };
    MlxModel::load(&files, options).expect("a model")
}

#[test]
#[ignore = "measures; nothing to fail"]
fn copies_out_and_in() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(SMOLLM2_STATE, 1);
    for (way, idle_bytes_max, kernels) in WAYS {
        println!("in to {way}:");
        let mut model = load(&tiny, idle_bytes_max, kernels);
        for count in [32, 256, 1024, 2048] {
            let mut slot = Slot::new(&mut model, &[]);
            for chunk in tokens(1, count).chunks(256) {
                slot.step(&mut model, chunk, OutputKind::Nothing);
            }
            let segment = model.seal(&mut slot.tail, count).expect("sealed");
            let (detached_state, just_sealed) =
                timed(|| model.export(&segment).expect("a detached state"));
            let packer = model.packer();
            let mut bytes = vec![1; packer.packed_bytes(segment.segment_size())];
            packer
                .pack(&detached_state, &mut bytes)
                .expect("the buffer has the packed size");
            let export_us = fastest(|| model.export(&segment).expect("a detached state"));
            let mut other = vec![2; bytes.len()];
            let plain = fastest(|| other.copy_from_slice(&bytes));
            let out = fastest(|| packer.pack(&detached_state, &mut bytes));
            let into = fastest(|| {
                packer
                    .unpack(segment.segment_size(), &bytes)
                    .expect("state")
            });
            let back = packer
                .unpack(segment.segment_size(), &bytes)
                .expect("state");
            let ((), dropped) = timed(|| drop(back));
            let size = bytes.len() as f64 / 1e6;
            let speed = |us: f64| format!("{:5.1} GB/s ({:.2})", size / us * 1e3, plain / us);
            let [plain, out, into] = [plain, out, into].map(speed);
            println!("{count:6} tokens, {size:5.1} MB: plain {plain}, out {out}, in {into}");
            println!(
                "      handed over in {export_us:.0} µs, just sealed {just_sealed:.0}; what \
                 came in dropped in {dropped:.0}"
            );
        }
    }
}

/// Milliseconds of a decode step of `sequences` contexts of 128 tokens: the fastest of many.
fn decode_ms(model: &mut MlxModel, sequences: usize) -> f64 {
    let ids = tokens(1, 128);
    let mut slots: Vec<Slot> = (0..sequences).map(|_| Slot::new(model, &[])).collect();
    for slot in &mut slots {
        slot.step(model, &ids, OutputKind::Nothing);
    }
    let one_step = || {
        let spans = slots.iter_mut();
        let mut spans: Vec<_> = spans
            .map(|slot| (slot, &ids[..1], OutputKind::Logits))
            .collect();
        step(model, &mut spans)
    };
    fastest(one_step) / 1e3
}

/// Milliseconds of a prefill of 512 tokens: the fastest of a few.
fn prefill_ms(model: &mut MlxModel) -> f64 {
    let ids = tokens(1, 512);
    let times = (0..4).map(|_| {
        let mut slot = Slot::new(model, &[]);
        timed(|| slot.step(model, &ids, OutputKind::Nothing)).1
    });
    times.fold(f64::MAX, f64::min) / 1e3
}

/// The model of `MOTET_MODEL` by both kinds of arithmetic.
#[test]
#[ignore = "measures; nothing to fail"]
fn steps_by_arithmetic() {
    let _serial = one_at_a_time();
    let path = std::env::var("MOTET_MODEL").expect("MOTET_MODEL names a model");
    let files = ModelFiles::open(path.as_ref()).expect("a complete model");
    for arithmetic in [Arithmetic::Exact, Arithmetic::Fast] {
        let options = MlxOptions {
            device: Some(MlxDevice::Cpu),
            arithmetic: Some(arithmetic),
            ..MlxOptions::default()
        };
        let mut model = MlxModel::load(&files, options).expect("a model");
        let decode = [1, 8, 16].map(|sequences| decode_ms(&mut model, sequences));
        let prefill = prefill_ms(&mut model);
        println!(
            "{arithmetic:?}: decode of 1, 8, 16 sequences {decode:.1?} ms, prefill of 512 tokens \
             {prefill:.0} ms"
        );
    }
}
