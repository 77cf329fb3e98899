//! Language models on MLX: the CPU, Metal or CUDA. Only the CPU under Linux has been run.
//!
//! One loop over the layers runs every family that [`motet_weights`] describes. A layer is made
//! of blocks: attention, a short convolution, a delta net or Mamba 2, then an MLP or experts.
//!
//! A step is one MLX graph. The rows of all spans are packed, so that norms, projections and
//! the MLP run once over `[rows, dim]` for any mix of decode and prefill. Only the mixers know
//! which row belongs to which span.
//!
//! ```text
//!  files ─ weights ─ blocks ─ layers ─┐
//!  spans ─ batch ─────────────────────┼─ forward ─ sample ─ in_flight ─ span_outputs
//!  tails, segments (groups of layers) ┘
//! ```
//!
//! Segments leave the device as detached states of their arrays and are imported from them,
//! without a copy on the model's thread.
//!
//! On the CPU everything is computed in single precision. Matrices stay as their files store
//! them, and [`MlxOptions::cache_dtype`] sets the type of cached state. On a GPU plain weights and
//! cached state are bfloat16, and quantised weights stay quantised.

mod activations;
mod attention;
mod batch;
mod blocks;
pub mod bridge;
#[cfg(test)]
mod checkpoint_tests;
mod decoder;
mod detached_state;
mod determinism;
mod error;
mod forward;
mod groups;
mod identity;
mod in_flight;
pub mod kernel_ops;
mod kv_block;
mod layers;
pub mod machine;
mod model;
mod ops;
mod options;
mod pool;
mod prompt_logprobs;
pub use bridge::profile;
mod removal;
mod retained;
mod rotary;
mod sample;
mod segment;
mod state;
#[cfg(test)]
mod state_tests;
mod stored_matrix;
mod tail;
mod weights;

use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use mlx_rs::ops::indexing::take_axis;
use mlx_rs::{Array, Device, Dtype, Stream, memory, with_stream};

pub use detached_state::{MlxDetachedState, MlxPacker};
pub use in_flight::MlxInFlightStep;
use in_flight::StepResults;
#[doc(hidden)]
pub use mlx_rs;
#[doc(hidden)]
pub use motet_kernels as kernels;
pub use motet_kernels::Arithmetic;
pub use options::{MlxDevice, MlxOptions};
pub use retained::RetainedWeights;
pub use segment::MlxSegment;
pub use tail::MlxTail;

use self::attention::{AttentionBackend, Attentions};
use self::batch::Batch;
use self::decoder::{Decoder, LastRows};
use self::detached_state::Identity;
use self::error::MlxError;
use self::forward::Network;
use self::groups::{Cached, LayerGroups};
use self::identity::Inputs;
use self::layers::Weights;
use self::ops::Ops;
use self::pool::Pool;
use self::prompt_logprobs::PromptLogprobs;
use self::tail::{PooledMemory, TailWrites};
use self::weights::MatrixForm;
use motet_kernels::Order;
use motet_model::Span;
use motet_protocol::{ModelError, ModelSpec, OutputKind};
use motet_weights::{Blueprint, FileWatch, ModelFiles};

/// A model on one MLX device.
///
/// Must be created and used on one thread, because each MLX stream belongs to a thread.
pub struct MlxModel {
    spec: ModelSpec,
    identity: Arc<Identity>,
    groups: Arc<LayerGroups>,
    decoder: Box<dyn Decoder>,
    backend: Backend,
    /// Memory for cached state. None where it lies in MLX's own memory.
    pool: Option<Pool>,
    /// Shared with each in-flight step, to count them.
    steps_in_flight: Rc<()>,
    /// Where its weights are retained, until a step has finished with them.
    unproven: Option<RetainedWeights>,
    /// Bytes of weights that are mapped from their files. The system counts them as available,
    /// but each step needs them.
    mapped_bytes: usize,
    /// Tells whether the files that are mapped have changed. None where there are no files.
    files: Option<FileWatch>,
}

/// The place where a model computes, and its means.
#[derive(Debug)]
struct Backend {
    device: MlxDevice,
    stream: Stream,
    /// Whether this crate's CPU kernels are used.
    has_kernels: bool,
    /// Whether kernels write keys and values to the tails in place.
    in_place: bool,
}

impl MlxModel {
    /// The spec that [`load`](Self::load) gives the model in `files`. Reads no weights.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device is not there, and [`ModelError::Option`] when it
    /// does not support an option.
    pub fn outline(files: &ModelFiles, options: &MlxOptions) -> Result<ModelSpec, ModelError> {
        let device = options.device()?;
        let cached = Cached::as_it_is(options.cached_on(device)?);
        let blueprint = files.blueprint().clone();
        let groups = LayerGroups::new(&blueprint, cached);
        let allowed = options.kernels && device == MlxDevice::Cpu;
        let kernels = uses_kernels(&blueprint, allowed);
        let kernel_attention = kernels && attention::kernels_support(&blueprint);
        options::check_kind(cached.kind, kernel_attention)?;
        options.arithmetic(kernels)?;
        Ok(spec(&blueprint, &groups, kernels))
    }

