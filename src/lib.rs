//! Many voices, one forward pass.

mod ids;
pub mod model;
pub mod text;

pub use ids::{SegmentId, SequenceId, SlotId, TokenId};
