//! The identity of a model: everything that its cached state depends on, to the last bit, as
//! far as it can be determined.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use super::options::MlxDevice;
use crate::layers::attention::AttentionBackend;
use motet_kernels::{self, Arithmetic, InstructionSet, Order};
use motet_model::CacheKind;

/// Must be increased when the order of packed numbers changes.
const LAYOUT: u32 = 2;
/// Must be increased when this crate's kernels, or the operations composed of MLX's, give other
/// bits.
const ARITHMETIC: u32 = 3;

/// Everything beside the weights that changes a bit of the state that a model caches, with three
/// exceptions:
///
/// - Last bits depend on how many rows are in a step and on the other rows in it, where nothing
///   is [deterministic](super::options::MlxOptions::deterministic).
/// - They also depend on the BLAS library and its version, where the BLAS computes sums. No
///   function names the library for every BLAS, so only the settings that change OpenBLAS's
///   sums are included.
/// - The pager accounts for the format in which it stores numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inputs {
    /// The type of cached numbers.
    pub(crate) cached: CacheKind,
    pub(crate) device: MlxDevice,
    /// How attention is computed.
    pub(crate) attention: &'static str,
    /// Whether this crate's kernels compute norms and products with few rows.
    pub(crate) kernels: bool,
    pub(crate) is_deterministic: bool,
    /// How products with quantised weights are computed.
    pub(crate) arithmetic: Arithmetic,
    /// The instruction set of this crate's kernels. None where they compute nothing.
    pub(crate) instructions: Option<InstructionSet>,
    /// The settings that determine how sums are split. None where their order follows from the
    /// sequence alone, or where a GPU computes them.
    pub(crate) sums: Option<Sums>,
    /// MLX's version, as reported at run time.
    pub(crate) mlx: String,
}

/// Settings that determine the order of sums where that order does not follow from the sequence
/// alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Threads that share a sum in this crate's kernels.
    pub(crate) threads: usize,
    /// Other settings of OpenBLAS's threads: `GOTO_NUM_THREADS` and `OMP_NUM_THREADS`.
    pub(crate) blas_threads: [String; 2],
    /// The kind of processor, by which a BLAS chooses its kernels.
    pub(crate) processor: String,
    /// The processor type that the environment sets for the BLAS: `OPENBLAS_CORETYPE`.
    pub(crate) blas_core: String,
}

impl Inputs {
    /// Collects the inputs of a model on this machine.
    pub(crate) fn new(
        cached: CacheKind,
        device: MlxDevice,
        backend: &AttentionBackend,
        kernels: bool,
        is_deterministic: bool,
        arithmetic: Arithmetic,
    ) -> Self {
        let is_cpu = device == MlxDevice::Cpu;
        Self {
            cached,
            device,
            attention: match backend {
                AttentionBackend::Kernel(_, Order::PerStep) => "kernel, in the order of the step",
                AttentionBackend::Kernel(_, Order::PerSequence) => {
                    "kernel, in the order of the sequence"
                }
                AttentionBackend::Fused => "fused",
                AttentionBackend::Composed => "composed",
            },
            kernels,
            is_deterministic,
            arithmetic,
            instructions: kernels.then(InstructionSet::best),
            sums: (is_cpu && !is_deterministic).then(Sums::detect),
            mlx: mlx_version(),
        }
    }

    /// A number that differs where any input or the
    /// [identity of the files](motet_weights::ModelFiles::identity) differs, and is the same in
    /// every process.
    pub(crate) fn with_files(&self, files: u64) -> u64 {
        // `Debug` names each field, so its text is unambiguous.
        let mut text = String::new();
        let version = env!("CARGO_PKG_VERSION");
        write!(
            text,
            "motet {version}, {LAYOUT}, {ARITHMETIC}: {files}, {self:?}"
        )
        .expect("writing to a string does not fail");
        let digest = Sha256::digest(text);
        let first = digest.first_chunk().expect("a digest has 32 bytes");
        u64::from_le_bytes(*first)
    }
}

impl Sums {
    fn detect() -> Self {
        let reported = |name| std::env::var(name).unwrap_or_default();
        Self {
            threads: motet_kernels::threads(),
            blas_threads: ["GOTO_NUM_THREADS", "OMP_NUM_THREADS"].map(reported),
            processor: processor(),
            blas_core: reported("OPENBLAS_CORETYPE"),
        }
    }
}

