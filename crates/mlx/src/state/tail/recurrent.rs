//! The recurrent part of a tail: one state for each layer, at the tail's end.
//!
//! Arrays of state are shared with segments without a copy: by a new tail with the last segment
//! of its path, and by a sealed tail with the segment that ends where it ends. Shared arrays
//! are never changed. A kernel that changes state in place first gets a copy, on the stream,
//! which is then the tail's own. Operations of MLX make new arrays, which replace the old ones.

use mlx_rs::error::Exception;
use mlx_rs::ops::zeros_dtype;
use mlx_rs::{Array, Dtype, Stream};

use crate::device::bridge::{self, Buffer, Kernel, View, ViewMut};
use crate::device::profile::{self, Op};
use crate::state::groups::{Arrays, RecurrentShape};
use motet_kernels::pool::Pool;

/// The state of a group's layers at the end of a tail.
#[derive(Debug)]
pub(crate) struct RecurrentTail {
    layers: Vec<RecurrentState>,
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
        Self { layers }
    }

    /// The state of each layer, for a segment. The tail shares it from now on.
    pub(super) fn share(&mut self, shape: &RecurrentShape) -> Result<Vec<Arrays>, Exception> {
        let layers = self.layers.iter_mut().map(|layer| {
            let arrays = layer.arrays(shape)?;
            *layer = RecurrentState::Shared(arrays.clone());
            Ok(arrays)
        });
        layers.collect()
    }

    /// Takes the states out, layer after layer.
    pub(super) fn take(&mut self) -> std::vec::IntoIter<RecurrentState> {
        std::mem::take(&mut self.layers).into_iter()
    }

    /// Puts states back.
    pub(super) fn put(&mut self, layers: Vec<RecurrentState>) {
        self.layers = layers;
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

/// The buffers of one layer's `states`, state after state. States that are not a tail's own are
/// copied, by one operation.
pub(super) fn buffers(
    shape: &RecurrentShape,
    states: Vec<RecurrentState>,
    stream: &Stream,
) -> Result<Vec<Buffer>, Exception> {
    let made = copies(shape, &states, stream)?;
    let (shared, zeros) = made.split_at(count_arrays(&states));
    let (mut shared, mut zeros) = (shared.iter().cloned(), zeros.iter().cloned());
    let mut buffers = Vec::with_capacity(states.len() * shape.arrays.len());
    for state in states {
        let arrays: Arrays = match state {
            RecurrentState::Own(arrays) => arrays,
            RecurrentState::Shared(arrays) => shared.by_ref().take(arrays.len()).collect(),
            RecurrentState::Zero => zeros.by_ref().take(shape.arrays.len()).collect(),
        };
        // SAFETY: these arrays were made for this tail alone. They are used only on the model's
        // one stream until a segment shares them, and a tail never writes to shared arrays.
        buffers.extend(
            arrays
                .into_iter()
                .map(|array| unsafe { Buffer::new(array) }),
        );
    }
    Ok(buffers)
}

/// Copies of the shared arrays among `states`, then zeros for each state that is zero.
fn copies(
    shape: &RecurrentShape,
    states: &[RecurrentState],
    stream: &Stream,
) -> Result<Vec<Array>, Exception> {
    let mut inputs: Vec<&Array> = Vec::new();
    let mut zero_states = 0;
    for state in states {
        match state {
            RecurrentState::Shared(arrays) => inputs.extend(arrays),
            RecurrentState::Zero => zero_states += 1,
            RecurrentState::Own(_) => {}
        }
    }
    let zeros = (0..zero_states).flat_map(|_| &shape.arrays);
    let shapes = inputs.iter().map(|array| array.shape());
    let shapes: Vec<&[i32]> = shapes.chain(zeros.map(Vec::as_slice)).collect();
    if shapes.is_empty() {
        return Ok(Vec::new());
    }
    profile::op(Op::StateCopy, &inputs, || {
        bridge::apply(Copies, &inputs, &shapes, stream)
    })
}

fn count_arrays(states: &[RecurrentState]) -> usize {
    let count = |state: &RecurrentState| match state {
        RecurrentState::Shared(arrays) => arrays.len(),
        RecurrentState::Zero | RecurrentState::Own(_) => 0,
    };
    states.iter().map(count).sum()
}

/// Copies each input to an output. Further outputs become zeros.
struct Copies;

impl Kernel for Copies {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        for (index, output) in outputs.iter_mut().enumerate() {
            match inputs.get(index) {
                Some(input) => copy(&input.data, output.data),
                None => zero(output.data),
            }
        }
    }
}

/// Numbers that one thread copies at a time.
const CHUNK: usize = 64 << 10;

fn copy(from: &[f32], to: &mut [f32]) {
    assert_eq!(from.len(), to.len(), "a copy has the shape of its source");
    Pool::global().for_each_chunk([to], [CHUNK], |index, [to]| {
        to.copy_from_slice(&from[index * CHUNK..][..to.len()]);
    });
}

fn zero(numbers: &mut [f32]) {
    Pool::global().for_each_chunk([numbers], [CHUNK], |_, [numbers]| numbers.fill(0.0));
}
