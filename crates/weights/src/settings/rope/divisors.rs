//! Divisors of frequencies, which GGUF files store as tensors.

use std::f32::consts::PI;

use motet_protocol::ModelError;

use super::super::super::blueprint::RopeScaling;
use super::super::super::fields::Fields;
use super::super::super::formats::{Formats, to_f32};
use super::super::super::gguf::GgufMetadata;
use super::super::super::stored::Directory;
use super::super::Settings;
use super::{is_divisor, long_magnitude, original_context_tokens};

const LLAMA3: &str = "rope_freqs.weight";
pub(super) const LONG: &str = "rope_factors_long.weight";
const SHORT: &str = "rope_factors_short.weight";

/// Llama 3's scaling, which llama.cpp's converter writes as one divisor for each frequency. The
/// constants are recovered by trying those of every Llama 3.1 to 3.3. These differ only in
/// `factor`, which is the largest divisor. Other divisors are taken as they are.
pub(super) fn llama3(
    metadata: &GgufMetadata,
    directory: &Directory,
    rotated: usize,
    theta: f32,
) -> Result<RopeScaling, ModelError> {
    const LOW: f32 = 1.0;
    const HIGH: f32 = 4.0;
    const ORIGINAL_CONTEXT_TOKENS: usize = 8192;
    let Some(divisors) = read(metadata, directory, LLAMA3, rotated)? else {
        return Ok(RopeScaling::None);
    };
    if divisors.iter().all(|divisor| *divisor == 1.0) {
        return Ok(RopeScaling::None);
    }
    let factor = divisors.iter().copied().fold(1.0, f32::max);
    let divisor = |index: usize| {
        let frequency = theta.powf(-2.0 * index as f32 / rotated as f32);
        let turns = ORIGINAL_CONTEXT_TOKENS as f32 * frequency / (2.0 * PI);
        let retained = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
        1.0 / ((1.0 - retained) / factor + retained)
    };
    let is_llama3 = divisors.iter().enumerate().all(|(index, found)| {
        let expected = divisor(index);
        (found - expected).abs() <= 1e-3 * expected
    });
    if !is_llama3 {
        return Ok(RopeScaling::Long {
            divisors,
            magnitude: 1.0,
        });
    }
    Ok(RopeScaling::Llama3 {
        factor,
        low_freq_factor: LOW,
        high_freq_factor: HIGH,
        original_context_tokens: ORIGINAL_CONTEXT_TOKENS,
    })
}

/// LongRoPE, of which the context chooses one of two tensors.
pub(super) fn long(
    settings: &Settings<'_>,
    metadata: &GgufMetadata,
    directory: &Directory,
    rotated: usize,
) -> Result<RopeScaling, ModelError> {
    let original = original_context_tokens(settings)?;
    let context = settings.context_tokens_max()?;
    let name = if context > original { LONG } else { SHORT };
    let Some(divisors) = read(metadata, directory, name, rotated)? else {
        return Err(ModelError::TensorMissing {
            path: settings.path().to_owned(),
            tensor: name.to_owned(),
            expected: vec![rotated / 2],
        });
    };
    let magnitude = settings.positive("rope.scaling.attn_factor")?;
    let factor = (context as f64 / original as f64) as f32;
    Ok(RopeScaling::Long {
        divisors,
        magnitude: magnitude.unwrap_or_else(|| long_magnitude(factor, original)),
    })
}

fn read(
    metadata: &GgufMetadata,
    directory: &Directory,
    name: &str,
    rotated: usize,
) -> Result<Option<Vec<f32>>, ModelError> {
    let Some(stored) = directory.get(name) else {
        return Ok(None);
    };
    let format = stored.check(name, &[rotated / 2], &Formats::UNQUANTISED)?;
    let divisors = to_f32(format, stored.bytes());
    match divisors.iter().find(|one| !is_divisor(**one)) {
        None => Ok(Some(divisors)),
        Some(one) => Err(metadata.wrong(
            name,
            format!("found a divisor {one}"),
            "finite numbers above 0",
        )),
    }
}
