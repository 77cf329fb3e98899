//! The recurrent part of a tail: one state for each layer, at the tail's end.
//!
//! Arrays of state are shared with segments without a copy: by a new tail with the last segment
//! of its path, and by a sealed tail with the segment that ends where it ends. Shared arrays
//! are never changed. A kernel that changes state in place first gets a copy, on the stream,
//! which is then the tail's own. Operations of MLX make new arrays, which replace the old ones.
//!
//! A recurrent state cannot go back. A span that verifies a draft therefore computes on a copy that
//! is dropped with the step, and the tail keeps the state before the span. It also keeps the input
//! of each layer's recurrence, which is much smaller than a state for each draft token would be
//! (ReplaySSM does so). Once it is known which tokens stay, the recurrence runs again over their
//! rows: the same operations on the same numbers, and so the same bits.

use std::ops::Range;
use std::slice;

use mlx_rs::error::Exception;
use mlx_rs::ops::zeros_dtype;
use mlx_rs::{Array, Dtype, Stream};

use crate::device::bridge::{self, Buffer, Kernel, View, ViewMut};
use crate::device::profile::{self, Op};
use crate::state::groups::{Arrays, RecurrentShape};
use motet_kernels::pool::Pool;
use smallvec::SmallVec;

/// The state of a group's layers at the end of a tail.
#[derive(Debug)]
pub(crate) struct RecurrentTail {
    layers: Vec<RecurrentState>,
    /// For each layer, the input rows of the last step, if that step verified a draft: the state is
    /// the one before them. Empty otherwise.
    unsettled: Vec<Array>,
}

/// One layer's state of a tail after a step.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) state: RecurrentState,
    /// The layer's input rows, if the state does not contain them yet.
    pub(super) unsettled: Option<Array>,
}

/// One layer's state.
#[derive(Clone, Debug)]
pub(super) enum RecurrentState {
    /// Zeros: the state at the start of a sequence.
    Zero,
    /// Arrays that segments may share.
    Shared(Arrays),
    /// Buffers that kernels change in place, used by this tail alone.
    Own(Arrays),
}

impl RecurrentTail {
    /// The state `before` of each layer at the end of a path, or zeros.
    pub(super) fn new(shape: &RecurrentShape, before: Option<&[Arrays]>) -> Self {
        let layers = match before {
            Some(before) => before.iter().cloned().map(RecurrentState::Shared).collect(),
            None => vec![RecurrentState::Zero; shape.layers],
        };
        Self {
            layers,
            unsettled: Vec::new(),
        }
    }

    /// The state of each layer, for a segment. The tail shares it from now on.
    pub(super) fn share(&mut self, shape: &RecurrentShape) -> Result<Vec<Arrays>, Exception> {
        self.assert_truncated();
        let layers = self.layers.iter_mut().map(|layer| {
            let arrays = layer.arrays(shape)?;
            *layer = RecurrentState::Shared(arrays.clone());
            Ok(arrays)
        });
        layers.collect()
    }

    /// Takes the states out, layer after layer.
    pub(super) fn take(&mut self) -> std::vec::IntoIter<RecurrentState> {
        self.assert_truncated();
        std::mem::take(&mut self.layers).into_iter()
    }

    /// Takes the rows out that the state does not contain yet, layer after layer. There are none if
    /// it contains all.
    pub(super) fn take_unsettled(&mut self) -> Vec<Array> {
        std::mem::take(&mut self.unsettled)
    }

    /// Puts states back.
    pub(super) fn put(&mut self, layers: Vec<Written>) {
        let (states, unsettled): (_, Vec<Option<Array>>) = layers
            .into_iter()
            .map(|layer| (layer.state, layer.unsettled))
            .unzip();
        self.layers = states;
        self.unsettled = unsettled.into_iter().flatten().collect();
    }

    fn assert_truncated(&self) {
        assert!(
            self.unsettled.is_empty(),
            "the tail is truncated first: its last step verified a draft"
        );
    }
}

impl Written {
    /// The arrays that the step computes.
    pub(super) fn computed(&self) -> &[Array] {
        match (&self.unsettled, &self.state) {
            (Some(rows), _) => slice::from_ref(rows),
            (None, RecurrentState::Shared(arrays) | RecurrentState::Own(arrays)) => arrays,
            (None, RecurrentState::Zero) => &[],
        }
    }
}

impl RecurrentState {
    /// Its arrays, which may be computed later.
    pub(super) fn arrays(&self, shape: &RecurrentShape) -> Result<Arrays, Exception> {
        match self {
            Self::Shared(arrays) | Self::Own(arrays) => Ok(arrays.clone()),
            Self::Zero => {
                let zeros = |shape: &Vec<i32>| zeros_dtype(shape, Dtype::Float32);
                shape.arrays.iter().map(zeros).collect()
            }
        }
    }
}

/// A layer's state for a step's kernels.
#[derive(Debug)]
pub(super) struct StepBuffers {
    /// State after state, for the kernels to change.
    pub(super) buffers: Vec<Buffer>,
    /// A copy of the rows of each span that verifies a draft.
    pub(super) unsettled: Vec<Array>,
}

