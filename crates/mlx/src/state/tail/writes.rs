//! A step's writes to its tails, layer after layer.

use std::ops::Range;
use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Dtype, Stream};

use super::kv_writes::{KvWrites, by_tail};
use super::recurrent::{self, RecurrentState, Written};
use super::{MlxTail, PooledMemory};
use crate::device::bridge::Buffer;
use crate::device::ops;
use crate::state::groups::{Arrays, LayerGroups, Place};
use crate::state::layer_state::State;

/// The state of a step's tails while the step is built. Each layer must be written once, in the
/// order of the layers.
#[derive(Debug)]
pub(crate) struct TailWrites {
    groups: Arc<LayerGroups>,
    /// The part of each tail in the step.
    spans: Vec<TailSpan>,
    kv: Vec<KvWrites>,
    recurrent: Vec<RecurrentWrites>,
    /// Recurrent arrays that no later layer depends on.
    aside: Vec<Array>,
    /// Number of those that were returned by [`unsubmitted`](Self::unsubmitted).
    submitted: usize,
    /// Arrays of the last written layer: their evaluation implies that all state except that in
    /// `aside` is written. Where no layer depends on another, those of all layers.
    last: Vec<Array>,
    /// Whether each layer's input depends on the layer before it.
    are_dependent: bool,
}

/// The tokens that a step appends to a tail.
#[derive(Debug)]
pub(crate) struct Appended<'a> {
    pub(crate) tail: &'a mut MlxTail,
    pub(crate) tokens: usize,
    /// Whether all tokens but the first are a draft, which may be dropped again.
    pub(crate) verifies: bool,
}

/// The part of one tail in a step.
#[derive(Clone, Debug)]
pub(crate) struct TailSpan {
    /// Its rows among those of the step.
    pub(crate) rows: Range<usize>,
    verifies: bool,
}

impl TailSpan {
    /// The rows that the tail's state must not contain yet.
    fn unsettled(&self) -> Option<Range<usize>> {
        self.verifies.then(|| self.rows.clone())
    }
}

/// The changes to the state of one recurrent group.
#[derive(Debug)]
struct RecurrentWrites {
    spans: Vec<std::vec::IntoIter<RecurrentState>>,
    /// Each layer's state after the step, one for each tail.
    written: Vec<Vec<Written>>,
}

