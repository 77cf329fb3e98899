//! Attention in a graph, compared with MLX's own operations over several steps.

use std::sync::Arc;

use mlx_rs::fast::{self, ScaledDotProductAttentionMask};
use mlx_rs::ops::concatenate;
use mlx_rs::ops::indexing::IndexOp;
use mlx_rs::{Array, ops};
use motet_kernels::{
    AttendPlan, Attention, Extras, Heads, Order, PartRange, Rotary, SpanRange, TailRange,
};
use motet_mlx::bridge::Buffer;
use motet_mlx::kernel_ops;
use motet_model::CacheKind;

use super::{assert_near, numbers, stream};

const HEADS: Heads = Heads {
    query: 6,
    kv: 2,
    dim: 32,
};
const BASE: f32 = 10_000.0;
const SCALE: f32 = 0.2;

fn attention() -> Attention {
    let frequency = |i: usize| BASE.powf(-2.0 * i as f32 / HEADS.dim as f32);
    Attention {
        heads: HEADS,
        scale: SCALE,
        window: None,
        rotary: Rotary {
            inverse_frequencies: (0..HEADS.dim / 2).map(frequency).collect(),
            magnitude: 1.0,
        },
        cached: CacheKind::F32,
        extras: Extras::default(),
    }
}

fn plan(spans: &[SpanRange]) -> Arc<AttendPlan> {
    Arc::new(AttendPlan::new(attention(), spans, Order::PerStep))
}

fn packed(rows: usize, seed: u64) -> Array {
    let width = (HEADS.query + 2 * HEADS.kv) * HEADS.dim;
    numbers(&[rows as i32, width as i32], 2.0, seed)
}

fn zeroed_cache(tokens: usize) -> Array {
    let shape = [HEADS.kv as i32, tokens as i32, HEADS.dim as i32];
    let zeroed_cache = ops::zeros::<f32>(&shape).unwrap().contiguous().unwrap();
    zeroed_cache.eval().unwrap();
    zeroed_cache
}

fn tail(tokens: usize) -> (Buffer, Buffer) {
    // SAFETY: each array is new, and is read after the kernel was waited for.
    unsafe {
        (
            Buffer::new(zeroed_cache(tokens)),
            Buffer::new(zeroed_cache(tokens)),
        )
    }
}

/// One sequence computed by MLX's own operations: its keys and values up to now.
struct Composed {
    keys: Vec<Array>,
    values: Vec<Array>,
    tokens: i32,
}

impl Composed {
    fn new() -> Composed {
        let (keys, values) = (Vec::new(), Vec::new());
        Composed {
            keys,
            values,
            tokens: 0,
        }
    }

    /// Appends rows of the packed projection and returns their attention, `[rows, query heads *
    /// dim]`.
    fn step(&mut self, packed: &Array) -> Array {
        let rows = packed.dim(0);
        let dim = HEADS.dim as i32;
        let part = |from: usize, heads: usize| {
            let columns = from as i32 * dim..(from + heads) as i32 * dim;
            let part = packed.index((.., columns));
            let part = part.reshape(&[1, rows, heads as i32, dim]).unwrap();
            part.transpose_axes(&[0, 2, 1, 3]).unwrap()
        };
        let rotate = |x| fast::rope(x, dim, false, BASE, 1.0, self.tokens, None).unwrap();
        let queries = rotate(part(0, HEADS.query));
        self.keys.push(rotate(part(HEADS.query, HEADS.kv)));
        self.values.push(part(HEADS.query + HEADS.kv, HEADS.kv));
        self.tokens += rows;
        let keys = concatenate(&self.keys, 2).unwrap();
        let values = concatenate(&self.values, 2).unwrap();
        let mask = ScaledDotProductAttentionMask::Causal;
        let output =
            fast::scaled_dot_product_attention(queries, keys, values, SCALE, mask, None).unwrap();
        let output = output.transpose_axes(&[0, 2, 1, 3]).unwrap();
        output.reshape(&[rows, -1]).unwrap()
    }
}

