//! MLX's quantised folders, as its converters write them.
//!
//! `config.json` states the form of all quantised modules under `quantization`, and that of single
//! modules under their paths. A quantised module has three tensors:
//!
//! | tensor | affine | MXFP4 |
//! |---|---|---|
//! | `PATH.weight` | U32 `[.., out, in * bits / 32]` | U32 `[.., out, in / 8]` |
//! | `PATH.scales` | F16, BF16 or F32 `[.., out, in / group]` | U8 `[.., out, in / 32]` |
//! | `PATH.biases` | as the scales | – |
//!
//! Everything that configuration and tensors say about a module is compared when the files are
//! opened. Scales are read, and must be finite, when a tensor is asked for.

mod forms;

use motet_formats::{Affine, Format, ScaleFormat};
use motet_protocol::ModelError;

use super::stored::{Directory, Stored};
pub(crate) use forms::{Grouping, MlxQuantisation};

/// The tensors with the scales and offsets of a quantised module.
#[derive(Debug)]
pub(super) struct Spans {
    pub(super) scales: (String, Stored),
    /// MLX calls them biases.
    pub(super) offsets: Option<(String, Stored)>,
}

/// A quantised module's tensors, found and checked.
pub(super) struct Module {
    pub(super) weight: Stored,
    pub(super) format: Format,
    pub(super) spans: Spans,
}

/// The tensors of the module with this path, whose matrix has the shape `shape`.
pub(super) fn find(
    directory: &Directory,
    folder: &std::path::Path,
    path: &str,
    shape: &[usize],
    grouping: Grouping,
) -> Result<Module, ModelError> {
    let (width, rows) = shape.split_last().expect("a matrix has dimensions");
    let (bits, group) = (grouping.bits(), grouping.group());
    let with = |last: usize| [rows, &[last]].concat();
    let named = |part: &str, shape: Vec<usize>| {
        let name = format!("{path}.{part}");
        match directory.get(&name) {
            Some(stored) => Ok(Named {
                name,
                stored,
                shape,
                width: *width,
                grouping,
            }),
            None => Err(ModelError::TensorMissing {
                path: folder.to_owned(),
                tensor: name,
                expected: shape,
            }),
        }
    };
    let weight = named("weight", with(width * bits / 32))?;
    if !width.is_multiple_of(group) {
        let found = format!("a matrix with rows of {width} elements");
        return Err(weight.wrong(found, format!("rows of whole groups of {group} elements")));
    }
    weight.check("U32", |format| format == Format::U32)?;
    let scales = named("scales", with(width / group))?;
    let Grouping::Affine { .. } = grouping else {
        scales.check("U8", |format| format == Format::U8)?;
        return Ok(Module {
            weight: weight.stored.clone(),
            format: Format::GroupedMxfp4,
            spans: Spans {
                scales: scales.found(),
                offsets: None,
            },
        });
    };
    let scale_format = scales.check("F16, BF16 or F32", |format| scale_format(format).is_some())?;
    let offsets = named("biases", with(width / group))?;
    offsets.check(scale_format.name(), |format| format == scale_format)?;
    let affine = Affine {
        bits: bits as u8,
        group: group as u8,
        scales: scale_format_of(scale_format),
    };
    Ok(Module {
        weight: weight.stored.clone(),
        format: Format::Affine(affine),
        spans: Spans {
            scales: scales.found(),
            offsets: Some(offsets.found()),
        },
    })
}

fn scale_format(format: Format) -> Option<ScaleFormat> {
    match format {
        Format::F32 => Some(ScaleFormat::F32),
        Format::F16 => Some(ScaleFormat::F16),
        Format::BF16 => Some(ScaleFormat::BF16),
        _ => None,
    }
}

fn scale_format_of(format: Format) -> ScaleFormat {
    scale_format(format).expect("the format was checked")
}

