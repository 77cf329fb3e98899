//! Whole blocks against numbers that the reference implementation (transformers 5.23.0 in
//! PyTorch, CPU, f32) computed from the same inputs. The inputs are a formula.

use motet_kernels::delta_net::{DeltaNet, DeltaRows, delta_net};
use motet_kernels::experts::{Experts, Routing, choose, experts};
use motet_kernels::gated::Activation;
use motet_kernels::gated_norm::{GateOrder, GatedNorm, gated_rms_norm};
use motet_kernels::mamba2::{Mamba2, mamba2};
use motet_kernels::pool::Pool;
use motet_kernels::short_conv::{ConvKind, ShortConv, short_conv};
use motet_kernels::spans::{Columns, SpanState};
use motet_kernels::{Arithmetic, Rows};

const TOKENS: usize = 7;

const CONVOLVED: [f32; 12] = [
    0.455_871_9,
    -0.234_176_93,
    -0.049_518_92,
    -0.247_999_38,
    -0.247_310_4,
    -0.248_982_43,
    0.274_927_82,
    -0.136_390_21,
    1.650_039_4,
    -0.092_450_11,
    0.265_157_58,
    2.036_536_7,
];

const DELTA: [f32; 12] = [
    -0.003_912_716,
    -0.001_229_479_4,
    -0.019_012_032,
    -0.002_993_080_3,
    -0.029_086_616,
    0.005_206_878_8,
    0.044_877_45,
    0.057_792_474,
    0.002_196_706_4,
    0.048_460_633,
    -0.019_984_744,
    -0.036_437_824,
];

const DELTA_NORMED: [f32; 12] = [
    -0.606_695_06,
    0.128_609_82,
    -1.295_440_2,
    -7.510_005,
    0.129_751_3,
    -0.053_381_458,
    6.685_5,
    -0.046_406_318,
    -0.080_660_22,
    2.995_836,
    -0.021_639_291,
    0.088_520_31,
];

const MAMBA: [f32; 12] = [
    -0.001_648_050_7,
    0.017_202_59,
    0.023_976_05,
    -0.093_727_425,
    0.150_076_09,
    -0.108_986_57,
    0.013_717_782,
    -0.256_102_7,
    -0.053_898_81,
    0.156_186_22,
    -0.710_478_3,
    0.358_660_6,
];

const MAMBA_NORMED: [f32; 12] = [
    0.003_005_087_8,
    0.464_646_97,
    0.366_491_23,
    -0.942_191_06,
    -0.120_543_17,
    0.271_106_1,
    -0.024_440_393,
    -2.441_043,
    -0.760_091_25,
    0.488_193_1,
    0.313_470_87,
    -0.250_526_2,
];

/// `factor * x + offset` for numbers `x` from -0.79 to 0.79, all exact in `f32`.
fn numbers(count: usize, shift: usize, factor: f32, offset: f32) -> Vec<f32> {
    let number = |i: usize| ((i * 37 + shift * 11) % 101) as f32 / 64.0 - 0.78125;
    (0..count).map(|i| factor * number(i) + offset).collect()
}

/// Compares 12 numbers at even distances with the expected ones.
fn assert_near(found: &[f32], expected: [f32; 12]) {
    for (index, expected) in expected.into_iter().enumerate() {
        let found = found[index * found.len() / 12];
        let error = (found - expected).abs();
        assert!(
            error <= 3e-6 * (1.0 + expected.abs()),
            "number {index}: {found} for {expected}"
        );
    }
}