/// The version of the MLX that this process has loaded.
fn mlx_version() -> String {
    // SAFETY: it makes an empty string, which holds nothing.
    let mut version = unsafe { mlx_sys::mlx_string_new() };
    // SAFETY: the string is valid for the call, and is freed after its text was copied.
    unsafe {
        let reported = mlx_sys::mlx_version(&mut version) == 0;
        let text = mlx_sys::mlx_string_data(version);
        let text = (reported && !text.is_null()).then(|| {
            std::ffi::CStr::from_ptr(text)
                .to_string_lossy()
                .into_owned()
        });
        mlx_sys::mlx_string_free(version);
        text.unwrap_or_else(|| "unknown".to_owned())
    }
}

/// The processor's vendor, family and model, as far as it reports them.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        let (vendor, kind) = (__cpuid(0), __cpuid(1));
        // The last four bits are the stepping, which changes no instruction.
        let kind = kind.eax >> 4;
        format!(
            "{:08x}{:08x}{:08x} {kind:07x}",
            vendor.ebx, vendor.edx, vendor.ecx
        )
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        std::env::consts::ARCH.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Inputs {
        Inputs {
            cached: CacheKind::F32,
            device: MlxDevice::Cpu,
            attention: "composed",
            kernels: true,
            is_deterministic: false,
            arithmetic: Arithmetic::Exact,
            instructions: Some(InstructionSet::Portable),
            sums: Some(Sums {
                threads: 2,
                blas_threads: [String::new(), String::new()],
                processor: "one".to_owned(),
                blas_core: String::new(),
            }),
            mlx: "0.31.1".to_owned(),
        }
    }

    /// Changes each field by itself. A new field must be added here.
    #[test]
    fn any_input_changes_the_identity() {
        let known = inputs().with_files(7);
        assert_eq!(inputs().with_files(7), known);
        assert_ne!(inputs().with_files(8), known, "weights");
        let check = |what: &str, change: fn(&mut Inputs)| {
            let mut other = inputs();
            change(&mut other);
            assert_ne!(other.with_files(7), known, "{what}");
        };
        check("the type of numbers", |inputs| {
            inputs.cached = CacheKind::Bf16
        });
        check("the device", |inputs| inputs.device = MlxDevice::Gpu);
        check("attention", |inputs| inputs.attention = "fused");
        check("kernels", |inputs| inputs.kernels = false);
        check("the order of sums", |inputs| inputs.is_deterministic = true);
        check("the arithmetic", |inputs| {
            inputs.arithmetic = Arithmetic::Fast
        });
        check("instructions", |inputs| {
            inputs.instructions = Some(InstructionSet::Avx2)
        });
        check("no instructions", |inputs| inputs.instructions = None);
        check("threads", |inputs| {
            inputs.sums.as_mut().expect("the inputs have sums").threads = 3;
        });
        check("GOTO_NUM_THREADS", |inputs| {
            inputs
                .sums
                .as_mut()
                .expect("the inputs have sums")
                .blas_threads[0] = "2".to_owned();
        });
        check("OMP_NUM_THREADS", |inputs| {
            inputs
                .sums
                .as_mut()
                .expect("the inputs have sums")
                .blas_threads[1] = "2".to_owned();
        });
        check("the processor", |inputs| {
            inputs
                .sums
                .as_mut()
                .expect("the inputs have sums")
                .processor = "another".to_owned();
        });
        check("the kernels of the BLAS", |inputs| {
            inputs
                .sums
                .as_mut()
                .expect("the inputs have sums")
                .blas_core = "Haswell".to_owned();
        });
        check(
            "whether the order of sums is the sequence's own",
            |inputs| inputs.sums = None,
        );
        check("MLX", |inputs| inputs.mlx = "0.31.2".to_owned());
        // Names all fields, so that a new field does not compile until it is covered here.
        let Inputs {
            cached: _,
            device: _,
            attention: _,
            kernels: _,
            is_deterministic: _,
            arithmetic: _,
            instructions: _,
            sums: _,
            mlx: _,
        } = inputs();
    }

    #[test]
    fn mlx_reports_its_version() {
        let version = mlx_version();
        assert!(version.split('.').count() >= 2, "{version}");
    }
}
