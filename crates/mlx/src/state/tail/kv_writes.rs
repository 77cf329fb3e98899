//! A step's writes to the keys and values of its tails.

use mlx_rs::error::Exception;
use mlx_rs::ops::zeros_dtype;

use crate::state::groups::KvShape;
use crate::state::layer_state::State;

/// The writes to the keys and values of one group.
#[derive(Debug)]
pub(super) struct KvWrites {
    pub(super) shape: KvShape,
    pub(super) spans: Vec<KvWrite>,
    /// Each layer's buffers after the step, one for each tail.
    pub(super) written: Vec<Vec<State>>,
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

impl KvWrites {
    /// No writes yet.
    pub(super) fn new(shape: &KvShape) -> Self {
        Self {
            shape: *shape,
            spans: Vec::new(),
            written: Vec::with_capacity(shape.layers),
        }
    }

    /// The next layer's buffers, with capacity for the new tokens.
    pub(super) fn next_buffers(&mut self) -> Result<Vec<State>, Exception> {
        let shape = self.shape;
        let spans = self.spans.iter_mut();
        spans.map(|span| span.next_buffer(&shape)).collect()
    }

    /// Each tail's write, with its buffers of all layers.
    pub(super) fn by_tail(self) -> impl Iterator<Item = (KvWrite, Vec<State>)> {
        let layers = by_tail(self.spans.len(), self.written);
        self.spans.into_iter().zip(layers)
    }
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

/// The elements of each layer for each tail, as the elements of each tail for each layer.
pub(super) fn by_tail<T>(tails: usize, layers: Vec<Vec<T>>) -> Vec<Vec<T>> {
    let mut turned: Vec<Vec<T>> = (0..tails).map(|_| Vec::new()).collect();
    for layer in layers {
        for (tail, element) in turned.iter_mut().zip(layer) {
            tail.push(element);
        }
    }
    turned
}
