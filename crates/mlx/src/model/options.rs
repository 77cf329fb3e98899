//! Options of a model, and the checks of what its device supports.

use mlx_rs::{Device, DeviceType, Dtype};

use crate::device::bridge;
use crate::error::MlxError;
use motet_kernels::Arithmetic;
use motet_model::CacheKind;
use motet_protocol::ModelError;
use motet_weights::FileAccess;

/// How to run a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlxOptions {
    /// The device; `None` takes the GPU if MLX was built for one, else the CPU.
    pub device: Option<MlxDevice>,
    /// Maximum bytes of freed memory that MLX keeps for its next arrays, in this whole process.
    /// It needs about as much as one step's activations, which the next step allocates again.
    /// With more, it would hold on to the memory of freed segments, which the byte budgets
    /// count as free.
    pub cache_bytes_max: usize,
    /// Maximum bytes of memory that this model keeps, when segments and tails are freed, for
    /// the next ones. These come on top of the byte budgets. It needs about as much as is taken
    /// at a time by slots that are opened and segments that are imported. With less, they wait
    /// for the system to clear new memory. Without `kernels` MLX keeps such memory, under
    /// `cache_bytes_max`.
    pub idle_bytes_max: usize,
    /// Whether to use this crate's own CPU kernels where they are available, instead of
    /// composing the same from MLX's operations.
    pub kernels: bool,
    /// Whether a sequence's logits are the same to the last bit whatever else is in a step
    /// (batch invariance): alone or batched, with any chunking of its prompt, forked, or
    /// continued from the cache. Every sum is in an order that follows from the sequence alone.
    /// Needs `kernels` on the CPU, a model whose widths are multiples of 16, and some extra
    /// time (docs/performance.md has figures).
    ///
    /// The bits are those of one machine: another instruction set sums in another order. Two
    /// cases change the computation itself and are not covered: removing tokens from the middle
    /// of a context, and state that the pager stores in eight bits.
    pub deterministic: bool,
    /// The type in which keys and values are cached: in tails, in segments, in host memory and
    /// on the disk. `None` is the type that the device computes in: `f32` on the CPU, `bf16` on
    /// a GPU.
    ///
    /// With [`Bf16`](CacheKind::Bf16) and [`F16`](CacheKind::F16) a budget holds twice as many
    /// tokens, with [`Int8`](CacheKind::Int8) 3.76 times as many where a head has a multiple of
    /// 64 numbers. In 16 bits each step also reads less memory. In 8 bits decoding on the
    /// CPU spends more instructions on each number. All computation stays in `f32`, so only the
    /// rounding of cached numbers has an effect (docs/performance.md has figures). `Bf16` has
    /// the range of `f32` and 8 significant bits: the safe choice for any model. `F16` has 11,
    /// and clamps magnitudes beyond 65,504 to that: for models whose keys are known to be
    /// smaller. `Int8` rounds each number to a multiple of 1/127 of the largest among 32 of its
    /// head, and needs `kernels` on the CPU and heads whose size is a multiple of 16. A GPU
    /// supports `None` and `Bf16` only.
    pub cache_dtype: Option<CacheKind>,
    /// How products with quantised weights are computed. `None` is [`Fast`](Arithmetic::Fast) where
    /// this crate's kernels compute the model and `deterministic` is off, and
    /// [`Exact`](Arithmetic::Exact) otherwise.
    ///
    /// With `Fast`, activations are rounded to 8 bits, in blocks of 32 or, for k-quants, of 256,
    /// and multiplied with the stored codes as integers. Steps take about half the time, and logits are near those of
    /// `Exact`, but not the same (docs/performance.md has figures). `Exact` computes in `f32`
    /// with the numbers that the codes stand for. Both may be combined with `deterministic`. Cached
    /// state of one is never used with the other. `Fast` needs `kernels` on the CPU.
    pub arithmetic: Option<Arithmetic>,
    /// Whether `Engine::open` maps the model's files or reads them. Mapped files must not change
    /// while the engine runs: put a new one in its place by renaming.
    pub file_access: FileAccess,
}

/// Kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlxDevice {
    /// The processor, in single precision.
    Cpu,
    /// Metal or CUDA, whichever MLX was built for.
    Gpu,
}

impl Default for MlxOptions {
    fn default() -> Self {
        Self {
            device: None,
            cache_bytes_max: 256 << 20,
            idle_bytes_max: 128 << 20,
            kernels: true,
            deterministic: false,
            cache_dtype: None,
            arithmetic: None,
            file_access: FileAccess::Map,
        }
    }
}

impl MlxOptions {
    /// The requested device, or the best one.
    pub(crate) fn device(&self) -> Result<MlxDevice, ModelError> {
        let best = MlxDevice::best()?;
        match (self.device, best) {
            (Some(MlxDevice::Gpu), MlxDevice::Cpu) => Err(ModelError::Device(
                "`device` is a GPU, and MLX here is built for the CPU or finds no GPU; expected \
                 `MlxDevice::Cpu` or none, or MLX built for Metal or CUDA on a machine that has it"
                    .into(),
            )),
            (device, best) => Ok(device.unwrap_or(best)),
        }
    }

    /// The arithmetic to use; `kernels`: whether this crate's kernels compute the model.
    pub(crate) fn arithmetic(&self, kernels: bool) -> Result<Arithmetic, ModelError> {
        match self.arithmetic {
            None if kernels && !self.deterministic => Ok(Arithmetic::Fast),
            None | Some(Arithmetic::Exact) => Ok(Arithmetic::Exact),
            Some(Arithmetic::Fast) if kernels => Ok(Arithmetic::Fast),
            Some(Arithmetic::Fast) => Err(ModelError::Option {
                field: "arithmetic",
                found: "`Arithmetic::Fast` without this crate's CPU kernels".to_owned(),
                expected: "`None` or `Arithmetic::Exact`; or `device: Some(MlxDevice::Cpu)` with \
                           `kernels: true`, MLX as `cargo xtask setup` prepares it, and a model \
                           whose widths are multiples of 16",
            }),
        }
    }

    /// The type of cached state on this device.
    pub(crate) fn cached_on(&self, device: MlxDevice) -> Result<CacheKind, ModelError> {
        match (self.cache_dtype, device) {
            (kind, MlxDevice::Cpu) => Ok(kind.unwrap_or(CacheKind::F32)),
            (None | Some(CacheKind::Bf16), MlxDevice::Gpu) => Ok(CacheKind::Bf16),
            (Some(kind), MlxDevice::Gpu) => Err(ModelError::Option {
                field: "cache_dtype",
                found: format!("{kind} on a GPU"),
                expected: "`None` or `Some(CacheKind::Bf16)` there; any kind with `device: \
                           Some(MlxDevice::Cpu)`",
            }),
        }
    }
}

/// Whether a model can be cached in this kind, with attention by this crate's kernels or without.
///
/// # Errors
///
/// [`ModelError::Option`] where only those kernels could read the kind.
pub(crate) fn check_kind(kind: CacheKind, has_kernel_attention: bool) -> Result<(), ModelError> {
    if kind.float().is_some() || has_kernel_attention {
        return Ok(());
    }
    Err(ModelError::Option {
        field: "cache_dtype",
        found: format!("{kind} where MLX's operations compute attention"),
        expected: "a kind of floating-point numbers; or `kernels: true` with MLX set up for them, \
                   and a model whose heads have a multiple of 16 numbers",
    })
}

impl MlxDevice {
    /// A GPU if MLX was built for one, otherwise the CPU.
    ///
    /// # Errors
    ///
    /// Where MLX was built for a GPU and finds none. MLX for CUDA gets all memory from the driver,
    /// also that of arrays on the CPU, so it cannot compute at all then.
    fn best() -> Result<Self, ModelError> {
        let default = Device::try_default().and_then(|device| device.get_type());
        match default.map_err(MlxError::from)? {
            DeviceType::Cpu => Ok(MlxDevice::Cpu),
            DeviceType::Gpu => check_gpus(bridge::gpus().map_err(MlxError::from)?),
        }
    }

