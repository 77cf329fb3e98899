//! Measurements of a device that the `Model` trait does not offer.

use std::collections::BTreeMap;
use std::path::Path;

use motet::TokenId;
use motet::model::Model;
use motet::model::oracle::{self, OracleConfig};

use crate::mode::Mode;
use crate::programs::Result;

/// A context for every figure; steps on the oracle take a while.
const ORACLE_CONTEXT_TOKENS: usize = 16_384;

/// The device that a model runs on.
pub(crate) trait Device<M: Model> {
    /// Bytes of weights that a decode step reads.
    fn weight_bytes(&self) -> usize;

    /// Weights of a dense model by which a decode step multiplies each row in integers, by the names of
    /// their formats.
    fn weights(&self) -> BTreeMap<&'static str, usize>;

    /// Threads that a step computes on.
    fn threads(&self) -> usize;

    /// The tokens of a text.
    fn tokens(&self, text: &str) -> Result<Vec<TokenId>>;

    /// The time of one f32 product of `[rows, inner]` and `[inner, columns]`: the best of
    /// several.
    fn matmul_seconds(&self, rows: usize, inner: usize, columns: usize) -> Result<f64>;

    /// Memory in use by the device's own allocator. Other memory of the model, such as blocks
    /// of tails, is not counted.
    fn allocated(&self) -> Result<Allocated>;

    /// Resets the peak of bytes.
    fn forget_peak(&self) -> Result<()>;
}

/// Memory in use by an allocator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allocated {
    /// Bytes in use now.
    pub(crate) active_bytes: usize,
    /// Most bytes since the last reset of the peak.
    pub(crate) peak_bytes: usize,
}

/// Replaces a device where MLX is not set up; it has nothing to measure.
pub(crate) struct Oracle;

impl Device<oracle::Oracle> for Oracle {
    fn weight_bytes(&self) -> usize {
        0
    }

    fn weights(&self) -> BTreeMap<&'static str, usize> {
        BTreeMap::new()
    }

    fn threads(&self) -> usize {
        1
    }

    fn tokens(&self, _text: &str) -> Result<Vec<TokenId>> {
        Err("the oracle has no tokenizer".into())
    }

    fn matmul_seconds(&self, _rows: usize, _inner: usize, _columns: usize) -> Result<f64> {
        Err("the oracle has no matrix products".into())
    }

    fn allocated(&self) -> Result<Allocated> {
        Ok(Allocated::default())
    }

    fn forget_peak(&self) -> Result<()> {
        Ok(())
    }
}

pub(crate) fn oracle() -> Result<oracle::Oracle> {
    let config = OracleConfig {
        context_tokens_max: ORACLE_CONTEXT_TOKENS,
        ..OracleConfig::default()
    };
    Ok(oracle::Oracle::new(config)?)
}

/// Answers requests with this model on MLX, and the tokenizer of the model at `text`.
#[cfg(feature = "mlx")]
pub(crate) fn serve(path: &Path, text: &Path, mode: Mode) -> Result<()> {
    use motet::model::CacheKind;
    use motet::model::mlx::{Arithmetic, MlxModel, MlxOptions};
    use motet::model::weights::ModelFiles;
    use motet_weights::Role;

    use crate::programs::products::has_integer_products;

    let files = ModelFiles::open(path)?;
    let is_tied = files.blueprint().stem.tied_embeddings;
    // A step reads few rows of an embedding that is not the output head.
    let read = files
        .tensors()
        .filter(|(_, role)| *role != Role::Embedding || is_tied);
    let mut weight_bytes = 0;
    let mut weights = BTreeMap::new();
    for (layer, role) in read {
        let tensor = files.tensor(layer, role)?;
        let width = tensor.shape.last().copied().unwrap_or(1);
        for part in tensor.parts() {
            weight_bytes += part.bytes().len();
            if has_integer_products(part.format) {
                *weights.entry(part.format.name()).or_default() += part.rows * width;
            }
        }
    }
    let options = MlxOptions {
        deterministic: matches!(mode, Mode::Deterministic),
        cache_dtype: match mode {
            Mode::Default | Mode::Exact | Mode::Deterministic => None,
            Mode::CachedBf16 => Some(CacheKind::Bf16),
            Mode::CachedInt8 => Some(CacheKind::Int8),
        },
        arithmetic: match mode {
            Mode::Default => None,
            _ => Some(Arithmetic::Exact),
        },
        ..MlxOptions::default()
    };
    let text = motet::Engine::text_of(&ModelFiles::open(text)?)?;
    let model = MlxModel::load(&files, options)?;
    drop(files);
    let device = mlx::Device {
        weight_bytes,
        weights,
        text,
    };
    crate::programs::model::serve::serve(model, &device)
}

