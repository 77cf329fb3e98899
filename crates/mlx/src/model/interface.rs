//! The [`Model`] interface over a network on MLX.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use mlx_rs::ops::zeros_dtype;
use mlx_rs::{Dtype, memory, transforms, with_stream};

use super::mlx_model::MlxModel;
use super::options::MlxDevice;
use crate::device::bridge;
use crate::device::machine;
use crate::error::MlxError;
use crate::state::detached_state::{MlxDetachedState, MlxPacker};
use crate::state::pool::Pool;
use crate::state::removal::Removal;
use crate::state::segment::MlxSegment;
use crate::state::tail::MlxTail;
use crate::step::in_flight::MlxInFlightStep;
use motet_model::sampling::SampleInputs;
use motet_model::{MemoryLeft, Model, Segment, Span, Tail, preconditions};
use motet_protocol::{DeviceMemory, ModelError, ModelSpec, SpanOutput};

/// A GPU's memory is probed in pieces of this many bytes.
const PROBE_BYTES: usize = 64 << 20;

impl Model for MlxModel {
    type Segment = MlxSegment;
    type Tail = MlxTail;
    type InFlightStep = MlxInFlightStep;
    type Packer = MlxPacker;

    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn tail(
        &mut self,
        path: &[Rc<MlxSegment>],
        expected_tokens: usize,
    ) -> Result<MlxTail, ModelError> {
        Ok(MlxTail::new(&self.groups, path, expected_tokens))
    }

