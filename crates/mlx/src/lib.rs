//! The Llama family (Llama, SmolLM2, Mistral) on MLX: the CPU, Metal or CUDA. Only the CPU under
//! Linux has been run.
//!
//! A step is one MLX graph. The rows of all spans are packed, so that norms, projections and
//! the MLP run once over `[rows, dim]` for any mix of decode and prefill. Only attention knows
//! which row belongs to which span.
//!
//! ```text
//!  files ─ merged_matrix ─ weights ─┐
//!  spans ─ batch ─────────────┼─ forward ─ attention ─ sample ─ in_flight ─ span_outputs
//!  tails, segments ───────────┘
//! ```
//!
//! Segments leave the device as detached states of their arrays and are imported from them,
//! without a copy on the model's thread.
//!
//! On the CPU everything is in single precision, except cached state, whose type
//! [`MlxOptions::cache_dtype`] sets. On a GPU plain weights and cached state are bfloat16, and
//! quantised weights stay quantised.

mod attention;
mod batch;
pub mod bridge;
mod detached_state;
mod error;
mod forward;
mod identity;
mod in_flight;
pub mod kernel_ops;
mod kv_block;
pub mod machine;
mod merged_matrix;
mod ops;
mod options;
mod pool;
pub use bridge::profile;
mod removal;
mod retained;
mod rotary;
mod sample;
mod segment;
mod shape;
mod state;
mod tail;
mod weights;

use std::ops::Range;
use std::rc::Rc;

use mlx_rs::ops::zeros_dtype;
use mlx_rs::{Device, Dtype, Stream, memory, transforms, with_stream};

pub use detached_state::{MlxDetachedState, MlxPacker};
pub use in_flight::MlxInFlightStep;
#[doc(hidden)]
pub use mlx_rs;
#[doc(hidden)]
pub use motet_kernels as kernels;
pub use options::{MlxDevice, MlxOptions};
pub use retained::RetainedWeights;
pub use segment::MlxSegment;
pub use tail::MlxTail;

use self::attention::{Attention, AttentionBackend};
use self::batch::Batch;
use self::error::MlxError;
use self::forward::Network;
use self::identity::Inputs;
use self::ops::{KERNEL_GRAIN, Ops};
use self::pool::Pool;
use self::removal::Removal;
use self::rotary::Rotary;
use self::shape::{Cached, Shape};
use self::tail::{PooledMemory, TailWrites};
use self::weights::Weights;
use motet_core::protocol::{
    DeviceMemory, LayerGroup, LayerKind, ModelError, ModelSpec, OutputKind, SegmentSize, SpanOutput,
};
use motet_kernels::Order;
use motet_model::sampling::SampleInputs;
use motet_model::{MemoryLeft, Model, Segment, Span, Tail, preconditions};
use motet_weights::{LlamaConfig, ModelFiles};

/// A GPU's memory is probed in pieces of this many bytes.
const PROBE_BYTES: usize = 64 << 20;

/// A Llama-family model on one MLX device.
///
/// Must be created and used on one thread, because each MLX stream belongs to a thread.
pub struct MlxModel {
    spec: ModelSpec,
    shape: Shape,
    network: Network,
    device: MlxDevice,
    stream: Stream,
    /// Memory for cached state. None where it lies in MLX's own memory.
    pool: Option<Pool>,
    /// Shared with each in-flight step, to count them.
    steps_in_flight: Rc<()>,
    /// Where its weights are retained, until a step has finished with them.
    unproven: Option<RetainedWeights>,
}

impl MlxModel {
    /// The spec that [`load`](Self::load) gives the model in `files`, except for its identity.
    /// Reads no weights.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device is not there, and [`ModelError::Option`] when it
    /// does not support an option.
    pub fn outline(files: &ModelFiles, options: &MlxOptions) -> Result<ModelSpec, ModelError> {
        let cached = Cached::as_it_is(options.cached_on(options.device()?)?);
        Ok(spec(files, &Shape::of(files.config(), cached), 0))
    }

