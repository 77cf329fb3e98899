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
//! **What.** A *copy* is the state of one segment, as the pager holds it in host memory. It is stored
//! under a name that follows from the model, the salt and the tokens, in parts of [`PART_BYTES`]; its
//! head, written last, says that all parts are there. A *mark* leads from a prefix to the copies that
//! hold its state: there is one for each offset of the grid within a copy's tokens. A prefix is found
//! by its longest mark, in about three rounds of questions for a prompt of 100,000 tokens.
//!
//! Nothing is ever removed, apart from what is damaged: the store drops what is used least (Redis:
//! `maxmemory-policy allkeys-lru`; S3: a lifecycle rule). What it has dropped is computed again, and
//! stored again.
//!
//! **Security.** All bytes are sealed (AES-256-GCM-SIV, RFC 8452), under a key that follows from the
//! fleet's secret, the model and the salt (HKDF, RFC 5869), and bound to their name. Names are HMACs
//! under the secret. So the store, and whoever reads or writes it, learns neither tokens nor salts,
//! cannot confirm a guess, and cannot make a machine of the fleet load what no machine of the fleet has
//! written there. It learns sizes, and when equal prefixes are used. It can drop bytes, and it can
//! bring back older ones of the same name, which are state of the same tokens.

#![forbid(unsafe_code)]

mod find;
mod names;
mod open;
mod seal;
mod secret;
mod stored;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use motet_protocol::Label;
use motet_protocol::pager::Ask;
use motet_protocol::remote::{RemoteCall, RemoteError, RemoteModel, RemoteTier};
use opendal::{ErrorKind, Operator};

use names::{Name, Names};
pub use open::OpenError;
use seal::{Sealer, Version};
pub use secret::{Secret, SecretError};
use stored::{Head, Link, Mark, MarkEntry};

/// Bytes of a part of a copy, before it is sealed; the last part may have fewer.
pub const PART_BYTES: usize = 4 << 20;

/// Most parts, or marks, that one call reads or writes at the same time.
const CALLS_MAX: usize = 8;

/// A shared tier in one store.
pub struct Remote {
    store: Operator,
    secret: Secret,
    names: Names,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.store.info();
        write!(f, "Remote({} {})", info.scheme(), info.name())
    }
}

impl Remote {
    /// A tier in this store. The operator should bound the time of its calls.
    #[must_use]
    pub fn new(store: Operator, secret: &Secret) -> Self {
        Self {
            store,
            names: Names::of(secret),
            secret: secret.clone(),
        }
    }

    async fn load_copy(
        &self,
        model: &RemoteModel,
        label: &Label,
        into: &mut [u8],
    ) -> Result<(), RemoteError> {
        let name = self.names.copy(model, label);
        let sealer = Sealer::new(&self.secret, model, label.salt);
        let head = self.head(&sealer, &name).await?;
        let head = head.ok_or(RemoteError::Missing)?;
        let loaded = self.load_parts(&sealer, &name, head.version, into).await;
        if loaded.as_ref().is_err_and(RemoteError::is_lost) {
            // The next process that has the state stores it again.
            self.remove(&name.head()).await;
        }
        loaded
    }

    async fn load_parts(
        &self,
        sealer: &Sealer,
        name: &Name,
        version: Version,
        into: &mut [u8],
    ) -> Result<(), RemoteError> {
        let parts = into.chunks_mut(PART_BYTES).enumerate();
        let loads = parts.map(|(number, into)| async move {
            let part = name.part(version, number);
            let sealed = self
                .read_part(&part, Sealer::sealed_bytes(into.len()))
                .await?;
            sealer.open_into(&part, &sealed, into)
        });
        all(loads.collect()).await
    }

    async fn store_copy(
        &self,
        model: &RemoteModel,
        path: &[Arc<Label>],
        label: &Label,
        bytes: &[u8],
    ) -> Result<(), RemoteError> {
        let sealer = Sealer::new(&self.secret, model, label.salt);
        let name = self.names.copy(model, label);
        if !self.exists(&name.head()).await? {
            let version = Version::random()?;
            let parts = bytes.chunks(PART_BYTES).enumerate();
            let sealer = &sealer;
            let stores = parts.map(|(number, bytes)| async move {
                let part = name.part(version, number);
                let sealed = sealer.seal(&part, bytes)?;
                self.write(&part, sealed).await
            });
            all(stores.collect()).await?;
            let head = Head {
                version,
                tokens: label.tokens.to_vec(),
            };
            self.write_sealed(sealer, &name.head(), &head).await?;
        }
        self.store_marks(&sealer, model, path, label).await
    }

