//! `cargo xtask parity`: models against other implementations of them.
//!
//! | file | idea |
//! |---|---|
//! | `table.rs` | every family's fixture against its reference: the table of docs/models.md |
//! | `next_token.rs` | a real model's next token against llama.cpp's on the same file |

mod next_token;
mod table;

use anyhow::Result;

use crate::model::Model;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print the table, and leave docs/models.md as it is
    #[arg(long, conflicts_with = "model")]
    print_only: bool,
    /// Instead, compare this model's log probabilities with those of llama-server
    /// ($MOTET_LLAMA_SERVER, or on PATH) on the same file
    #[arg(long, value_name = "NAME", value_enum)]
    model: Option<Model>,
}

pub(crate) fn command(arguments: &Arguments) -> Result<()> {
    match arguments.model {
        Some(model) => next_token::command(model),
        None => table::command(arguments.print_only),
    }
}
