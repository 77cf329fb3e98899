//! A Dynamo worker with the engine in process: see `--help`.
//!
//! ```text
//!  dynamo.frontend ── request plane ── Worker ── MotetWorker ── Engine
//!                  ◀── KV events, load ──┘
//! ```
//!
//! | file | content |
//! |---|---|
//! | `arguments.rs` | the command line |
//! | `worker.rs` | `LLMEngine`, by which Dynamo drives an engine |
//! | `request.rs` | from Dynamo's request to the engine's |
//! | `answer.rs` | from the engine's pieces to Dynamo's |
//! | `errors.rs` | errors, typed as Dynamo decides by them |
//! | `kv_events.rs` | changes of the cache, for Dynamo's router |
//! | `load.rs` | use of the cache, for Dynamo's router and metrics |

mod answer;
mod arguments;
mod errors;
mod kv_events;
mod load;
mod request;
mod worker;

use std::sync::Arc;

use anyhow::Result;
use clap::Parser;

use arguments::Arguments;
use worker::MotetWorker;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let config = arguments.worker_config()?;
    arguments.set_grace();
    dynamo_backend_common::run(Arc::new(MotetWorker::new(arguments)), config)
}
