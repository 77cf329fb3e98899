//! Runs of recovery. Everything runs on a model on MLX. Without a model it runs on an oracle of
//! similar speed, which only shows that the measurement works.
//!
//! | file | content |
//! |---|---|
//! | `injection.rs` | additions of `--cfg motet_injected` to an engine |
//! | `killed.rs` | engines whose device thread can be killed |
//! | `pause.rs` | the longest gap of live streams, and its parts |
//! | `tokens.rs` | streams that are killed repeatedly, beside undisturbed ones |
//! | `overhead.rs` | decoding with everything that a recovery needs, and without |

mod injection;
mod killed;
pub(crate) mod overhead;
pub(crate) mod pause;
pub(crate) mod tokens;
