//! A tier of Motet's cache that machines share: what one of them has computed, the others load.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use motet_remote::{Remote, Secret};
//!
//! let secret = Secret::read("fleet.secret".as_ref())?;
//! let tier = Remote::open("redis://10.0.0.5:6379", &secret).await?;
//! // builder.remote_tier(std::sync::Arc::new(tier))
//! # Ok(())
//! # }
//! ```
//!
//! **Where.** `redis://HOST:PORT/DB`, `rediss://` with TLS, `s3://BUCKET/FOLDER?region=…&endpoint=…`
//! (feature `s3`), `fs:///FOLDER` for a folder that machines mount, and `memory://` for tests. The
//! stores are those of [Apache OpenDAL](https://opendal.apache.org), whose options a URL may name.
//! [`Remote::new`] takes any other of its operators.
//!
//! **Content.** A *copy* is the state of one segment, as the pager holds it in host memory. It is stored
//! under a name that follows from the model, the salt and the tokens, in parts of [`PART_BYTES`]; its
//! head, written last, says that all parts are there. A *mark* leads from a prefix to the copies that
//! hold its state: there is one for each offset of the grid within a copy's tokens. A prefix is found
//! by its longest mark, in about three rounds of questions for a prompt of 100,000 tokens. Calls in
//! flight hold some parts beside the engine's budget of host memory: 64 MiB at most.
//!
//! Nothing is ever removed, apart from what is damaged: the store drops what is used least (Redis:
//! `maxmemory-policy allkeys-lru`; S3: a lifecycle rule). Dropped state is computed again, and stored
//! again.
//!
//! **Security.** All bytes are sealed (AES-256-GCM-SIV, RFC 8452), under a key that follows from the
//! fleet's secret, the model and the salt (HKDF, RFC 5869), and bound to their name. Names are HMACs
//! under the secret. A reader or writer of the store learns neither tokens nor salts, and cannot
//! confirm a guess. A machine of the fleet loads no bytes that no machine of the fleet has written
//! under that name. The store learns sizes, and when equal prefixes are used. It can drop bytes, and it
//! can bring back older ones of the same name, which are state of the same tokens.

#![forbid(unsafe_code)]

mod copies;
mod error;
mod find;
mod names;
mod open;
mod seal;
mod secret;
mod store;
mod stored;
#[cfg(test)]
mod tests;
mod tier;

pub use copies::PART_BYTES;
pub use open::OpenError;
pub use secret::{Secret, SecretError};
pub use tier::Remote;
