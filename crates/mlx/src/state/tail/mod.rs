//! Tails: the growing ends of slots, with one part for each group of layers.

mod kv;
mod kv_writes;
mod recurrent;
mod writes;

use std::iter;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use mlx_rs::error::Exception;
use mlx_rs::{Array, Stream, transforms};

use super::groups::{Arrays, LayerGroups, Place};
use super::layer_state::State;
use super::pool::Pool;
use super::segment::{KvPart, MlxSegment};
use crate::device::ops;
use kv::KvTail;
pub(crate) use kv::{BLOCK_TOKENS, capacity_after};
use motet_model::Tail;
use motet_protocol::SegmentSize;
use recurrent::RecurrentTail;
pub(crate) use writes::{Appended, TailSpan, TailWrites};

/// The growing end of a slot.
pub struct MlxTail {
    groups: Arc<LayerGroups>,
    /// Tokens since the path's end.
    tokens: usize,
    /// Tokens that the tail is expected to grow to.
    expected_tokens: usize,
    /// One for each group with keys and values.
    kv: Vec<KvTail>,
    /// One for each recurrent group.
    recurrent: Vec<RecurrentTail>,
}

/// Memory for tail buffers when this crate's kernels write to them, and the stream that the
/// kernels run on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PooledMemory<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) stream: &'a Stream,
}

/// A copy of a tail's keys and values.
#[derive(Debug)]
pub(crate) struct TailCopy {
    /// The copied state, group after group and layer after layer.
    pub(crate) layers: Vec<Vec<State>>,
    /// An array that is computed when the copy is done.
    pub(crate) computed: Array,
}

impl MlxTail {
    /// An empty tail that continues `path`. Recurrent layers share the state at the path's end
    /// until they write to it.
    pub(crate) fn new(
        groups: &Arc<LayerGroups>,
        path: &[Rc<MlxSegment>],
        expected_tokens: usize,
    ) -> Self {
        let last = path.last();
        let recurrent = groups.recurrent.iter().enumerate();
        let recurrent = recurrent.map(|(group, shape)| {
            let before = last.map(|last| {
                let state = last.recurrent(group);
                state.expect("the last segment of a path holds the recurrent state at its end")
            });
            RecurrentTail::new(shape, before)
        });
        Self {
            tokens: 0,
            expected_tokens,
            kv: groups.kv.iter().copied().map(KvTail::new).collect(),
            recurrent: recurrent.collect(),
            groups: Arc::clone(groups),
        }
    }

    /// The part of a group with keys and values.
    pub(crate) fn kv(&self, group: usize) -> &KvTail {
        &self.kv[group]
    }

    /// Moves the first tokens into a segment and keeps the last `left`.
    pub(crate) fn seal(
        &mut self,
        left: usize,
        memory: Option<PooledMemory<'_>>,
    ) -> Result<MlxSegment, Exception> {
        let tokens = self.tokens - left;
        let segment_size = SegmentSize {
            tokens,
            state_lag: left,
        };
        let expected_tokens = self.expected_tokens.saturating_sub(tokens);
        let parts = self.kv.iter_mut().map(|part| {
            let retained = part.shape().retained(segment_size);
            let layers = match memory {
                _ if left == 0 => part.take(retained),
                Some(memory) => part.seal_by_copy(retained, left, expected_tokens, memory.pool),
                None => part.seal_by_graph(retained, left, expected_tokens),
            };
            Ok(KvPart::new(retained, layers?))
        });
        let kv = parts.collect::<Result<_, Exception>>()?;
        let recurrent = self.shared_state(segment_size)?;
        (self.tokens, self.expected_tokens) = (left, expected_tokens);
        Ok(MlxSegment::new(segment_size, kv, recurrent))
    }

    /// Consumes the tail and returns the state of its tokens in `range` as a segment. At most
    /// one layer's old and new buffers exist at once.
    pub(crate) fn seal_in_place(mut self, range: Range<usize>) -> Result<MlxSegment, Exception> {
        let state_lag = self.tokens - range.end;
        let segment_size = SegmentSize {
            tokens: range.len(),
            state_lag,
        };
        let recurrent = self.shared_state(segment_size)?;
        let parts = self.kv.into_iter().map(|part| {
            let retained = part.shape().retained(segment_size);
            Ok(KvPart::new(retained, part.into_last(retained, state_lag)?))
        });
        let kv = parts.collect::<Result<_, Exception>>()?;
        Ok(MlxSegment::new(segment_size, kv, recurrent))
    }

