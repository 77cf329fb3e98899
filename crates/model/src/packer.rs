//! State on its way between the device and the host.

use std::convert::Infallible;

use motet_protocol::{ModelError, SegmentSize};

/// Packs a model's detached state as plain bytes and unpacks it, on any thread.
///
/// Only the device thread may use a [`Model`](super::Model); the copy workers beside it use a packer. Packed
/// bytes carry no description of their own. The pager, which keeps them, knows their
/// [`SegmentSize`] and the model they belong to ([`identity`](Packer::identity)).
///
/// A model without offload has [`NoPacker`].
pub trait Packer: Clone + Send + 'static {
    /// Whether there is state to pack: false for [`NoPacker`] only. An engine whose settings ask
    /// for offload starts with such models only.
    const HAS_STATE: bool = true;

    /// A segment's state, detached from the model. It holds its device memory by itself, whatever
    /// happens to the segment that it came from or goes into.
    type DetachedState: Send + 'static;

    /// Identifies models with interchangeable cached state: computed from their weights, number
    /// types, layer kinds and positions, and the same in every run. Packed state of another
    /// identity cannot be used.
    ///
    /// An engine asks for it once, when it starts with a tier on disk, on a thread that may be
    /// blocked: a model may have to read all of its weights for it.
    fn identity(&self) -> u64;

    /// Bytes of packed state of this segment size; saturates.
    fn packed_bytes(&self, segment_size: SegmentSize) -> usize;

    /// Whether the device has computed the state: then packing it does not wait. Never waits
    /// itself. The default is for models whose detached state is already computed when it is
    /// exported.
    fn is_computed(&self, detached_state: &Self::DetachedState) -> bool {
        let _ = detached_state;
        true
    }

    /// Copies the state's bytes into `into`, layer after layer. Waits until the device has
    /// computed them, for ever if the device hangs. A caller that cannot wait calls
    /// [`is_computed`](Packer::is_computed) first.
    ///
    /// # Errors
    ///
    /// [`ModelError::Device`] when the state cannot be read back.
    ///
    /// # Panics
    ///
    /// Unless `into` has as many bytes as the state packs into.
    fn pack(&self, detached_state: &Self::DetachedState, into: &mut [u8])
    -> Result<(), ModelError>;

    /// The inverse of [`pack`](Packer::pack), for [`Model::import`](super::Model::import). The caller vouches for the
    /// bytes: only their number is checked.
    ///
    /// # Errors
    ///
    /// [`ModelError::Import`] unless there are as many bytes as the segment size calls for and it
    /// has at least one token; [`ModelError::Device`] when the device refuses the memory.
    fn unpack(
        &self,
        segment_size: SegmentSize,
        bytes: &[u8],
    ) -> Result<Self::DetachedState, ModelError>;

    /// The packed bytes that are numbers which could be kept at a lower precision: sections that
    /// lie one after another from the first byte on. Each bit counts of the bytes after them,
    /// and of all bytes if there is no section. State that later state is computed from, as
    /// that of recurrent layers is, belongs to the bytes after them.
    fn floats(&self, segment_size: SegmentSize) -> Vec<Floats>;
}

/// The packer of a model that exports no state: the engine keeps all of its state on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoPacker;

impl NoPacker {
    pub(crate) const ERROR: ModelError = ModelError::NotSupported {
        what: "offload: it exports no state",
    };
}

impl Packer for NoPacker {
    type DetachedState = Infallible;

    const HAS_STATE: bool = false;

    fn identity(&self) -> u64 {
        0
    }

    fn packed_bytes(&self, _segment_size: SegmentSize) -> usize {
        0
    }

    fn pack(&self, detached_state: &Infallible, _into: &mut [u8]) -> Result<(), ModelError> {
        match *detached_state {}
    }

    fn unpack(&self, _segment_size: SegmentSize, _bytes: &[u8]) -> Result<Infallible, ModelError> {
        Err(Self::ERROR)
    }

    fn floats(&self, _segment_size: SegmentSize) -> Vec<Floats> {
        Vec::new()
    }
}

/// A section of packed numbers: consecutive planes, each of `rows` x `channels`, row-major, in
/// the machine's own byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floats {
    /// The type of each number.
    pub kind: FloatKind,
    /// Number of planes; at least 1.
    pub planes: usize,
    /// Rows of a plane, which are tokens; at least 1.
    pub rows: usize,
    /// Numbers in a row; at least 1.
    pub channels: usize,
}

/// Types in which numbers are cached and packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatKind {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of a single.
    Bf16,
}

impl std::fmt::Display for FloatKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            FloatKind::F32 => "f32",
            FloatKind::F16 => "f16",
            FloatKind::Bf16 => "bf16",
        })
    }
}

impl FloatKind {
    /// Bytes of a number.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            FloatKind::F32 => 4,
            FloatKind::F16 | FloatKind::Bf16 => 2,
        }
    }
}