    /// Loads the model in `files` onto a device. On the CPU with `kernels`, matrices stay as the
    /// files store them and mapped where their rows lie in order, so the files must not change
    /// while the model lives. Engines on the same files share these pages.
    ///
    /// Mapped weights are read when a step first needs them, unless
    /// [`ModelFiles::read_all`] has read them. The model's [identity](motet_model::Packer::identity) is
    /// computed when a tier on disk needs it: that reads all weights once more, at about 1.8 GB per
    /// second and thread, on up to eight threads.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the device is not there or out of memory, or when MLX was
    /// set up for another version of this crate or of mlx-sys. [`ModelError::FileChanged`] when a
    /// mapped file has changed since it was opened. [`ModelError::NotDeterministic`] when
    /// determinism is asked for and not possible. [`ModelError::Option`] when the device does not
    /// support another option. Also the errors of [`ModelFiles::tensor`].
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
        files.watch().check()?;
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
        let blueprint = files.blueprint().clone();
        if options.deterministic {
            determinism::check(&blueprint, device, needs_kernels && bridge::available())?;
        }
        let kernels = uses_kernels(&blueprint, needs_kernels).then(|| stream.clone());
        let arithmetic = options.arithmetic(kernels.is_some())?;
        if let Some(stream) = &kernels {
            bridge::queue_more(stream);
        }
        let cached = Cached {
            kind,
            in_words: kernels.is_some() && attention::kernels_support(&blueprint),
        };
        options::check_kind(kind, cached.in_words)?;
        let uses_pool = kernels.is_some()
            && cached.array_dtype() == Dtype::Float32
            && bridge::memory::can_wrap();
        let pool = uses_pool.then(|| Pool::new(options.idle_bytes_max));
        let order = if options.deterministic {
            Order::PerSequence
        } else {
            Order::PerStep
        };
        let attention_backend = match &kernels {
            Some(stream) if cached.in_words => AttentionBackend::Kernel(stream.clone(), order),
            _ if gpu => AttentionBackend::Fused,
            _ => AttentionBackend::Composed,
        };
        let backend = Backend {
            device,
            stream: stream.clone(),
            has_kernels: kernels.is_some(),
            in_place: matches!(attention_backend, AttentionBackend::Kernel(..)),
        };
        // A GPU's memory cannot be read by the host to verify it.
        let retained = retained.filter(|_| !gpu);
        let inputs = Inputs::new(
            kind,
            device,
            &attention_backend,
            kernels.is_some(),
            options.deterministic,
            arithmetic,
        );
        let of_files = files.lazy_identity();
        let identity: Identity = LazyLock::new(Box::new(move || inputs.with_files(of_files.get())));
        let groups = Arc::new(LayerGroups::new(&blueprint, cached));
        let matrices = match (gpu, backend.has_kernels) {
            (true, _) => MatrixForm::Affine,
            (false, true) => MatrixForm::AsStored,
            (false, false) => MatrixForm::Converted,
        };
        let weights = with_stream(&stream, || weights(files, dtype, matrices, retained))?;
        let mapped_bytes = weights.mapped_bytes();
        let network = Network {
            weights,
            attentions: Attentions::new(&blueprint, &groups, cached, attention_backend),
            ops: Ops {
                kernels,
                arithmetic,
            },
            stem: blueprint.stem.clone(),
            layer_bytes_per_row: activations::layer_bytes_per_row_max(
                &blueprint,
                backend.has_kernels,
            ),
        };
        let spec = spec(&blueprint, &groups, backend.has_kernels);
        let mut model = Self::new(spec, identity, groups, Box::new(network), backend, pool);
        model.unproven = retained.cloned();
        model.mapped_bytes = mapped_bytes;
        model.files = Some(files.watch());
        // What was read meanwhile has to be what was checked.
        files.watch().check()?;
        Ok(model)
    }

    fn new(
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
    fn check_unchanged(&self) -> Result<(), ModelError> {
        self.files.as_ref().map_or(Ok(()), FileWatch::check_known)
    }

    /// Fails if bytes of a file that is mapped are known to be others: what was computed with them
    /// is not the model's. Costs no system call.
    fn check_not_overwritten(&self) -> Result<(), ModelError> {
        let files = self.files.as_ref();
        files.map_or(Ok(()), FileWatch::check_not_overwritten)
    }

    /// Memory and stream for tail buffers. None where MLX owns the buffers.
    fn pooled_memory(&self) -> Option<PooledMemory<'_>> {
        let pool = self.pool.as_ref().filter(|_| self.backend.in_place)?;
        Some(PooledMemory {
            pool,
            stream: &self.backend.stream,
        })
    }

    fn batch(&self, spans: &[Span<'_, Self>]) -> Result<Batch, ModelError> {
        let vocab = self.spec.vocab_size;
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
        Ok(Batch::new(&self.groups, spans))
    }

    /// Builds the step's graph. The device starts on it at once, with one exception: a step
    /// composed of MLX's operations needs exclusive use of the buffers of another step in
    /// flight. It then starts when it is sampled, after that step has finished.
    fn build_step(
        &self,
        spans: &mut [Span<'_, Self>],
        batch: &Batch,
    ) -> Result<MlxInFlightStep, MlxError> {
        let eager = self.backend.in_place || Rc::strong_count(&self.steps_in_flight) == 1;
        let output_kinds: Vec<OutputKind> =
            spans.iter().map(|span| span.output_kind.clone()).collect();
        let failures = bridge::failures(&self.backend.stream)?;
        let appending = spans
            .iter_mut()
            .map(|span| (&mut *span.tail, span.tokens.count()));
        let mut tails = TailWrites::take_buffers(&self.groups, appending, self.pooled_memory())?;
        let last_rows = if spans.is_empty() {
            LastRows::default()
        } else {
            self.decoder.forward(batch, &mut tails, eager)?
        };
        let pending = tails.commit(spans.iter_mut().map(|span| &mut *span.tail));
        let results = self.results(batch, last_rows, eager)?;
        let steps_in_flight = Rc::clone(&self.steps_in_flight);
        let mut in_flight = MlxInFlightStep::new(
            batch,
            &output_kinds,
            results,
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

impl MlxModel {
    /// Builds the results of a step's last rows, but for the sampled tokens.
    fn results(
        &self,
        batch: &Batch,
        last_rows: LastRows,
        eager: bool,
    ) -> Result<StepResults, MlxError> {
        let mut results = StepResults {
            logits: last_rows.logits,
            state_scale: self.decoder.state_scale(),
            ..StepResults::default()
        };
        let Some(states) = last_rows.states else {
            return Ok(results);
        };
        if !batch.targets.is_empty() {
            let kernels = Some(&self.backend.stream).filter(|_| self.backend.has_kernels);
            let is_alone = Rc::strong_count(&self.steps_in_flight) == 1;
            results.prompt_logprobs = Some(PromptLogprobs::build(
                |rows| self.decoder.logits(rows),
                &states,
                &batch.targets,
                kernels,
                (eager && is_alone).then_some(forward::QUEUED_BYTES_MAX),
            )?);
        }
        if !batch.hidden_rows.is_empty() {
            let first = batch.scored_rows.len() as u32;
            let rows: Vec<u32> = (first..first + batch.hidden_rows.len() as u32).collect();
            let rows = Array::from_slice(&rows, &[rows.len() as i32]);
            let hidden = take_axis(states, rows, 0)?.as_type::<f32>()?;
            results.hidden = Some(hidden);
        }
        Ok(results)
    }
}

/// Whether this crate's kernels compute a model's blocks where the options allow them.
fn uses_kernels(blueprint: &Blueprint, allowed: bool) -> bool {
    allowed && bridge::available() && blocks::unsupported(blueprint).is_none()
}

/// The retained weights, or those in the files, which are then retained.
fn weights(
    files: &ModelFiles,
    dtype: Dtype,
    matrices: MatrixForm,
    retained: Option<&RetainedWeights>,
) -> Result<Weights, MlxError> {
    let Some(retained) = retained else {
        return Weights::load(files, dtype, matrices);
    };
    let form = retained::Form {
        files: files.lazy_identity(),
        dtype,
        matrices,
    };
    if let Some(weights) = retained.reuse(&form) {
        return Ok(weights);
    }
    let weights = Weights::load(files, dtype, matrices)?;
    retained.store(&weights, form);
    Ok(weights)
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

/// The spec of a model; `kernels`: whether this crate's kernels compute its blocks.
fn spec(blueprint: &Blueprint, groups: &LayerGroups, kernels: bool) -> ModelSpec {
    let bytes_per_row: usize = activations::layer_bytes_per_row(blueprint, kernels).sum();
    ModelSpec {
        name: blueprint.name.clone(),
        vocab_size: blueprint.stem.vocab_size,
        hidden_size: blueprint.stem.hidden_size,
        context_tokens_max: blueprint.context_tokens_max,
        end_tokens: blueprint.end_tokens.clone(),
        layer_groups: groups.spec_groups(),
        tail_block_tokens: tail::BLOCK_TOKENS,
        // Rotations add up, so rotated keys can be turned to other positions.
        can_shift: groups.all_full(),
        scratch_bytes_per_token: activations::scratch_bytes_per_row(blueprint, kernels),
        overlap_tokens_max: forward::QUEUED_BYTES_MAX / bytes_per_row.max(1),
    }
}
