//! The short convolution of recurrent blocks, and the states of a step's spans.

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream, transforms};

use super::composed;
use crate::device::bridge::Buffer;
use crate::device::kernel_ops::Columns;
use crate::device::kernel_ops::recurrent::{self, SpanBuffer};
use crate::device::profile::{self, Cost, Op};
use crate::error::MlxError;
use crate::state::tail::TailSpan;
use crate::weights::BlockLoader;
use motet_kernels::short_conv::ConvKind;
use motet_weights::Role;

/// The weights of a causal depthwise convolution.
#[derive(Clone, Debug)]
pub(super) struct ConvWeights {
    /// `[kernel, channels]`.
    pub(super) weight: Array,
    /// `[channels]`.
    pub(super) bias: Option<Array>,
}

impl ConvWeights {
    pub(super) fn load(loader: &BlockLoader<'_>, has_bias: bool) -> Result<Self, MlxError> {
        // Checkpoints have a row for each channel.
        let weight = loader.tensor(Role::Conv)?.transpose()?.contiguous()?;
        transforms::eval([&weight])?;
        Ok(Self {
            weight,
            bias: has_bias
                .then(|| loader.tensor(Role::ConvBias))
                .transpose()?,
        })
    }

    /// The convolution by this crate's kernel, in place on the spans' states.
    pub(super) fn apply(
        &self,
        input: Columns<'_>,
        kind: ConvKind,
        states: &[SpanBuffer<'_>],
        stream: &Stream,
    ) -> Result<Array, Exception> {
        let Self { weight, bias } = self;
        profile::op_beside(
            Op::ShortConv,
            &[input.array, weight],
            || state_cost(states),
            || recurrent::short_conv(input, weight, bias.as_ref(), kind, states, stream),
        )
    }

    /// The convolution of one span, composed of MLX's operations. Returns the outputs and the
    /// next state.
    pub(super) fn compose(
        &self,
        input: &Array,
        state: &Array,
    ) -> Result<(Array, Array), Exception> {
        composed::short_conv::short_conv(input, state, &self.weight, self.bias.as_ref())
    }

    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.weight].into_iter().chain(&self.bias)
    }
}

/// The cost of reading the states of all spans.
pub(super) fn state_cost(states: &[SpanBuffer<'_>]) -> Cost {
    let bytes = states.iter().map(|span| span.state.array().nbytes());
    Cost {
        read_bytes: bytes.sum(),
        flops: 0,
    }
}

/// The spans with each of their `N` states, given one span's states after another's.
pub(super) fn span_states<'a, const N: usize>(
    spans: &[TailSpan],
    states: &'a [Buffer],
) -> [Vec<SpanBuffer<'a>>; N] {
    std::array::from_fn(|kind| {
        let states = states.iter().skip(kind).step_by(N);
        let spans = spans.iter().zip(states);
        let span = |(span, state): (&TailSpan, &'a Buffer)| SpanBuffer {
            rows: span.rows.len(),
            state,
        };
        spans.map(span).collect()
    })
}