/// One tensor of a module, and the shape that it should have.
struct Named<'a> {
    name: String,
    stored: &'a Stored,
    shape: Vec<usize>,
    /// Elements of the module's rows.
    width: usize,
    grouping: Grouping,
}

impl Named<'_> {
    /// Checks type and shape, in which sizes of 1 do not count.
    fn check(&self, known: &str, allowed: impl Fn(Format) -> bool) -> Result<Format, ModelError> {
        let significant = |shape: &[usize]| -> Vec<usize> {
            shape.iter().copied().filter(|size| *size != 1).collect()
        };
        let fits = significant(&self.stored.shape) == significant(&self.shape);
        match &self.stored.format {
            Ok(format) if fits && allowed(*format) => Ok(*format),
            format => {
                let format = format
                    .as_ref()
                    .map_or_else(String::as_str, |one| one.name());
                Err(self.wrong(
                    format!("{format} {:?}", self.stored.shape),
                    format!(
                        "{known} {:?}: rows of {} elements, {}, as config.json states",
                        self.shape, self.width, self.grouping
                    ),
                ))
            }
        }
    }

    fn wrong(&self, found: String, expected: String) -> ModelError {
        ModelError::QuantisedTensor {
            path: self.stored.file.path().to_owned(),
            tensor: self.name.clone(),
            found,
            expected,
        }
    }

    fn found(self) -> (String, Stored) {
        (self.name, self.stored.clone())
    }
}

/// The error of a module that the configuration leaves unquantised, though it has scales.
pub(super) fn unexpected_scales(scales: &Stored, path: &str) -> ModelError {
    ModelError::QuantisedTensor {
        path: scales.file.path().to_owned(),
        tensor: format!("{path}.scales"),
        found: "the scales of a module that config.json leaves unquantised".to_owned(),
        expected: "a module without scales".to_owned(),
    }
}

impl Spans {
    /// All of its tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &(String, Stored)> {
        [&self.scales].into_iter().chain(&self.offsets)
    }

    /// Checks that all scales and offsets are finite.
    pub(super) fn check_finite(&self) -> Result<(), ModelError> {
        for (name, stored) in self.tensors() {
            let format = *stored.format.as_ref().expect("the format was checked");
            if let Some(at) = first_not_finite(format, stored.bytes()) {
                return Err(ModelError::QuantisedTensor {
                    path: stored.file.path().to_owned(),
                    tensor: name.clone(),
                    found: format!("{}, whose number {at} is not finite", format.name()),
                    expected: "finite numbers".to_owned(),
                });
            }
        }
        Ok(())
    }
}

/// The index of the first number that is infinite or no number.
fn first_not_finite(format: Format, bytes: &[u8]) -> Option<usize> {
    // A piece without such numbers is passed without finding out where they would be.
    const PIECE: usize = 4096;
    let halves = |exponent: u16| {
        let is_bad = move |half: &[u8; 2]| u16::from_le_bytes(*half) & exponent == exponent;
        first_in_pieces(bytes.as_chunks().0, PIECE, is_bad)
    };
    match format {
        Format::F16 => halves(0x7C00),
        Format::BF16 => halves(0x7F80),
        Format::F32 => first_in_pieces(bytes.as_chunks().0, PIECE, |one: &[u8; 4]| {
            u32::from_le_bytes(*one) & 0x7F80_0000 == 0x7F80_0000
        }),
        // An exponent of MXFP4; 255 stands for NaN.
        _ => first_in_pieces(bytes, PIECE, |one| *one == 255),
    }
}

fn first_in_pieces<T>(all: &[T], piece: usize, is_bad: impl Fn(&T) -> bool) -> Option<usize> {
    let mut pieces = all.chunks(piece).enumerate();
    pieces.find_map(|(index, numbers)| {
        let any = numbers.iter().fold(false, |any, one| any | is_bad(one));
        let at = any.then(|| numbers.iter().position(&is_bad))??;
        Some(index * piece + at)
    })
}
