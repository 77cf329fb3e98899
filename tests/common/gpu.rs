//! A GPU, or the CPU that stands in for one.

use motet::model::CacheKind;
use motet::model::mlx::{MlxDevice, MlxModel, MlxOptions};
use motet::model::weights::ModelFiles;

/// If set, a test fails where there is no GPU: `cargo xtask gpu-check` sets it on a GPU's machine.
const REQUIRED: &str = "MOTET_GPU_REQUIRED";

fn of_gpu() -> MlxOptions {
    MlxOptions {
        device: Some(MlxDevice::Gpu),
        ..MlxOptions::default()
    }
}

pub(crate) fn has_gpu(files: &ModelFiles) -> bool {
    MlxModel::outline(files, &of_gpu()).is_ok()
}

/// The options of a GPU. Where MLX has none, the CPU stands in for it, with the operations that a
/// GPU uses and the same type of cached state.
pub(crate) fn gpu_options(files: &ModelFiles) -> MlxOptions {
    if has_gpu(files) {
        return of_gpu();
    }
    assert!(std::env::var_os(REQUIRED).is_none(), "MLX has no GPU");
    println!("no GPU: the CPU stands in for it");
    MlxOptions {
        device: Some(MlxDevice::Cpu),
        kernels: false,
        cache_dtype: Some(CacheKind::Bf16),
        ..MlxOptions::default()
    }
}
