//! The operations of recurrent layers, compared with the kernels that they call.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream};
use motet_kernels::delta_net::{DeltaNet, DeltaRows};
use motet_kernels::gated_norm::{GateOrder, GatedNorm};
use motet_kernels::mamba2::Mamba2;
use motet_kernels::pool::Pool;
use motet_kernels::short_conv::{ConvKind, ShortConv};
use motet_kernels::spans::{self, SpanState};
use motet_kernels::{delta_net, gated_norm, mamba2, short_conv};
use motet_mlx::bridge::Buffer;
use motet_mlx::kernel_ops::recurrent::{
    self as ops, DeltaInputs, DeltaSizes, MambaInputs, MambaSizes, SpanBuffer,
};
use motet_mlx::kernel_ops::{Columns, NormOptions, gated_rms_norm};

use super::{check_rejected, data, numbers, stream};

/// Rows of the spans.
const SPANS: [usize; 3] = [3, 1, 4];

const ROWS: i32 = 8;

/// A buffer for each span, with a state of `len` numbers.
fn buffers(len: usize) -> Vec<Buffer> {
    let buffer = |index: usize| {
        let array = numbers(&[len as i32], 1.0, 40 + index as u64);
        array.eval().unwrap();
        // SAFETY: the array is new, and is read after the last kernel was waited for.
        unsafe { Buffer::new(array) }
    };
    (0..SPANS.len()).map(buffer).collect()
}

fn span_buffers(buffers: &[Buffer]) -> Vec<SpanBuffer<'_>> {
    let pairs = buffers.iter().zip(SPANS);
    pairs
        .map(|(state, rows)| SpanBuffer { rows, state })
        .collect()
}

