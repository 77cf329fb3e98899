//! A step's writes to its tails, layer after layer.

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::ops::zeros_dtype;
use mlx_rs::{Array, Dtype, Stream};

use super::recurrent::{self, RecurrentState};
use super::{MlxTail, PooledMemory};
use crate::device::bridge::Buffer;
use crate::device::ops;
use crate::state::groups::{Arrays, KvShape, LayerGroups, Place};
use crate::state::layer_state::State;

/// The state of a step's tails while the step is built. Each layer must be written once, in the
/// order of the layers.
#[derive(Debug)]
pub(crate) struct TailWrites {
    groups: Arc<LayerGroups>,
    /// Tokens that the step adds to each tail.
    added: Vec<usize>,
    kv: Vec<KvWrites>,
    recurrent: Vec<RecurrentWrites>,
    /// Recurrent arrays that no later layer depends on.
    aside: Vec<Array>,
    /// Arrays of the last written layer: their evaluation implies that all state except that in
    /// `aside` is written.
    last: Vec<Array>,
}

/// The writes to the keys and values of one group.
#[derive(Debug)]
struct KvWrites {
    shape: KvShape,
    spans: Vec<KvWrite>,
    /// Each layer's buffers after the step, one for each tail.
    written: Vec<Vec<State>>,
}

/// The writes to the keys and values of one group in one tail.
#[derive(Debug)]
pub(super) struct KvWrite {
    /// Tokens that the step adds.
    pub(super) added: usize,
    /// The first of the held tokens that stays.
    pub(super) first: usize,
    /// Number of held tokens that stay, from `first` on.
    pub(super) stay: usize,
    pub(super) capacity: usize,
    pub(super) layers: std::vec::IntoIter<State>,
}

/// The changes to the state of one recurrent group.
#[derive(Debug)]
struct RecurrentWrites {
    spans: Vec<std::vec::IntoIter<RecurrentState>>,
    /// Each layer's state after the step, one for each tail.
    written: Vec<Vec<RecurrentState>>,
}

impl TailWrites {
    /// Takes the state out of `tails`, each given with the number of tokens to append. Until
    /// [`commit`](Self::commit) the tails are unusable.
    pub(crate) fn take_buffers<'a>(
        groups: &Arc<LayerGroups>,
        tails: impl Iterator<Item = (&'a mut MlxTail, usize)>,
        memory: Option<PooledMemory<'_>>,
    ) -> Result<Self, Exception> {
        let kv = groups.kv.iter().map(|shape| KvWrites {
            shape: *shape,
            spans: Vec::new(),
            written: Vec::with_capacity(shape.layers),
        });
        let recurrent = groups.recurrent.iter().map(|shape| RecurrentWrites {
            spans: Vec::new(),
            written: Vec::with_capacity(shape.layers),
        });
        let mut writes = Self {
            added: Vec::new(),
            kv: kv.collect(),
            recurrent: recurrent.collect(),
            aside: Vec::new(),
            last: Vec::new(),
            groups: Arc::clone(groups),
        };
        for (tail, added) in tails {
            writes.add(tail, added, memory)?;
        }
        Ok(writes)
    }

    fn add(
        &mut self,
        tail: &mut MlxTail,
        added: usize,
        memory: Option<PooledMemory<'_>>,
    ) -> Result<(), Exception> {
        self.added.push(added);
        let expected_tokens = tail.expected_tokens;
        for (part, writes) in tail.kv.iter_mut().zip(&mut self.kv) {
            if let Some(memory) = memory {
                part.ensure_capacity(added, expected_tokens, memory)?;
            }
            writes.spans.push(part.take_buffers(added, expected_tokens));
        }
        for (part, writes) in tail.recurrent.iter_mut().zip(&mut self.recurrent) {
            writes.spans.push(part.take());
        }
        Ok(())
    }