/// Runs a kernel over one sequence in two steps, from a state of zeros.
fn two_steps(
    state_len: usize,
    width: usize,
    mut step: impl FnMut(usize, &mut [SpanState<'_>], &mut [f32]),
) -> Vec<f32> {
    let mut state = vec![0.0; state_len];
    let mut output = vec![f32::NAN; TOKENS * width];
    let (first, second) = output.split_at_mut(3 * width);
    for (from, output) in [(0, first), (3, second)] {
        let mut span = [SpanState {
            rows: output.len() / width,
            state: &mut state,
        }];
        step(from, &mut span, output);
    }
    output
}

/// The rows of one of two steps.
fn rows(all: &[f32], width: usize, from: usize, count: usize) -> Columns<'_> {
    Columns::all(&all[from * width..(from + count) * width], width)
}

/// The reference's weights of a convolution, `[channels, kernel]`, as `[kernel, channels]`.
fn by_tap(weight: &[f32], kernel: usize) -> Vec<f32> {
    let taps = (0..kernel).map(|tap| weight.iter().skip(tap).step_by(kernel));
    taps.flatten().copied().collect()
}

fn convolved(conv: &ShortConv<'_>, input: &[f32]) -> Vec<f32> {
    let (width, channels) = (conv.input_width(), conv.channels());
    two_steps(conv.state_len(), channels, |from, span, output| {
        let input = rows(input, width, from, output.len() / channels);
        short_conv(&Pool::new(1), conv, input, span, output);
    })
}

/// `Qwen3_5GatedDeltaNet` between its projections.
#[test]
fn qwen_3_5_delta_net() {
    let (key_heads, heads, dim) = (2, 4, 16);
    let channels = 2 * key_heads * dim + heads * dim;
    let conv = ShortConv {
        weight: &by_tap(&numbers(channels * 4, 2, 1.0, 0.0), 4),
        kernel: 4,
        bias: None,
        kind: ConvKind::Silu,
    };
    let qkv = convolved(&conv, &numbers(TOKENS * channels, 1, 4.0, 0.0));
    assert_near(&qkv, CONVOLVED);
    let [decay, beta] = [3, 4].map(|shift| numbers(TOKENS * heads, shift, 4.0, 0.0));
    let net = DeltaNet {
        key_heads,
        value_heads: heads,
        key_dim: dim,
        value_dim: dim,
        decay_rates: &numbers(heads, 5, 1.0, -1.0),
        time_step_bias: &numbers(heads, 6, 1.0, 0.0),
    };
    let width = heads * dim;
    let output = two_steps(net.state_len(), width, |from, span, output| {
        let count = output.len() / width;
        let inputs = DeltaRows {
            qkv: rows(&qkv, channels, from, count),
            decay: rows(&decay, heads, from, count),
            beta: rows(&beta, heads, from, count),
        };
        delta_net(&Pool::new(1), &net, inputs, span, output);
    });
    assert_near(&output, DELTA);
    let norm = GatedNorm {
        group: dim,
        weight: &numbers(dim, 7, 1.0, 1.0),
        epsilon: 1e-6,
        order: GateOrder::NormFirst,
    };
    let gate = numbers(TOKENS * width, 8, 4.0, 0.0);
    let mut normed = vec![f32::NAN; output.len()];
    let gate = Columns::all(&gate, width);
    gated_rms_norm(&Pool::new(1), norm, &output, width, gate, &mut normed);
    assert_near(&normed, DELTA_NORMED);
}

/// `GraniteMoeHybridMambaLayer` between its projections.
#[test]
fn granite_4_mamba() {
    let (heads, dim, groups, size) = (4, 8, 2, 16);
    let width = heads * dim;
    let channels = width + 2 * groups * size;
    let conv = ShortConv {
        weight: &by_tap(&numbers(channels * 4, 12, 1.0, 0.0), 4),
        kernel: 4,
        bias: Some(&numbers(channels, 13, 1.0, 0.0)),
        kind: ConvKind::Silu,
    };
    let input = convolved(&conv, &numbers(TOKENS * channels, 11, 1.0, 0.0));
    let time_steps = numbers(TOKENS * heads, 14, 4.0, 0.0);
    let mamba = Mamba2 {
        heads,
        head_dim: dim,
        groups,
        state_size: size,
        decay_rates: &numbers(heads, 15, 1.0, -1.0),
        skip: &numbers(heads, 16, 1.0, 0.0),
        time_step_bias: &numbers(heads, 17, 1.0, 0.0),
        time_step_limits: (0.0, f32::INFINITY),
    };
    let output = two_steps(mamba.state_len(), width, |from, span, output| {
        let count = output.len() / width;
        let input = rows(&input, channels, from, count);
        let time_steps = rows(&time_steps, heads, from, count);
        mamba2(&Pool::new(1), &mamba, input, time_steps, span, output);
    });
    assert_near(&output, MAMBA);
    let (weight, gate) = (
        numbers(width, 18, 1.0, 1.0),
        numbers(TOKENS * width, 19, 4.0, 0.0),
    );
    let group = width / groups;
    let mut normed = vec![f32::NAN; output.len()];
    // The reference has a factor for each number of a row, so each group is a call of its own.
    for first in (0..width).step_by(group) {
        let here = first..first + group;
        let norm = GatedNorm {
            group,
            weight: &weight[here.clone()],
            epsilon: 1e-5,
            order: GateOrder::GateFirst,
        };
        let own = output.chunks(width).flat_map(|row| &row[here.clone()]);
        let own: Vec<f32> = own.copied().collect();
        let gate = Columns {
            rows: &gate,
            stride: width,
            first,
        };
        let mut part = vec![f32::NAN; own.len()];
        gated_rms_norm(&Pool::new(1), norm, &own, group, gate, &mut part);
        for (row, part) in normed.chunks_mut(width).zip(part.chunks(group)) {
            row[here.clone()].copy_from_slice(part);
        }
    }
    assert_near(&normed, MAMBA_NORMED);
}

/// `Lfm2ShortConv` between its projections.
#[test]
fn lfm2_short_conv() {
    let conv = ShortConv {
        weight: &by_tap(&numbers(16 * 3, 22, 1.0, 0.0), 3),
        kernel: 3,
        bias: Some(&numbers(16, 23, 1.0, 0.0)),
        kind: ConvKind::Gated,
    };
    assert_near(
        &convolved(&conv, &numbers(TOKENS * 48, 21, 1.0, 0.0)),
        [
            0.070_881_546,
            -0.040_287_97,
            0.028_559_625,
            -0.398_665_07,
            0.212_436_02,
            -0.031_472_445,
            0.033_225_417,
            0.296_693_1,
            0.341_008_3,
            0.057_188_51,
            -0.242_023_7,
            0.246_557_24,
        ],
    );
}

/// `Qwen3MoeExperts`, and the routers of Qwen3-MoE and Granite 4.
#[test]
fn mixtures_of_experts() {
    let (count, per_row, hidden, inner) = (6, 3, 16, 32);
    // The reference has both in one tensor, expert after expert.
    let gate_up = numbers(count * 2 * inner * hidden, 33, 0.5, 0.0);
    let halves = gate_up.chunks(inner * hidden);
    let gate: Vec<&[f32]> = halves.clone().step_by(2).collect();
    let up: Vec<&[f32]> = halves.skip(1).step_by(2).collect();
    let (gate, up) = (gate.concat(), up.concat());
    let down = numbers(count * hidden * inner, 34, 0.25, 0.0);
    let layer = Experts {
        count,
        hidden,
        inner,
        gate: &[Rows::from_f32(&gate, hidden)],
        up: &[Rows::from_f32(&up, hidden)],
        down: &[Rows::from_f32(&down, inner)],
        biases: None,
        activation: Activation::Silu,
        arithmetic: Arithmetic::Exact,
    };
    let input = numbers(TOKENS * hidden, 31, 2.0, 0.0);
    let logits = numbers(TOKENS * count, 32, 3.0, 0.0);
    let run = |routing| {
        let pool = Pool::new(1);
        let choice = choose(&pool, routing, &logits, count, per_row);
        let mut output = vec![f32::NAN; TOKENS * hidden];
        experts(&pool, &layer, &input, &choice, &mut output);
        output
    };
    assert_near(
        &run(Routing::SoftmaxAll { normalised: false }),
        [
            -0.487_107_28,
            0.077_501_595,
            -0.040_608_987,
            -0.480_590_37,
            0.291_747_15,
            -0.315_549_5,
            0.624_642_3,
            -0.163_770_44,
            -0.630_004_4,
            0.613_877_4,
            0.217_774_06,
            -0.289_696,
        ],
    );
    let expected = [
        -0.538_837_2,
        0.085_732_1,
        -0.046_088_938,
        -0.545_443_4,
        0.331_116_86,
        -0.358_131_17,
        0.680_480_24,
        -0.181_162_57,
        -0.696_909_7,
        0.679_070_1,
        0.240_901_26,
        -0.328_789_03,
    ];
    assert_near(&run(Routing::SoftmaxAll { normalised: true }), expected);
    assert_near(&run(Routing::SoftmaxChosen), expected);
}
