//! Loading: from files and options to a model.

use std::sync::{Arc, LazyLock};

use mlx_rs::{Device, Dtype, Stream, memory, with_stream};

use super::determinism;
use super::identity::Inputs;
use super::mlx_model::{Backend, MlxModel};
use super::options::{self, MlxDevice, MlxOptions};
use super::retained::{self, RetainedWeights};
use crate::device::bridge;
use crate::device::ops::Ops;
use crate::error::MlxError;
use crate::layers::attention::{self, AttentionBackend, Attentions};
use crate::layers::blocks;
use crate::layers::weights::Weights;
use crate::state::detached_state::Identity;
use crate::state::groups::{Cached, LayerGroups};
use crate::state::pool::Pool;
use crate::state::tail;
use crate::step::activations;
use crate::step::forward::{self, Network};
use crate::weights::MatrixForm;
use motet_kernels::{Arithmetic, Order};
use motet_protocol::{ModelError, ModelSpec};
use motet_weights::{Blueprint, ModelFiles};

/// How a model computes: what its options, its device and its blueprint decide before its weights
/// are read.
struct Setup {
    device: MlxDevice,
    stream: Stream,
    cached: Cached,
    has_kernels: bool,
    arithmetic: Arithmetic,
    order: Order,
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
        let blueprint = files.blueprint();
        let setup = Setup::new(blueprint, &options)?;
        let pool = setup.pool(options.idle_bytes_max);
        let attention_backend = setup.attention_backend();
        let backend = Backend {
            device: setup.device,
            stream: setup.stream.clone(),
            has_kernels: setup.has_kernels,
            in_place: matches!(attention_backend, AttentionBackend::Kernel(..)),
        };
        // A GPU's memory cannot be read by the host to verify it.
        let retained = retained.filter(|_| setup.device == MlxDevice::Cpu);
        let inputs = Inputs::new(
            setup.cached.kind,
            setup.device,
            &attention_backend,
            setup.has_kernels,
            options.deterministic,
            setup.arithmetic,
        );
        let of_files = files.lazy_identity();
        let identity: Identity = LazyLock::new(Box::new(move || inputs.with_files(of_files.get())));
        let groups = Arc::new(LayerGroups::new(blueprint, setup.cached));
        let (dtype, matrices) = (setup.device.dtype(), setup.matrices());
        let weights = with_stream(&setup.stream, || weights(files, dtype, matrices, retained))?;
        let mapped_bytes = weights.mapped_bytes();
        let network = Network {
            weights,
            attentions: Attentions::new(blueprint, &groups, setup.cached, attention_backend),
            ops: Ops {
                kernels: setup.has_kernels.then_some(setup.stream),
                arithmetic: setup.arithmetic,
            },
            stem: blueprint.stem.clone(),
            layer_bytes_per_row: activations::layer_bytes_per_row_max(blueprint, setup.has_kernels),
        };
        let spec = spec(blueprint, &groups, setup.has_kernels);
        let mut model = Self::new(spec, identity, groups, Box::new(network), backend, pool);
        model.unproven = retained.cloned();
        model.mapped_bytes = mapped_bytes;
        model.files = Some(files.watch());
        // What was read meanwhile has to be what was checked.
        files.watch().check()?;
        Ok(model)
    }
}

impl Setup {
    /// Checks the options, the device and MLX's libraries.
    fn new(blueprint: &Blueprint, options: &MlxOptions) -> Result<Self, ModelError> {
        let device = options.device()?;
        let kind = options.cached_on(device)?;
        let stream = Stream::new_with_device(&match device {
            MlxDevice::Cpu => Device::cpu(),
            MlxDevice::Gpu => Device::gpu(),
        });
        let needs_kernels = options.kernels && device == MlxDevice::Cpu;
        if let Some(why) = bridge::outdated(needs_kernels) {
            return Err(ModelError::Device(why));
        }
        if options.deterministic {
            determinism::check(blueprint, device, needs_kernels && bridge::available())?;
        }
        let has_kernels = uses_kernels(blueprint, needs_kernels);
        let arithmetic = options.arithmetic(has_kernels)?;
        if has_kernels {
            bridge::queue_more(&stream);
        }
        let in_words = has_kernels && attention::kernels_support(blueprint);
        options::check_kind(kind, in_words)?;
        Ok(Self {
            device,
            stream,
            cached: Cached { kind, in_words },
            has_kernels,
            arithmetic,
            order: if options.deterministic {
                Order::PerSequence
            } else {
                Order::PerStep
            },
        })
    }

    /// Memory for cached state. None where it lies in MLX's own memory.
    fn pool(&self, idle_bytes_max: usize) -> Option<Pool> {
        let is_used = self.has_kernels
            && self.cached.array_dtype() == Dtype::Float32
            && bridge::memory::can_wrap();
        is_used.then(|| Pool::new(idle_bytes_max))
    }

    fn attention_backend(&self) -> AttentionBackend {
        match self.device {
            _ if self.cached.in_words => AttentionBackend::Kernel(self.stream.clone(), self.order),
            MlxDevice::Gpu => AttentionBackend::Fused,
            MlxDevice::Cpu => AttentionBackend::Composed,
        }
    }

    fn matrices(&self) -> MatrixForm {
        match self.device {
            MlxDevice::Gpu => MatrixForm::Affine,
            MlxDevice::Cpu if self.has_kernels => MatrixForm::AsStored,
            MlxDevice::Cpu => MatrixForm::Converted,
        }
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

/// The spec of a model; `kernels`: whether this crate's kernels compute its blocks.
pub(crate) fn spec(blueprint: &Blueprint, groups: &LayerGroups, kernels: bool) -> ModelSpec {
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
        draft_tokens_max: usize::MAX,
    }
}
