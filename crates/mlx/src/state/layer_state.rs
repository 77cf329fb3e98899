//! One layer's cached state of some tokens.

use mlx_rs::Array;
use mlx_rs::error::Exception;
use mlx_rs::ops::{concatenate, zeros_dtype};

use crate::device::ops;

/// Keys, rotated to their positions, and values: `[kv_heads, tokens, head_dim]` each, in
/// separate buffers.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) keys: Array,
    pub(crate) values: Array,
}

impl State {
    /// Applies one change to both keys and values.
    pub(crate) fn map(
        &self,
        change: impl Fn(&Array) -> Result<Array, Exception>,
    ) -> Result<State, Exception> {
        Ok(State {
            keys: change(&self.keys)?,
            values: change(&self.values)?,
        })
    }

    /// Another handle to the same arrays.
    pub(crate) fn shared(&self) -> State {
        State {
            keys: self.keys.clone(),
            values: self.values.clone(),
        }
    }

    /// Tokens `from..to`, in the same buffers.
    pub(crate) fn view(&self, from: usize, to: usize) -> Result<State, Exception> {
        self.map(|array| ops::tokens(array, from, to))
    }

    /// Tokens `from..to` at the start of new, larger buffers.
    pub(crate) fn moved(
        &self,
        from: usize,
        to: usize,
        capacity: usize,
    ) -> Result<State, Exception> {
        self.map(|array| {
            let buffer = [array.dim(0), capacity as i32, array.dim(2)];
            let buffer = zeros_dtype(&buffer, array.dtype())?;
            ops::put_tokens(&buffer, &ops::tokens(array, from, to)?, 0)
        })
    }

    /// Tokens `from..to`, row-contiguous: never a view that keeps a larger buffer alive.
    pub(crate) fn compact(&self, from: usize, to: usize) -> Result<State, Exception> {
        self.map(|array| ops::tokens(array, from, to)?.contiguous())
    }

    /// The tokens of `parts`, one after another, in new buffers.
    pub(crate) fn joined(parts: &[&State]) -> Result<State, Exception> {
        let join = |array: fn(&State) -> &Array| {
            let arrays: Vec<&Array> = parts.iter().map(|part| array(part)).collect();
            concatenate(&arrays, 1)?.contiguous()
        };
        Ok(State {
            keys: join(|state| &state.keys)?,
            values: join(|state| &state.values)?,
        })
    }

    /// Capacity in tokens.
    pub(crate) fn capacity(&self) -> usize {
        self.keys.dim(1) as usize
    }

    pub(crate) fn arrays(&self) -> [&Array; 2] {
        [&self.keys, &self.values]
    }
}
