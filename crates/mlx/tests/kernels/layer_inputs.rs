//! The additions of families to plain attention, in a graph and by calling the kernel.

use std::sync::Arc;

use mlx_rs::Array;
use motet_kernels::attend::{CacheMut, attend};
use motet_kernels::pool::Pool;
use motet_kernels::{
    AttendPlan, Attention, Extras, Heads, LayerInputs, Order, PositionScale, QkNorm, Rotary,
    SpanRange, TailRange,
};
use motet_mlx::bridge::Buffer;
use motet_mlx::kernel_ops::{self, LayerArrays};
use motet_model::CacheKind;

use super::{check_rejected, numbers, stream};

const HEADS: Heads = Heads {
    query: 4,
    kv: 2,
    dim: 16,
};
const ROWS: usize = 7;
const WIDTH: usize = 8 * 16 + 64;

fn plan(qk_norm: QkNorm, sinks: bool) -> Arc<AttendPlan> {
    let attention = Attention {
        heads: HEADS,
        scale: 0.25,
        window: None,
        rotary: Rotary {
            inverse_frequencies: vec![0.1; 8],
            magnitude: 1.0,
        },
        cached: CacheKind::F32,
        extras: Extras {
            qk_norm,
            clip: Some(1.0),
            position_scale: Some(PositionScale {
                beta: 0.3,
                original_tokens: 2,
            }),
            softcap: Some(2.0),
            sinks,
            trailing_columns: 64,
        },
    };
    let span = SpanRange {
        rows: ROWS,
        path: Vec::new(),
        tail: TailRange {
            start: 0,
            tokens: 0,
        },
    };
    Arc::new(AttendPlan::new(attention, &[span], Order::PerSequence))
}

fn cache() -> Array {
    let shape = [HEADS.kv as i32, ROWS as i32, HEADS.dim as i32];
    let cache = mlx_rs::ops::zeros::<f32>(&shape).unwrap();
    let cache = cache.contiguous().unwrap();
    cache.eval().unwrap();
    cache
}

fn tail() -> (Buffer, Buffer) {
    // SAFETY: each array is new, and is not read.
    unsafe { (Buffer::new(cache()), Buffer::new(cache())) }
}

#[test]
fn arrays_reach_the_kernel() {
    let Some(stream) = stream() else { return };
    let packed = numbers(&[ROWS as i32, WIDTH as i32], 2.0, 1);
    let sinks = numbers(&[4], 2.0, 2);
    let per_head = [numbers(&[16], 1.0, 3), numbers(&[16], 1.0, 4)];
    let whole_row = [numbers(&[64], 1.0, 5), numbers(&[32], 1.0, 6)];
    for (qk_norm, norms, has_sinks) in [
        (QkNorm::None, None, true),
        (QkNorm::PerHead { epsilon: 1e-6 }, Some(&per_head), false),
        (QkNorm::PerHead { epsilon: 1e-6 }, Some(&per_head), true),
        (QkNorm::WholeRow { epsilon: 1e-6 }, Some(&whole_row), true),
    ] {
        let plan = plan(qk_norm, has_sinks);
        let arrays = LayerArrays {
            packed: &packed,
            query_norm: norms.map(|norms| &norms[0]),
            key_norm: norms.map(|norms| &norms[1]),
            sinks: has_sinks.then_some(&sinks),
        };
        let output = kernel_ops::attend_layer(&plan, arrays, &[], &[tail()], &stream).unwrap();
        let inputs = LayerInputs {
            packed: packed.as_slice(),
            query_norm: arrays.query_norm.map(Array::as_slice),
            key_norm: arrays.key_norm.map(Array::as_slice),
            sinks: arrays.sinks.map(Array::as_slice),
        };
        let mut expected = vec![f32::NAN; ROWS * 64];
        let [mut keys, mut values] = [vec![0.0_f32; 2 * ROWS * 16], vec![0.0; 2 * ROWS * 16]];
        let tail = CacheMut {
            keys: &mut keys,
            values: &mut values,
            capacity: ROWS,
        };
        attend(
            Pool::global(),
            &plan,
            inputs,
            &[],
            &mut [tail],
            &mut expected,
        );
        output.eval().unwrap();
        assert_eq!(output.as_slice::<f32>(), expected, "{qk_norm:?}");
    }
}

#[test]
fn weights_that_do_not_fit_are_rejected() {
    let Some(stream) = stream() else { return };
    let packed = numbers(&[ROWS as i32, WIDTH as i32], 2.0, 1);
    let [sixteen, four] = [numbers(&[16], 1.0, 2), numbers(&[4], 1.0, 3)];
    let per_head = QkNorm::PerHead { epsilon: 1e-6 };
    let fits = LayerArrays {
        packed: &packed,
        query_norm: Some(&sixteen),
        key_norm: Some(&sixteen),
        sinks: Some(&four),
    };
    let check = |qk_norm, sinks, layer, why| {
        let plan = plan(qk_norm, sinks);
        let result = kernel_ops::attend_layer(&plan, layer, &[], &[tail()], &stream);
        check_rejected(result, why);
    };
    let missing = LayerArrays {
        key_norm: None,
        ..fits
    };
    check(
        per_head,
        true,
        missing,
        "the norm of keys is None, expected Some([16])",
    );
    let misshapen = LayerArrays {
        query_norm: Some(&four),
        ..fits
    };
    check(
        per_head,
        true,
        misshapen,
        "the norm of queries is Some([4])",
    );
    check(per_head, false, fits, "sinks is Some([4]), expected None");
    check(QkNorm::None, true, fits, "expected None");
    let narrow = numbers(&[ROWS as i32, 128], 2.0, 1);
    let narrow = LayerArrays {
        packed: &narrow,
        ..fits
    };
    check(per_head, true, narrow, "expected [7, 192]");
}