/// The buffers of one layer's `states`, each with the rows of its span if that verifies a draft.
/// States that are not a tail's own are copied, and so are those that such a span must not change,
/// together with their rows of `input`, by one operation.
pub(super) fn buffers(
    shape: &RecurrentShape,
    states: &[(RecurrentState, Option<Range<usize>>)],
    input: &Array,
    stream: &Stream,
) -> Result<StepBuffers, Exception> {
    let mut copies = StateCopies::default();
    for (state, unsettled) in states {
        match state {
            RecurrentState::Shared(arrays) => copies.add_all(arrays),
            RecurrentState::Own(arrays) if unsettled.is_some() => copies.add_all(arrays),
            RecurrentState::Own(_) => {}
            RecurrentState::Zero => copies.zeros.extend(&shape.arrays),
        }
    }
    for (_, rows) in states {
        if let Some(rows) = rows {
            copies.add_rows(input, rows);
        }
    }
    let made = copies.apply(stream)?;
    let copied = copies.copied.len();
    let rows = states.iter().filter(|(_, rows)| rows.is_some()).count();
    let mut shared = made[..copied - rows].iter().cloned();
    let mut zeros = made[copied..].iter().cloned();
    let mut buffers = Vec::with_capacity(states.len() * shape.arrays.len());
    for (state, unsettled) in states {
        let count = shape.arrays.len();
        let arrays: Arrays = match state {
            RecurrentState::Own(arrays) if unsettled.is_none() => arrays.clone(),
            RecurrentState::Own(_) | RecurrentState::Shared(_) => {
                shared.by_ref().take(count).collect()
            }
            RecurrentState::Zero => zeros.by_ref().take(count).collect(),
        };
        // SAFETY: these arrays were made for this tail alone. They are used only on the model's
        // one stream until a segment shares them, and a tail never writes to shared arrays.
        buffers.extend(
            arrays
                .into_iter()
                .map(|array| unsafe { Buffer::new(array) }),
        );
    }
    Ok(StepBuffers {
        buffers,
        unsettled: made[copied - rows..copied].to_vec(),
    })
}

/// Copies that one operation makes.
#[derive(Debug, Default)]
struct StateCopies<'a> {
    inputs: Vec<&'a Array>,
    /// Each copy's input, the first of its numbers there, and its shape.
    copied: Vec<(usize, usize, SmallVec<[i32; 4]>)>,
    /// The shapes of further arrays, which are zeros.
    zeros: Vec<&'a Vec<i32>>,
}

impl<'a> StateCopies<'a> {
    fn add_all(&mut self, arrays: &'a Arrays) {
        for array in arrays {
            self.copied
                .push((self.inputs.len(), 0, array.shape().into()));
            self.inputs.push(array);
        }
    }

    /// Adds some rows of `input`, of `[rows, width]`.
    fn add_rows(&mut self, input: &'a Array, rows: &Range<usize>) {
        let width = input.dim(1);
        let is_input = |other: &&Array| std::ptr::eq(*other, input);
        let index = self.inputs.iter().position(is_input).unwrap_or_else(|| {
            self.inputs.push(input);
            self.inputs.len() - 1
        });
        let shape = SmallVec::from_slice(&[rows.len() as i32, width]);
        self.copied
            .push((index, rows.start * width as usize, shape));
    }

    /// The copies, then the zeros.
    fn apply(&self, stream: &Stream) -> Result<Vec<Array>, Exception> {
        let shapes = self.copied.iter().map(|(_, _, shape)| shape.as_slice());
        let zeros = self.zeros.iter().map(|shape| shape.as_slice());
        let shapes: Vec<&[i32]> = shapes.chain(zeros).collect();
        if shapes.is_empty() {
            return Ok(Vec::new());
        }
        let copied = self.copied.iter();
        let copies = Copies(copied.map(|(input, first, _)| (*input, *first)).collect());
        profile::op(Op::StateCopy, &self.inputs, || {
            bridge::apply(copies, &self.inputs, &shapes, stream)
        })
    }
}

/// Copies numbers of an input, from the first one given on, to each output. Further outputs become
/// zeros.
struct Copies(Vec<(usize, usize)>);

impl Kernel for Copies {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        for (index, output) in outputs.iter_mut().enumerate() {
            match self.0.get(index) {
                Some((input, first)) => copy(&inputs[*input].data[*first..], output.data),
                None => zero(output.data),
            }
        }
    }
}

/// Numbers that one thread copies at a time.
const CHUNK: usize = 64 << 10;

/// Copies as many numbers as fit.
fn copy(from: &[f32], to: &mut [f32]) {
    Pool::global().for_each_chunk([to], [CHUNK], |index, [to]| {
        to.copy_from_slice(&from[index * CHUNK..][..to.len()]);
    });
}

fn zero(numbers: &mut [f32]) {
    Pool::global().for_each_chunk([numbers], [CHUNK], |_, [numbers]| numbers.fill(0.0));
}
