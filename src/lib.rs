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
//! | [`scheduler`] | who runs in the next step: a pure core, and its policy [`plan`](mod@scheduler::plan) |
//! | [`cache`] | which tokens are cached where: the prefix trie and the slots |
//! | [`pager`] | what is kept outside the device, in memory and on disk |
//! | [`recovery`] | what has failed is made anew, or given up |
//! | [`device`] | the thread that owns the model and every array |
//! | [`model`] | the trait that models implement; oracle, weights, MLX |
//! | [`grammar`] | output that follows a JSON schema or a regular expression |
//! | [`text`] | tokenizer, chat template, detokenising, stop strings |
//! | [`watch`] | what happens, and how the house looks, for those who watch |
//! | [`shared`] | the few words that threads share, each model-checked |
//!
//! # Guide
//!
//! `docs/embedding.md` goes from the lines of `Cargo.toml` to production: configuration,
//! grammars, forks, pins, shifts, tiers, metrics, each with code that the tests run.
//! `docs/semantics.md` says what a caller may rely on, `docs/architecture.md` how it is made.

mod actors;
pub mod cache;
pub mod config;
pub mod device;
mod engine;
pub mod error;
pub mod grammar;
mod ids;
#[cfg(any(test, feature = "mlx"))]
mod machine;
pub mod model;
mod open;
pub mod pager;
#[doc(hidden)]
pub mod planted;
pub mod recovery;
pub mod request;
pub mod scheduler;
pub mod shared;
#[doc(hidden)]
pub mod simulation;
mod stream;
mod sync;
mod telemetry;
pub mod text;
pub mod watch;

pub use engine::{
    BlockBatch, BlockEvents, DeviceBudget, Engine, EngineBuilder, Health, HealthState, Shutdown,
};
pub use ids::{CopyId, PinId, SegmentId, SequenceId, SlotId, TokenId, UserId};
pub use open::text_of;
pub use request::Request;
pub use stream::TokenStream;
#[doc(hidden)]
pub use sync::plant;
pub use telemetry::EngineStats;