    /// Writes `new`, a layer's keys and values of all rows, to the tails. `spans`: the rows of
    /// each tail, and the tokens that it holds before them. Returns the tails' buffers.
    pub(crate) fn write(
        &mut self,
        layer: usize,
        spans: impl Iterator<Item = (Range<usize>, usize)>,
        new: &State,
    ) -> Result<&[State], Exception> {
        let group = self.kv_group(layer);
        let writes = &mut self.kv[group];
        let dtype = writes.shape.cached.dtype();
        let new = new.map(|array| ops::narrowed(array, dtype))?;
        let buffers = writes.next_buffers()?;
        let written: Vec<State> = buffers
            .iter()
            .zip(spans)
            .map(|(buffer, (rows, held))| {
                let put = |buffer: &Array, new: &Array| {
                    let rows = ops::tokens(new, rows.start, rows.end)?;
                    ops::put_tokens(buffer, &rows, held)
                };
                Ok(State {
                    keys: put(&buffer.keys, &new.keys)?,
                    values: put(&buffer.values, &new.values)?,
                })
            })
            .collect::<Result<_, Exception>>()?;
        self.last = written.iter().flat_map(State::arrays).cloned().collect();
        writes.written.push(written);
        Ok(writes.written.last().expect("a layer was just pushed"))
    }

    /// Lets a kernel write a layer's keys and values of all rows to the tails' buffers, and
    /// returns the kernel's other output.
    pub(crate) fn write_in_place(
        &mut self,
        layer: usize,
        kernel: impl FnOnce(&[(Buffer, Buffer)]) -> Result<Array, Exception>,
    ) -> Result<Array, Exception> {
        let group = self.kv_group(layer);
        let buffers = self.kv[group].next_buffers()?.into_iter().map(|state| {
            // SAFETY: a tail's buffers were made for it alone. All other users are evaluated on
            // the model's one stream. Views of the buffers are of rows that were written
            // before, and such rows are written again only after they were cut off.
            unsafe { (Buffer::new(state.keys), Buffer::new(state.values)) }
        });
        let buffers: Vec<(Buffer, Buffer)> = buffers.collect();
        let made = kernel(&buffers)?;
        let written = buffers.into_iter().map(|(keys, values)| State {
            keys: keys.into_array(),
            values: values.into_array(),
        });
        self.kv[group].written.push(written.collect());
        self.last = vec![made.clone()];
        Ok(made)
    }

    /// Replaces the state of a recurrent layer. `change` gets each span's arrays and returns
    /// the layer's output and each span's new arrays, of the same shapes.
    pub(crate) fn update(
        &mut self,
        layer: usize,
        change: impl FnOnce(&[Arrays]) -> Result<(Array, Vec<Arrays>), Exception>,
    ) -> Result<Array, Exception> {
        let group = self.recurrent_group(layer);
        let shape = &self.groups.recurrent[group];
        let states = self.recurrent[group].next_states();
        let before = states.iter().map(|state| state.arrays(shape));
        let before: Vec<Arrays> = before.collect::<Result<_, Exception>>()?;
        let (made, after) = change(&before)?;
        assert_eq!(after.len(), before.len(), "new state for each span");
        let after = after.into_iter().map(|arrays| {
            let found = arrays.iter().map(Array::shape);
            assert!(found.eq(shape.arrays.iter()), "state keeps its shapes");
            let own = |array: Array| array.as_dtype(Dtype::Float32)?.contiguous();
            arrays.into_iter().map(own).collect()
        });
        let after: Vec<Arrays> = after.collect::<Result<_, Exception>>()?;
        self.aside.extend(after.iter().flatten().cloned());
        self.last = vec![made.clone()];
        let shared = after.into_iter().map(RecurrentState::Shared);
        self.recurrent[group].written.push(shared.collect());
        Ok(made)
    }

    /// Lets a kernel on `stream` change the state of a recurrent layer in place, and returns
    /// the kernel's other output. The kernel gets the buffers of the first span, in the order
    /// of the group's arrays, then those of the next span, and so on.
    pub(crate) fn update_in_place(
        &mut self,
        layer: usize,
        stream: &Stream,
        kernel: impl FnOnce(&[Buffer]) -> Result<Array, Exception>,
    ) -> Result<Array, Exception> {
        let group = self.recurrent_group(layer);
        let shape = &self.groups.recurrent[group];
        let states = self.recurrent[group].next_states();
        let spans = states.len();
        let buffers = recurrent::buffers(shape, states, stream)?;
        let made = kernel(&buffers)?;
        let mut arrays = buffers.into_iter().map(Buffer::into_array);
        let state = |_| RecurrentState::Own(arrays.by_ref().take(shape.arrays.len()).collect());
        let written = (0..spans).map(state).collect();
        self.recurrent[group].written.push(written);
        self.last = vec![made.clone()];
        Ok(made)
    }