    fn submit(&mut self, spans: &mut [Span<'_, Self>]) -> Result<MlxInFlightStep, ModelError> {
        let batch = self.batch(spans)?;
        let submitted = with_stream(&self.backend.stream, || self.build_step(spans, &batch));
        Ok(submitted.inspect_err(|_| bridge::drain(&self.backend.stream))?)
    }

    fn sample(
        &mut self,
        in_flight: &mut MlxInFlightStep,
        inputs: Vec<SampleInputs>,
    ) -> Result<(), ModelError> {
        let kernels = Some(&self.backend.stream).filter(|_| self.backend.has_kernels);
        let sampled = with_stream(&self.backend.stream, || in_flight.sample(inputs, kernels));
        sampled
            .inspect_err(|_| bridge::drain(&self.backend.stream))
            .map_err(MlxError::from)?;
        Ok(())
    }

    fn is_ready(&self, in_flight: &MlxInFlightStep) -> bool {
        in_flight.is_ready()
    }

    fn finish(&mut self, in_flight: MlxInFlightStep) -> Result<Vec<SpanOutput>, ModelError> {
        let finished = with_stream(&self.backend.stream, || {
            in_flight.finish(&self.backend.stream)
        });
        let finished = finished.inspect_err(|_| bridge::drain(&self.backend.stream))?;
        // A file that was only written to may have the same bytes: requests inside go on.
        self.check_not_overwritten()?;
        if let Some(retained) = self.unproven.take() {
            retained.mark_proven();
        }
        Ok(finished)
    }

    fn truncate(&mut self, tail: &mut MlxTail, tokens: usize) -> Result<(), ModelError> {
        let dropped = tail.tokens() - tokens;
        let truncated = with_stream(&self.backend.stream, || self.drop_drafts(tail, dropped));
        Ok(truncated.inspect_err(|_| bridge::drain(&self.backend.stream))?)
    }

    fn seal(&mut self, tail: &mut MlxTail, tokens: usize) -> Result<MlxSegment, ModelError> {
        preconditions::seal(tail.tokens(), tokens)?;
        let left = tail.tokens() - tokens;
        let memory = self.pooled_memory();
        let sealed = with_stream(&self.backend.stream, || tail.seal(left, memory));
        Ok(sealed.map_err(MlxError::from)?)
    }

    fn seal_in_place(
        &mut self,
        tail: MlxTail,
        tokens: Range<usize>,
    ) -> Result<MlxSegment, ModelError> {
        preconditions::seal_in_place(tail.tokens(), &tokens)?;
        let sealed = with_stream(&self.backend.stream, || tail.seal_in_place(tokens));
        Ok(sealed.map_err(MlxError::from)?)
    }

    fn split(
        &mut self,
        segment: &MlxSegment,
        at: usize,
    ) -> Result<(MlxSegment, MlxSegment), ModelError> {
        preconditions::split(segment.tokens(), at)?;
        with_stream(&self.backend.stream, || {
            let (upper, lower) = segment.split(&self.groups, at).map_err(MlxError::from)?;
            transforms::async_eval(upper.arrays().chain(lower.arrays())).map_err(MlxError::from)?;
            Ok((upper, lower))
        })
    }

    fn merge(&mut self, upper: &MlxSegment, lower: &MlxSegment) -> Result<MlxSegment, ModelError> {
        preconditions::merge(&self.spec, upper.segment_size(), lower.segment_size())?;
        with_stream(&self.backend.stream, || {
            let merged = upper.merged(&self.groups, lower).map_err(MlxError::from)?;
            transforms::async_eval(merged.arrays()).map_err(MlxError::from)?;
            Ok(merged)
        })
    }

    fn strip(
        &mut self,
        segment: &MlxSegment,
        below: &MlxSegment,
    ) -> Result<MlxSegment, ModelError> {
        preconditions::merge(&self.spec, segment.segment_size(), below.segment_size())?;
        with_stream(&self.backend.stream, || {
            let stripped = segment
                .stripped(&self.groups, below)
                .map_err(MlxError::from)?;
            transforms::async_eval(stripped.arrays()).map_err(MlxError::from)?;
            Ok(stripped)
        })
    }

    fn remove(
        &mut self,
        path: &[Rc<MlxSegment>],
        retained: usize,
        tail: &mut MlxTail,
        removed: Range<usize>,
    ) -> Result<(), ModelError> {
        let tokens: Vec<usize> = path.iter().map(|segment| segment.tokens()).collect();
        preconditions::remove(&self.spec, &tokens, retained, tail.tokens(), &removed)?;
        let retained_tokens: usize = tokens[..retained].iter().sum();
        let removal = Removal {
            groups: &self.groups,
            turn_back: &|layer, keys, tokens| {
                let stream = &self.backend.stream;
                self.decoder.turned_back(layer, keys, tokens, stream)
            },
            unsealed: &path[retained..],
            removed: removed.start - retained_tokens..removed.end - retained_tokens,
        };
        Ok(with_stream(&self.backend.stream, || removal.apply(tail))?)
    }

    fn packer(&self) -> MlxPacker {
        MlxPacker {
            identity: Arc::clone(&self.identity),
            groups: Arc::clone(&self.groups),
            pool: self.pool.clone(),
        }
    }

    fn export(&mut self, segment: &MlxSegment) -> Result<MlxDetachedState, ModelError> {
        // Copies have the identity of the files that were opened.
        self.check_unchanged()?;
        let detached_state = with_stream(&self.backend.stream, || match self.backend.device {
            MlxDevice::Cpu => MlxDetachedState::of(segment),
            MlxDevice::Gpu => MlxDetachedState::with_copy(segment),
        });
        Ok(detached_state.map_err(MlxError::from)?)
    }

    fn copy_out(
        &mut self,
        tail: &mut MlxTail,
        tokens: Range<usize>,
    ) -> Result<Option<MlxDetachedState>, ModelError> {
        preconditions::seal_in_place(tail.tokens(), &tokens)?;
        self.check_unchanged()?;
        let Some(memory) = self.pooled_memory() else {
            // In MLX's memory, a tail with another reader is copied as a whole in each step.
            return Ok(None);
        };
        let copied = with_stream(&self.backend.stream, || {
            tail.copy_out(tokens.clone(), memory)
        });
        let copied = copied.map_err(MlxError::from)?;
        Ok(copied.map(|copy| MlxDetachedState::from_copy(tokens.len(), copy)))
    }

    fn import(&mut self, detached_state: MlxDetachedState) -> Result<MlxSegment, ModelError> {
        Ok(detached_state.into_segment())
    }

    fn memory_left(&self) -> Option<MemoryLeft> {
        if self.backend.device == MlxDevice::Cpu {
            let bytes = machine::free_bytes()?;
            return Some(MemoryLeft {
                bytes: bytes.saturating_sub(self.mapped_bytes),
                is_host: true,
                mapped_bytes: self.mapped_bytes,
            });
        }
        let (limit, active) = (memory::memory_limit().ok()?, memory::active_memory().ok()?);
        Some(MemoryLeft {
            bytes: limit.saturating_sub(active),
            is_host: false,
            mapped_bytes: 0,
        })
    }

    fn try_memory(&mut self, bytes: usize) -> Result<usize, ModelError> {
        if self.backend.device == MlxDevice::Cpu {
            return Ok(machine::try_memory(bytes));
        }
        Ok(with_stream(&self.backend.stream, || {
            try_device_memory(bytes)
        })?)
    }

    fn trim(&mut self) {
        if let Some(pool) = &self.pool {
            pool.trim();
        }
        // It only forgets buffers; if it fails, they stay.
        memory::clear_cache().ok();
        machine::trim_heap();
    }

    fn memory(&self) -> DeviceMemory {
        let (active, peak) = (memory::active_memory(), memory::peak_memory());
        let (active, peak) = (active.unwrap_or(0), peak.unwrap_or(0));
        let pool = self.pool.as_ref();
        DeviceMemory {
            active_bytes: active + pool.map_or(0, Pool::in_use_bytes),
            peak_bytes: peak.max(pool.map_or(0, |pool| pool.peak_bytes_beside(active))),
        }
    }
}

/// Allocates memory from MLX, in pieces that are written to, until the device fails to provide
/// one.
fn try_device_memory(bytes: usize) -> Result<usize, MlxError> {
    let (mut taken, mut pieces) = (0, Vec::new());
    while taken < bytes {
        let size = PROBE_BYTES.min(bytes - taken);
        let piece = zeros_dtype(&[size as i32], Dtype::Uint8);
        let written = piece.and_then(|piece| transforms::eval([&piece]).map(|()| piece));
        let Ok(piece) = written else {
            break;
        };
        taken += size;
        pieces.push(piece);
    }
    drop(pieces);
    memory::clear_cache()?;
    memory::reset_peak_memory()?;
    Ok(taken)
}
