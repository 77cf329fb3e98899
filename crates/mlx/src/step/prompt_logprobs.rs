//! Log probabilities of a prompt's tokens, in blocks of rows.
//!
//! A step may ask for those of every row. The logits of a row are only needed until its log
//! probabilities are computed, so few blocks of logits exist at once: the queue to the device is
//! bounded in bytes, as it is for layers. Where a step ahead is in flight, nothing is waited for.
//! The logits of such a step, which is small, are part of the scratch memory that the model's
//! specification names.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream, transforms};

use crate::device::bridge::{Kernel, View, ViewMut, apply};
use crate::device::ops::slice;
use crate::error::MlxError;
use motet_model::sampling::logprobs_of;
use motet_protocol::TokenId;
use motet_protocol::TokenLogprobs;

/// Rows whose logits are computed together.
const BLOCK_ROWS: usize = 64;

/// The token whose log probability a row gives, and how many of the likeliest it gives besides.
pub(crate) type Target = (TokenId, usize);

/// Log probabilities that are being computed, in the order of their rows.
#[derive(Debug)]
pub(crate) struct PromptLogprobs {
    blocks: Vec<Block>,
}

#[derive(Debug)]
enum Block {
    /// The kernel notes them; the array is there once it has.
    Noted(Array, Arc<Mutex<Vec<TokenLogprobs>>>),
    /// The host computes them from the logits.
    FromLogits(Array, Vec<Target>),
}

impl PromptLogprobs {
    /// Builds the log probabilities of `targets` from the first rows of `states`, one for each
    /// target, by this crate's kernel if there is a stream for it. `logits_of` builds the logits of
    /// some rows. With `queued_bytes_max`, the device starts at once, and is waited for while more
    /// bytes of logits are queued.
    pub(crate) fn build(
        logits_of: impl Fn(&Array) -> Result<Array, Exception>,
        states: &Array,
        targets: &[Target],
        kernels: Option<&Stream>,
        queued_bytes_max: Option<usize>,
    ) -> Result<Self, Exception> {
        let width = states.dim(1);
        let mut blocks = Vec::new();
        let mut queued = VecDeque::new();
        let mut row = 0;
        for targets in targets.chunks(BLOCK_ROWS) {
            let end = row + targets.len() as i32;
            let logits = logits_of(&slice(states, [row, 0], [end, width])?)?;
            let block_bytes = 4 * logits.size();
            let block = Block::new(logits, targets, kernels)?;
            if let Some(bytes_max) = queued_bytes_max {
                transforms::async_eval([block.array()])?;
                queued.push_back(block.array().clone());
                if queued.len() * block_bytes > bytes_max
                    && let Some(oldest) = queued.pop_front()
                {
                    oldest.eval()?;
                }
            }
            blocks.push(block);
            row = end;
        }
        Ok(Self { blocks })
    }

    /// The arrays that are available once all log probabilities are.
    pub(crate) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.blocks.iter().map(Block::array)
    }

    /// Reads them, once their arrays are available.
    pub(crate) fn read(self) -> Result<Vec<TokenLogprobs>, MlxError> {
        let mut all = Vec::new();
        for block in self.blocks {
            all.extend(block.read()?);
        }
        Ok(all)
    }
}

impl Block {
    fn new(logits: Array, targets: &[Target], kernels: Option<&Stream>) -> Result<Self, Exception> {
        let Some(stream) = kernels else {
            return Ok(Self::FromLogits(logits, targets.to_vec()));
        };
        let noted = Arc::default();
        let kernel = NoteLogprobs {
            targets: targets.to_vec(),
            noted: Arc::clone(&noted),
        };
        let rows = targets.len() as i32;
        let done = apply(kernel, &[&logits], &[&[rows]], stream)?.swap_remove(0);
        Ok(Self::Noted(done, noted))
    }

    fn array(&self) -> &Array {
        match self {
            Self::Noted(done, _) => done,
            Self::FromLogits(logits, _) => logits,
        }
    }

    fn read(self) -> Result<Vec<TokenLogprobs>, MlxError> {
        match self {
            Self::Noted(_, noted) => Ok(std::mem::take(&mut *lock(&noted))),
            Self::FromLogits(logits, targets) => {
                let vocab = logits.dim(1) as usize;
                let logits = logits.try_as_slice::<f32>()?;
                let rows = logits.chunks(vocab).zip(&targets);
                let logprobs = rows.map(|(row, (token, top))| {
                    let logprobs = logprobs_of(row, *token, *top);
                    logprobs.expect("a target is a token of the vocabulary")
                });
                Ok(logprobs.collect())
            }
        }
    }
}

/// Log probabilities of targets as an operation of the graph. Its output is each target's own.
struct NoteLogprobs {
    targets: Vec<Target>,
    noted: Arc<Mutex<Vec<TokenLogprobs>>>,
}

impl Kernel for NoteLogprobs {
    fn run(&self, inputs: &[View<'_>], _: &mut [ViewMut<'_>], outputs: &mut [ViewMut<'_>]) {
        let logits = &inputs[0];
        let vocab = logits.shape[1];
        let logprobs = motet_kernels::score_rows(&logits.data, vocab, &self.targets);
        for (output, logprobs) in outputs[0].data.iter_mut().zip(&logprobs) {
            *output = logprobs.logprob;
        }
        *lock(&self.noted) = logprobs;
    }
}

fn lock<T>(noted: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while the lock is held.
    noted.lock().unwrap_or_else(PoisonError::into_inner)
}
