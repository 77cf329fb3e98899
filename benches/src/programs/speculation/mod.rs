//! The gain of speculation: outputs that are known beforehand, with drafts and without.
//!
//! A model of 1.5 billion weights does not edit a file without mistakes, nor does it repeat the
//! answers of a trace. The model runs as always, and a script replaces the tokens that it samples.
//! A step costs what it costs, drafts are right where the script goes on as they say, and each run
//! has the same output.
//!
//! | file | content |
//! |---|---|
//! | `scripted.rs` | a model whose samples a script replaces |
//! | `texts.rs` | prose, an edited file, an answer with quotes |
//! | `agents.rs` | the recorded answers of agents |
//! | `draft_model.rs` | answers with a draft model, which no script replaces |
//! | `tokens.rs` | the tokens that drafts change: none |
//! | `load.rs` | runs a load, with drafts and without |

pub(crate) mod agents;
pub(crate) mod draft_model;
mod load;
mod scripted;
pub(crate) mod texts;
pub(crate) mod tokens;

use motet::TokenId;

/// A prompt, and the output that follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) output: Vec<TokenId>,
}