#[test]
fn steps_equal_the_composition() {
    let Some(stream) = stream() else { return };
    // A prompt of 70 tokens is computed and sealed; two sequences continue it.
    let single = SpanRange {
        rows: 70,
        path: Vec::new(),
        tail: TailRange {
            start: 0,
            tokens: 0,
        },
    };
    let prompt = packed(70, 1);
    let first = [tail(70)];
    let output = kernel_ops::attend(&plan(&[single]), &prompt, &[], &first, &stream).unwrap();
    let mut composed = [Composed::new(), Composed::new()];
    assert_near(&output, &composed[0].step(&prompt), 1e-5);
    composed[1].step(&prompt);
    let [(keys, values)] = first;
    let (keys, values) = (keys.into_array(), values.into_array());

    let tails = [tail(20), tail(20)];
    for (step, rows) in [[1, 1], [1, 13], [3, 1], [1, 1]].into_iter().enumerate() {
        let path = vec![PartRange {
            segment: 0,
            start: 0,
            tokens: 70,
        }];
        let span = |i: usize| SpanRange {
            rows: rows[i],
            path: path.clone(),
            tail: TailRange {
                start: 70,
                tokens: composed[i].tokens as usize - 70,
            },
        };
        let plan = plan(&[span(0), span(1)]);
        let packed = packed(rows[0] + rows[1], 2 + step as u64);
        let segments = [(&keys, &values)];
        let output = kernel_ops::attend(&plan, &packed, &segments, &tails, &stream).unwrap();
        let cut = rows[0] as i32;
        assert_near(
            &output.index(..cut).contiguous().unwrap(),
            &composed[0].step(&packed.index(..cut)),
            1e-5,
        );
        assert_near(
            &output.index(cut..).contiguous().unwrap(),
            &composed[1].step(&packed.index(cut..)),
            1e-5,
        );
    }
}

#[test]
fn tails_grow_in_place() {
    let Some(stream) = stream() else { return };
    let address = |array: &Array| array.as_slice::<f32>().as_ptr();
    let tails = [tail(300)];
    let addresses = || (address(tails[0].0.array()), address(tails[0].1.array()));
    let before = addresses();
    let mut active = Vec::new();
    for tokens in 0..300 {
        let tail = TailRange { start: 0, tokens };
        let path = Vec::new();
        let span = SpanRange {
            rows: 1,
            path,
            tail,
        };
        let output =
            kernel_ops::attend(&plan(&[span]), &packed(1, 3), &[], &tails, &stream).unwrap();
        output.eval().unwrap();
        assert_eq!(addresses(), before);
        active.push(mlx_rs::memory::active_memory().unwrap());
    }
    // Other tests of this process allocate at the same time.
    let grown = active[299].saturating_sub(active[0]);
    assert!(grown < 16 << 20, "{active:?}");
}

#[test]
fn arrays_that_do_not_fit_the_plan_are_rejected() {
    let Some(stream) = stream() else { return };
    let span = SpanRange {
        rows: 2,
        path: vec![PartRange {
            segment: 0,
            start: 0,
            tokens: 9,
        }],
        tail: TailRange {
            start: 9,
            tokens: 4,
        },
    };
    let plan = plan(&[span]);
    let check_rejected = |packed: &Array, segment: usize, tokens: usize, why: &str| {
        let segment = (zeroed_cache(segment), zeroed_cache(segment));
        let segments = [(&segment.0, &segment.1)];
        let tails = [tail(tokens)];
        let error = kernel_ops::attend(&plan, packed, &segments, &tails, &stream).unwrap_err();
        assert!(error.what().contains(why), "{error}");
    };
    let fits = packed(2, 1);
    check_rejected(&packed(3, 1), 9, 6, "expected [2, 320]");
    check_rejected(&fits, 8, 6, "[2, 8, 32], expected [2, 9, 32]");
    check_rejected(&fits, 9, 5, "[2, 5, 32], expected [2, 6, 32]");
    let nothing = kernel_ops::attend(&plan, &fits, &[], &[], &stream).unwrap_err();
    assert!(nothing.what().contains("expected [1, 1]"), "{nothing}");
}
