//! Fields, schemas and bounds that several dialects have.
//!
//! | file | content |
//! |---|---|
//! | `schemas.rs` | schemas of tokens and stop strings |
//! | `spelling.rs` | the text of tokens |
//! | `sampled_token.rs` | log probabilities of conversations: a list of tokens |

mod sampled_token;
mod schemas;
mod spelling;

use std::time::Duration;

pub(crate) use sampled_token::SampledToken;
pub(crate) use schemas::{StopList, Token, stop_string};
pub(crate) use spelling::{no_tokenizer, spell, text_bytes};

/// Longest name of a user and longest cache salt, in bytes. Each prompt has a copy.
pub(crate) const NAME_BYTES_MAX: usize = 1 << 10;
/// After this time without output, a comment keeps the connection open.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);