impl TailWrites {
    /// Takes the state out of the tails. Until [`commit`](Self::commit) they are unusable.
    pub(crate) fn take_buffers<'a>(
        groups: &Arc<LayerGroups>,
        appended: impl Iterator<Item = Appended<'a>>,
        memory: Option<PooledMemory<'_>>,
    ) -> Result<Self, Exception> {
        let kv = groups.kv.iter().map(KvWrites::new);
        let mut writes = Self::of_groups(groups, kv.collect());
        for appended in appended {
            writes.add(appended, memory)?;
        }
        Ok(writes)
    }

    /// Takes the recurrent state out of a tail, to change it by `rows` rows that it does not
    /// contain yet. Keys and values stay as they are.
    pub(super) fn take_recurrent(
        groups: &Arc<LayerGroups>,
        tail: &mut MlxTail,
        rows: usize,
    ) -> Self {
        let mut writes = Self::of_groups(groups, Vec::new());
        writes.are_dependent = false;
        writes.spans.push(TailSpan {
            rows: 0..rows,
            verifies: false,
        });
        for (part, writes) in tail.recurrent.iter_mut().zip(&mut writes.recurrent) {
            writes.spans.push(part.take());
        }
        writes
    }

    fn of_groups(groups: &Arc<LayerGroups>, kv: Vec<KvWrites>) -> Self {
        let recurrent = groups.recurrent.iter().map(|shape| RecurrentWrites {
            spans: Vec::new(),
            written: Vec::with_capacity(shape.layers),
        });
        Self {
            spans: Vec::new(),
            kv,
            recurrent: recurrent.collect(),
            aside: Vec::new(),
            submitted: 0,
            last: Vec::new(),
            are_dependent: true,
            groups: Arc::clone(groups),
        }
    }

    fn add(
        &mut self,
        appended: Appended<'_>,
        memory: Option<PooledMemory<'_>>,
    ) -> Result<(), Exception> {
        let Appended {
            tail,
            tokens: added,
            verifies,
        } = appended;
        let first = self.spans.last().map_or(0, |span| span.rows.end);
        self.spans.push(TailSpan {
            rows: first..first + added,
            verifies,
        });
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

    /// Replaces the state of a recurrent layer. `change` gets `input`, all that the recurrence
    /// reads of each row, with each span and its arrays. It returns the layer's output and each
    /// span's new arrays, of the same shapes.
    pub(crate) fn update(
        &mut self,
        layer: usize,
        input: &Array,
        change: impl FnOnce(&[TailSpan], &[Arrays]) -> Result<(Array, Vec<Arrays>), Exception>,
    ) -> Result<Array, Exception> {
        let group = self.recurrent_group(layer);
        let shape = &self.groups.recurrent[group];
        let states = self.recurrent[group].next_states();
        let before = states.iter().map(|state| state.arrays(shape));
        let before: Vec<Arrays> = before.collect::<Result<_, Exception>>()?;
        let (made, after) = change(&self.spans, &before)?;
        assert_eq!(after.len(), before.len(), "new state for each span");
        let mut written = Vec::with_capacity(states.len());
        for ((span, state), after) in self.spans.iter().zip(states).zip(after) {
            let found = after.iter().map(Array::shape);
            assert!(found.eq(shape.arrays.iter()), "state keeps its shapes");
            let layer = match span.unsettled() {
                None => Written {
                    state: RecurrentState::Shared(owned(after)?),
                    unsettled: None,
                },
                Some(rows) => Written {
                    state,
                    unsettled: Some(copied_rows(input, &rows)?),
                },
            };
            self.aside.extend(layer.computed().iter().cloned());
            written.push(layer);
        }
        // No layer's output is needed for its own state.
        if self.are_dependent {
            self.last = vec![made.clone()];
        }
        self.recurrent[group].written.push(written);
        Ok(made)
    }

    /// Lets a kernel on `stream` change the state of a recurrent layer in place, and returns
    /// the kernel's other output. `input` is all that the kernel reads of each row. The kernel
    /// gets each span, and the buffers of the first span, in the order of the group's arrays, then
    /// those of the next span, and so on.
    pub(crate) fn update_in_place(
        &mut self,
        layer: usize,
        input: &Array,
        stream: &Stream,
        kernel: impl FnOnce(&[TailSpan], &[Buffer]) -> Result<Array, Exception>,
    ) -> Result<Array, Exception> {
        let group = self.recurrent_group(layer);
        let shape = &self.groups.recurrent[group];
        let states = self.recurrent[group].next_states();
        let unsettled = self.spans.iter().map(TailSpan::unsettled);
        let states: Vec<_> = states.into_iter().zip(unsettled).collect();
        let made = recurrent::buffers(shape, &states, input, stream)?;
        let (buffers, mut unsettled) = (made.buffers, made.unsettled.into_iter());
        let made = kernel(&self.spans, &buffers)?;
        let mut arrays = buffers.into_iter().map(Buffer::into_array);
        let written = states.into_iter().map(|(before, rows)| {
            let after = arrays.by_ref().take(shape.arrays.len()).collect();
            match rows {
                None => Written {
                    state: RecurrentState::Own(after),
                    unsettled: None,
                },
                Some(_) => Written {
                    state: before,
                    unsettled: unsettled.next(),
                },
            }
        });
        self.recurrent[group].written.push(written.collect());
        if self.are_dependent {
            self.last.clear();
        }
        self.last.push(made.clone());
        Ok(made)
    }

    /// Arrays that later layers do not depend on, written since the last call. They should be
    /// submitted with the layers, since each may keep the rows of a whole layer until it is
    /// computed.
    pub(crate) fn unsubmitted(&mut self) -> &[Array] {
        let from = std::mem::replace(&mut self.submitted, self.aside.len());
        &self.aside[from..]
    }

    /// Bytes of the copies of state, for each layer, that spans with drafts compute on.
    pub(crate) fn copied_bytes_per_layer(&self) -> usize {
        let verifying = self.spans.iter().filter(|span| span.verifies).count();
        let shapes = self.groups.recurrent.iter();
        let bytes = shapes.map(|shape| shape.array_bytes().sum::<usize>());
        verifying * bytes.max().unwrap_or(0)
    }

    /// Puts the state back. Returns the arrays whose evaluation writes all of it, the one that
    /// is computed last at the end.
    pub(crate) fn commit<'a>(self, tails: impl Iterator<Item = &'a mut MlxTail>) -> Vec<Array> {
        let mut kv: Vec<_> = self.kv.into_iter().map(KvWrites::by_tail).collect();
        let recurrent = self.recurrent.into_iter();
        let mut recurrent: Vec<_> = recurrent.map(RecurrentWrites::by_tail).collect();
        for (tail, span) in tails.zip(self.spans) {
            tail.tokens += span.rows.len();
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

impl RecurrentWrites {
    /// The next layer's state of each tail.
    fn next_states(&mut self) -> Vec<RecurrentState> {
        let spans = self.spans.iter_mut();
        let next = spans.map(|layers| layers.next().expect("a layer is changed once"));
        next.collect()
    }

    /// Each tail's state of all layers.
    fn by_tail(self) -> impl Iterator<Item = Vec<Written>> {
        by_tail(self.spans.len(), self.written).into_iter()
    }
}

/// Arrays in memory of their own, in single precision.
fn owned(arrays: Arrays) -> Result<Arrays, Exception> {
    let own = |array: Array| array.as_dtype(Dtype::Float32)?.contiguous();
    arrays.into_iter().map(own).collect()
}

/// A copy of some rows of `[rows, width]`: a view would keep all of them alive.
fn copied_rows(array: &Array, rows: &Range<usize>) -> Result<Array, Exception> {
    let (start, end) = (rows.start as i32, rows.end as i32);
    ops::slice(array, [start, 0], [end, array.dim(1)])?.contiguous()
}