    pub(crate) fn dtype(self) -> Dtype {
        match self {
            Self::Cpu => Dtype::Float32,
            Self::Gpu => Dtype::Bfloat16,
        }
    }
}

/// The GPU, of so many in a machine whose MLX was built for one.
fn check_gpus(count: usize) -> Result<MlxDevice, ModelError> {
    if count > 0 {
        return Ok(MlxDevice::Gpu);
    }
    Err(ModelError::Device(
        "MLX here is built for a GPU and its driver reports none; expected a GPU that the driver \
         supports, or MLX for the CPU, as `cargo xtask setup` prepares it without `--cuda`"
            .into(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mlx_for_a_gpu_needs_one() {
        assert_eq!(check_gpus(2).expect("there are two"), MlxDevice::Gpu);
        match check_gpus(0) {
            Err(ModelError::Device(message)) => {
                assert!(message.contains("without `--cuda`"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn fast_arithmetic_needs_kernels_and_is_their_default() {
        let arithmetic = |asked, deterministic, kernels| {
            let options = MlxOptions {
                arithmetic: asked,
                deterministic,
                ..MlxOptions::default()
            };
            options.arithmetic(kernels)
        };
        for (asked, deterministic, kernels, expected) in [
            (None, false, true, Arithmetic::Fast),
            (None, true, true, Arithmetic::Exact),
            (None, false, false, Arithmetic::Exact),
            (Some(Arithmetic::Fast), true, true, Arithmetic::Fast),
            (Some(Arithmetic::Exact), false, true, Arithmetic::Exact),
        ] {
            let found = arithmetic(asked, deterministic, kernels).expect("possible");
            assert_eq!(found, expected, "{asked:?} {deterministic} {kernels}");
        }
        match arithmetic(Some(Arithmetic::Fast), false, false) {
            Err(ModelError::Option { field, .. }) => assert_eq!(field, "arithmetic"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_gpu_caches_in_bf16_only_and_a_cpu_in_any_type() {
        let cached = |cache_dtype, device| {
            let options = MlxOptions {
                cache_dtype,
                ..MlxOptions::default()
            };
            options.cached_on(device)
        };
        let check = |asked, device, expected| match cached(asked, device) {
            Ok(found) => assert_eq!(Some(found), expected, "{asked:?} on {device:?}"),
            Err(ModelError::Option { field, found, .. }) => {
                assert_eq!(expected, None, "{asked:?} on {device:?}");
                assert_eq!(field, "cache_dtype");
                let asked = asked.expect("the default type is never rejected");
                assert_eq!(found, format!("{asked} on a GPU"));
            }
            Err(other) => panic!("{other}"),
        };
        for kind in CacheKind::ALL {
            check(Some(kind), MlxDevice::Cpu, Some(kind));
        }
        check(None, MlxDevice::Cpu, Some(CacheKind::F32));
        check(None, MlxDevice::Gpu, Some(CacheKind::Bf16));
        check(Some(CacheKind::Bf16), MlxDevice::Gpu, Some(CacheKind::Bf16));
        check(Some(CacheKind::F32), MlxDevice::Gpu, None);
        check(Some(CacheKind::F16), MlxDevice::Gpu, None);
        check(Some(CacheKind::Int8), MlxDevice::Gpu, None);
    }

    #[test]
    fn eight_bits_need_attention_by_kernels() {
        for kind in CacheKind::ALL {
            assert!(check_kind(kind, true).is_ok(), "{kind}");
            let is_float = kind != CacheKind::Int8;
            assert_eq!(check_kind(kind, false).is_ok(), is_float, "{kind}");
        }
    }
}
