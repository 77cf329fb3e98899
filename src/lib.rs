//! Many voices, one forward pass.

mod actors;
pub mod cache;
pub mod config;
pub mod device;
mod engine;
pub mod error;
mod ids;
pub mod model;
pub mod request;
pub mod scheduler;
pub mod shared;
mod stream;
mod sync;
mod telemetry;
pub mod text;

pub use engine::{Engine, EngineBuilder};
pub use ids::{SegmentId, SequenceId, SlotId, TokenId};
pub use request::Request;
pub use stream::TokenStream;
pub use telemetry::EngineStats;
