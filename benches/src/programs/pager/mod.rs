//! Runs of the pager. Everything runs on a model on MLX. Without a model it runs on an oracle of
//! similar speed, which only shows that the measurement works: the oracle's state is a thousandth
//! of a model's.
//!
//! | file | content |
//! |---|---|
//! | `copy.rs` | a segment's export and import, beside a plain copy of as many bytes |
//! | `decode.rs` | sequences that decode while segments are offloaded and loaded |
//! | `first_token.rs` | a prompt whose beginning only the host or the disk has |
//! | `folder.rs` | a folder for the disk tier, and the system's cache of its files |
//! | `remote.rs` | a store that machines share, in a redis-server |
//! | `oversubscribed.rs` | users whose conversations take four times the device's bytes |

pub(crate) mod copy;
pub(crate) mod decode;
pub(crate) mod first_token;
mod folder;
pub(crate) mod oversubscribed;
pub(crate) mod remote;