    /// The recurrent state for a segment of this size, which ends with the tail: none unless
    /// the segment holds any. The tail copies it before it writes to it.
    fn shared_state(&mut self, segment_size: SegmentSize) -> Result<Vec<Vec<Arrays>>, Exception> {
        if !segment_size.has_recurrent_state() {
            return Ok(Vec::new());
        }
        let parts = self.recurrent.iter_mut().zip(&self.groups.recurrent);
        parts.map(|(part, shape)| part.share(shape)).collect()
    }

    /// Drops all tokens after the first `tokens`, all of which are held. Returns false and does
    /// nothing where the buffers would stay larger than necessary, or where recurrent state
    /// cannot go back.
    pub(crate) fn truncate(&mut self, tokens: usize) -> Result<bool, Exception> {
        let expected_tokens = self.expected_tokens;
        let fits = |part: &KvTail| part.can_truncate(tokens, expected_tokens);
        if !self.recurrent.is_empty() || !self.kv.iter().all(fits) {
            return Ok(false);
        }
        for part in &mut self.kv {
            part.truncate(tokens, expected_tokens)?;
        }
        self.tokens = tokens;
        Ok(true)
    }

    /// Drops the last tokens, which are drafts that the last step verified. `replay` changes a
    /// recurrent layer's state by rows of its input: those of the step's tokens that stay. Does not
    /// wait for it.
    pub(crate) fn drop_drafts(
        &mut self,
        tokens: usize,
        mut replay: impl FnMut(usize, &Array, &mut TailWrites) -> Result<(), Exception>,
    ) -> Result<(), Exception> {
        for part in &mut self.kv {
            part.drop_last(tokens);
        }
        let parts = self.recurrent.iter_mut();
        let unsettled: Vec<Vec<Array>> = parts.map(RecurrentTail::take_unsettled).collect();
        let Some(first) = unsettled.first().and_then(|layers| layers.first()) else {
            let may_drop = tokens == 0 || self.recurrent.is_empty();
            assert!(
                may_drop,
                "the last step verified the tokens that are dropped"
            );
            self.tokens -= tokens;
            return Ok(());
        };
        let rows = first.dim(0) as usize;
        let stay = rows.checked_sub(tokens).filter(|stay| *stay > 0);
        let stay = stay.expect("the first token of a span is no draft");
        let groups = Arc::clone(&self.groups);
        // The tail counts the tokens that stay once the state contains them.
        self.tokens -= rows;
        let mut writes = TailWrites::take_recurrent(&groups, self, stay);
        for layer in 0..groups.layers() {
            let Place::Recurrent { group, index } = groups.place(layer) else {
                continue;
            };
            let rows = &unsettled[group][index];
            let rows = ops::slice(rows, [0, 0], [stay as i32, rows.dim(1)])?;
            replay(layer, &rows, &mut writes)?;
        }
        transforms::async_eval(&writes.commit(iter::once(self)))
    }

    /// A copy of the state of some tokens, done after all previously submitted work. None in
    /// MLX's memory, and unless every layer holds keys and values of all tokens. Steps may
    /// continue meanwhile, because they only append.
    pub(crate) fn copy_out(
        &mut self,
        tokens: Range<usize>,
        memory: PooledMemory<'_>,
    ) -> Result<Option<TailCopy>, Exception> {
        let holds = |part: &KvTail| part.can_copy_out(self.tokens);
        if !self.groups.all_full() || !self.kv.iter().all(holds) {
            return Ok(None);
        }
        let (mut copies, mut last) = (Vec::with_capacity(self.kv.len()), None);
        for part in &mut self.kv {
            let (layers, moved) = part.copy_out(tokens.clone(), memory)?;
            copies.push(layers);
            // One stream computes all of them, in this order.
            last = Some(moved);
        }
        Ok(last.map(|computed| TailCopy {
            layers: copies,
            computed,
        }))
    }

    /// Takes the buffers of all groups with keys and values out, group after group and layer
    /// after layer. The tail is unusable afterwards.
    pub(crate) fn take_layers(&mut self) -> Vec<std::vec::IntoIter<State>> {
        self.kv.iter_mut().map(KvTail::take_layers).collect()
    }

    /// Replaces the tail's tokens by `tokens` others, whose state is in `layers`, group after
    /// group.
    pub(crate) fn replace(&mut self, tokens: usize, layers: Vec<Vec<State>>) {
        for (part, layers) in self.kv.iter_mut().zip(layers) {
            part.replace(tokens, layers);
        }
        self.tokens = tokens;
    }
}

impl Tail for MlxTail {
    fn tokens(&self) -> usize {
        self.tokens
    }

    fn bytes(&self) -> usize {
        let kv: usize = self.kv.iter().map(KvTail::bytes).sum();
        kv + self.groups.recurrent_bytes()
    }
}

impl std::fmt::Debug for MlxTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxTail")
            .field("tokens", &self.tokens)
            .field("kv", &self.kv)
            .finish_non_exhaustive()
    }
}
