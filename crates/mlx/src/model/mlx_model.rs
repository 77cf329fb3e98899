//! A model on its device.

use std::rc::Rc;
use std::sync::Arc;

use mlx_rs::Stream;

use super::options::MlxDevice;
use super::retained::RetainedWeights;
use crate::state::detached_state::Identity;
use crate::state::groups::LayerGroups;
use crate::state::pool::Pool;
use crate::state::tail::PooledMemory;
use crate::step::decoder::Decoder;
use motet_protocol::{ModelError, ModelSpec};
use motet_weights::FileWatch;

/// A model on one MLX device.
///
/// Must be created and used on one thread, because each MLX stream belongs to a thread.
pub struct MlxModel {
    pub(super) spec: ModelSpec,
    pub(super) identity: Arc<Identity>,
    pub(crate) groups: Arc<LayerGroups>,
    pub(super) decoder: Box<dyn Decoder>,
    pub(crate) backend: Backend,
    /// Memory for cached state. None where it lies in MLX's own memory.
    pub(super) pool: Option<Pool>,
    /// Shared with each in-flight step, to count them.
    pub(super) steps_in_flight: Rc<()>,
    /// Where its weights are retained, until a step has finished with them.
    pub(super) unproven: Option<RetainedWeights>,
    /// Bytes of weights that are mapped from their files. The system counts them as available,
    /// but each step needs them.
    pub(super) mapped_bytes: usize,
    /// Tells whether the files that are mapped have changed. None where there are no files.
    pub(super) files: Option<FileWatch>,
}

/// The place where a model computes, and its means.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) device: MlxDevice,
    pub(crate) stream: Stream,
    /// Whether this crate's CPU kernels are used.
    pub(crate) has_kernels: bool,
    /// Whether kernels write keys and values to the tails in place.
    pub(crate) in_place: bool,
}

impl MlxModel {
    pub(crate) fn new(
        spec: ModelSpec,
        identity: Identity,
        groups: Arc<LayerGroups>,
        decoder: Box<dyn Decoder>,
        backend: Backend,
        pool: Option<Pool>,
    ) -> Self {
        Self {
            spec,
            identity: Arc::new(identity),
            groups,
            decoder,
            backend,
            pool,
            steps_in_flight: Rc::new(()),
            unproven: None,
            mapped_bytes: 0,
            files: None,
        }
    }

    /// Fails if a file that is mapped is known to have changed, even if its bytes may be the same.
    /// Costs no system call.
    pub(super) fn check_unchanged(&self) -> Result<(), ModelError> {
        self.files.as_ref().map_or(Ok(()), FileWatch::check_known)
    }

    /// Fails if bytes of a file that is mapped are known to be others: what was computed with them
    /// is not the model's. Costs no system call.
    pub(super) fn check_not_overwritten(&self) -> Result<(), ModelError> {
        let files = self.files.as_ref();
        files.map_or(Ok(()), FileWatch::check_not_overwritten)
    }

    /// Memory and stream for tail buffers. None where MLX owns the buffers.
    pub(super) fn pooled_memory(&self) -> Option<PooledMemory<'_>> {
        let pool = self.pool.as_ref().filter(|_| self.backend.in_place)?;
        Some(PooledMemory {
            pool,
            stream: &self.backend.stream,
        })
    }
}

impl std::fmt::Debug for MlxModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxModel")
            .field("spec", &self.spec)
            .field("groups", &self.groups)
            .field("backend", &self.backend)
            .finish_non_exhaustive()
    }
}