    /// Loads the model in `files` onto a device.
    ///
    /// The first call with these `files` reads all weights one extra time, for
    /// [`ModelFiles::identity`], even where no disk tier will need it. Hashing runs at about
    /// 1.8 GB per second and thread, on up to eight threads.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device is not there or out of memory, or when MLX was
    /// set up for another version of this crate or of mlx-sys. [`ModelError::NotDeterministic`]
    /// when determinism is asked for and not possible. [`ModelError::Option`] when the device
    /// does not support another option. Also the errors of [`ModelFiles::tensor`].
    pub fn load(files: &ModelFiles, options: MlxOptions) -> Result<Self, ModelError> {
        Self::load_with(files, options, None)
    }

    /// Like [`load`](Self::load), for a model that may be loaded again, as an engine does when
    /// its device thread has died. On the CPU, weights are kept in `retained`. The next call
    /// with it takes them over, which reads them once instead of converting them. Whatever
    /// killed the thread may have corrupted them. They are read from their files again where
    /// their bytes have changed, or where no step has finished since the last call.
    ///
    /// `Engine::open` uses this. `retained` belongs to one model: a call for another model
    /// cannot use its weights and replaces them.
    ///
    /// # Errors
    ///
    /// As for [`load`](Self::load).
    pub fn load_reusing(
        files: &ModelFiles,
        options: MlxOptions,
        retained: &RetainedWeights,
    ) -> Result<Self, ModelError> {
        Self::load_with(files, options, Some(retained))
    }

    fn load_with(
        files: &ModelFiles,
        options: MlxOptions,
        retained: Option<&RetainedWeights>,
    ) -> Result<Self, ModelError> {
        memory::set_cache_limit(options.cache_bytes_max).map_err(MlxError::from)?;
        let device = options.device()?;
        let kind = options.cached_on(device)?;
        let gpu = device == MlxDevice::Gpu;
        let dtype = device.dtype();
        let stream = Stream::new_with_device(&match device {
            MlxDevice::Cpu => Device::cpu(),
            MlxDevice::Gpu => Device::gpu(),
        });
        let needs_kernels = options.kernels && !gpu;
        if let Some(why) = bridge::outdated(needs_kernels) {
            return Err(ModelError::Device(why));
        }
        let kernels = (needs_kernels && bridge::available()).then(|| stream.clone());
        if let Some(stream) = &kernels {
            bridge::queue_more(stream);
        }
        let mut shape = Shape::of(files.config(), Cached::as_it_is(kind));
        shape.cached.in_words = kernels.is_some() && shape.kernel_heads().supported();
        let takes_words = shape.cached.array_dtype() == Dtype::Float32;
        let uses_pool = kernels.is_some() && takes_words && bridge::memory::can_wrap();
        let pool = uses_pool.then(|| Pool::new(options.idle_bytes_max));
        if options.deterministic {
            can_be_deterministic(files.config(), &shape, device, kernels.is_some())?;
        }
        let order = if options.deterministic {
            Order::PerSequence
        } else {
            Order::PerStep
        };
        let backend = match &kernels {
            Some(stream) if shape.cached.in_words => {
                AttentionBackend::Kernel(stream.clone(), order)
            }
            _ if gpu => AttentionBackend::Fused,
            _ => AttentionBackend::Composed,
        };
        // A GPU's memory cannot be read by the host to verify it.
        let retained = retained.filter(|_| !gpu);
        let network = Network {
            weights: with_stream(&stream, || weights(files, dtype, gpu, retained))?,
            attention: Attention {
                shape,
                rotary: Rotary::new(files.config()),
                backend,
            },
            ops: Ops { kernels },
            norm_eps: files.config().rms_norm_eps,
            layer_bytes_per_row: shape.layer_bytes_per_row(files.config()),
        };
        let identity = {
            let Network { attention, ops, .. } = &network;
            let has_kernels = ops.kernels.is_some();
            let (backend, is_sure) = (&attention.backend, options.deterministic);
            Inputs::new(
                files.identity(),
                kind,
                device,
                backend,
                has_kernels,
                is_sure,
            )
            .identity()
        };
        Ok(Self {
            spec: spec(files, &shape, identity),
            shape,
            network,
            device,
            stream,
            pool,
            steps_in_flight: Rc::new(()),
            unproven: retained.cloned(),
        })
    }

