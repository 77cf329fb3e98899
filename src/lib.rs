//! Many voices, one forward pass: an actor-based engine that serves many token sequences from
//! one language model.
//!
//! Motet is the batching core of an LLM inference server, as a library:
//!
//! - **Continuous batching with chunked prefill.** Each step carries one token of every decoding
//!   sequence and chunks of prompts. A budget in tokens and in time bounds the latency between
//!   two tokens; two steps in flight keep throughput up.
//! - **Prefix caching.** The KV cache is a prefix trie of shared segments: a common prefix is
//!   computed once, and forks copy nothing.
//! - **Eviction and KV cache offload.** Cold state moves to host memory and disk, and is loaded
//!   again where that is faster than computing. Prompts can be pinned.
//! - **Preemption and fairness.** Priority classes, and a fair share for each user within a
//!   class. When memory runs short, a running sequence loses its slot and continues later.
//! - **Conversations with tools.** Calls that follow their schemas, reasoning with a budget, and
//!   answers as typed events, for the forms in which families of models write them: [`chat`].
//! - **Speculative decoding.** Drafts from texts that are known, predicted outputs and a draft model,
//!   where they pay; no token changes.
//! - **Structured output.** JSON schemas, regular expressions and Lark grammars.
//! - **Scores and embeddings.** Log probabilities of given tokens, and pooled hidden states, beside
//!   all other sequences.
//! - **Fault tolerance.** The engine survives failed steps, panics and a failing device, and
//!   callers receive each token exactly once.
//!
//! It has no draft models, and one device per engine.
//!
//! Models plug in behind the [`Model`](model::Model) trait. There is a backend for nineteen
//! families on MLX (feature `mlx`; run on Linux x86-64's CPU only, so far) and an
//! [oracle](model::oracle) for tests.
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
//!     let piece = piece?;
//!     println!("{:?} {:?}", piece.token, piece.finish); // the last piece has the finish
//! }
//! engine.shutdown(Shutdown::Abort).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | module or type | content |
//! |---|---|
//! | [`Engine`], [`Request`], [`TokenStream`], [`SequenceHandle`] | the main types of an embedder: start, submit, stream, cancel |
//! | [`request`] | requests, prompts, pieces and completions |
//! | [`chat`] | conversations: tools, reasoning, formats, answers as events or whole |
//! | [`config`], [`error`] | settings with advice; errors that say what to do |
//! | [`model`] | models: the oracle, weights, MLX, and where to find files |
//! | [`grammar`] | structured output: JSON schemas, regular expressions, Lark grammars |
//! | [`text`] | messages, tools, chat template, tokenizer |
//! | [`cache`] | statistics and events of the prefix cache and of offload |
//! | [`monitor`] | events and snapshots of a running engine |
//!
//! # Guide
//!
//! `docs/embedding.md` leads from the lines of `Cargo.toml` to production: configuration, tools,
//! grammars, forks, pins, shifts, tiers, metrics, each with code that the tests run.
//! `docs/semantics.md` lists the guarantees to callers, `docs/architecture.md` describes the
//! design.

#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))] // see `motet_protocol::time`

mod actors;
#[cfg(feature = "text")]
pub mod chat;
mod copy_workers;
mod device;
#[cfg_attr(
    not(feature = "grammar"),
    allow(dead_code, reason = "some parts work for texts and grammars only")
)]
mod engine;
pub mod error;
mod handle;
#[cfg(feature = "text")]
mod open;
mod optional;
pub mod request;
mod results;
mod runtime;
mod stream;
mod telemetry;

/// Contents, statistics and events of the prefix cache, and statistics of offload.
pub mod cache {
    pub use motet_core::cache::{
        BlockEvent, BlockHash, BlockTier, CacheError, CacheStats, NodeView, PrefixKey,
        RestoreStats, Salt, TreeView,
    };
    pub use motet_core::pager::PagerStats;
    pub use motet_protocol::{ActiveAdapter, AdapterKey};
}

/// A tier that several processes share. An implementation needs these types; `motet-remote` has one
/// over Redis, S3 and others.
pub mod remote {
    pub use motet_protocol::pager::Ask;
    pub use motet_protocol::remote::{RemoteCall, RemoteError, RemoteModel, RemoteTier};
    pub use motet_protocol::{KeyDigest, Label, Precision, PrefixDigest, PrefixHasher, SaltDigest};
}

pub mod model {
    //! Models: what the engine says of one, those that exist, and where to find their files.
    //!
    //! A model of one's own implements [`Model`] with the types of the crate `motet-model`, which also
    //! has the checks for it. A backend reads files with `motet-weights`.

    #[cfg(feature = "text")]
    pub use motet_find as find;
    #[cfg(feature = "mlx")]
    pub use motet_mlx as mlx;
    pub use motet_model::{
        CacheKind, DeviceMemory, FloatKind, LayerGroup, LayerKind, Model, ModelError, ModelSpec,
        SegmentSize,
    };

    /// A deterministic model for tests of what is built on an engine. `motet_model::oracle` has
    /// the settings that only tests of an engine need.
    pub mod oracle {
        pub use motet_model::oracle::{Faults, Oracle, OracleConfig, OracleConfigError, StepCost};
    }

    /// A model's files.
    #[cfg(feature = "text")]
    pub mod weights {
        pub use motet_weights::{FileAccess, ModelFiles, Skipped, survive_shortened_files};
    }
}

/// Structured output: output that follows a JSON schema, a regular expression or a Lark grammar.
#[cfg(feature = "grammar")]
pub mod grammar {
    pub use motet_text::grammar::{
        AnswerGrammar, GrammarBound, GrammarError, GrammarLimits, GrammarSource,
    };
}

pub mod monitor {
    //! Monitoring of an engine: [events](Events) as they happen, and [snapshots](Snapshots) twice a
    //! second.
    //!
    //! Both are bounded and lossy. Without a subscriber nothing is computed. A slow subscriber
    //! misses events or snapshots and delays neither the scheduler nor other subscribers. All
    //! subscribers share one snapshot, taken at most every [`Snapshots::INTERVAL`], in bounded time.
    //!
    //! Neither contains a token, a text, a salt or a user's name: only shapes, counts, bytes and
    //! times. They cover all tenants together: they are meant for the operator, not for the
    //! tenants.

    pub use crate::engine::Snapshots;
    pub use crate::telemetry::{Budgets, EngineEvent, Events, Snapshot, SpanView, StepView};
    pub use motet_core::scheduler::DraftCounts;
    pub use motet_core::snapshot::{
        SchedulerSnapshot, SequenceView, Stage, Tier, TrieNode, TrieView, UserView,
    };
}

/// Text and tokens: conversations, their templates, tools, and the tokenizer.
#[cfg(feature = "text")]
pub mod text {
    pub use motet_text::{
        Chat, ChatTemplate, Message, TextCodec, TextError, Tokenizer, Tool, ToolChoice, ToolError,
        ToolPart,
    };
}

#[cfg(feature = "tower")]
pub use engine::EngineService;
pub use engine::{
    BlockBatch, BlockEvents, DeviceBudget, Engine, EngineBuilder, Health, HealthState, KeptOutputs,
    Shutdown,
};
pub use handle::SequenceHandle;
pub use motet_core::config;
pub use motet_protocol::{CopyId, PinId, SequenceId, TokenId, UserId};
pub use request::Request;
pub use results::ResultsReservation;
#[cfg(motet_injected)]
pub use runtime::injected::{failpoint, simulation};
pub use stream::TokenStream;
pub use telemetry::EngineStats;
