//! The scaling of rotary embeddings, which GGUF stores in metadata or in a tensor.

use std::f32::consts::PI;

use super::super::ModelError;
use super::super::config::RopeScaling;
use super::super::fields::Fields;
use super::super::stored::{Directory, Stored};
use super::super::tensor::{Formats, Tensor};
use super::metadata::GgufMetadata;

const DIVISORS: &str = "rope_freqs.weight";

/// Reads the scaling, if there is one.
pub(super) fn scaling(
    metadata: &GgufMetadata,
    directory: &Directory,
    head_dim: usize,
    rope_theta: f32,
) -> Result<Option<RopeScaling>, ModelError> {
    let name = "llama.rope.scaling.type";
    match metadata.text(name)? {
        None | Some("none") => {}
        Some("linear") => {
            return Ok(Some(RopeScaling::Linear {
                factor: metadata.positive_required("llama.rope.scaling.factor")?,
            }));
        }
        Some(other) => {
            return Err(metadata.wrong(name, format!("found `{other}`"), "`none` or `linear`"));
        }
    }
    // Files from before `rope.scaling.*` existed.
    if let Some(factor) = metadata.positive("llama.rope.scale_linear")? {
        return Ok(Some(RopeScaling::Linear { factor }));
    }
    match directory.get(DIVISORS) {
        Some(stored) => llama3(metadata, stored, head_dim, rope_theta),
        None => Ok(None),
    }
}

/// Llama 3's scaling, which llama.cpp's converter writes as one divisor for each frequency. The
/// constants are recovered by trying those of every Llama 3.1 to 3.3. These differ only in
/// `factor`, which is the largest divisor.
fn llama3(
    metadata: &GgufMetadata,
    stored: &Stored,
    head_dim: usize,
    rope_theta: f32,
) -> Result<Option<RopeScaling>, ModelError> {
    const LOW: f32 = 1.0;
    const HIGH: f32 = 4.0;
    const ORIGINAL_CONTEXT_TOKENS: usize = 8192;
    let shape = vec![head_dim / 2];
    let format = stored.check(DIVISORS, &shape, &Formats::UNQUANTISED)?;
    let divisors = Tensor::new(DIVISORS, shape, format, stored.bytes().into()).to_f32();
    if divisors.iter().all(|divisor| *divisor == 1.0) {
        return Ok(None);
    }
    let factor = divisors.iter().copied().fold(1.0, f32::max);
    let divisor = |index: usize| {
        let frequency = rope_theta.powf(-2.0 * index as f32 / head_dim as f32);
        let turns = ORIGINAL_CONTEXT_TOKENS as f32 * frequency / (2.0 * PI);
        let retained = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
        1.0 / ((1.0 - retained) / factor + retained)
    };
    let is_llama3 = divisors.iter().enumerate().all(|(index, found)| {
        let expected = divisor(index);
        (found - expected).abs() <= 1e-3 * expected
    });
    if !is_llama3 {
        return Err(metadata.wrong(
            DIVISORS,
            "its divisors are not those of Llama 3",
            "Llama 3's scaling: low 1, high 4, of a context of 8192",
        ));
    }
    Ok(Some(RopeScaling::Llama3 {
        factor,
        low_freq_factor: LOW,
        high_freq_factor: HIGH,
        original_context_tokens: ORIGINAL_CONTEXT_TOKENS,
    }))
}
