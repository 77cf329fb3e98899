//! Stored elements of any format, and their decoding.

use std::marker::PhantomData;
use std::ops::Range;

use half::{bf16, f16};

use crate::block_format::BlockFormat;
use crate::decoders::{Blocks, Decoder, Groups, Numbers};
use crate::format::{Affine, BlockVisitor, Format, ScaleFormat};
use crate::groups::{Exponents, Halves, Scaling, Singles};
use crate::simd::{InstructionSet, Job, Number, Simd, dispatch_on};

/// Consecutive stored elements: whole blocks, with the scales and offsets of their groups where the
/// format has arrays of them. The bytes have no particular alignment.
#[derive(Clone, Copy, Debug)]
pub struct Encoded<'a> {
    format: Format,
    bytes: &'a [u8],
    /// Scales and offsets.
    spans: [&'a [u8]; 2],
}

/// Work that is compiled once for each kind of format, with the type that describes it.
pub trait Visitor {
    /// The result of the work.
    type Output;
    /// The work with elements that are numbers.
    fn numbers<N: Number>(self) -> Self::Output;
    /// The work with blocks.
    fn blocks<F: BlockFormat>(self) -> Self::Output;
    /// The work with codes of `BITS` bits in groups of `group`, and with the groups' scales.
    fn groups<G: Scaling, const BITS: usize>(self, scaling: G, group: usize) -> Self::Output;
}

impl<'a> Encoded<'a> {
    /// Elements with arrays of scales and offsets: one of each for every block, or no bytes where
    /// the format has none.
    ///
    /// # Panics
    ///
    /// When the bytes are not whole blocks, when the arrays are not as long as
    /// [`Format::span_bytes`] says, or when affine elements have another number of bits than 2, 3,
    /// 4, 5, 6 or 8.
    #[must_use]
    pub fn new(format: Format, bytes: &'a [u8], spans: [&'a [u8]; 2]) -> Self {
        let (_, stride) = format.block();
        let (count, name) = (bytes.len(), format.name());
        let whole = count.is_multiple_of(stride);
        assert!(whole, "{count} bytes are not whole blocks of {name}");
        let (scale, offset) = format.span_bytes();
        assert_eq!(
            spans.map(<[u8]>::len),
            [scale, offset].map(|bytes| count / stride * bytes),
            "bytes of the scales and offsets of {format:?}"
        );
        if let Format::Affine(Affine { bits, .. }) = format {
            assert!(matches!(bits, 2..=6 | 8), "elements of {bits} bits");
        }
        Self {
            format,
            bytes,
            spans,
        }
    }

    /// How the elements are stored.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Their bytes: of the elements' codes alone, where scales lie apart.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        let (elements, stride) = self.format.block();
        self.bytes.len() / stride * elements
    }

    /// Some of the blocks, with their scales and offsets.
    ///
    /// # Panics
    ///
    /// When there are fewer blocks.
    #[must_use]
    pub fn blocks(&self, blocks: Range<usize>) -> Self {
        let (_, stride) = self.format.block();
        let (scale, offset) = self.format.span_bytes();
        let part = |all: &'a [u8], bytes: usize| &all[blocks.start * bytes..blocks.end * bytes];
        let [scales, offsets] = self.spans;
        Self {
            format: self.format,
            bytes: part(self.bytes, stride),
            spans: [part(scales, scale), part(offsets, offset)],
        }
    }

    /// Decodes all elements to single precision. They are ggml's and MLX's to the last bit, but
    /// for the sign of a zero in MXFP4, which is lost.
    ///
    /// # Panics
    ///
    /// When `output` is not as many numbers, or the format has no numbers of its own.
    pub fn decode(&self, output: &mut [f32]) {
        self.decode_on(InstructionSet::best(), output);
    }

    /// [`decode`](Self::decode) with one instruction set.
    pub(crate) fn decode_on(&self, set: InstructionSet, output: &mut [f32]) {
        let elements = self.elements();
        assert_eq!(output.len(), elements, "numbers of the decoded elements");
        if elements > 0 {
            let rows = Rows {
                count: 1,
                width: elements,
                along: 0..elements,
                output,
                stride: elements,
            };
            self.visit(DecodeOn {
                encoded: *self,
                set,
                rows,
                subtracts: true,
            });
        }
    }

    /// Decodes the elements `along` each row of `width`, which are whole blocks, with one
    /// instruction set. The rows of `output` begin `stride` numbers apart. The numbers are those that
    /// products compute in registers: a zero may have another sign than that of
    /// [`decode`](Self::decode).
    ///
    /// # Panics
    ///
    /// When the rows or the elements `along` them are not whole blocks, when `output` is too
    /// short, when the format has no numbers of its own, or when this machine does not have the
    /// instruction set.
    pub fn decode_rows(
        &self,
        set: InstructionSet,
        width: usize,
        along: Range<usize>,
        output: &mut [f32],
        stride: usize,
    ) {
        let rows = Rows {
            count: self.elements() / width,
            width,
            along,
            output,
            stride,
        };
        self.visit(DecodeOn {
            encoded: *self,
            set,
            rows,
            subtracts: false,
        });
    }

    /// Calls `visitor` with the type that describes the format.
    ///
    /// # Panics
    ///
    /// When the format has no numbers of its own.
    pub fn visit<V: Visitor>(self, visitor: V) -> V::Output {
        let [scales, offsets] = self.spans;
        match self.format {
            Format::F32 => visitor.numbers::<f32>(),
            Format::F16 => visitor.numbers::<f16>(),
            Format::BF16 => visitor.numbers::<bf16>(),
            Format::U8 | Format::U32 => {
                unreachable!("{:?} has no numbers of its own", self.format)
            }
            Format::Affine(affine) => match affine.scales {
                ScaleFormat::F32 => {
                    let (scales, offsets) = (scales.as_chunks().0, offsets.as_chunks().0);
                    visit_affine(visitor, Singles { scales, offsets }, affine)
                }
                format => {
                    let scaling = Halves {
                        scales: scales.as_chunks().0,
                        offsets: offsets.as_chunks().0,
                        format,
                    };
                    visit_affine(visitor, scaling, affine)
                }
            },
            Format::GroupedMxfp4 => {
                let (group, _) = self.format.block();
                visitor.groups::<_, 4>(Exponents { scales }, group)
            }
            format => {
                let visited = format.visit_block(OfBlocks(visitor));
                visited.expect("all other formats are blocks")
            }
        }
    }
}

