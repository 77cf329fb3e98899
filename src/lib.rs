//! Many voices, one forward pass: an actor-based scheduler that lets many token
//! sequences share one language model.
//!
//! Motet is the batching core of a server. It batches the tokens of many sequences
//! into each forward pass, computes what their prompts have in common once, and
//! survives a failing device. It brings a backend for the Llama family on MLX
//! (feature `mlx`; run on Linux x86-64's CPU only, so far) and an
//! [oracle](model::oracle) to test with; other models plug in behind the
//! [`Model`](model::Model) trait.
//!
//! ```
//! use motet::model::oracle::{Oracle, OracleConfig};
//! use motet::{Engine, Request, Shutdown};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // With feature `mlx`: `Engine::open("model.gguf")?` for a real model.
//! let oracle = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
//! let engine = Engine::builder(oracle).start().await?;
//!
//! let mut stream = engine
//!     .submit(Request::tokens([1, 2, 3]).output_tokens_max(8))
//!     .await?;
//! while let Some(piece) = stream.next().await {
//!     println!("{:?}", piece?.token);
//! }
//! println!("{:?}", stream.finish());
//! engine.shutdown(Shutdown::Abort).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | room | what happens there |
//! |---|---|
//! | [`Engine`], [`Request`], [`TokenStream`] | all that an embedder must know |
//! | [`config`], [`error`] | settings with advice; errors that say what to do |
//! //! | [`model`] | the trait that models implement; oracle, weights, MLX |
//! | [`grammar`] | output that follows a JSON schema or a regular expression |
//! | [`text`] | tokenizer, chat template, detokenising, stop strings |
//! | [`monitor`] | what happens, and how the house looks, for those who watch |
//!
//! # Guide
//!
//! `docs/embedding.md` goes from the lines of `Cargo.toml` to production: configuration,
//! grammars, forks, pins, shifts, tiers, metrics, each with code that the tests run.
//! `docs/semantics.md` says what a caller may rely on, `docs/architecture.md` how it is made.

mod actors;
#[doc(hidden)]
pub mod device;
mod engine;
pub mod error;
#[doc(hidden)]
pub mod failpoint;
pub mod monitor;
mod open;
pub mod request;
#[doc(hidden)]
pub mod simulation;
#[doc(hidden)]
pub mod storage;
mod stream;
mod telemetry;

/// What is cached, as far as a caller meets it.
pub mod cache {
    pub use motet_core::cache::{
        BlockEvent, BlockHash, CacheError, CacheStats, Miss, MissReason, Salt,
    };
}

/// The trait that models implement, and the models that exist.
pub mod model {
    #[cfg(feature = "mlx")]
    pub use motet_mlx as mlx;
    pub use motet_model::*;
    pub use motet_weights as weights;
}

/// What the pager tells.
pub mod pager {
    pub use motet_core::pager::PagerStats;
}

/// What has failed is rebuilt, or given up.
pub mod recovery {
    pub use motet_core::recovery::Fault;
}

pub use engine::{
    BlockBatch, BlockEvents, DeviceBudget, Engine, EngineBuilder, Health, HealthState, Shutdown,
};
pub use motet_core::config;
pub use motet_core::{CopyId, PinId, SegmentId, SequenceId, SlotId, TokenId, UserId};
pub use motet_text::{self as text, grammar};
pub use open::text_of;
pub use request::Request;
pub use stream::TokenStream;
pub use telemetry::EngineStats;