    /// Leads from each prefix that ends within the copy's tokens, on the grid, to the copy.
    async fn store_marks(
        &self,
        sealer: &Sealer,
        model: &RemoteModel,
        path: &[Arc<Label>],
        label: &Label,
    ) -> Result<(), RemoteError> {
        let links = path.iter().map(|label| &**label).chain([label]);
        let links = links.map(|label| Link::new(label, self.names.copy(model, label)));
        let links: Vec<Link> = links.collect();
        if links.len() > Mark::LINKS_MAX {
            return Ok(());
        }
        let tokens = stored::path_tokens(path, label)?;
        let grid = model.grid_tokens;
        let ends = (label.start / grid + 1)..=(label.end() / grid);
        // Copies that serve as a whole are found by the last offset within them.
        let ends = if model.whole {
            ends.clone().last().map_or(1..=0, |last| last..=last)
        } else {
            ends
        };
        let digests = find::digests(label.salt, &tokens, grid);
        let marks = ends.map(|number| {
            let at = number * grid;
            let entry = MarkEntry {
                links: links.clone(),
                next_tokens: tokens[at..tokens.len().min(at + grid - 1)].to_vec(),
            };
            let mark = self.names.mark(model, &digests[number - 1], at);
            self.store_mark(sealer, mark, entry)
        });
        all(marks.collect()).await
    }

    async fn store_mark(
        &self,
        sealer: &Sealer,
        name: String,
        entry: MarkEntry,
    ) -> Result<(), RemoteError> {
        let mut mark = self.mark(sealer, &name).await?.unwrap_or_default();
        if mark.insert(entry) {
            self.write_sealed(sealer, &name, &mark).await?;
        }
        Ok(())
    }

    /// Reads a mark. One that is damaged counts as absent, and is written again.
    async fn mark(&self, sealer: &Sealer, name: &str) -> Result<Option<Mark>, RemoteError> {
        let Some(sealed) = self.read(name).await? else {
            return Ok(None);
        };
        match sealer.open(name, &sealed).and_then(Mark::read) {
            Ok(mark) => Ok(Some(mark)),
            Err(error) => {
                tracing::warn!("a mark of the remote tier is ignored: {error}");
                Ok(None)
            }
        }
    }

    /// Reads a copy's head. One that is damaged is removed, so that the copy is stored again.
    async fn head(&self, sealer: &Sealer, name: &Name) -> Result<Option<Head>, RemoteError> {
        let name = name.head();
        let Some(sealed) = self.read(&name).await? else {
            return Ok(None);
        };
        let head = sealer.open(&name, &sealed).and_then(Head::read);
        if head.is_err() {
            self.remove(&name).await;
        }
        head.map(Some)
    }

    async fn write_sealed(
        &self,
        sealer: &Sealer,
        name: &str,
        value: &impl serde::Serialize,
    ) -> Result<(), RemoteError> {
        let bytes = postcard::to_allocvec(value).map_err(failed)?;
        self.write(name, sealer.seal(name, &bytes)?).await
    }

    async fn exists(&self, name: &str) -> Result<bool, RemoteError> {
        self.store.exists(name).await.map_err(failed)
    }

    async fn read(&self, name: &str) -> Result<Option<opendal::Buffer>, RemoteError> {
        match self.store.read(name).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    /// Reads the first bytes of a part, as many as it should have.
    async fn read_part(&self, name: &str, bytes: usize) -> Result<opendal::Buffer, RemoteError> {
        let read = self.store.read_with(name).range(0..bytes as u64).await;
        read.map_err(|error| match error.kind() {
            ErrorKind::NotFound => RemoteError::Missing,
            ErrorKind::RangeNotSatisfied => seal::damaged("a part is too short"),
            _ => failed(error),
        })
    }

    async fn write(&self, name: &str, bytes: Vec<u8>) -> Result<(), RemoteError> {
        let written = self.store.write(name, bytes).await;
        written.map(drop).map_err(failed)
    }

    /// Removes what is damaged. If that fails, it is found again, and removed then.
    async fn remove(&self, name: &str) {
        self.store.delete(name).await.ok();
    }
}

/// Makes these calls, a few at the same time, until all have ended or one has failed.
async fn all(calls: Vec<impl Future<Output = Result<(), RemoteError>>>) -> Result<(), RemoteError> {
    let calls = stream::iter(calls).buffer_unordered(CALLS_MAX);
    calls.try_collect().await
}

fn failed(error: impl fmt::Display) -> RemoteError {
    RemoteError::Failed {
        what: error.to_string(),
    }
}

impl RemoteTier for Remote {
    fn find<'a>(&'a self, model: &'a RemoteModel, ask: &'a Ask) -> RemoteCall<'a, Vec<Label>> {
        Box::pin(self.find_copies(model, ask))
    }

    fn load<'a>(
        &'a self,
        model: &'a RemoteModel,
        label: &'a Label,
        into: &'a mut [u8],
    ) -> RemoteCall<'a, ()> {
        Box::pin(self.load_copy(model, label, into))
    }

    fn store<'a>(
        &'a self,
        model: &'a RemoteModel,
        path: &'a [Arc<Label>],
        label: &'a Label,
        bytes: &'a [u8],
    ) -> RemoteCall<'a, ()> {
        Box::pin(self.store_copy(model, path, label, bytes))
    }
}
