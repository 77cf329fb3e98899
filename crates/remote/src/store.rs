//! Sealed values in a store.

use std::future::Future;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use motet_protocol::SaltDigest;
use motet_protocol::remote::{RemoteError, RemoteModel};
use opendal::{ErrorKind, Operator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{damaged, failed};
use crate::names::{Name, Names};
use crate::seal::Sealer;
use crate::secret::Secret;
use crate::stored::{Head, Mark};

/// Most parts, or marks, that one call reads or writes at the same time.
pub(crate) const CALLS_MAX: usize = 8;

/// Most bytes of a mark or a head: more than those of four million tokens.
pub(crate) const VALUE_BYTES_MAX: usize = 16 << 20;

/// A store, and the secret of the fleet that uses it.
pub(crate) struct Store {
    operator: Operator,
    secret: Secret,
    pub(crate) names: Names,
}

impl Store {
    pub(crate) fn new(operator: Operator, secret: &Secret) -> Self {
        Self {
            operator,
            names: Names::of(secret),
            secret: secret.clone(),
        }
    }

    pub(crate) fn operator(&self) -> &Operator {
        &self.operator
    }

    /// Seals and opens the state of this model and salt.
    pub(crate) fn sealer(&self, model: &RemoteModel, salt: SaltDigest) -> Sealer {
        Sealer::new(&self.secret, model, salt)
    }

    /// Reads a mark. One that is damaged counts as absent, and is written again.
    pub(crate) async fn mark(
        &self,
        sealer: &Sealer,
        name: &str,
    ) -> Result<Option<Mark>, RemoteError> {
        let mark = self.read_sealed(sealer, name).await;
        if let Err(error @ RemoteError::Damaged { .. }) = &mark {
            tracing::warn!("a mark of the remote tier is ignored: {error}");
            return Ok(None);
        }
        mark
    }

    /// Reads a copy's head. One that is damaged is removed, so that the copy is stored again.
    pub(crate) async fn head(
        &self,
        sealer: &Sealer,
        name: &Name,
    ) -> Result<Option<Head>, RemoteError> {
        let name = name.head();
        let head = self.read_sealed(sealer, &name).await;
        if let Err(RemoteError::Damaged { .. }) = &head {
            self.remove(&name).await;
        }
        head
    }

    async fn read_sealed<T: DeserializeOwned>(
        &self,
        sealer: &Sealer,
        name: &str,
    ) -> Result<Option<T>, RemoteError> {
        let Some(sealed) = self.read(name).await? else {
            return Ok(None);
        };
        let opened = sealer.open(name, &sealed)?;
        let value = postcard::from_bytes(&opened);
        value.map(Some).map_err(|_| damaged("it cannot be read"))
    }

    pub(crate) async fn write_sealed(
        &self,
        sealer: &Sealer,
        name: &str,
        value: &impl Serialize,
    ) -> Result<(), RemoteError> {
        let bytes = postcard::to_allocvec(value).map_err(failed)?;
        self.write(name, sealer.seal(name, &bytes)?).await
    }

    pub(crate) async fn exists(&self, name: &str) -> Result<bool, RemoteError> {
        self.operator.exists(name).await.map_err(failed)
    }

    /// Reads a mark or a head. One that is too long is damaged.
    pub(crate) async fn read(&self, name: &str) -> Result<Option<opendal::Buffer>, RemoteError> {
        let bytes = match self.operator.stat(name).await {
            Ok(metadata) => metadata.content_length(),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let bytes = usize::try_from(bytes)
            .ok()
            .filter(|bytes| *bytes <= VALUE_BYTES_MAX);
        let bytes = bytes.ok_or_else(|| damaged("it is too long"))?;
        match self.read_part(name, bytes).await {
            Err(RemoteError::Missing) => Ok(None),
            read => read.map(Some),
        }
    }

    /// Reads the first bytes of a part, as many as it should have.
    pub(crate) async fn read_part(
        &self,
        name: &str,
        bytes: usize,
    ) -> Result<opendal::Buffer, RemoteError> {
        let read = self.operator.read_with(name).range(0..bytes as u64).await;
        read.map_err(|error| match error.kind() {
            ErrorKind::NotFound => RemoteError::Missing,
            ErrorKind::RangeNotSatisfied => damaged("a part is too short"),
            _ => failed(error),
        })
    }

    pub(crate) async fn write(&self, name: &str, bytes: Vec<u8>) -> Result<(), RemoteError> {
        let written = self.operator.write(name, bytes).await;
        written.map(drop).map_err(failed)
    }

    /// Removes what is damaged. If that fails, it is found again, and removed then.
    pub(crate) async fn remove(&self, name: &str) {
        self.operator.delete(name).await.ok();
    }
}

/// Makes these calls, a few at the same time, and returns their answers in order.
pub(crate) async fn all<T>(
    calls: Vec<impl Future<Output = Result<T, RemoteError>>>,
) -> Result<Vec<T>, RemoteError> {
    let calls = stream::iter(calls).buffered(CALLS_MAX);
    calls.try_collect().await
}
