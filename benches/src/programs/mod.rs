//! Our programs that measure on request.
//!
//! | file | content |
//! |---|---|
//! | `runs.rs` | the runs, by name |
//! | `model/` | a model alone: its steps, timed, for comparisons with peers and other modes |
//! | `scheduler/` | a virtual engine, and whole engines |
//! | `pager/` | engines with little memory |
//! | `recovery/` | engines whose device is killed |
//! | `speculation/` | an engine whose model follows a script |
//! | `engine.rs`, `arrivals.rs` | a whole engine, and a timed reader for each caller; requests and their times |
//! | `products.rs` | integer products with stored weights |
//! | `pages.rs` | engines with so many bytes, and waiting until they are idle |

mod arrivals;
mod engine;
mod model;
mod pager;
mod pages;
mod products;
mod recovery;
mod runs;
mod scheduler;
mod speculation;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::mode::Mode;
use crate::protocol::Size;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Our side of `cargo xtask bench`; run that instead.
#[derive(Parser)]
enum Command {
    /// Answer requests about this model on MLX, or the oracle
    Model {
        /// How the model computes
        #[arg(long, value_enum, default_value_t = Mode::Default)]
        mode: Mode,
        /// The file with the tokenizer, if the model has none
        #[arg(long, value_name = "FILE", requires = "model")]
        text: Option<PathBuf>,
        /// A GGUF file or a Hugging Face folder
        model: Option<PathBuf>,
    },
    /// Answer requests for runs and loads; runs that need a model use this one, on MLX
    Runs {
        /// A GGUF file or a Hugging Face folder
        model: Option<PathBuf>,
    },
    /// Show where a step's time goes
    Profile {
        /// A GGUF file or a Hugging Face folder
        model: PathBuf,
        /// Only show that it works
        #[arg(long)]
        quick: bool,
    },
    /// Print the tokens a second of a prompt and of batches, as JSON
    Speed {
        /// A GGUF file or a Hugging Face folder
        model: PathBuf,
        /// Only show that it works
        #[arg(long)]
        quick: bool,
    },
    /// Write the model as f32 safetensors for mlx-lm
    Export {
        /// A GGUF file or a Hugging Face folder
        model: PathBuf,
        /// The folder to write to, which must exist
        folder: PathBuf,
    },
}

/// Runs the command that the command line names.
#[must_use]
pub fn main() -> ExitCode {
    match command(Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn command(command: Command) -> Result<()> {
    use model::device;
    match command {
        Command::Model { model: None, .. } => {
            model::serve::serve(device::oracle()?, &device::Oracle)
        }
        Command::Model {
            mode,
            text,
            model: Some(model),
        } => device::serve(&model, text.as_deref().unwrap_or(&model), mode),
        Command::Runs { model } => runs::serve(model.as_deref()),
        Command::Profile { model, quick } => device::profile(&model, quick),
        Command::Speed { model, quick } => {
            let size = if quick { Size::Quick } else { Size::Full };
            model::speed::run(&model, size)
        }
        Command::Export { model, folder } => model::export::run(&model, &folder),
    }
}
