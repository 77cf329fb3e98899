//! The operations of a step that `profile::record`
//! returns.

use motet::model::mlx::profile::{Op, Timed, record};
use motet_model::OutputKind;

use crate::harness::{Slot, greedy, one_at_a_time, token};
use crate::naive::{Shape, Tiny, VOCAB};
use crate::tiny::{PLAIN, WINDOWED, both, tokens};

const F32_BYTES: usize = size_of::<f32>();

/// The operations of one step that samples a token.
fn expected_ops(layers: usize) -> Vec<Op> {
    let layer = [
        Op::PackedProduct,
        Op::Attention,
        Op::OutputProduct,
        Op::AddNorm,
        Op::GateUpProduct,
        Op::Activation,
        Op::DownProduct,
        Op::AddNorm,
    ];
    let mut ops = vec![Op::EmbeddingRows, Op::Norm];
    ops.extend(layer.repeat(layers));
    ops.extend([Op::HeadProduct, Op::Sample]);
    ops
}

fn first(timed: &[Timed], op: Op) -> &Timed {
    let mut found = timed.iter().filter(|timed| timed.op == op);
    found.next().expect("an operation of each kind")
}

/// A chunk of five tokens on three cached ones.
fn check(shape: Shape) {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(shape, 1);
    let tokens = tokens(1, 8);
    for mut model in both(&tiny) {
        let mut plain = Slot::new(&mut model, &[]);
        let mut slot = Slot::new(&mut model, &[]);
        for slot in [&mut plain, &mut slot] {
            slot.step(&mut model, &tokens[..3], OutputKind::Nothing);
        }
        let plain_token = token(plain.step(&mut model, &tokens[3..], greedy()));
        let (recorded, timed) = record(|| token(slot.step(&mut model, &tokens[3..], greedy())));
        assert_eq!(recorded, plain_token);

        let ops: Vec<Op> = timed.iter().map(|timed| timed.op).collect();
        assert_eq!(ops, expected_ops(shape.layers));
        assert!(timed.iter().all(|timed| timed.started <= timed.ended));
        assert!(
            timed
                .windows(2)
                .all(|pair| pair[0].ended <= pair[1].started)
        );

        let queries = shape.heads * shape.head_dim;
        let state = 2 * shape.kv_heads * shape.head_dim;
        let packed = first(&timed, Op::PackedProduct).cost;
        assert_eq!(packed.flops, 2 * 5 * shape.hidden * (queries + state));
        let weights = shape.hidden * (queries + state);
        assert_eq!(packed.read_bytes, F32_BYTES * (weights + 5 * shape.hidden));
        let attention = first(&timed, Op::Attention).cost;
        assert_eq!(attention.flops, 0);
        let read = 5 * (queries + state) + 3 * state;
        assert_eq!(attention.read_bytes, F32_BYTES * read);
        let head = first(&timed, Op::HeadProduct).cost;
        assert_eq!(head.flops, 2 * shape.hidden * VOCAB);
        let rows = first(&timed, Op::EmbeddingRows).cost;
        assert_eq!(rows.read_bytes, F32_BYTES * 5 * (shape.hidden + 1));
    }
}

#[test]
fn every_operation_is_recorded_once_and_in_order() {
    check(WINDOWED);
}

/// Products of widths that the kernel does not support run between kernels.
#[test]
fn composed_operations_among_kernels_are_recorded() {
    assert_ne!(PLAIN.hidden % 16, 0);
    check(PLAIN);
}

#[test]
fn nested_recording_does_not_end_the_outer_one() {
    let _serial = one_at_a_time();
    let tiny = Tiny::new(WINDOWED, 1);
    let [mut model, _] = both(&tiny);
    let mut slot = Slot::new(&mut model, &[]);
    let mut step = || drop(slot.step(&mut model, &[1], OutputKind::Nothing));
    let one = record(&mut step).1.len();
    let ((inner, ()), outer) = record(|| (record(&mut step).1.len(), step()));
    assert_eq!([inner, outer.len()], [one; 2]);
    step();
    assert!(record(|| ()).1.is_empty());
}