/// Runs an operation twice, and the kernel twice on the same states, and compares all bits.
fn check(
    len: usize,
    operation: impl Fn(&[SpanBuffer<'_>]) -> Result<Array, Exception>,
    kernel: impl Fn(&mut [SpanState<'_>], &mut [f32]),
) {
    let buffers = buffers(len);
    let mut states: Vec<Vec<f32>> = buffers.iter().map(|buffer| data(buffer.array())).collect();
    for _ in 0..2 {
        let found = data(&operation(&span_buffers(&buffers)).unwrap());
        let mut expected = vec![f32::NAN; found.len()];
        let pairs = states.iter_mut().zip(SPANS);
        let mut spans: Vec<SpanState<'_>> = pairs
            .map(|(state, rows)| SpanState { rows, state })
            .collect();
        kernel(&mut spans, &mut expected);
        assert_eq!(found, expected);
        assert!(found.iter().all(|x| x.is_finite()));
        for (buffer, state) in buffers.iter().zip(&states) {
            assert_eq!(&data(buffer.array()), state);
        }
    }
}

fn columns(matrix: &[f32], stride: i32, first: usize) -> spans::Columns<'_> {
    spans::Columns {
        rows: matrix,
        stride: stride as usize,
        first,
    }
}

#[test]
fn short_conv_equals_its_kernel() {
    let Some(stream) = stream() else { return };
    let [weight, bias] = [numbers(&[3, 24], 1.0, 1), numbers(&[24], 1.0, 2)];
    let fused = numbers(&[ROWS, 100], 2.0, 3);
    let [weights, biases, matrix] = [&weight, &bias, &fused].map(data);
    for (kind, bias) in [
        (ConvKind::Silu, None),
        (ConvKind::Silu, Some(&bias)),
        (ConvKind::Gated, Some(&bias)),
    ] {
        let input = Columns {
            array: &fused,
            first: 11,
        };
        let conv = ShortConv {
            weight: &weights,
            kernel: 3,
            bias: bias.map(|_| &biases[..]),
            kind,
        };
        check(
            conv.state_len(),
            |spans| ops::short_conv(input, &weight, bias, kind, spans, &stream),
            |spans, output| {
                let input = columns(&matrix, 100, 11);
                short_conv::short_conv(Pool::global(), &conv, input, spans, output);
            },
        );
    }
}

#[test]
fn delta_net_equals_its_kernel() {
    let Some(stream) = stream() else { return };
    let sizes = DeltaSizes {
        key_heads: 2,
        value_heads: 4,
        key_dim: 16,
        value_dim: 32,
    };
    let rates = numbers(&[4], 1.0, 1).abs().unwrap();
    let rates = rates.negative().unwrap();
    let bias = numbers(&[4], 1.0, 2);
    let fused = numbers(&[ROWS, 210], 2.0, 3);
    let [rate_data, bias_data, matrix] = [&rates, &bias, &fused].map(data);
    let part = |first| Columns {
        array: &fused,
        first,
    };
    let inputs = DeltaInputs {
        qkv: part(10),
        decay: part(202),
        beta: part(206),
        decay_rates: &rates,
        time_step_bias: &bias,
    };
    let net = DeltaNet {
        key_heads: 2,
        value_heads: 4,
        key_dim: 16,
        value_dim: 32,
        decay_rates: &rate_data,
        time_step_bias: &bias_data,
    };
    check(
        net.state_len(),
        |spans| ops::delta_net(sizes, inputs, spans, &stream),
        |spans, output| {
            let rows = DeltaRows {
                qkv: columns(&matrix, 210, 10),
                decay: columns(&matrix, 210, 202),
                beta: columns(&matrix, 210, 206),
            };
            delta_net::delta_net(Pool::global(), &net, rows, spans, output);
        },
    );
}

#[test]
fn mamba2_equals_its_kernel() {
    let Some(stream) = stream() else { return };
    let sizes = MambaSizes {
        heads: 4,
        head_dim: 8,
        groups: 2,
        state_size: 16,
        time_step_limits: (0.1, 2.0),
    };
    let [rates, skip, bias] = [1, 2, 3].map(|seed| numbers(&[4], 1.0, seed));
    let fused = numbers(&[ROWS, 110], 2.0, 4);
    let [rate_data, skip_data, bias_data] = [&rates, &skip, &bias].map(data);
    let matrix = data(&fused);
    let part = |first| Columns {
        array: &fused,
        first,
    };
    let inputs = MambaInputs {
        input: part(7),
        time_steps: part(105),
        decay_rates: &rates,
        skip: &skip,
        time_step_bias: &bias,
    };
    let mamba = Mamba2 {
        heads: 4,
        head_dim: 8,
        groups: 2,
        state_size: 16,
        decay_rates: &rate_data,
        skip: &skip_data,
        time_step_bias: &bias_data,
        time_step_limits: (0.1, 2.0),
    };
    check(
        mamba.state_len(),
        |spans| ops::mamba2(sizes, inputs, spans, &stream),
        |spans, output| {
            let inputs = [columns(&matrix, 110, 7), columns(&matrix, 110, 105)];
            mamba2::mamba2(Pool::global(), &mamba, inputs[0], inputs[1], spans, output);
        },
    );
}

#[test]
fn gated_norm_equals_its_kernel() {
    let Some(stream) = stream() else { return };
    let [input, fused] = [numbers(&[ROWS, 48], 3.0, 1), numbers(&[ROWS, 60], 8.0, 2)];
    let gate = Columns {
        array: &fused,
        first: 9,
    };
    for (width, order) in [(16, GateOrder::NormFirst), (48, GateOrder::GateFirst)] {
        let weight = numbers(&[width], 1.0, 3);
        let options = NormOptions {
            epsilon: 1e-5,
            order,
        };
        let found = gated_rms_norm(&input, gate, &weight, options, &stream).unwrap();
        let norm = GatedNorm {
            group: width as usize,
            weight: &data(&weight),
            epsilon: 1e-5,
            order,
        };
        let mut expected = vec![f32::NAN; 48 * ROWS as usize];
        let (rows, matrix) = (data(&input), data(&fused));
        let gate = columns(&matrix, 60, 9);
        gated_norm::gated_rms_norm(Pool::global(), norm, &rows, 48, gate, &mut expected);
        assert_eq!(data(&found), expected);
    }
}

fn conv_of(
    input: &Array,
    width: i32,
    spans: &[SpanBuffer<'_>],
    stream: &Stream,
) -> Result<Array, Exception> {
    let input = Columns {
        array: input,
        first: 2,
    };
    let weight = numbers(&[width, 16], 1.0, 1);
    ops::short_conv(input, &weight, None, ConvKind::Silu, spans, stream)
}

#[test]
fn wrong_shapes_are_rejected() {
    let Some(stream) = stream() else { return };
    let buffers = buffers(32);
    let spans = span_buffers(&buffers);
    let input = numbers(&[ROWS, 18], 1.0, 1);
    conv_of(&input, 3, &spans, &stream).unwrap();
    check_rejected(
        conv_of(&input, 9, &spans, &stream),
        "[9, 16], expected [2 to 8, channels]",
    );
    check_rejected(conv_of(&input, 4, &spans, &stream), "expected 48 numbers");
    let narrow = numbers(&[ROWS, 17], 1.0, 1);
    check_rejected(
        conv_of(&narrow, 3, &spans, &stream),
        "expected 8 rows with columns 2..18",
    );
    check_rejected(conv_of(&input, 3, &spans[1..], &stream), "expected 5 rows");
}