    /// Memory and stream for tail buffers. None where MLX owns the buffers.
    fn pooled_memory(&self) -> Option<PooledMemory<'_>> {
        match (&self.network.attention.backend, &self.pool) {
            (AttentionBackend::Kernel(stream, _), Some(pool)) => {
                Some(PooledMemory { pool, stream })
            }
            _ => None,
        }
    }

    fn batch(&self, spans: &[Span<'_, Self>]) -> Result<Batch, ModelError> {
        let vocab = self.shape.vocab;
        for (index, span) in spans.iter().enumerate() {
            if span.tokens.count() == 0 {
                let message = format!("span {index} has no tokens; expected at least one");
                return Err(ModelError::Device(message));
            }
            let mut known = span.tokens.known().into_iter().flatten();
            if known.any(|token| *token as usize >= vocab) {
                let message = format!("span {index} has a token that is not less than {vocab}");
                return Err(ModelError::Device(message));
            }
        }
        Ok(Batch::new(&self.shape, spans))
    }

    /// Builds the step's graph. The device starts on it at once, with one exception: a step
    /// composed of MLX's operations needs exclusive use of the buffers of another step in
    /// flight. It then starts when it is sampled, after that step has finished.
    fn build_step(
        &self,
        spans: &mut [Span<'_, Self>],
        batch: &Batch,
    ) -> Result<MlxInFlightStep, MlxError> {
        let in_place = matches!(self.network.attention.backend, AttentionBackend::Kernel(..));
        let eager = in_place || Rc::strong_count(&self.steps_in_flight) == 1;
        let output_kinds: Vec<OutputKind> =
            spans.iter().map(|span| span.output_kind.clone()).collect();
        let failures = bridge::failures(&self.stream)?;
        let appending = spans
            .iter_mut()
            .map(|span| (&mut *span.tail, span.tokens.count()));
        let mut tails = TailWrites::take_buffers(&self.shape, appending, self.pooled_memory())?;
        let logits = if spans.is_empty() {
            None
        } else {
            self.network.forward(batch, &mut tails, eager)?
        };
        let pending = tails.commit(spans.iter_mut().map(|span| &mut *span.tail));
        let steps_in_flight = Rc::clone(&self.steps_in_flight);
        let mut in_flight = MlxInFlightStep::new(
            batch,
            &output_kinds,
            logits,
            pending,
            failures,
            steps_in_flight,
        );
        if eager {
            in_flight.start()?;
        }
        Ok(in_flight)
    }
}

/// The retained weights, or those in the files, which are then retained.
fn weights(
    files: &ModelFiles,
    dtype: Dtype,
    keeps_quantised: bool,
    retained: Option<&RetainedWeights>,
) -> Result<Weights, MlxError> {
    let Some(retained) = retained else {
        return Weights::load(files, dtype, keeps_quantised);
    };
    let form = retained::Form {
        files: files.identity(),
        dtype,
        keeps_quantised,
    };
    if let Some(weights) = retained.reuse(form) {
        return Ok(weights);
    }
    let weights = Weights::load(files, dtype, keeps_quantised)?;
    retained.store(&weights, form);
    Ok(weights)
}

/// Checks that this crate's kernels compute all sums. MLX sums in an order that follows from
/// the shape of the whole step.
fn can_be_deterministic(
    config: &LlamaConfig,
    shape: &Shape,
    device: MlxDevice,
    kernels: bool,
) -> Result<(), ModelError> {
    if device == MlxDevice::Gpu {
        return Err(ModelError::NotDeterministic {
            found: "the device is a GPU".into(),
            expected: "`device: Some(MlxDevice::Cpu)`",
        });
    }
    if !kernels {
        return Err(ModelError::NotDeterministic {
            found: "this crate's CPU kernels are off or not available".into(),
            expected: "`kernels: true`, and MLX as `cargo xtask setup` prepares it",
        });
    }
    let heads = shape.kernel_heads();
    let widths = [
        ("a head", heads.dim),
        ("all heads", heads.query * heads.dim),
        ("the residual stream", config.hidden_size),
        ("the MLP", config.intermediate_size),
    ];
    match widths.iter().find(|(_, width)| width % KERNEL_GRAIN != 0) {
        None => Ok(()),
        Some((what, width)) => Err(ModelError::NotDeterministic {
            found: format!("{what} is {width} wide"),
            expected: "a multiple of 16, as the kernels require",
        }),
    }
}

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
        _path: &[Rc<MlxSegment>],
        expected_tokens: usize,
    ) -> Result<MlxTail, ModelError> {
        Ok(MlxTail::new(&self.shape, expected_tokens))
    }

    fn submit(&mut self, spans: &mut [Span<'_, Self>]) -> Result<MlxInFlightStep, ModelError> {
        let batch = self.batch(spans)?;
        let submitted = with_stream(&self.stream, || self.build_step(spans, &batch));
        Ok(submitted.inspect_err(|_| bridge::drain(&self.stream))?)
    }

    fn sample(
        &mut self,
        in_flight: &mut MlxInFlightStep,
        inputs: Vec<SampleInputs>,
    ) -> Result<(), ModelError> {
        let kernels = self.network.ops.kernels.as_ref();
        let sampled = with_stream(&self.stream, || in_flight.sample(inputs, kernels));
        sampled
            .inspect_err(|_| bridge::drain(&self.stream))
            .map_err(MlxError::from)?;
        Ok(())
    }

    fn is_ready(&self, in_flight: &MlxInFlightStep) -> bool {
        in_flight.is_ready()
    }

    fn finish(&mut self, in_flight: MlxInFlightStep) -> Result<Vec<SpanOutput>, ModelError> {
        let finished = with_stream(&self.stream, || in_flight.finish(&self.stream));
        let finished = finished.inspect_err(|_| bridge::drain(&self.stream))?;
        if let Some(retained) = self.unproven.take() {
            retained.mark_proven();
        }
        Ok(finished)
    }

    fn seal(&mut self, tail: &mut MlxTail, tokens: usize) -> Result<MlxSegment, ModelError> {
        preconditions::seal(tail.tokens(), tokens)?;
        let left = tail.tokens() - tokens;
        let segment_size = SegmentSize {
            tokens,
            state_lag: left,
        };
        let retained = self.shape.retained(segment_size);
        let layers = with_stream(&self.stream, || match self.pooled_memory() {
            _ if left == 0 => tail.take(retained),
            Some(memory) => tail.seal_by_copy(&self.shape, retained, left, memory.pool),
            None => tail.seal_by_graph(retained, left),
        })
        .map_err(MlxError::from)?;
        Ok(MlxSegment::new(&self.shape, segment_size, layers))
    }

    fn seal_in_place(
        &mut self,
        tail: MlxTail,
        tokens: Range<usize>,
    ) -> Result<MlxSegment, ModelError> {
        preconditions::seal_in_place(tail.tokens(), &tokens)?;
        let segment_size = SegmentSize {
            tokens: tokens.len(),
            state_lag: tail.tokens() - tokens.end,
        };
        let retained = self.shape.retained(segment_size);
        let layers = with_stream(&self.stream, || {
            tail.into_last(retained, segment_size.state_lag)
        })
        .map_err(MlxError::from)?;
        Ok(MlxSegment::new(&self.shape, segment_size, layers))
    }

    fn split(
        &mut self,
        segment: &MlxSegment,
        at: usize,
    ) -> Result<(MlxSegment, MlxSegment), ModelError> {
        preconditions::split(segment.tokens(), at)?;
        let shape = &self.shape;
        let (upper, lower) = segment.segment_size().cut(at);
        let (cut, retained) = (shape.retained(upper), segment.retained());
        with_stream(&self.stream, || {
            let upper = segment.part(shape, upper, 0, cut).map_err(MlxError::from)?;
            let lower = segment
                .part(shape, lower, cut, retained)
                .map_err(MlxError::from)?;
            transforms::async_eval(upper.arrays().chain(lower.arrays())).map_err(MlxError::from)?;
            Ok((upper, lower))
        })
    }

    fn merge(&mut self, upper: &MlxSegment, lower: &MlxSegment) -> Result<MlxSegment, ModelError> {
        preconditions::merge(&self.spec, upper.segment_size(), lower.segment_size())?;
        with_stream(&self.stream, || {
            let merged = upper.merged(&self.shape, lower).map_err(MlxError::from)?;
            transforms::async_eval(merged.arrays()).map_err(MlxError::from)?;
            Ok(merged)
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
            rotary: &self.network.attention.rotary,
            cached: self.shape.cached,
            unsealed: &path[retained..],
            removed: removed.start - retained_tokens..removed.end - retained_tokens,
        };
        Ok(with_stream(&self.stream, || removal.apply(tail))?)
    }

    fn packer(&self) -> MlxPacker {
        MlxPacker {
            shape: self.shape,
            pool: self.pool.clone(),
        }
    }

    fn export(&mut self, segment: &MlxSegment) -> Result<MlxDetachedState, ModelError> {
        let detached_state =
            with_stream(&self.stream, || MlxDetachedState::of(segment)).map_err(MlxError::from)?;
        Ok(detached_state)
    }

    fn copy_out(
        &mut self,
        tail: &mut MlxTail,
        tokens: Range<usize>,
    ) -> Result<Option<MlxDetachedState>, ModelError> {
        preconditions::seal_in_place(tail.tokens(), &tokens)?;
        let segment_size = SegmentSize::whole(tokens.len());
        let Some(memory) = self.pooled_memory().filter(|_| self.shape.window.is_none()) else {
            // In MLX's memory, a tail with another reader is copied as a whole in each step.
            return Ok(None);
        };
        let copied = with_stream(&self.stream, || tail.copy_out(&self.shape, tokens, memory));
        let copied = copied
            .map_err(MlxError::from)?
            .map(|(layers, computed)| MlxDetachedState::from_copy(segment_size, layers, computed));
        Ok(copied)
    }

    fn import(&mut self, detached_state: MlxDetachedState) -> Result<MlxSegment, ModelError> {
        Ok(detached_state.into_segment(&self.shape))
    }

    fn memory_left(&self) -> Option<MemoryLeft> {
        if self.device == MlxDevice::Cpu {
            let bytes = machine::free_bytes()?;
            return Some(MemoryLeft {
                bytes,
                is_host: true,
            });
        }
        let (limit, active) = (memory::memory_limit().ok()?, memory::active_memory().ok()?);
        Some(MemoryLeft {
            bytes: limit.saturating_sub(active),
            is_host: false,
        })
    }

    fn try_memory(&mut self, bytes: usize) -> Result<usize, ModelError> {
        if self.device == MlxDevice::Cpu {
            return Ok(machine::try_memory(bytes));
        }
        Ok(with_stream(&self.stream, || try_device_memory(bytes))?)
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

impl std::fmt::Debug for MlxModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MlxModel")
            .field("spec", &self.spec)
            .field("cached", &self.shape.cached.kind)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

fn spec(files: &ModelFiles, shape: &Shape, identity: u64) -> ModelSpec {
    let config = files.config();
    ModelSpec {
        name: config.name.clone(),
        identity,
        vocab_size: config.vocab_size,
        context_tokens_max: config.context_tokens_max,
        end_tokens: config.end_tokens.clone(),
        layer_groups: vec![LayerGroup {
            kind: match shape.window {
                None => LayerKind::Full,
                Some(tokens) => LayerKind::Window { tokens },
            },
            layers: shape.layers,
            bytes: shape.bytes_per_token(),
        }],
        tail_block_tokens: tail::BLOCK_TOKENS,
        can_shift: true,
        // The widest arrays that are alive at once, in f32: the residual stream and its norm,
        // queries, keys, values and the output of attention; both halves of the MLP and their
        // product; the logits.
        scratch_bytes_per_token: 4
            * (6 * config.hidden_size + 3 * config.intermediate_size + config.vocab_size),
        overlap_tokens_max: forward::QUEUED_BYTES_MAX
            / (shape.layers * shape.layer_bytes_per_row(config)).max(1),
    }
}