    /// Puts the state back. Returns the arrays whose evaluation writes all of it, the one that
    /// is computed last at the end.
    pub(crate) fn commit<'a>(self, tails: impl Iterator<Item = &'a mut MlxTail>) -> Vec<Array> {
        let mut kv: Vec<_> = self.kv.into_iter().map(KvWrites::by_tail).collect();
        let recurrent = self.recurrent.into_iter();
        let mut recurrent: Vec<_> = recurrent.map(RecurrentWrites::by_tail).collect();
        for (tail, added) in tails.zip(self.added) {
            tail.tokens += added;
            for (part, writes) in tail.kv.iter_mut().zip(&mut kv) {
                let (write, layers) = writes.next().expect("one write for each tail");
                part.put_buffers(&write, layers);
            }
            for (part, layers) in tail.recurrent.iter_mut().zip(&mut recurrent) {
                part.put(layers.next().expect("one state for each tail"));
            }
        }
        let mut pending = self.aside;
        pending.extend(self.last);
        pending
    }

    fn kv_group(&self, layer: usize) -> usize {
        match self.groups.place(layer) {
            Place::Kv { group, .. } => group,
            Place::Recurrent { .. } => panic!("layer {layer} has recurrent state only"),
        }
    }

    fn recurrent_group(&self, layer: usize) -> usize {
        match self.groups.place(layer) {
            Place::Recurrent { group, .. } => group,
            Place::Kv { .. } => panic!("layer {layer} has keys and values only"),
        }
    }
}

impl KvWrites {
    /// The next layer's buffers, with capacity for the new tokens.
    fn next_buffers(&mut self) -> Result<Vec<State>, Exception> {
        let shape = self.shape;
        let spans = self.spans.iter_mut();
        spans.map(|span| span.next_buffer(&shape)).collect()
    }

    /// Each tail's write, with its buffers of all layers.
    fn by_tail(self) -> impl Iterator<Item = (KvWrite, Vec<State>)> {
        let layers = by_tail(self.spans.len(), self.written);
        self.spans.into_iter().zip(layers)
    }
}

impl RecurrentWrites {
    /// The next layer's state of each tail.
    fn next_states(&mut self) -> Vec<RecurrentState> {
        let spans = self.spans.iter_mut();
        let next = spans.map(|layers| layers.next().expect("a layer is changed once"));
        next.collect()
    }

    /// Each tail's state of all layers.
    fn by_tail(self) -> impl Iterator<Item = Vec<RecurrentState>> {
        by_tail(self.spans.len(), self.written).into_iter()
    }
}

/// The elements of each layer for each tail, as the elements of each tail for each layer.
fn by_tail<T>(tails: usize, layers: Vec<Vec<T>>) -> Vec<Vec<T>> {
    let mut turned: Vec<Vec<T>> = (0..tails).map(|_| Vec::new()).collect();
    for layer in layers {
        for (tail, element) in turned.iter_mut().zip(layer) {
            tail.push(element);
        }
    }
    turned
}

impl KvWrite {
    fn next_buffer(&mut self, shape: &KvShape) -> Result<State, Exception> {
        let (first, stay, capacity) = (self.first, self.stay, self.capacity);
        let Some(state) = self.layers.next() else {
            let empty = [shape.kv_heads, capacity as i32, shape.cached_width()];
            let dtype = shape.cached.array_dtype();
            return Ok(State {
                keys: zeros_dtype(&empty, dtype)?,
                values: zeros_dtype(&empty, dtype)?,
            });
        };
        if state.capacity() == capacity && first == 0 {
            Ok(state)
        } else {
            state.moved(first, first + stay, capacity)
        }
    }
}