#[cfg(not(feature = "mlx"))]
pub(crate) fn serve(_path: &Path, _text: &Path, mode: Mode) -> Result<()> {
    Err(
        format!("built without MLX, for a model in mode {mode}: build with `--features mlx`")
            .into(),
    )
}

/// Prints the times of a step's operations with this model on MLX: composed of MLX's
/// operations, and by this crate's kernels.
#[cfg(feature = "mlx")]
pub(crate) fn profile(path: &Path, quick: bool) -> Result<()> {
    use motet::model::mlx::{MlxModel, MlxOptions, bridge};
    use motet::model::weights::ModelFiles;

    use crate::programs::model::profile::{ProfileSize, print};

    if !bridge::available() {
        return Err("this libmlxc has no bridge to kernels; run `cargo xtask setup`".into());
    }
    let files = ModelFiles::open(path)?;
    let load = |kernels| {
        let options = MlxOptions {
            kernels,
            ..MlxOptions::default()
        };
        MlxModel::load(&files, options)
    };
    let profile_size = if quick {
        ProfileSize::QUICK
    } else {
        ProfileSize::FULL
    };
    print(load(false)?, load(true)?, profile_size)
}

#[cfg(not(feature = "mlx"))]
pub(crate) fn profile(_path: &Path, _quick: bool) -> Result<()> {
    Err(crate::programs::engine::NO_MLX.into())
}

#[cfg(feature = "mlx")]
mod mlx {
    use std::collections::BTreeMap;
    use std::time::Instant;

    use motet::TokenId;
    use motet::model::mlx::mlx_rs::{Array, memory, random};
    use motet::model::mlx::{MlxModel, kernels};
    use motet::text::TextCodec;

    use super::Allocated;
    use crate::programs::Result;

    /// As many as `benches/peers/mlx_lm_peer.py` makes.
    const MATMUL_ATTEMPTS: usize = 7;

    pub(super) struct Device {
        pub(super) weight_bytes: usize,
        pub(super) weights: BTreeMap<&'static str, usize>,
        pub(super) text: TextCodec,
    }

    impl super::Device<MlxModel> for Device {
        fn weight_bytes(&self) -> usize {
            self.weight_bytes
        }

        fn weights(&self) -> BTreeMap<&'static str, usize> {
            self.weights.clone()
        }

        fn threads(&self) -> usize {
            kernels::threads()
        }

        fn tokens(&self, text: &str) -> Result<Vec<TokenId>> {
            Ok(self.text.encode_prompt(text)?)
        }

        fn matmul_seconds(&self, rows: usize, inner: usize, columns: usize) -> Result<f64> {
            let matrix = |rows: usize, columns: usize| -> Result<Array> {
                let shape = [i32::try_from(rows)?, i32::try_from(columns)?];
                let matrix = random::uniform::<_, f32>(0.0, 1.0, &shape, None)?;
                matrix.eval()?;
                Ok(matrix)
            };
            let (a, b) = (matrix(rows, inner)?, matrix(inner, columns)?);
            let mut best = f64::INFINITY;
            for _ in 0..MATMUL_ATTEMPTS {
                let started = Instant::now();
                a.matmul(&b)?.eval()?;
                best = best.min(started.elapsed().as_secs_f64());
            }
            Ok(best)
        }

        fn allocated(&self) -> Result<Allocated> {
            Ok(Allocated {
                active_bytes: memory::active_memory()?,
                peak_bytes: memory::peak_memory()?,
            })
        }

        fn forget_peak(&self) -> Result<()> {
            Ok(memory::reset_peak_memory()?)
        }
    }
}