fn visit_affine<V: Visitor>(visitor: V, scaling: impl Scaling, affine: Affine) -> V::Output {
    let group = usize::from(affine.group);
    match affine.bits {
        2 => visitor.groups::<_, 2>(scaling, group),
        3 => visitor.groups::<_, 3>(scaling, group),
        4 => visitor.groups::<_, 4>(scaling, group),
        5 => visitor.groups::<_, 5>(scaling, group),
        6 => visitor.groups::<_, 6>(scaling, group),
        8 => visitor.groups::<_, 8>(scaling, group),
        _ => unreachable!("the bits were checked"),
    }
}

/// A visitor, as a visitor of blocks.
struct OfBlocks<V>(V);

impl<V: Visitor> BlockVisitor for OfBlocks<V> {
    type Output = V::Output;

    fn visit<F: BlockFormat>(self) -> V::Output {
        self.0.blocks::<F>()
    }
}

/// The places of decoded rows.
struct Rows<'a> {
    count: usize,
    width: usize,
    /// The elements of each row that are decoded.
    along: Range<usize>,
    output: &'a mut [f32],
    /// Numbers of the output from one row to the next.
    stride: usize,
}

/// Decodes rows with one instruction set.
struct DecodeOn<'a> {
    encoded: Encoded<'a>,
    set: InstructionSet,
    rows: Rows<'a>,
    /// Whether the code of zero is subtracted from codes, as ggml does. Products add an offset
    /// instead, which takes less time.
    subtracts: bool,
}

impl Visitor for DecodeOn<'_> {
    type Output = ();

    fn numbers<N: Number>(self) {
        let (bytes, number) = (self.encoded.bytes, PhantomData::<N>);
        let (decoder, rows) = (Numbers { bytes, number }, self.rows);
        dispatch_on(self.set, Decode { decoder, rows });
    }

    fn blocks<F: BlockFormat>(self) {
        let (bytes, format) = (self.encoded.bytes, PhantomData::<F>);
        let rows = self.rows;
        if self.subtracts && F::ZERO > 0 {
            let decoder = Blocks::<F, true> { bytes, format };
            dispatch_on(self.set, Decode { decoder, rows });
        } else {
            let decoder = Blocks::<F, false> { bytes, format };
            dispatch_on(self.set, Decode { decoder, rows });
        }
    }

    fn groups<G: Scaling, const BITS: usize>(self, scaling: G, group: usize) {
        let decoder = Groups::<G, BITS> {
            codes: self.encoded.bytes,
            scaling,
            group,
        };
        let rows = self.rows;
        dispatch_on(self.set, Decode { decoder, rows });
    }
}

struct Decode<'a, D> {
    decoder: D,
    rows: Rows<'a>,
}

impl<D: Decoder> Job for Decode<'_, D> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Rows {
            count,
            width,
            along,
            output,
            stride,
        } = self.rows;
        assert!(along.start <= along.end && along.end <= width);
        for (row, output) in (0..count).zip(output.chunks_mut(stride)) {
            let elements = row * width + along.start..row * width + along.end;
            self.decoder
                .decode(simd, elements, &mut output[..along.len()]);
        }
    }
}
